//! Mailgun's webhooks (documentation.mailgun.com/docs/mailgun/user-manual/webhooks). Their signature is over a time and a token
//! and not over the event: only a fresh one is believed, and TLS in front of the API is not optional.

use ring::hmac;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use super::{Event, ID_KEY, Refused, first_id, fresh, json, text, unix_time};
use crate::domain::evidence::Proof;

/// The webhook signing key of an account.
#[derive(Clone)]
pub struct Mailgun {
    key: hmac::Key,
}

impl std::fmt::Debug for Mailgun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailgun(…)")
    }
}

impl Mailgun {
    /// Takes the HTTP webhook signing key.
    #[must_use]
    pub fn new(signing_key: &str) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, signing_key.as_bytes()) }
    }

    pub(super) fn read(&self, body: &[u8], now: OffsetDateTime) -> Result<Vec<Event>, Refused> {
        let request: Request<'_> =
            serde_json::from_slice(body).map_err(|_| Refused::Malformed("the body is not of Mailgun's form"))?;
        let Some(signature) = request.signature else { return Err(Refused::Forged("it is not signed")) };
        let time = signature.timestamp.get().trim_matches('"');
        let signed = format!("{time}{}", signature.token);
        // An event of a subaccount is signed by its own key and by the account's.
        let genuine = [Some(signature.signature), signature.parent_signature].into_iter().flatten().any(|signature| {
            hex(&signature).is_some_and(|tag| hmac::verify(&self.key, signed.as_bytes(), &tag).is_ok())
        });
        if !genuine {
            return Err(Refused::Forged("the signature is not by this key"));
        }
        fresh(unix_time(Some(&Value::String(time.to_owned()))), now)?;
        let data = request.event_data.ok_or(Refused::Malformed("the body has no event-data"))?;
        Ok(vec![event(&json(data.get().as_bytes())?)])
    }
}

/// A request, of which nothing but the signature is read before that is found to be right.
#[derive(Deserialize)]
struct Request<'r> {
    #[serde(borrow)]
    signature: Option<Signature<'r>>,
    #[serde(borrow, rename = "event-data")]
    event_data: Option<&'r RawValue>,
}

#[derive(Deserialize)]
struct Signature<'r> {
    /// A text or a number.
    #[serde(borrow)]
    timestamp: &'r RawValue,
    #[serde(default)]
    token: String,
    #[serde(default)]
    signature: String,
    #[serde(rename = "parent-signature")]
    parent_signature: Option<String>,
}

fn event(data: &Value) -> Event {
    let name = text(data, "/event");
    let proof = match (name, text(data, "/severity")) {
        ("accepted", _) | ("failed", "temporary") => Proof::Accepted,
        ("delivered" | "opened" | "clicked" | "unsubscribed" | "complained", _) => Proof::Delivered,
        ("failed", "permanent") => Proof::Bounced,
        // Rejected: by Mailgun, before or after it said 250; that is not told.
        _ => Proof::Inconclusive,
    };
    let at = data.get("timestamp").cloned().unwrap_or_default();
    let words = [text(data, "/delivery-status/message"), text(data, "/delivery-status/description")]
        .into_iter()
        .find(|words| !words.is_empty());
    Event {
        id: first_id([text(data, &format!("/user-variables/{ID_KEY}")), text(data, "/message/headers/message-id")]),
        proof,
        name: name.to_owned(),
        // Its id is the only one within a day.
        reference: format!("{} {at}", text(data, "/id")),
        happened_at: unix_time(Some(&at)),
        words: words.unwrap_or_default().to_owned(),
    }
}

/// The octets that lower-case hexadecimal digits stand for.
fn hex(text: &str) -> Option<Vec<u8>> {
    let octets = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2 && !pair.starts_with('+'))?;
        u8::from_str_radix(pair, 16).ok()
    });
    octets.collect()
}
