//! Postfix's log, line by line: what became of each mail that is one of ours.
//!
//! Pure, and bounded in memory. A `message-id=` line alone proves nothing: cleanup writes it for mail that is then refused, too.
//! Acceptance is the queue manager's `(queue active)` for the same queue id.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::follow::{Clock, Found, Open, found, id_of};
use crate::domain::evidence::Proof;
use crate::domain::ids::NotificationId;

/// Follows queue ids through a log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Follower {
    open: Open,
    /// What came in, and was neither seen to be accepted nor to be rejected: on hold, in quarantine, or cut off.
    #[serde(skip)]
    pub undecided: HashSet<NotificationId>,
}

impl Follower {
    /// Queue ids that were pushed out while they were followed.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.open.forgotten
    }

    /// Reads a line; most prove nothing. Ours is mail whose Message-ID is a notification's id at `domain`.
    pub fn read(&mut self, line: &str, domain: &str, clock: &mut Clock) -> Option<Found> {
        let line = Line::parse(line)?;
        let at = clock.read(line.time);
        if let Some(message_id) = line.rest.strip_prefix("message-id=").filter(|_| line.service == "cleanup") {
            self.open.forget(line.queue_id);
            let id = id_of(message_id.strip_prefix('<')?.strip_suffix('>')?, domain)?;
            self.open.follow(line.queue_id, id, false);
            self.undecided.insert(id);
            return None;
        }
        if line.rest == "removed" && line.service == "qmgr" {
            self.open.forget(line.queue_id);
            return None;
        }
        let followed = self.open.get_mut(line.queue_id)?;
        if line.service == "qmgr" && line.rest.ends_with("(queue active)") {
            if followed.accepted {
                // Once more for each retry of a deferred mail.
                return None;
            }
            followed.accepted = true;
            self.undecided.remove(&followed.id);
            return found(*followed, line.queue_id, at, Proof::Accepted, "queue active");
        }
        if ["reject: ", "milter-reject: "].iter().any(|word| line.rest.starts_with(word)) && !followed.accepted {
            self.undecided.remove(&followed.id);
            return None;
        }
        let status = line.rest.split(", status=").nth(1)?;
        let proof = match (status.split([' ', '(']).next()?, line.service) {
            ("sent", "local" | "virtual" | "lmtp" | "pipe") => Proof::Delivered,
            ("bounced", _) => Proof::Bounced,
            // Sent by smtp: the next server took it, which is no more than what the queue already proves.
            _ => return None,
        };
        found(*followed, line.queue_id, at, proof, status)
    }
}

/// `TIME HOST TAG/SERVICE[PID]: QUEUEID: REST`.
struct Line<'l> {
    time: &'l str,
    service: &'l str,
    queue_id: &'l str,
    rest: &'l str,
}

impl<'l> Line<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (head, body) = line.trim_end().split_once("]: ")?;
        let (before, _pid) = head.rsplit_once('[')?;
        let (place, service) = before.rsplit_once('/')?;
        // Instances have names such as `postfix-out`; services such as `submission/smtpd` keep their last part.
        let tag = place.rsplit(' ').next()?;
        if !tag.starts_with("postfix") {
            return None;
        }
        let head = place.strip_suffix(tag)?.trim_end();
        let time = head.rsplit_once(' ').map(|(time, _host)| time.trim())?;
        let (queue_id, rest) = body.split_once(": ")?;
        let is_queue_id =
            (5..=64).contains(&queue_id.len()) && queue_id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_queue_id.then_some(Self { time, service, queue_id, rest })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::format_description::well_known::Rfc3339;
    use time::{OffsetDateTime, UtcOffset};

    use super::*;

    const ID: &str = "01a230e5-9f38-7878-abaa-63e052288578";

    struct Reading(Follower, Clock);

    impl Reading {
        fn read(&mut self, line: &str) -> Option<Found> {
            self.0.read(line, "mail.example.org", &mut self.1)
        }
    }

    fn follower() -> Reading {
        let now = OffsetDateTime::parse("2026-12-01T12:00:00Z", &Rfc3339).unwrap();
        Reading(Follower::default(), Clock::new(UtcOffset::UTC, now))
    }

    fn proofs(lines: &[&str]) -> Vec<(Proof, String)> {
        let mut follower = follower();
        lines.iter().filter_map(|line| follower.read(line)).map(|found| (found.proof, found.queue_id)).collect()
    }

    fn line(service: &str, text: &str) -> String {
        format!("Dec  1 10:00:00 mail1 postfix/{service}[123]: {text}")
    }

    fn mine(queue_id: &str) -> String {
        line("cleanup", &format!("{queue_id}: message-id=<{ID}@mail.example.org>"))
    }

    #[test]
    fn a_message_id_alone_proves_nothing_and_the_active_queue_proves_acceptance() {
        let active = line("qmgr", "4F1AB2C3D4: from=<shop@example.org>, size=500, nrcpt=1 (queue active)");
        assert_eq!(proofs(&[&mine("4F1AB2C3D4")]), []);
        assert_eq!(proofs(&[&active]), [], "whose it is was not told");
        let accepted = [(Proof::Accepted, "4F1AB2C3D4".to_owned())];
        assert_eq!(proofs(&[&mine("4F1AB2C3D4"), &active]), accepted);
        assert_eq!(proofs(&[&mine("4F1AB2C3D4"), &active, &active]), accepted, "a retry is no second acceptance");
        let other = line("cleanup", "4F1AB2C3D4: message-id=<x@elsewhere.example>");
        assert_eq!(proofs(&[&mine("4F1AB2C3D4"), &other, &active]), [], "the queue id was used again");
        let forged = line("cleanup", &format!("4F1AB2C3D4: message-id=<{ID}@mail.example.org.evil.example>"));
        assert_eq!(proofs(&[&forged, &active]), []);
    }

    #[test]
    fn what_came_in_and_was_neither_accepted_nor_rejected_is_known_to_be_undecided() {
        let id: NotificationId = ID.parse().unwrap();
        let undecided = |lines: &[String]| {
            let mut follower = follower();
            lines.iter().for_each(|line| drop(follower.read(line)));
            follower.0.undecided.contains(&id)
        };
        let active = line("qmgr", "4F1AB: from=<x>, size=1, nrcpt=1 (queue active)");
        assert!(undecided(&[mine("4F1AB")]));
        assert!(undecided(&[mine("4F1AB"), line("cleanup", "4F1AB: hold: header Subject: x from h[1.2.3.4]")]));
        assert!(!undecided(&[mine("4F1AB"), active]));
        for rejected in ["reject: body x from h", "milter-reject: END-OF-MESSAGE from h[1.2.3.4]: 5.7.1 no"] {
            assert!(!undecided(&[mine("4F1AB"), line("cleanup", &format!("4F1AB: {rejected}"))]), "{rejected}");
        }
        let mut follower = follower();
        follower.read(&mine("4F1AB"));
        let nul = follower.read(&line("smtp", "4F1AB: to=<x>, status=bounced (a\0b)")).unwrap();
        assert_eq!(nul.words, "bounced (a?b)", "a NUL cannot be stored");
    }

    #[test]
    fn what_became_of_it_is_read_from_the_agent_that_had_it() {
        for (service, status, proof) in [
            ("virtual", "status=sent (delivered to maildir)", Some(Proof::Delivered)),
            ("local", "status=sent (delivered to mailbox)", Some(Proof::Delivered)),
            ("lmtp", "status=sent (250 2.0.0 <jo@example.net> Saved)", Some(Proof::Delivered)),
            ("smtp", "status=sent (250 2.0.0 Ok: queued as 9C1)", None),
            ("smtp", "status=bounced (host mx[192.0.2.1] said: 550 no such user)", Some(Proof::Bounced)),
            ("error", "status=bounced (mail for x loops back to myself)", Some(Proof::Bounced)),
            ("smtp", "status=deferred (connect to mx[192.0.2.1]:25: Connection timed out)", None),
            ("smtp", "status=bouncedness", None),
        ] {
            let text =
                line(service, &format!("4F1AB2C3D4: to=<jo@example.net>, relay=x, delay=0.1, dsn=2.0.0, {status}"));
            let found: Vec<_> = proofs(&[&mine("4F1AB2C3D4"), &text]).into_iter().map(|(proof, _)| proof).collect();
            assert_eq!(found, Vec::from_iter(proof), "{service} {status}");
        }
    }

    #[test]
    fn every_form_of_a_line_is_read_and_what_is_no_line_of_postfix_is_not() {
        let mut follower = follower();
        for line in [
            format!(
                "2026-12-01T10:00:00.123456+00:00 mail1 postfix-out/cleanup[1]: 4F1AB: message-id=<{ID}@mail.example.org>"
            ),
            "Dec 01 10:00:01 mail1 postfix/qmgr[2]: 4F1AB: from=<>, size=1, nrcpt=1 (queue active)".to_owned(),
        ] {
            if let Some(found) = follower.read(&line) {
                assert_eq!(found.at.unwrap().unix_timestamp(), 1_796_119_201);
            }
        }
        let (first, last) = follower.1.range.unwrap();
        assert_eq!((last.unix_timestamp() - first.unix_timestamp(), first.year()), (1, 2026));
        // The year is that of the last such day.
        assert_eq!(follower.1.time("Dec 31 23:59:59").unwrap().year(), 2025);
        for line in [
            "",
            "]: ",
            "x[1]: a: b",
            "Dec  1 10:00:00 h sshd[1]: 4F1AB: message-id=<x>",
            "postfix/[: ",
            "\u{0}postfix/cleanup[1]: é: x",
        ] {
            assert_eq!(follower.read(line), None, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_fail(lines in proptest::collection::vec(any::<String>(), 0..20), service in "[a-z]{0,8}", rest in any::<String>()) {
            let mut follower = follower();
            for line in lines.iter().chain([&line(&service, &rest), &mine("4F1AB"), &line("qmgr", &format!("4F1AB: {rest}"))]) {
                let _ = follower.read(line);
            }
        }
    }
}
