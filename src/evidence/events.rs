//! Providers' events: who sent them is checked before anything in them is believed, and what each proves is read.
//!
//! Pure: a request's headers and body become events or a refusal. An event finds its notification by the id that went out with the
//! message; one without it says nothing that can be used.

mod mailgun;
mod postmark;
mod resend;
mod sendgrid;
pub mod ses;
#[cfg(test)]
mod tests;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::domain::evidence::Proof;
use crate::domain::ids::NotificationId;

pub use mailgun::Mailgun;
pub use postmark::Postmark;
pub use resend::Resend;
pub use sendgrid::SendGrid;
pub use ses::Ses;

/// The name of the tag, variable, argument or metadata in which a provider gives the notification's id back.
pub const ID_KEY: &str = "outboxd_id";

/// How old a signed time may be: providers sign anew each time they try, so what is older was kept by somebody.
const AGE_MAX: time::Duration = time::Duration::hours(1);

/// How far a provider's clock may be ahead.
const AHEAD_MAX: time::Duration = time::Duration::minutes(5);

/// Reads a header of the request by its lower-case name.
pub type Header<'h> = &'h (dyn Fn(&str) -> Option<String> + Sync);

/// One thing that a provider says happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The notification; `None` where the event does not carry its id.
    pub id: Option<NotificationId>,
    /// What it proves about the attempt with that provider.
    pub proof: Proof,
    /// The provider's word for it.
    pub name: String,
    /// What tells it from all others of the provider, and is the same when it comes again.
    pub reference: String,
    /// When it happened, by the provider's clock.
    pub happened_at: Option<OffsetDateTime>,
    /// The server's words where there are any.
    pub words: String,
}

/// What a genuine request asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// To take note of events.
    Events(Vec<Event>),
    /// To confirm the subscription by fetching this address.
    Confirm(String),
}

/// Why a request is not believed or not understood. Nothing in it was used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It does not prove that the provider sent it.
    #[error("{0}")]
    Forged(&'static str),
    /// It is not of the provider's form.
    #[error("{0}")]
    Malformed(&'static str),
}

/// One provider's way to sign and to tell.
#[derive(Debug, Clone)]
pub enum Source {
    /// Amazon SES through SNS.
    Ses(Box<Ses>),
    /// SendGrid's Event Webhook.
    SendGrid(SendGrid),
    /// Mailgun's webhooks.
    Mailgun(Mailgun),
    /// Postmark's webhooks.
    Postmark(Postmark),
    /// Resend's webhooks, which Svix sends.
    Resend(Resend),
}

impl Source {
    /// The name that the configuration and evidence use.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ses(_) => "ses",
            Self::SendGrid(_) => "sendgrid",
            Self::Mailgun(_) => "mailgun",
            Self::Postmark(_) => "postmark",
            Self::Resend(_) => "resend",
        }
    }

    /// The longest request, in octets: SendGrid alone sends many events at once.
    #[must_use]
    pub const fn body_max_octets(&self) -> u64 {
        match self {
            Self::SendGrid(_) => 4 * 1024 * 1024,
            Self::Ses(_) | Self::Mailgun(_) | Self::Postmark(_) | Self::Resend(_) => 512 * 1024,
        }
    }

    /// Checks who sent a request and reads what it says. `key` is the one that the request names, for SES alone.
    ///
    /// # Errors
    /// When it is not genuine or not understood.
    pub fn read(
        &self,
        header: Header<'_>,
        body: &[u8],
        now: OffsetDateTime,
        key: Option<&ses::PublicKey>,
    ) -> Result<Heard, Refused> {
        match self {
            Self::Ses(ses) => ses.read(body, key),
            Self::SendGrid(sendgrid) => sendgrid.read(header, body, now).map(Heard::Events),
            Self::Mailgun(mailgun) => mailgun.read(body, now).map(Heard::Events),
            Self::Postmark(postmark) => postmark.read(header, body).map(Heard::Events),
            Self::Resend(resend) => resend.read(header, body, now).map(Heard::Events),
        }
    }
}

fn json(body: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(body).map_err(|_| Refused::Malformed("the body is not JSON"))
}

/// The text at a JSON pointer (RFC 6901), or nothing.
fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The id in a tag's value, or in a Message-ID.
fn id_in(text: &str) -> Option<NotificationId> {
    let text = text.trim().trim_start_matches('<').trim_end_matches('>');
    let local = text.split_once('@').map_or(text, |(local, _)| local);
    // Only as it is written: other forms of a UUID are somebody else's.
    local.parse::<NotificationId>().ok().filter(|id| id.to_string() == local)
}

/// The value of a header that carries the id, of a list of names and values: no other one, since anybody may write an id there.
fn id_header(header: &Value) -> Option<&str> {
    let known = ["x-notification-id", "resend-idempotency-key", "message-id"];
    let name = text(header, "/name");
    known.iter().any(|known| name.eq_ignore_ascii_case(known)).then(|| text(header, "/value"))
}

/// The first id in any of the texts.
fn first_id<'t>(texts: impl IntoIterator<Item = &'t str>) -> Option<NotificationId> {
    texts.into_iter().find_map(id_in)
}

fn timestamp(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// Seconds since 1970, perhaps with a fraction, as a number or a text.
fn unix_time(value: Option<&Value>) -> Option<OffsetDateTime> {
    let seconds = match value? {
        Value::String(text) => text.parse().ok()?,
        number => number.as_f64()?,
    };
    // Whole milliseconds: all that providers tell.
    #[expect(clippy::cast_possible_truncation, reason = "what is out of range is refused below")]
    let milliseconds = (seconds * 1_000.0).round() as i64;
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(milliseconds) * 1_000_000).ok()
}

/// Refuses a signed time that is long ago or ahead: a request that was kept and is sent again.
fn fresh(signed_at: Option<OffsetDateTime>, now: OffsetDateTime) -> Result<(), Refused> {
    match signed_at {
        Some(at) if at > now - AGE_MAX && at < now + AHEAD_MAX => Ok(()),
        Some(_) => Err(Refused::Forged("it was signed too long ago, or in the future: are the clocks right?")),
        None => Err(Refused::Forged("the signature's time is missing or is none")),
    }
}
