//! Whose fault a refusal is, read out of its phase, its code and, where it has no enhanced code, its text.

use super::classify::SERVICE_CLOSING;
use super::reply::Severity;
use crate::domain::outcome::{Blame, Phase, Reply};

/// Whose fault a 4yz or 5yz is. Suspect is what could hit every message: it must not use up each one's tries, nor fail
/// them all, while the provider refuses everything; [`crate::domain::policy::next`] decides by the provider's record.
pub(super) fn blame(phase: Phase, reply: &Reply) -> Blame {
    if reply.code == SERVICE_CLOSING {
        return Blame::Provider;
    }
    let temporary = Severity::of(reply.code) == Severity::Transient;
    let mut status = reply.enhanced.as_deref().unwrap_or_default().split('.').skip(1);
    let hits_all = match (status.next(), status.next()) {
        // Too long for the recipient or the system, or of a content it does not take: of this message (RFC 3463, 3.3 to 3.7).
        (Some("2"), Some("3")) | (Some("3"), Some("4")) | (Some("6"), _) => return Blame::Notification,
        // At RCPT a temporary policy refusal is greylisting, which is of one recipient.
        (Some("7"), _) => !(temporary && phase == Phase::Rcpt),
        // The system's state, or the protocol's.
        (Some("3" | "5"), _) => true,
        (None, _) => speaks_of_the_session(&reply.text),
        (Some(_), _) => false,
    };
    let by_code = match reply.code {
        // "Too big" at MAIL, from SIZE= (RFC 1870, 6.1).
        552 => return Blame::Notification,
        // Authentication is missing, wrong or too weak (RFC 4954, 6), or the command's order or form is not understood.
        454 | 530 | 534 | 535 | 538 | 500 | 502 | 503 => true,
        // Before RCPT the server knows the sender and the session, which all messages share, and the size.
        _ => phase == Phase::Mail,
    };
    if hits_all || by_code { Blame::Suspect } else { Blame::Notification }
}

/// Whether a refusal without an enhanced code is about who may send here, or how much.
fn speaks_of_the_session(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["relay", "authentic", "authoriz", "authoris", "throttl", "rate limit"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> Reply {
        let (code, text) = line.split_once(' ').unwrap_or((line, ""));
        let enhanced = text.split(' ').next().filter(|word| word.split('.').count() == 3).map(str::to_owned);
        let text = enhanced.as_deref().map_or(text, |code| text[code.len()..].trim_start()).to_owned();
        Reply { code: code.parse().unwrap(), enhanced, text }
    }

    #[test]
    fn a_refusal_that_could_hit_every_message_is_suspect() {
        for (phase, line) in [
            (Phase::Mail, "550 5.1.8 sender not allowed"),
            (Phase::Mail, "554 no"),
            (Phase::Mail, "553 sender not owned"),
            (Phase::Mail, "451 4.7.1 rate"),
            (Phase::Mail, "452 4.3.1 disk full"),
            (Phase::Rcpt, "554 5.7.1 relay access denied"),
            (Phase::Rcpt, "550 Relaying denied"),
            (Phase::Rcpt, "530 must issue STARTTLS"),
            (Phase::Rcpt, "550 not authorised"),
            (Phase::Rcpt, "452 4.3.1 disk full"),
            (Phase::Rcpt, "503 5.5.1 bad sequence"),
            (Phase::Data, "554 Authentication required"),
            (Phase::EndOfData, "454 Throttling failure: Maximum sending rate exceeded."),
            (Phase::EndOfData, "554 5.7.1 looks like spam"),
            (Phase::EndOfData, "451 4.7.1 later"),
        ] {
            assert_eq!(blame(phase, &reply(line)), Blame::Suspect, "{phase} {line}");
        }
    }

    #[test]
    fn a_refusal_of_this_recipient_or_this_message_is_its_own() {
        for (phase, line) in [
            (Phase::Rcpt, "550 5.1.1 no such user"),
            (Phase::Rcpt, "550 no such user"),
            (Phase::Rcpt, "450 4.2.1 mailbox busy"),
            (Phase::Rcpt, "450 4.7.1 greylisted"),
            (Phase::Rcpt, "501 5.1.3 bad address"),
            (Phase::Mail, "550 5.6.7 non-ASCII addresses not permitted"),
            (Phase::EndOfData, "554 5.6.0 malformed"),
            (Phase::EndOfData, "451 local error"),
        ] {
            assert_eq!(blame(phase, &reply(line)), Blame::Notification, "{phase} {line}");
        }
    }
}
