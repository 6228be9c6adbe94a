//! What a notification says, parsed once: a [`Content`] can be made into a message.
//!
//! [`RawContent`] is what the database holds; [`Content::parse`] either takes all of it or names the field that is wrong
//! and what to do. No refusal may repeat an address, a name, a subject or a body: refusals are stored and logged.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;
use time::{OffsetDateTime, UtcOffset};

use super::address::EmailAddress;
use super::attachment::{self, Attachment};
use super::ids::NotificationId;

/// Every limit on content. The database's `outboxd.enqueue` enforces the same numbers, so that a producer hears of a
/// refusal in its own transaction.
pub mod limits {
    /// Octets in one line, without CRLF (RFC 5322, 2.1.1; RFC 5321, 4.5.3.1.6).
    pub const LINE_MAX_OCTETS: usize = 998;

    /// Octets in a subject: it must fit one line after `Subject: `, so that it needs no folding to be legal.
    pub const SUBJECT_MAX_OCTETS: usize = LINE_MAX_OCTETS - "Subject: ".len();

    /// Octets in a display name: far above real names, far below what mail clients cut.
    pub const NAME_MAX_OCTETS: usize = 200;

    /// Octets in each of the two bodies (2 MiB): Gmail cuts a message's text at about 0.1 MiB; this is ample.
    pub const BODY_MAX_OCTETS: usize = 2 * 1024 * 1024;

    /// Headers of the producer's own: bounds the header section to about 50 KB, half of what Postfix takes by default.
    pub const HEADERS_MAX_COUNT: usize = 50;

    /// Octets in a header's name: with its colon and a space it fits the 78 that RFC 5322, 2.1.1 recommends for a line.
    pub const HEADER_NAME_MAX_OCTETS: usize = 76;

    /// Octets in a header's name, `: ` and value together: a value that cannot be folded still fits a line.
    pub const HEADER_MAX_OCTETS: usize = LINE_MAX_OCTETS;

    /// Attachments: a person opens few; it bounds the work of composing.
    pub const ATTACHMENTS_MAX_COUNT: usize = 20;

    /// Octets in all attachments together, decoded (10 MiB): with base64 and both bodies it stays under 25 MB, the smallest
    /// limit of the large mailbox providers.
    pub const ATTACHMENTS_MAX_OCTETS: usize = 10 * 1024 * 1024;

    /// Octets in a file name: what common file systems take.
    pub const FILENAME_MAX_OCTETS: usize = 255;

    /// Octets in a content type with its parameters: RFC 6838, 4.2 allows 127 each for type and subtype.
    pub const CONTENT_TYPE_MAX_OCTETS: usize = 255;

    /// Octets in a List-Unsubscribe URI: it cannot be folded, so it must fit one line with the header's name and brackets.
    pub const LIST_UNSUBSCRIBE_MAX_OCTETS: usize = 900;
}

/// Header names that outboxd or the servers on the way set, in lower case; so may not a producer.
pub const RESERVED_HEADERS: &[&str] = &[
    "auto-submitted",
    "bcc",
    "cc",
    "date",
    "dkim-signature",
    "from",
    "list-unsubscribe",
    "list-unsubscribe-post",
    "message-id",
    "mime-version",
    "received",
    "reply-to",
    "resend-idempotency-key",
    "return-path",
    "sender",
    "subject",
    "to",
    "x-notification-id",
];

/// Beginnings of header names that a producer may not use, in lower case: MIME's own, and those that redirect mail
/// (RFC 5322, 3.6.6).
pub const RESERVED_HEADER_PREFIXES: &[&str] = &["content-", "resent-"];

/// Why content cannot be made into a message: which field, what is wrong with it and what to do. Safe to store and log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field, as the database names it, such as `subject` or `attachments[2].content`.
    pub field: Cow<'static, str>,
    /// What is wrong, and after a semicolon what to do.
    pub problem: String,
}

impl Invalid {
    /// Names a field and what is wrong with it.
    pub fn new(field: impl Into<Cow<'static, str>>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// A notification's content exactly as the database holds it.
#[derive(Clone)]
pub struct RawContent {
    /// The notification's identity.
    pub id: NotificationId,
    /// When it was enqueued; becomes the `Date`.
    pub created_at: OffsetDateTime,
    /// The sender's address.
    pub sender: String,
    /// The sender's display name.
    pub sender_name: Option<String>,
    /// The recipient's address.
    pub recipient: String,
    /// The recipient's display name.
    pub recipient_name: Option<String>,
    /// The address for replies, where it is not the sender's.
    pub reply_to: Option<String>,
    /// The subject.
    pub subject: String,
    /// The plain text.
    pub body_text: Option<String>,
    /// The HTML.
    pub body_html: Option<String>,
    /// An array of `[name, value]` pairs.
    pub headers: Value,
    /// An array of `{"filename", "content_type", "content"}` with the content in base64.
    pub attachments: Value,
    /// An `https:` or `mailto:` URI (RFC 2369, 3.2).
    pub list_unsubscribe: Option<String>,
    /// Whether that URI unsubscribes with one click (RFC 8058).
    pub list_unsubscribe_post: bool,
}

/// Tells the identity alone: content does not belong in a log.
impl fmt::Debug for RawContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawContent").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A notification's content that can be made into a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    pub(crate) id: NotificationId,
    /// In UTC, between the years 1900 and 9999.
    pub(crate) created_at: OffsetDateTime,
    pub(crate) sender: Mailbox,
    pub(crate) recipient: Mailbox,
    pub(crate) reply_to: Option<EmailAddress>,
    pub(crate) subject: String,
    pub(crate) body: Body,
    pub(crate) headers: Vec<Header>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) list_unsubscribe: Option<ListUnsubscribe>,
}

/// An address with the name to show for it; the name is neither blank nor holds control characters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Mailbox {
    pub(crate) name: Option<String>,
    pub(crate) address: EmailAddress,
}

/// The body, in one form or both. None of them is empty or holds NUL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Text(String),
    Html(String),
    Both { text: String, html: String },
}

/// A header of the producer's own. Name and value fit one line; the value has no spaces around it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// How to unsubscribe. The URI is ASCII without spaces and angle brackets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ListUnsubscribe {
    pub(crate) uri: String,
    pub(crate) one_click: bool,
}

/// Tells the identity alone: content does not belong in a log.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Content {
    /// Takes what the database holds, or names the first field that no message can be made of.
    ///
    /// A blank name counts as no name, and an empty body as no body.
    ///
    /// # Errors
    ///
    /// [`Invalid`], which holds nothing of the content itself.
    pub fn parse(raw: RawContent) -> Result<Self, Invalid> {
        Ok(Self {
            id: raw.id,
            created_at: created_at(raw.created_at)?,
            sender: mailbox(("sender", raw.sender), ("sender_name", raw.sender_name))?,
            recipient: mailbox(("recipient", raw.recipient), ("recipient_name", raw.recipient_name))?,
            reply_to: raw.reply_to.map(|text| address("reply_to", &text)).transpose()?,
            subject: subject(raw.subject)?,
            body: body(raw.body_text, raw.body_html)?,
            headers: headers(raw.headers)?,
            attachments: attachment::parse_all(raw.attachments)?,
            list_unsubscribe: list_unsubscribe(raw.list_unsubscribe, raw.list_unsubscribe_post)?,
        })
    }

    /// The notification's identity.
    #[must_use]
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// Whom it goes to.
    #[must_use]
    pub fn recipient(&self) -> &EmailAddress {
        &self.recipient.address
    }
}

/// Whether `name` is a header's name: printable ASCII without a colon (RFC 5322, 3.6.8) of a bounded length.
#[must_use]
pub fn is_header_name(name: &str) -> bool {
    (1..=limits::HEADER_NAME_MAX_OCTETS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

/// Whether outboxd or a server on the way sets the header of this name, so that a producer may not.
#[must_use]
pub fn is_reserved_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    RESERVED_HEADERS.contains(&lower.as_str())
        || RESERVED_HEADER_PREFIXES.iter().any(|&prefix| lower.starts_with(prefix))
}

fn created_at(stored: OffsetDateTime) -> Result<OffsetDateTime, Invalid> {
    stored
        .checked_to_offset(UtcOffset::UTC)
        .filter(|utc| (1900..=9999).contains(&utc.year()))
        .ok_or_else(|| Invalid::new("created_at", "cannot be a Date (RFC 5322, 3.3); use a year from 1900 to 9999"))
}

fn address(field: &'static str, text: &str) -> Result<EmailAddress, Invalid> {
    text.parse().map_err(|problem: super::address::AddressProblem| Invalid::new(field, problem.to_string()))
}

fn mailbox(address_field: (&'static str, String), name: (&'static str, Option<String>)) -> Result<Mailbox, Invalid> {
    let (field, text) = address_field;
    let address = address(field, &text)?;
    let (field, name) = name;
    let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    check_name(field, name.as_deref().unwrap_or_default())?;
    Ok(Mailbox { name, address })
}

/// Whether a display name can stand in a header.
pub(super) fn check_name(field: impl Into<Cow<'static, str>>, name: &str) -> Result<(), Invalid> {
    if name.contains(char::is_control) {
        return Err(Invalid::new(field, "has a control character (perhaps a line break); remove it"));
    }
    if name.len() > limits::NAME_MAX_OCTETS {
        return Err(Invalid::new(field, format!("is longer than {} octets; shorten it", limits::NAME_MAX_OCTETS)));
    }
    Ok(())
}

fn subject(text: String) -> Result<String, Invalid> {
    if text.contains(|c: char| c.is_control() && c != '\t') {
        return Err(Invalid::new("subject", "has a control character (perhaps a line break); remove it"));
    }
    if text.len() > limits::SUBJECT_MAX_OCTETS {
        return Err(Invalid::new(
            "subject",
            format!("is longer than {} octets; shorten it", limits::SUBJECT_MAX_OCTETS),
        ));
    }
    Ok(text)
}

fn body(text: Option<String>, html: Option<String>) -> Result<Body, Invalid> {
    for (field, body) in [("body_text", &text), ("body_html", &html)] {
        let Some(body) = body else { continue };
        if body.len() > limits::BODY_MAX_OCTETS {
            return Err(Invalid::new(
                field,
                format!("is longer than {} octets; shorten it or attach it", limits::BODY_MAX_OCTETS),
            ));
        }
        if body.contains('\0') {
            return Err(Invalid::new(field, "has a NUL character; remove it"));
        }
    }
    let present = |body: Option<String>| body.filter(|body| !body.is_empty());
    match (present(text), present(html)) {
        (Some(text), Some(html)) => Ok(Body::Both { text, html }),
        (Some(text), None) => Ok(Body::Text(text)),
        (None, Some(html)) => Ok(Body::Html(html)),
        (None, None) => {
            Err(Invalid::new("body_text", "is empty and so is body_html; give at least one of the two bodies"))
        }
    }
}

fn headers(value: Value) -> Result<Vec<Header>, Invalid> {
    let Value::Array(pairs) = value else {
        return Err(Invalid::new("headers", "is not an array; give an array of [name, value] pairs"));
    };
    if pairs.len() > limits::HEADERS_MAX_COUNT {
        return Err(Invalid::new("headers", format!("has more than {} pairs; give fewer", limits::HEADERS_MAX_COUNT)));
    }
    pairs.into_iter().enumerate().map(|(index, pair)| header(index, pair)).collect()
}

fn header(index: usize, pair: Value) -> Result<Header, Invalid> {
    let refuse = |problem: &str| Err(Invalid::new(format!("headers[{index}]"), problem));
    let [name, value] = match pair {
        Value::Array(pair) => <[Value; 2]>::try_from(pair).unwrap_or_default(),
        _ => <[Value; 2]>::default(),
    };
    let (Value::String(name), Value::String(value)) = (name, value) else {
        return refuse("is not a pair of strings; give [name, value]");
    };
    if !is_header_name(&name) {
        return refuse("has no valid name (RFC 5322, 3.6.8); use 1 to 76 printable ASCII characters without `:`");
    }
    if is_reserved_header(&name) {
        return refuse(
            "sets a header that outboxd or a mail server sets (see the list of reserved names); leave it out",
        );
    }
    if value.contains(char::is_control) {
        return refuse("has a control character in its value (perhaps a line break); remove it");
    }
    if name.len() + ": ".len() + value.len() > limits::HEADER_MAX_OCTETS {
        return refuse("is longer than 998 octets with its name (RFC 5322, 2.1.1); shorten it");
    }
    // White space around a value means nothing (RFC 5322, 2.2), and some servers take it away.
    Ok(Header { name, value: value.trim_matches(' ').to_owned() })
}

fn list_unsubscribe(uri: Option<String>, one_click: bool) -> Result<Option<ListUnsubscribe>, Invalid> {
    const FIELD: &str = "list_unsubscribe";
    let begins = |uri: &str, scheme: &str| {
        uri.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)) && uri.len() > scheme.len()
    };
    let https = uri.as_deref().is_some_and(|uri| begins(uri, "https://"));
    if one_click && !https {
        return Err(Invalid::new(
            "list_unsubscribe_post",
            "asks for one-click unsubscribing without an https URI (RFC 8058, 3.1); set list_unsubscribe to one",
        ));
    }
    let Some(uri) = uri else { return Ok(None) };
    if !https && !begins(&uri, "mailto:") {
        return Err(Invalid::new(FIELD, "is neither an https nor a mailto URI; give one such as `https://…`"));
    }
    if !uri.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>".contains(&byte)) {
        return Err(Invalid::new(FIELD, "has a character that a URI must not hold (RFC 3986, 2); percent-encode it"));
    }
    if uri.len() > limits::LIST_UNSUBSCRIBE_MAX_OCTETS {
        return Err(Invalid::new(
            FIELD,
            format!("is longer than {} octets; shorten it", limits::LIST_UNSUBSCRIBE_MAX_OCTETS),
        ));
    }
    Ok(Some(ListUnsubscribe { uri, one_click }))
}

#[cfg(test)]
mod tests;
