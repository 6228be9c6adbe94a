//! Resend's webhooks (resend.com/docs/dashboard/webhooks), signed as Svix and Standard Webhooks do it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::Value;
use time::OffsetDateTime;

use super::{Event, Header, ID_KEY, Refused, first_id, fresh, id_header, json, text, timestamp, unix_time};
use crate::domain::evidence::Proof;

/// The signing secret of one endpoint.
#[derive(Clone)]
pub struct Resend {
    key: hmac::Key,
}

impl std::fmt::Debug for Resend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resend(…)")
    }
}

impl Resend {
    /// Takes the secret, `whsec_…`; `None` where it is none.
    #[must_use]
    pub fn new(secret: &str) -> Option<Self> {
        let secret = secret.trim();
        let octets = STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or(secret)).ok()?;
        (!octets.is_empty()).then(|| Self { key: hmac::Key::new(hmac::HMAC_SHA256, &octets) })
    }

    pub(super) fn read(&self, header: Header<'_>, body: &[u8], now: OffsetDateTime) -> Result<Vec<Event>, Refused> {
        let either = |name: &str| header(&format!("svix-{name}")).or_else(|| header(&format!("webhook-{name}")));
        let (Some(id), Some(signed_at), Some(signatures)) = (either("id"), either("timestamp"), either("signature"))
        else {
            return Err(Refused::Forged("it is not signed"));
        };
        let signed = [id.as_bytes(), b".", signed_at.as_bytes(), b".", body].concat();
        // Several while the secret is being changed.
        let genuine = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,")).any(|signature| {
            STANDARD.decode(signature).is_ok_and(|tag| hmac::verify(&self.key, &signed, &tag).is_ok())
        });
        if !genuine {
            return Err(Refused::Forged("the signature is not of this body by this secret"));
        }
        fresh(unix_time(Some(&Value::String(signed_at))), now)?;
        Ok(vec![event(&json(body)?, id)])
    }
}

fn event(event: &Value, reference: String) -> Event {
    let name = text(event, "/type");
    let proof = match name {
        "email.sent" | "email.scheduled" | "email.delivery_delayed" => Proof::Accepted,
        "email.delivered" | "email.opened" | "email.clicked" | "email.complained" => Proof::Delivered,
        "email.bounced" | "email.suppressed" => Proof::Bounced,
        // Failed: before or after it was taken; that is not told.
        _ => Proof::Inconclusive,
    };
    // Tags are an object in events and a list in requests; both are read.
    let listed = |pointer: &str| event.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let tags = listed("/data/tags").filter(|tag| text(tag, "/name") == ID_KEY).map(|tag| text(tag, "/value"));
    let headers = listed("/data/headers").filter_map(id_header);
    let tag = text(event, &format!("/data/tags/{ID_KEY}"));
    Event {
        id: first_id([tag, text(event, "/data/message_id")].into_iter().chain(tags).chain(headers)),
        proof,
        name: name.to_owned(),
        reference,
        happened_at: timestamp(text(event, "/created_at")),
        words: text(event, "/data/bounce/message").to_owned(),
    }
}
