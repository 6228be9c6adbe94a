//! SendGrid's Event Webhook (twilio.com/docs/sendgrid/for-developers/tracking-events/event), with its signature by ECDSA.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde_json::Value;
use time::OffsetDateTime;

use super::{Event, Header, ID_KEY, Refused, first_id, fresh, json, text, unix_time};
use crate::domain::evidence::Proof;

/// What a P-256 key begins with as a SubjectPublicKeyInfo (RFC 5480, 2); the point of 65 octets follows.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The verification key of one Event Webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendGrid {
    point: Vec<u8>,
}

impl SendGrid {
    /// Takes the verification key as SendGrid shows it; `None` where it is none.
    #[must_use]
    pub fn new(verification_key: &str) -> Option<Self> {
        let octets = STANDARD.decode(verification_key.trim()).ok()?;
        let point = octets.strip_prefix(&P256_PREFIX)?;
        (point.len() == 65 && point.first() == Some(&4)).then(|| Self { point: point.to_vec() })
    }

    pub(super) fn read(&self, header: Header<'_>, body: &[u8], now: OffsetDateTime) -> Result<Vec<Event>, Refused> {
        let signed_at = header("x-twilio-email-event-webhook-timestamp");
        let signature = header("x-twilio-email-event-webhook-signature");
        let (Some(signed_at), Some(signature)) = (signed_at, signature) else {
            return Err(Refused::Forged("it is not signed: switch the Signed Event Webhook on"));
        };
        let signed = [signed_at.as_bytes(), body].concat();
        let genuine = STANDARD.decode(signature).is_ok_and(|signature| {
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(&signed, &signature).is_ok()
        });
        if !genuine {
            return Err(Refused::Forged("the signature is not of this body by this key"));
        }
        fresh(unix_time(Some(&Value::String(signed_at))), now)?;
        match json(body)? {
            Value::Array(events) => Ok(events.iter().map(event).collect()),
            _ => Err(Refused::Malformed("the body is no list of events")),
        }
    }
}

fn event(event: &Value) -> Event {
    let name = text(event, "/event");
    let proof = match name {
        "processed" | "deferred" => Proof::Accepted,
        "delivered" | "open" | "click" | "spamreport" | "unsubscribe" | "group_unsubscribe" | "group_resubscribe" => {
            Proof::Delivered
        }
        // Dropped: taken, and then not sent, since the address bounced before.
        "bounce" | "dropped" => Proof::Bounced,
        _ => Proof::Inconclusive,
    };
    let words = [text(event, "/reason"), text(event, "/response")].into_iter().find(|words| !words.is_empty());
    Event {
        id: first_id([text(event, &format!("/{ID_KEY}")), text(event, "/smtp-id")]),
        proof,
        name: name.to_owned(),
        reference: text(event, "/sg_event_id").to_owned(),
        happened_at: unix_time(event.get("timestamp")),
        words: words.unwrap_or_default().to_owned(),
    }
}
