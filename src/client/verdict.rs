//! What an attempt proves about the operation: pure, and the whole of it in one match.
//!
//! "Not stored by this request" is no proof while an earlier attempt is in doubt.

use std::time::Duration;

/// What an attempt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// A whole answer.
    Answer {
        status: u16,
        /// The problem's code.
        code: String,
        /// The problem's detail.
        detail: String,
        retry_after: Duration,
        body: String,
        replayed: bool,
    },
    /// No connection: nothing was sent.
    NotSent(String),
    /// Something may have been sent, and no whole answer came.
    Lost(String),
    /// Nothing can be sent there at all.
    Unusable(String),
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirmed {
        status: u16,
        body: String,
        replayed: bool,
    },
    Rejected {
        status: u16,
        code: String,
        detail: String,
    },
    /// To be sent again, no sooner than `after`; `doubt` where this attempt may have stored it.
    Again {
        after: Duration,
        doubt: bool,
        why: String,
    },
    /// Nothing more can be found out by sending.
    Open {
        why: String,
    },
}

/// Weighs an attempt; `doubt` says whether an earlier one may have stored the operation.
pub(super) fn weigh(heard: &Heard, doubt: bool) -> Verdict {
    let (status, code, detail, retry_after) = match heard {
        Heard::NotSent(why) => return Verdict::Again { after: Duration::ZERO, doubt: false, why: why.clone() },
        Heard::Lost(why) => return Verdict::Again { after: Duration::ZERO, doubt: true, why: why.clone() },
        Heard::Unusable(why) if doubt => return Verdict::Open { why: why.clone() },
        Heard::Unusable(why) => {
            return Verdict::Rejected { status: 0, code: "unusable".to_owned(), detail: why.clone() };
        }
        Heard::Answer { status, code, detail, retry_after, body, replayed } => {
            if *status == 201 && is_receipt(body) {
                return Verdict::Confirmed { status: *status, body: body.clone(), replayed: *replayed };
            }
            (*status, code, detail, *retry_after)
        }
    };
    let why = if code.is_empty() { format!("status {status}") } else { format!("{status} {code}") };
    let again = |doubt| Verdict::Again { after: retry_after, doubt, why: why.clone() };
    let rejected = || Verdict::Rejected { status, code: code.clone(), detail: detail.clone() };
    match (status, code.as_str()) {
        // Each speaks of the key itself, whatever became of earlier attempts.
        (422, "payload_mismatch") | (410, "erased") => rejected(),
        // Not stored by this request, says the API itself.
        (408, "request_timeout") | (429 | 503, "overloaded") | (503, "unavailable") => again(false),
        // A proxy's own refusal for want of capacity; any other of its answers may hide a stored operation.
        (429, _) => again(false),
        // Another request with the key, perhaps an earlier one of ours, is under way or its outcome unknown.
        (409 | 500..=599, _) => again(true),
        // No answer that this operation has: whatever it is, it is no receipt.
        (0..=399, _) => again(true),
        // Refused as it stands. That says nothing of an earlier attempt.
        (_, _) if doubt => Verdict::Open { why: format!("{why}, which says nothing of the earlier attempt: {detail}") },
        (_, _) => rejected(),
    }
}

/// Whether a body is a whole receipt and not, say, a proxy's page.
fn is_receipt(body: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(body)
        .is_ok_and(|body| body["code"] == "accepted" && body["message_id"].is_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: &str) -> Heard {
        let body = format!("{{\"code\": \"{code}\", \"message_id\": \"m\"}}");
        let (code, detail) = (code.to_owned(), "d".to_owned());
        Heard::Answer { status, code, detail, retry_after: Duration::from_secs(3), body, replayed: false }
    }

    /// `c`onfirmed, `r`ejected, `a`gain without and `A`gain with doubt, `o`pen.
    fn letter(heard: &Heard, doubt: bool) -> char {
        match weigh(heard, doubt) {
            Verdict::Confirmed { .. } => 'c',
            Verdict::Rejected { .. } => 'r',
            Verdict::Again { doubt: false, .. } => 'a',
            Verdict::Again { doubt: true, .. } => 'A',
            Verdict::Open { .. } => 'o',
        }
    }

    #[test]
    fn each_answer_proves_what_the_contract_says() {
        for (status, code, without_doubt, with_doubt) in [
            (201, "accepted", 'c', 'c'),
            (201, "", 'A', 'A'),
            (200, "", 'A', 'A'),
            (202, "accepted", 'A', 'A'),
            (302, "", 'A', 'A'),
            (400, "key_missing", 'r', 'o'),
            (400, "key_invalid", 'r', 'o'),
            (400, "malformed", 'r', 'o'),
            (400, "", 'r', 'o'),
            (401, "unauthenticated", 'r', 'o'),
            (403, "forbidden", 'r', 'o'),
            (404, "", 'r', 'o'),
            (405, "method_not_allowed", 'r', 'o'),
            (408, "request_timeout", 'a', 'a'),
            (409, "in_progress", 'A', 'A'),
            (410, "key_expired", 'r', 'o'),
            (410, "erased", 'r', 'r'),
            (413, "too_large", 'r', 'o'),
            (415, "unsupported_media_type", 'r', 'o'),
            (422, "invalid_content", 'r', 'o'),
            (422, "payload_mismatch", 'r', 'r'),
            (429, "overloaded", 'a', 'a'),
            (429, "", 'a', 'a'),
            (500, "receipt_incomplete", 'A', 'A'),
            (500, "internal", 'A', 'A'),
            (502, "", 'A', 'A'),
            (503, "overloaded", 'a', 'a'),
            (503, "unavailable", 'a', 'a'),
            (503, "outcome_unconfirmed", 'A', 'A'),
            (503, "", 'A', 'A'),
            (504, "", 'A', 'A'),
        ] {
            let heard = answer(status, code);
            assert_eq!((letter(&heard, false), letter(&heard, true)), (without_doubt, with_doubt), "{status} {code}");
        }
    }

    #[test]
    fn a_connection_that_never_was_leaves_no_doubt_and_a_lost_one_does() {
        assert_eq!(
            (letter(&Heard::NotSent(String::new()), false), letter(&Heard::NotSent(String::new()), true)),
            ('a', 'a')
        );
        assert_eq!((letter(&Heard::Lost(String::new()), false), letter(&Heard::Lost(String::new()), true)), ('A', 'A'));
        assert_eq!(
            (letter(&Heard::Unusable(String::new()), false), letter(&Heard::Unusable(String::new()), true)),
            ('r', 'o')
        );
    }

    #[test]
    fn a_receipt_that_is_no_whole_json_is_no_receipt() {
        for body in ["", "{\"code\": \"accepted\", \"message_id\": \"m\"", "<html>", "{\"code\": \"accepted\"}", "[]"] {
            let heard = Heard::Answer {
                status: 201,
                code: String::new(),
                detail: String::new(),
                retry_after: Duration::ZERO,
                body: body.to_owned(),
                replayed: false,
            };
            assert_eq!(letter(&heard, false), 'A', "{body}");
        }
    }

    #[test]
    fn the_server_says_how_long_to_wait() {
        let Verdict::Again { after, .. } = weigh(&answer(503, "overloaded"), false) else { panic!("again") };
        assert_eq!(after, Duration::from_secs(3));
    }
}
