//! Turns the way a transaction failed into what that proves: the table "What an SMTP failure proves" of the design.
//!
//! It must never call anything known that is not: whatever comes after the end of data (perhaps) left and is not a
//! complete 2yz, 4yz or 5yz leaves the attempt in doubt.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio_rustls::rustls;

use super::blame::blame;
pub use super::delay::stated_delay;
use super::reply::Severity;
use crate::domain::outcome::{Blame, Outcome, Phase, Reply, Verdict};

/// A transaction that did not end in acceptance: where, and by what.
#[derive(Debug, thiserror::Error)]
#[error("{phase}: {cause}")]
pub struct Failure {
    /// Where it ended. [`Phase::EndOfData`] if and only if a byte of the end of data may have left.
    pub phase: Phase,
    /// What ended it.
    pub cause: Cause,
}

/// What ended a transaction.
pub enum Cause {
    /// A complete reply that is not the one that was needed.
    Reply(Reply),
    /// The connection was closed in order.
    Closed,
    /// The connection was closed in the midst of a reply.
    Incomplete,
    /// Bytes that are no reply; says what they are.
    Garbled(&'static str),
    /// The network failed.
    Io(io::Error),
    /// No answer, or no progress, for this long.
    Timeout(Duration),
    /// TLS failed; says how.
    Tls(String),
    /// The server broke the protocol; says how.
    Protocol(&'static str),
    /// The provider does not offer, or the configuration does not allow, what is needed to open a session.
    Unsupported(&'static str),
    /// This notification cannot be handed to this provider; found before anything of it was written.
    Unsendable(&'static str),
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Self::Tls(tls.to_string());
        }
        // A TLS stream that ends without close_notify reads as this: closed, by whomever.
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}

/// Never the text of a reply: it may hold an address, and this is what log lines show.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(Reply { code, enhanced: Some(enhanced), text: _ }) => write!(f, "reply {code} {enhanced}"),
            Self::Reply(Reply { code, enhanced: None, text: _ }) => write!(f, "reply {code}"),
            Self::Closed => f.write_str("connection closed"),
            Self::Incomplete => f.write_str("connection closed in the midst of a reply"),
            Self::Garbled(what) => write!(f, "unreadable reply: {what}"),
            Self::Io(error) => match error.raw_os_error() {
                // Without the number, and the same on every platform.
                Some(_) => write!(f, "{}", error.kind()),
                None => write!(f, "{error}"),
            },
            Self::Timeout(limit) => write!(f, "no answer within {limit:?}"),
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::Protocol(what) => write!(f, "protocol error: {what}"),
            Self::Unsupported(what) => write!(f, "not supported: {what}"),
            Self::Unsendable(what) => write!(f, "cannot be sent: {what}"),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Failure {
    pub(super) const fn new(phase: Phase, cause: Cause) -> Self {
        Self { phase, cause }
    }

    /// Whether the connection was lost, or given notice with a 421, before MAIL was answered. On a reused session that
    /// says nothing about the provider: the server had ended an idle connection, and a fresh one should be tried at once.
    #[must_use]
    pub fn is_stale_connection(&self) -> bool {
        self.phase == Phase::Mail
            && match &self.cause {
                Cause::Reply(reply) => reply.code == SERVICE_CLOSING,
                Cause::Closed | Cause::Incomplete | Cause::Io(_) => true,
                Cause::Garbled(_)
                | Cause::Timeout(_)
                | Cause::Tls(_)
                | Cause::Protocol(_)
                | Cause::Unsupported(_)
                | Cause::Unsendable(_) => false,
            }
    }
}

/// "Service not available, closing transmission channel" (RFC 5321, 4.2.3): of the server, whatever it answers.
pub(super) const SERVICE_CLOSING: u16 = 421;

/// What a phase means for the outcome.
#[derive(Clone, Copy)]
enum Stage {
    /// Nothing of the notification has left.
    Opening,
    /// It was offered, and no byte of the end of data has left.
    Offered,
    /// The end of data has perhaps left.
    Ended,
}

impl Stage {
    const fn of(phase: Phase) -> Self {
        match phase {
            Phase::Claim
            | Phase::Compose
            | Phase::Resolve
            | Phase::Connect
            | Phase::Tls
            | Phase::Greeting
            | Phase::Ehlo
            | Phase::Auth => Self::Opening,
            Phase::Mail | Phase::Rcpt | Phase::Data | Phase::Begin | Phase::Body => Self::Offered,
            Phase::EndOfData => Self::Ended,
        }
    }
}

/// What a failure proves, and whose fault it is.
#[must_use]
pub fn classify(failure: Failure) -> Verdict {
    let Failure { phase, cause } = failure;
    let (outcome, blame) = match (Stage::of(phase), &cause) {
        (
            Stage::Opening,
            Cause::Reply(_)
            | Cause::Closed
            | Cause::Incomplete
            | Cause::Garbled(_)
            | Cause::Io(_)
            | Cause::Timeout(_)
            | Cause::Tls(_)
            | Cause::Protocol(_)
            | Cause::Unsupported(_),
        ) => (Outcome::NotSent, Blame::Provider),
        // Known before a byte of it was written, and it stays so however often it is tried.
        (Stage::Opening | Stage::Offered, Cause::Unsendable(_)) => (Outcome::Refused, Blame::Notification),
        (Stage::Offered, Cause::Reply(reply)) => match Severity::of(reply.code) {
            Severity::Transient => (Outcome::Deferred, blame(phase, reply)),
            // RFC 5321, 4.5.3.1.10: servers use it for "too many recipients", and a client treats it as temporary.
            Severity::Permanent if phase == Phase::Rcpt && reply.code == 552 => {
                (Outcome::Deferred, blame(phase, reply))
            }
            Severity::Permanent => (Outcome::Refused, blame(phase, reply)),
            Severity::Completed | Severity::Intermediate | Severity::Unknown => (Outcome::NotSent, Blame::Suspect),
        },
        // A dying provider loses connections here as anywhere; one poisonous message does so too.
        (
            Stage::Offered,
            Cause::Closed
            | Cause::Incomplete
            | Cause::Garbled(_)
            | Cause::Io(_)
            | Cause::Timeout(_)
            | Cause::Tls(_)
            | Cause::Protocol(_)
            | Cause::Unsupported(_),
        ) => (Outcome::NotSent, Blame::Suspect),
        (Stage::Ended, Cause::Reply(reply)) => match Severity::of(reply.code) {
            Severity::Completed => (Outcome::Sent, Blame::Notification),
            Severity::Transient => (Outcome::Deferred, blame(phase, reply)),
            Severity::Permanent => (Outcome::Refused, blame(phase, reply)),
            Severity::Intermediate | Severity::Unknown => (Outcome::Uncertain, Blame::Suspect),
        },
        (
            Stage::Ended,
            Cause::Closed
            | Cause::Incomplete
            | Cause::Garbled(_)
            | Cause::Io(_)
            | Cause::Timeout(_)
            | Cause::Tls(_)
            | Cause::Protocol(_)
            | Cause::Unsupported(_)
            | Cause::Unsendable(_),
        ) => (Outcome::Uncertain, Blame::Suspect),
    };
    let (reply, error) = match cause {
        Cause::Reply(reply) => (Some(reply), None),
        other => (None, Some(other.to_string())),
    };
    Verdict { outcome, phase, blame, reply, error }
}

/// The verdict of a transaction that was accepted with this reply to the end of data.
#[must_use]
pub fn accepted(reply: Reply) -> Verdict {
    Verdict {
        outcome: Outcome::Sent,
        phase: Phase::EndOfData,
        blame: Blame::Notification,
        reply: Some(reply),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH_CAUSE: usize = 9;

    /// One of every cause but a reply.
    fn causes() -> [Cause; EACH_CAUSE] {
        [
            Cause::Closed,
            Cause::Incomplete,
            Cause::Garbled("x"),
            Cause::Io(io::ErrorKind::ConnectionReset.into()),
            Cause::Timeout(Duration::from_secs(600)),
            Cause::Tls("x".into()),
            Cause::Protocol("x"),
            Cause::Unsupported("x"),
            Cause::Unsendable("x"),
        ]
    }

    fn reply(line: &str) -> Reply {
        let (code, text) = line.split_once(' ').unwrap_or((line, ""));
        let enhanced = text.split(' ').next().filter(|word| word.split('.').count() == 3).map(str::to_owned);
        let text = enhanced.as_deref().map_or(text, |code| text[code.len()..].trim_start()).to_owned();
        Reply { code: code.parse().unwrap(), enhanced, text }
    }

    fn verdict(phase: Phase, line: &str) -> (Outcome, Blame) {
        let verdict = classify(Failure::new(phase, Cause::Reply(reply(line))));
        assert_eq!(verdict.reply, Some(reply(line)));
        (verdict.outcome, verdict.blame)
    }

    #[test]
    fn nothing_but_a_clear_reply_makes_an_attempt_known_after_the_end_of_data() {
        for cause in causes() {
            assert_eq!(classify(Failure::new(Phase::EndOfData, cause)).outcome, Outcome::Uncertain);
        }
        for line in ["354 go", "199 what", "600 what", "99 what"] {
            assert_eq!(verdict(Phase::EndOfData, line).0, Outcome::Uncertain, "{line}");
        }
        assert_eq!(verdict(Phase::EndOfData, "260 odd").0, Outcome::Sent);
        assert_eq!(verdict(Phase::EndOfData, "451 4.3.0 later").0, Outcome::Deferred);
        assert_eq!(verdict(Phase::EndOfData, "554 5.6.0 no").0, Outcome::Refused);
    }

    #[test]
    fn nothing_is_in_doubt_or_accepted_before_the_end_of_data() {
        for phase in Phase::ALL.into_iter().filter(|&phase| phase != Phase::EndOfData) {
            for cause in causes() {
                let known = classify(Failure::new(phase, cause)).outcome;
                assert!(matches!(known, Outcome::NotSent | Outcome::Refused), "{phase}");
            }
            for code in 1..=999 {
                let cause = Cause::Reply(Reply { code, enhanced: None, text: String::new() });
                let known = classify(Failure::new(phase, cause)).outcome;
                assert!(!matches!(known, Outcome::Uncertain | Outcome::Sent), "{phase} {code}");
            }
        }
    }

    #[test]
    fn whatever_fails_before_mail_is_the_providers_fault() {
        let opening = [Phase::Resolve, Phase::Connect, Phase::Tls, Phase::Greeting, Phase::Ehlo, Phase::Auth];
        for phase in opening {
            for cause in causes().into_iter().take(EACH_CAUSE - 1) {
                let verdict = classify(Failure::new(phase, cause));
                assert_eq!((verdict.outcome, verdict.blame), (Outcome::NotSent, Blame::Provider), "{phase}");
            }
            for line in ["421 busy", "454 4.7.0 later", "535 5.7.8 wrong", "554 go away", "502 what"] {
                assert_eq!(verdict(phase, line), (Outcome::NotSent, Blame::Provider), "{phase} {line}");
            }
        }
    }

    #[test]
    fn a_connection_lost_while_offering_proves_non_acceptance_and_blames_nobody_yet() {
        for phase in [Phase::Mail, Phase::Rcpt, Phase::Data, Phase::Body] {
            for cause in causes().into_iter().take(EACH_CAUSE - 1) {
                let verdict = classify(Failure::new(phase, cause));
                assert_eq!((verdict.outcome, verdict.blame), (Outcome::NotSent, Blame::Suspect), "{phase}");
            }
        }
    }

    #[test]
    fn what_cannot_be_sent_is_the_notifications_own_and_for_good() {
        let verdict = classify(Failure::new(Phase::Mail, Cause::Unsendable("x")));
        assert_eq!((verdict.outcome, verdict.blame), (Outcome::Refused, Blame::Notification));
    }

    #[test]
    fn a_421_is_the_providers_fault_in_every_phase() {
        for phase in Phase::ALL {
            assert_eq!(verdict(phase, "421 4.7.0 closing").1, Blame::Provider, "{phase}");
        }
    }

    #[test]
    fn a_552_to_rcpt_is_temporary() {
        assert_eq!(verdict(Phase::Rcpt, "552 too many recipients").0, Outcome::Deferred);
        assert_eq!(verdict(Phase::Mail, "552 5.3.4 too big"), (Outcome::Refused, Blame::Notification));
        assert_eq!(verdict(Phase::EndOfData, "552 5.2.2 full"), (Outcome::Refused, Blame::Notification));
    }

    #[test]
    fn what_is_logged_never_holds_the_servers_text() {
        let failure = Failure::new(Phase::Rcpt, Cause::Reply(reply("550 5.1.1 <a@example.org> unknown")));
        assert_eq!(format!("{failure}"), "rcpt: reply 550 5.1.1");
        assert!(!format!("{failure:?}").contains('@'));
        let verdict = classify(failure);
        assert_eq!(verdict.error, None);
        assert_eq!(verdict.reply.unwrap().text, "<a@example.org> unknown");
    }

    #[test]
    fn the_evidence_names_what_happened() {
        let said = |cause| classify(Failure::new(Phase::EndOfData, cause)).error.unwrap();
        assert_eq!(said(Cause::Timeout(Duration::from_secs(600))), "no answer within 600s");
        assert_eq!(said(Cause::Io(io::Error::from_raw_os_error(104))), "connection reset");
        assert_eq!(said(Cause::Closed), "connection closed");
    }

    #[test]
    fn a_lost_connection_or_a_421_at_mail_is_a_stale_connection() {
        assert!(Failure::new(Phase::Mail, Cause::Closed).is_stale_connection());
        assert!(Failure::new(Phase::Mail, Cause::Reply(reply("421 idle"))).is_stale_connection());
        assert!(!Failure::new(Phase::Mail, Cause::Reply(reply("450 no"))).is_stale_connection());
        assert!(!Failure::new(Phase::Mail, Cause::Timeout(Duration::ZERO)).is_stale_connection());
        assert!(!Failure::new(Phase::Rcpt, Cause::Closed).is_stale_connection());
    }
}
