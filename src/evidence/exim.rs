//! Exim's main log, line by line: what became of each mail that is one of ours (the Exim specification, chapter "Log files").
//!
//! Pure, and bounded in memory. The arrival line, `<=`, is written once the message is in the spool: that is acceptance.

use serde::{Deserialize, Serialize};

use super::follow::{Clock, Found, Open, found, id_of};
use crate::domain::evidence::Proof;

/// Follows message ids of Exim's through a log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Follower {
    open: Open,
}

impl Follower {
    /// Messages that were pushed out while they were followed.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.open.forgotten
    }

    /// Reads a line; most prove nothing. Ours is mail whose Message-ID is a notification's id at `domain`.
    pub fn read(&mut self, line: &str, domain: &str, clock: &mut Clock) -> Option<Found> {
        let line = Line::parse(line)?;
        let at = clock.read(line.time);
        match line.flag {
            "<=" => {
                self.open.forget(line.id);
                // In the order of the specification; what a sender can choose, such as the subject, comes after it.
                let message_id = line.rest.split(' ').find_map(|field| field.strip_prefix("id="))?;
                self.open.follow(line.id, id_of(message_id, domain)?, true);
                found(*self.open.get_mut(line.id)?, line.id, at, Proof::Accepted, "<=")
            }
            "=>" | "->" => {
                let followed = *self.open.get_mut(line.id)?;
                // To another host: it took it, which is no more than that it was accepted here. To nowhere: nobody has it.
                let elsewhere = line.rest.contains(" H=") || line.rest.starts_with(':');
                if elsewhere { None } else { found(followed, line.id, at, Proof::Delivered, line.rest) }
            }
            "**" => found(*self.open.get_mut(line.id)?, line.id, at, Proof::Bounced, line.rest),
            "Completed" => {
                self.open.forget(line.id);
                None
            }
            _ => None,
        }
    }
}

/// `DATE TIME [OFFSET] [[PID]] ID FLAG REST`, perhaps after what syslog puts before it.
struct Line<'l> {
    time: &'l str,
    id: &'l str,
    flag: &'l str,
    rest: &'l str,
}

impl<'l> Line<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let line = line.trim_end();
        // Found by the id: before it is a time in one of several forms, after it the flag.
        let mut at = 0;
        for word in line.split(' ').take(12) {
            let after = at + word.len();
            if is_id(word) {
                let rest = line.get(after..)?.trim_start();
                let (flag, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                return Some(Self { time: time_before(line.get(..at)?), id: word, flag, rest });
            }
            at = after + 1;
        }
        None
    }
}

/// The time in what stands before the id: without the process id, and without syslog's words where Exim's own time follows them.
fn time_before(text: &str) -> &str {
    let text = text.trim_end();
    let text = match text.rsplit_once(" [") {
        Some((before, pid)) if pid.ends_with(']') => before,
        _ => text,
    };
    match text.rsplit_once("]: ") {
        Some((_, own)) if !own.trim().is_empty() => own.trim(),
        _ => {
            // `Dec  1 10:00:00 HOST exim[1]:`, or a time alone.
            let words = text.trim_end_matches(':');
            match words.rsplit_once(" exim[") {
                Some((before, _)) => before.rsplit_once(' ').map_or(before, |(time, _host)| time),
                None => text,
            }
        }
    }
}

/// `xxxxxx-xxxxxx-xx`, or since Exim 4.97 `xxxxxx-xxxxxxxxxxx-xxxx`.
fn is_id(word: &str) -> bool {
    let lengths: Vec<usize> = word.split('-').map(str::len).collect();
    (lengths == [6, 6, 2] || lengths == [6, 11, 4])
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::{OffsetDateTime, UtcOffset};

    use super::*;

    const ID: &str = "01a230e5-9f38-7878-abaa-63e052288578";

    fn read(lines: &[&str]) -> Vec<Found> {
        let mut clock = Clock::new(UtcOffset::UTC, OffsetDateTime::from_unix_timestamp(1_796_126_400).unwrap());
        let mut follower = Follower::default();
        lines.iter().filter_map(|line| follower.read(line, "mail.example.org", &mut clock)).collect()
    }

    fn proofs(lines: &[&str]) -> Vec<Proof> {
        read(lines).into_iter().map(|found| found.proof).collect()
    }

    fn arrival() -> String {
        format!(
            "2026-12-01 10:00:00 1dJ08B-0003oP-5i <= shop@example.org H=app.example.org (app) [192.0.2.10] P=esmtp S=1364 \
             id={ID}@mail.example.org"
        )
    }

    #[test]
    fn arrival_is_acceptance_and_what_became_of_it_follows() {
        let arrival = arrival();
        assert_eq!(proofs(&[&arrival]), [Proof::Accepted]);
        for (line, proof) in [
            ("=> jo <jo@example.net> R=local_user T=maildir_home", Some(Proof::Delivered)),
            ("-> jo <jo@example.net> R=local_user T=maildir_home", Some(Proof::Delivered)),
            ("=> jo@example.net R=dnslookup T=remote_smtp H=mx.example.net [192.0.2.1] C=\"250 OK\"", None),
            ("=> :blackhole: <jo@example.net> R=system_aliases", None),
            ("== jo@example.net R=dnslookup T=remote_smtp defer (-53): retry time not reached for any host", None),
            (
                "** jo@example.net R=dnslookup T=remote_smtp H=mx.example.net [192.0.2.1]: SMTP error from remote mail server \
                 after RCPT TO:<jo@example.net>: 550 no such user",
                Some(Proof::Bounced),
            ),
            ("Completed", None),
            ("Message is frozen", None),
        ] {
            let line = format!("2026-12-01 10:00:01 1dJ08B-0003oP-5i {line}");
            assert_eq!(proofs(&[&arrival, &line])[1..], Vec::from_iter(proof), "{line}");
            assert_eq!(proofs(&[&line]), [], "whose it is was not told");
        }
        let late = "2026-12-01 10:00:02 1dJ08B-0003oP-5i ** jo@example.net: x";
        assert_eq!(proofs(&[&arrival, "2026-12-01 10:00:01 1dJ08B-0003oP-5i Completed", late]), [Proof::Accepted]);
    }

    #[test]
    fn every_form_of_a_line_is_read() {
        for line in [
            arrival(),
            arrival().replace("1dJ08B-0003oP-5i", "1rPSaX-00000000abc-1abc"),
            arrival().replace("10:00:00 ", "10:00:00.123 "),
            arrival().replace("10:00:00 ", "10:00:00 +0000 "),
            arrival().replace("10:00:00 ", "12:00:00 +0200 [28235] "),
            format!("Dec  1 10:00:00 ns1 exim[48067]: {}", arrival().replace("2026-12-01 10:00:00 ", "")),
            format!("Dec  1 09:59:58 ns1 exim[48067]: {}", arrival()),
        ] {
            let found = read(&[&line]);
            assert_eq!(found.len(), 1, "{line}");
            assert_eq!(found[0].at.map(OffsetDateTime::unix_timestamp), Some(1_796_119_200), "{line}");
        }
        let mail_of_others = arrival().replace("mail.example.org", "elsewhere.example");
        let without_id = arrival().replace(" id=", " T=\"x\" Xid=");
        for line in [
            mail_of_others.as_str(),
            &without_id,
            "",
            "1dJ08B-0003oP-5i",
            "a b c d e f g h i j k l m n o",
            "2026-12-01 10:00:00 cwd=/",
        ] {
            assert_eq!(read(&[line]), [], "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_fail(lines in proptest::collection::vec(any::<String>(), 0..20), rest in any::<String>()) {
            let own = [arrival(), format!("{rest} 1dJ08B-0003oP-5i {rest}"), format!("2026-12-01 10:00:00 1dJ08B-0003oP-5i {rest}")];
            let all: Vec<&str> = lines.iter().chain(&own).map(String::as_str).collect();
            let _ = read(&all);
        }
    }
}
