//! A mail server's log as a source: every line read, what it proves recorded, and, where the log is said to be complete, what
//! its silence proves.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufRead};

use serde::Serialize;
use serde_json::json;
use time::OffsetDateTime;

use super::follow::{Clock, Found};
use super::position::State;
use crate::domain::evidence::{Kind, Proof};
use crate::domain::ids::NotificationId;
use crate::store::evidence::{NewEvidence, Recorded};
use crate::store::{Line, StoreError};

/// Octets of a line that are read; the rest of a longer one is passed over. Postfix cuts its own at 2,000.
const LINE_MAX_OCTETS: usize = 16 * 1024;

/// Ids of accepted mail that are kept for what silence proves.
const ACCEPTED_MAX: usize = 5_000_000;

/// How far ahead of this machine's clock a log's may be.
const FUTURE_MAX: time::Duration = time::Duration::minutes(2);

/// What reading came to.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Lines read.
    pub lines: u64,
    /// Pieces of evidence that were new.
    pub new: u64,
    /// Pieces that were on record already.
    pub known: u64,
    /// Pieces about notifications that are not, or no longer, in the database, or that were never begun.
    pub unknown: u64,
    /// Pieces that disagree with the record.
    pub contradictions: u64,
    /// Attempts that a complete log proves not to have been accepted.
    pub not_accepted: u64,
    /// Notifications moved: from, to, how many.
    pub moved: BTreeMap<String, u64>,
    /// Queue ids that were lost sight of.
    pub forgotten: u64,
    /// Logs that were rotated away before they were read to their end.
    pub lost: u64,
}

/// Records what logs prove.
#[derive(Debug)]
pub struct Reader<'r> {
    line: &'r mut Line,
    domain: String,
    clock: Clock,
    /// The mail that is followed, and how far each log was read.
    pub state: State,
    provider: Option<String>,
    recorded_by: String,
    accepted: HashSet<NotificationId>,
    summary: Summary,
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The log cannot be read.
    #[error("the log cannot be read: {0}")]
    Log(#[from] io::Error),
    /// Nothing can be concluded from what the log does not say. What it does say is recorded.
    #[error("nothing is concluded from the log's silence: {0}")]
    Silent(&'static str),
    /// The database cannot be written. What was recorded stays; reading the same log again does the rest.
    #[error("evidence cannot be recorded: {0}")]
    Store(#[from] StoreError),
}

impl<'r> Reader<'r> {
    /// A reader that goes on from `state` and records through `line`, as evidence about attempts with `provider` where that is
    /// given. Ours is mail whose Message-ID is a notification's id at `domain`.
    pub fn new(
        line: &'r mut Line,
        domain: &str,
        clock: Clock,
        state: State,
        provider: Option<String>,
        recorded_by: String,
    ) -> Self {
        let domain = domain.to_owned();
        Self {
            line,
            domain,
            clock,
            state,
            provider,
            recorded_by,
            accepted: HashSet::new(),
            summary: Summary::default(),
        }
    }

    /// Reads a log to the end of its last whole line. Returns how many octets that were.
    ///
    /// # Errors
    /// When the log cannot be read or the database not written.
    pub async fn read(&mut self, log: &mut (dyn BufRead + Send)) -> Result<u64, ReadError> {
        let mut octets = Vec::new();
        let mut read = 0;
        while let Some(length) = next_line(log, &mut octets)? {
            self.summary.lines += 1;
            read += length;
            // Servers' replies can be of any character set; ids and keywords are ASCII.
            let text = String::from_utf8_lossy(&octets);
            if let Some(found) = self.state.postfix.read(&text, &self.domain, &mut self.clock) {
                self.record(found, "postfix").await?;
            } else if let Some(found) = self.state.exim.read(&text, &self.domain, &mut self.clock) {
                self.record(found, "exim").await?;
            }
        }
        Ok(read)
    }

    /// Takes note that a log was rotated away before it was read to its end.
    pub fn lost(&mut self) {
        self.summary.lost += 1;
    }

    async fn record(&mut self, found: Found, server: &str) -> Result<(), ReadError> {
        if self.accepted.len() < ACCEPTED_MAX {
            self.accepted.insert(found.id);
        }
        let evidence = NewEvidence {
            id: found.id,
            account_id: None,
            attempt: None,
            provider: self.provider.clone(),
            kind: Kind::MailLog,
            proof: found.proof,
            for_good: found.for_good,
            source: server.to_owned(),
            reference: found.queue_id,
            detail: json!({ "words": found.words }),
            happened_at: found.at,
            recorded_by: self.recorded_by.clone(),
        };
        self.count(&evidence).await
    }

    async fn count(&mut self, evidence: &NewEvidence) -> Result<(), ReadError> {
        match self.line.record_evidence(evidence).await? {
            Recorded::UnknownNotification | Recorded::NoAttempt => self.summary.unknown += 1,
            Recorded::AlreadyKnown(_) => self.summary.known += 1,
            Recorded::New { before, after, contradiction } => {
                self.summary.new += 1;
                self.summary.contradictions += u64::from(contradiction);
                if before != after {
                    *self.summary.moved.entry(format!("{before} to {after}")).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes the silence of what was read for proof: the logs hold every line between their first and last, so that an attempt
    /// with this provider which began in that time, with `margin` to both ends, and of which there is no acceptance, was not
    /// accepted. Whether that is so, only the operator can say.
    ///
    /// # Errors
    /// When the database fails, or nothing can be concluded.
    pub async fn conclude(&mut self, provider: &str, margin: time::Duration) -> Result<(), ReadError> {
        let Some((first, last)) = self.clock.range else {
            return Err(ReadError::Silent("it has no line of a mail server"));
        };
        // Whatever was lost sight of could have been accepted.
        if self.forgotten() > 0 || self.summary.lost > 0 || self.accepted.len() >= ACCEPTED_MAX {
            return Err(ReadError::Silent("part of it was lost sight of: read it in smaller parts"));
        }
        if last > self.clock.now + FUTURE_MAX {
            return Err(ReadError::Silent("its times lie in the future: give the right --utc-offset"));
        }
        if self.accepted.is_empty() {
            return Err(ReadError::Silent("no mail of ours is in it: is it this provider's log, and --domain right?"));
        }
        let (from, to): (OffsetDateTime, OffsetDateTime) = (first + margin, last - margin);
        for (id, number) in self.line.doubtful_attempts(provider, from, to).await? {
            if self.accepted.contains(&id) || self.state.postfix.undecided.contains(&id) {
                continue;
            }
            let evidence = NewEvidence {
                id,
                account_id: None,
                attempt: Some(number),
                provider: Some(provider.to_owned()),
                kind: Kind::MailLog,
                proof: Proof::NotAccepted,
                for_good: false,
                source: "mail log".to_owned(),
                reference: "complete log".to_owned(),
                detail: json!({ "from": first.to_string(), "to": last.to_string() }),
                happened_at: None,
                recorded_by: self.recorded_by.clone(),
            };
            self.summary.not_accepted += 1;
            self.count(&evidence).await?;
        }
        Ok(())
    }

    fn forgotten(&self) -> u64 {
        self.state.postfix.forgotten() + self.state.exim.forgotten()
    }

    /// What it all came to.
    #[must_use]
    pub fn end(mut self) -> Summary {
        self.summary.forgotten = self.forgotten();
        self.summary
    }
}

/// Reads a line into `octets`, without what is beyond [`LINE_MAX_OCTETS`]. Returns its length with its end; `None` at the end of the
/// log. A last line without an end is still being written, and counts for nothing until it is whole.
fn next_line(log: &mut (dyn BufRead + Send), octets: &mut Vec<u8>) -> io::Result<Option<u64>> {
    octets.clear();
    let mut length = 0;
    loop {
        let buffer = match log.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            return Ok(None);
        }
        let (piece, ended) = match buffer.iter().position(|octet| *octet == b'\n') {
            Some(end) => (&buffer[..end], true),
            None => (buffer, false),
        };
        let room = LINE_MAX_OCTETS.saturating_sub(octets.len());
        octets.extend_from_slice(&piece[..piece.len().min(room)]);
        let used = piece.len() + usize::from(ended);
        length += used as u64;
        log.consume(used);
        if ended {
            return Ok(Some(length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_and_content_are_read_one_by_one() {
        let long = "x".repeat(LINE_MAX_OCTETS + 10);
        let text = format!("one\n\n{long}\nlast\nunfinished");
        let mut log = io::BufReader::with_capacity(7, text.as_bytes());
        let mut octets = Vec::new();
        let mut lengths = Vec::new();
        let mut read = 0;
        while let Some(length) = next_line(&mut log, &mut octets).unwrap() {
            lengths.push(octets.len());
            read += length;
        }
        assert_eq!(lengths, [3, 0, LINE_MAX_OCTETS, 4]);
        assert_eq!(read as usize, text.len() - "unfinished".len());
    }
}
