//! Mailboxes as a source: every message read, and what it says about a mail of ours recorded.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::bounce::{Bounce, Found, Ours, read};
use crate::domain::evidence::Kind;
use crate::store::evidence::{NewEvidence, Recorded};
use crate::store::{Line, StoreError};

/// The longest message that is read, in octets: a bounce may hold all of what came back.
pub const MESSAGE_MAX_OCTETS: usize = 40 * 1024 * 1024;

/// What reading came to.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Messages read.
    pub messages: u64,
    /// Delivery reports about mail of ours.
    pub reports: u64,
    /// Other messages that came to a bounce address of ours.
    pub other: u64,
    /// Messages that are not about mail of ours.
    pub not_ours: u64,
    /// Pieces of evidence that were new.
    pub new: u64,
    /// Pieces that were on record already.
    pub known: u64,
    /// Pieces about notifications that are not, or no longer, in the database, or that were never begun.
    pub unknown: u64,
    /// Pieces that disagree with the record.
    pub contradictions: u64,
    /// Messages that were too long, or gone before they were read.
    pub passed_over: u64,
    /// Notifications moved: from, to, how many.
    pub moved: BTreeMap<String, u64>,
}

/// Records what messages say.
#[derive(Debug)]
pub struct Recorder<'r> {
    line: &'r mut Line,
    ours: Ours,
    provider: Option<String>,
    recorded_by: String,
    /// What it came to so far.
    pub summary: Summary,
}

impl<'r> Recorder<'r> {
    /// One that records through `line`, as evidence about attempts with `provider` where that is given.
    pub fn new(line: &'r mut Line, ours: Ours, provider: Option<String>, recorded_by: String) -> Self {
        Self { line, ours, provider, recorded_by, summary: Summary::default() }
    }

    /// Reads a message. Once it returns, everything that the message says is on record.
    ///
    /// # Errors
    /// When the database cannot be written; reading the message again does the rest.
    pub async fn message(&mut self, octets: &[u8]) -> Result<(), StoreError> {
        self.summary.messages += 1;
        let findings = match read(octets, &self.ours) {
            Bounce::NotOurs => {
                self.summary.not_ours += 1;
                return Ok(());
            }
            Bounce::Report(findings) => {
                self.summary.reports += 1;
                findings
            }
            Bounce::Other(found) => {
                self.summary.other += 1;
                vec![found]
            }
        };
        for found in findings {
            self.record(found).await?;
        }
        Ok(())
    }

    async fn record(&mut self, found: Found) -> Result<(), StoreError> {
        let evidence = NewEvidence {
            id: found.id,
            account_id: None,
            attempt: None,
            provider: self.provider.clone(),
            kind: Kind::Bounce,
            proof: found.proof,
            for_good: false,
            source: "bounce".to_owned(),
            reference: found.reference,
            detail: json!({ "status": found.status, "words": found.words }),
            happened_at: found.at,
            recorded_by: self.recorded_by.clone(),
        };
        match self.line.record_evidence(&evidence).await? {
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
}

/// The messages of a maildir that nobody has read: all in `new`, and those in `cur` without the flag `S`, by name.
///
/// # Errors
/// When it cannot be read, or is no maildir.
pub fn unread(maildir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["new", "cur"] {
        for entry in std::fs::read_dir(maildir.join(folder))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let seen = name.rsplit_once(":2,").is_some_and(|(_, flags)| flags.contains('S'));
            if !name.starts_with('.') && !seen {
                found.push(path);
            }
        }
    }
    found.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    Ok(found)
}

/// Marks a message of a maildir as read: in `cur`, with the flag `S`.
///
/// # Errors
/// When it cannot be renamed; then it is read again next time.
pub fn mark(maildir: &Path, message: &Path) -> io::Result<()> {
    let name = message.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Flags are in the order of their letters.
    let name = match name.rsplit_once(":2,") {
        Some((unique, flags)) => {
            let mut flags: Vec<char> = flags.chars().chain(['S']).collect();
            flags.sort_unstable();
            format!("{unique}:2,{}", flags.into_iter().collect::<String>())
        }
        None => format!("{name}:2,S"),
    };
    std::fs::rename(message, maildir.join("cur").join(name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_marked_in_a_maildir_is_not_read_again() {
        let directory = tempfile::TempDir::new().unwrap();
        let maildir = directory.path();
        for folder in ["new", "cur", "tmp"] {
            fs::create_dir(maildir.join(folder)).unwrap();
        }
        for name in ["new/2.a.host", "cur/1.b.host:2,F", "cur/3.c.host:2,S", "new/.hidden", "tmp/4.d.host"] {
            fs::write(maildir.join(name), "x").unwrap();
        }
        let found = unread(maildir).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(maildir).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["cur/1.b.host:2,F", "new/2.a.host"]);
        for message in &found {
            mark(maildir, message).unwrap();
        }
        assert_eq!(unread(maildir).unwrap(), Vec::<PathBuf>::new());
        assert!(maildir.join("cur/1.b.host:2,FS").exists() && maildir.join("cur/2.a.host:2,S").exists());
        assert!(unread(&maildir.join("nowhere")).is_err());
    }
}
