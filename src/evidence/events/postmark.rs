//! Postmark's webhooks (postmarkapp.com/developer/webhooks), which are not signed: a name and a password of your own prove them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::Value;

use super::{Event, Header, ID_KEY, Refused, first_id, json, text, timestamp};
use crate::domain::evidence::Proof;

/// The name and password that the webhook's address carries.
#[derive(Clone)]
pub struct Postmark {
    key: hmac::Key,
    expected: hmac::Tag,
}

impl std::fmt::Debug for Postmark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Postmark(…)")
    }
}

impl Postmark {
    /// Takes the name and the password.
    #[must_use]
    pub fn new(username: &str, password: &str) -> Self {
        // Compared by their tags, so that the time that it takes tells nothing of them.
        let key = hmac::Key::new(hmac::HMAC_SHA256, password.as_bytes());
        let expected = hmac::sign(&key, format!("{username}:{password}").as_bytes());
        Self { key, expected }
    }

    pub(super) fn read(&self, header: Header<'_>, body: &[u8]) -> Result<Vec<Event>, Refused> {
        let given = header("authorization").unwrap_or_default();
        // RFC 7617, 2.
        let (scheme, credentials) = given.split_once(' ').unwrap_or_default();
        let genuine = scheme.eq_ignore_ascii_case("basic")
            && STANDARD
                .decode(credentials.trim())
                .is_ok_and(|credentials| hmac::verify(&self.key, &credentials, self.expected.as_ref()).is_ok());
        if !genuine {
            return Err(Refused::Forged("the name or the password is not right"));
        }
        Ok(vec![event(&json(body)?)])
    }
}

fn event(event: &Value) -> Event {
    let record = text(event, "/RecordType");
    let kind = text(event, "/Type");
    let proof = match (record, kind) {
        // What does not end the message, and what only somebody who has it can send.
        (
            "Bounce",
            "Transient"
            | "AutoResponder"
            | "Subscribe"
            | "Unsubscribe"
            | "AddressChange"
            | "ChallengeVerification"
            | "OpenRelayTest",
        ) => Proof::Accepted,
        ("Bounce", "SMTPApiError" | "InboundError" | "TemplateRenderingFailed") => Proof::Inconclusive,
        ("Bounce", _) => Proof::Bounced,
        ("Delivery" | "Open" | "Click" | "SpamComplaint", _) => Proof::Delivered,
        _ => Proof::Inconclusive,
    };
    let at = ["/DeliveredAt", "/BouncedAt", "/ReceivedAt", "/ChangedAt"].map(|key| text(event, key));
    let at = at.into_iter().find(|at| !at.is_empty()).unwrap_or_default();
    Event {
        id: first_id([text(event, &format!("/Metadata/{ID_KEY}"))]),
        proof,
        name: if kind.is_empty() { record.to_owned() } else { format!("{record} {kind}") },
        reference: format!("{} {record} {at}", text(event, "/MessageID")),
        happened_at: timestamp(at),
        words: text(event, "/Details").to_owned(),
    }
}
