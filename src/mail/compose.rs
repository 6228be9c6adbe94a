//! From content to the bytes of a message (RFC 5322, RFC 2045), the same on every attempt.
//!
//! Everything derives from stored data: no clock, no randomness, no host name may enter here. The bytes are 7-bit with
//! CRLF alone, except that an internationalised address is written as it is.

use std::io::Write as _;

use lettre::message::header::{ContentTransferEncoding, HeaderName, HeaderValue, Headers};
use lettre::message::{Body as Encoded, MultiPart, SinglePart, header as lettre_header};
use time::format_description::well_known::Rfc2822;

use super::header;
use crate::domain::address::{EmailAddress, is_host_name};
use crate::domain::attachment::Attachment;
use crate::domain::content::{Body, Content, Invalid, Mailbox, is_header_name, is_reserved_header, limits};

/// The header that carries the notification's id where none is configured.
pub const DEFAULT_DEDUP_HEADER: &str = "X-Notification-ID";

/// What the id adds to a value, at most.
const UUID_OCTETS: usize = 36;

/// The headers that carry the notification's id for a known provider; reserved whether configured or not.
const DEDUP_HEADERS: [&str; 2] = [DEFAULT_DEDUP_HEADER, "Resend-Idempotency-Key"];

/// How a notification's identity goes on the wire: the same for all messages of a configuration, so that a resend is
/// byte for byte what was sent before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    message_id_domain: String,
    dedup_header: String,
    headers: Vec<(String, String)>,
    bounce_address: Option<String>,
}

/// Stands for the notification's id in a provider's headers and in the bounce address.
pub const ID_PLACE: &str = "{id}";

impl Identity {
    /// Takes the domain of the `Message-ID` and the name of the header that carries the notification's id,
    /// [`DEFAULT_DEDUP_HEADER`] if `None`. That header alone carries it: a provider that deduplicates reads one.
    ///
    /// # Errors
    ///
    /// [`Invalid`] where the domain is not a host name, or the header's name is not one or is set for another reason.
    pub fn new(message_id_domain: &str, dedup_header: Option<&str>) -> Result<Self, Invalid> {
        if !is_host_name(message_id_domain) {
            return Err(Invalid::new(
                "message_id_domain",
                "is not a host name of ASCII letters, digits, hyphens and dots; give a domain that you own",
            ));
        }
        let dedup_header = dedup_header.unwrap_or(DEFAULT_DEDUP_HEADER);
        let known = DEDUP_HEADERS.iter().any(|known| known.eq_ignore_ascii_case(dedup_header));
        if !known && (!is_header_name(dedup_header) || is_reserved_header(dedup_header)) {
            return Err(Invalid::new(
                "dedup_header",
                "is not a header's name or is set for another reason; give one such as `X-Notification-ID`",
            ));
        }
        Ok(Self {
            message_id_domain: message_id_domain.to_owned(),
            dedup_header: dedup_header.to_owned(),
            headers: Vec::new(),
            bounce_address: None,
        })
    }

    /// Adds a header for the provider, in whose value [`ID_PLACE`] stands for the notification's id: such as the one from which
    /// its events get the id.
    ///
    /// # Errors
    ///
    /// [`Invalid`] where it cannot stand in a message, or is set for another reason.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, Invalid> {
        let taken = name.eq_ignore_ascii_case(&self.dedup_header)
            || self.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        if !is_header_name(name) || is_reserved_header(name) || taken {
            return Err(Invalid::new(
                "headers",
                format!("{name:?} is not a header's name or is set for another reason"),
            ));
        }
        let long = name.len() + ": ".len() + value.len() + UUID_OCTETS > limits::HEADER_MAX_OCTETS;
        if value.is_empty() || long || value.contains(|c: char| c.is_control() || !c.is_ascii()) {
            return Err(Invalid::new(
                "headers",
                format!("the value of {name} is empty, too long, or not printable ASCII"),
            ));
        }
        self.headers.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Makes bounces come back to an address of the notification's own: the reverse path, with [`ID_PLACE`] in its local part
    /// (VERP). Without it, the reverse path is the sender.
    ///
    /// # Errors
    ///
    /// [`Invalid`] where no address comes of it.
    pub fn with_bounce_address(mut self, template: &str) -> Result<Self, Invalid> {
        let placed = template.split_once('@').is_some_and(|(local, _)| local.matches(ID_PLACE).count() == 1);
        let address = template.replace(ID_PLACE, &uuid::Uuid::nil().to_string()).parse::<EmailAddress>();
        if !placed || !address.is_ok_and(|address| !address.needs_smtputf8()) {
            return Err(Invalid::new(
                "bounce_address",
                "is no ASCII address with {id} once before the @; give one such as \"bounce+{id}@bounces.example.com\"",
            ));
        }
        self.bounce_address = Some(template.to_owned());
        Ok(self)
    }

    /// The template of the address to which bounces come back, if there is one.
    #[must_use]
    pub fn bounce_address(&self) -> Option<&str> {
        self.bounce_address.as_deref()
    }

    /// The right side of every Message-ID.
    #[must_use]
    pub fn message_id_domain(&self) -> &str {
        &self.message_id_domain
    }
}

/// A message ready to be handed to a provider.
#[derive(Clone, PartialEq, Eq)]
pub struct Composed {
    /// The reverse path, as it goes into MAIL FROM.
    pub sender: String,
    /// The forward path, as it goes into RCPT TO.
    pub recipient: String,
    /// Whether only a server with SMTPUTF8 can take it (RFC 6531): an address in the envelope or a header is not ASCII.
    pub smtputf8: bool,
    /// The message, not dot-stuffed, ending in CRLF.
    pub bytes: Vec<u8>,
}

/// Tells the size alone: content does not belong in a log.
impl std::fmt::Debug for Composed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Composed").field("octets", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// Makes the message. The same content and identity make the same bytes, in any process and on any day.
///
/// # Errors
///
/// [`Invalid`] where a header of the producer's own has the name of the identity's dedup header.
pub fn compose(content: &Content, identity: &Identity) -> Result<Composed, Invalid> {
    let smtputf8 = [Some(&content.sender.address), Some(&content.recipient.address), content.reply_to.as_ref()]
        .into_iter()
        .flatten()
        .any(EmailAddress::needs_smtputf8);
    let mut bytes = Vec::new();
    write_headers(&mut bytes, content, identity)?;
    write_body(&mut bytes, content)?;
    check_wire(&bytes, smtputf8)?;
    Ok(Composed {
        sender: match &identity.bounce_address {
            Some(template) => template.replace(ID_PLACE, &content.id.to_string()),
            None => content.sender.address.wire().to_owned(),
        },
        recipient: content.recipient.address.wire().to_owned(),
        smtputf8,
        bytes,
    })
}

fn write_headers(out: &mut Vec<u8>, content: &Content, identity: &Identity) -> Result<(), Invalid> {
    let date = content
        .created_at
        .format(&Rfc2822)
        .map_err(|_| Invalid::new("created_at", "cannot be a Date (RFC 5322, 3.3); use a year from 1900 to 9999"))?;
    write_header(out, "Date", date)?;
    let mailbox = |name: &str, it: &Mailbox| header::mailbox(name, it.name.as_deref(), it.address.wire());
    write_header(out, "From", mailbox("From", &content.sender))?;
    write_header(out, "To", mailbox("To", &content.recipient))?;
    if let Some(reply_to) = &content.reply_to {
        write_header(out, "Reply-To", reply_to.wire().to_owned())?;
    }
    write_header(out, "Subject", header::text("Subject", &content.subject))?;
    write_header(out, "Message-ID", content.id.message_id(&identity.message_id_domain))?;
    write_header(out, &identity.dedup_header, content.id.to_string())?;
    for (name, value) in &identity.headers {
        write_header(out, name, header::verbatim(name, &value.replace(ID_PLACE, &content.id.to_string())))?;
    }
    // RFC 3834, 5: vacation responders leave it alone.
    write_header(out, "Auto-Submitted", "auto-generated".to_owned())?;
    if let Some(unsubscribe) = &content.list_unsubscribe {
        write_header(out, "List-Unsubscribe", format!("<{}>", unsubscribe.uri))?;
        if unsubscribe.one_click {
            write_header(out, "List-Unsubscribe-Post", "List-Unsubscribe=One-Click".to_owned())?;
        }
    }
    for (index, own) in content.headers.iter().enumerate() {
        let others = identity.headers.iter().map(|(name, _)| name).chain([&identity.dedup_header]);
        if others.into_iter().any(|name| own.name.eq_ignore_ascii_case(name)) {
            return Err(Invalid::new(
                format!("headers[{index}]"),
                "has the name of a header that the provider's settings give to every message; leave it out",
            ));
        }
        write_header(out, &own.name, header::verbatim(&own.name, &own.value))?;
    }
    write_header(out, "MIME-Version", "1.0".to_owned())
}

/// One at a time, since lettre's `Headers` keeps only the last of a name and a producer may repeat one.
fn write_header(out: &mut Vec<u8>, name: &str, value: String) -> Result<(), Invalid> {
    let broken = || Invalid::new("headers", "has a name that is not one (RFC 5322, 3.6.8); use printable ASCII");
    let name = HeaderName::new_from_ascii(name.to_owned()).map_err(|_| broken())?;
    let mut headers = Headers::new();
    headers.insert_raw(HeaderValue::dangerous_new_pre_encoded(name, String::new(), value));
    write!(out, "{headers}").map_err(|_| broken())
}

fn write_body(out: &mut Vec<u8>, content: &Content) -> Result<(), Invalid> {
    let boundaries = Boundaries::of(content);
    let plain = |text: &str| text_part(lettre_header::ContentType::TEXT_PLAIN, text, "body_text", &boundaries);
    let html = |text: &str| text_part(lettre_header::ContentType::TEXT_HTML, text, "body_html", &boundaries);
    let alternative = |text: &str, rich: &str| {
        let parts = MultiPart::alternative().boundary(&boundaries.alternative);
        Ok(parts.singlepart(plain(text)?).singlepart(html(rich)?))
    };
    if content.attachments.is_empty() {
        match &content.body {
            Body::Text(text) => write_single(out, &plain(text)?),
            Body::Html(text) => write_single(out, &html(text)?),
            Body::Both { text, html: rich } => out.extend(alternative(text, rich)?.formatted()),
        }
        return Ok(());
    }
    let mixed = MultiPart::mixed().boundary(&boundaries.mixed);
    let mut mixed = match &content.body {
        Body::Text(text) => mixed.singlepart(plain(text)?),
        Body::Html(text) => mixed.singlepart(html(text)?),
        Body::Both { text, html: rich } => mixed.multipart(alternative(text, rich)?),
    };
    for (index, attachment) in content.attachments.iter().enumerate() {
        mixed = mixed.singlepart(file_part(index, attachment)?);
    }
    out.extend(mixed.formatted());
    Ok(())
}

/// A part that is the whole message. Unlike lettre's own, it ends in exactly the line ends that the text has.
fn write_single(out: &mut Vec<u8>, part: &SinglePart) {
    out.extend(part.headers().to_string().as_bytes());
    out.extend(b"\r\n");
    out.extend(part.raw_body());
    if !out.ends_with(b"\r\n") {
        out.extend(b"\r\n");
    }
}

/// What separates the parts, made of the notification's id.
struct Boundaries {
    mixed: String,
    alternative: String,
}

impl Boundaries {
    /// What both begin with. `=_` is in no base64 and in no quoted-printable text (RFC 2045, 6.7).
    const START: &'static str = "=_outboxd_";

    fn of(content: &Content) -> Self {
        let id = content.id.0.simple();
        Self { mixed: format!("{}m_{id}", Self::START), alternative: format!("{}a_{id}", Self::START) }
    }
}

fn text_part(
    content_type: lettre_header::ContentType,
    text: &str,
    field: &'static str,
    boundaries: &Boundaries,
) -> Result<SinglePart, Invalid> {
    let text = with_crlf(text);
    let hides_boundary = text.contains(&boundaries.mixed) || text.contains(&boundaries.alternative);
    let body = if hides_boundary {
        Encoded::new_with_encoding(text, ContentTransferEncoding::QuotedPrintable)
            .map_err(|_| Invalid::new(field, "cannot be written as quoted-printable; leave out the boundary in it"))?
    } else {
        Encoded::new(text)
    };
    Ok(SinglePart::builder().header(content_type).body(body))
}

/// Always base64: lettre leaves short ASCII lines as they are, bare line feeds among them.
fn file_part(index: usize, attachment: &Attachment) -> Result<SinglePart, Invalid> {
    let body =
        Encoded::new_with_encoding(attachment.content.clone(), ContentTransferEncoding::Base64).map_err(|_| {
            Invalid::new(format!("attachments[{index}].content"), "cannot be written as base64; send a link")
        })?;
    Ok(SinglePart::builder()
        .header(MediaType(header::verbatim("Content-Type", &attachment.content_type)))
        .header(Disposition(header::attachment(&attachment.filename)))
        .body(body))
}

/// A header of a part that is already written: lettre's own types parse media types more narrowly than RFC 2045, and let
/// a file name that looks like an encoded word be read as another.
macro_rules! written_header {
    ($type:ident, $name:literal) => {
        #[derive(Clone)]
        struct $type(String);

        impl lettre_header::Header for $type {
            fn name() -> HeaderName {
                HeaderName::new_from_ascii_str($name)
            }

            fn parse(text: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
                Ok(Self(text.to_owned()))
            }

            fn display(&self) -> HeaderValue {
                HeaderValue::dangerous_new_pre_encoded(Self::name(), String::new(), self.0.clone())
            }
        }
    };
}

written_header!(MediaType, "Content-Type");
written_header!(Disposition, "Content-Disposition");

/// CRLF for every line end, whether it was CRLF, LF or CR (RFC 5321, 2.3.8). lettre's own does not touch a bare CR, and
/// takes time that grows with the square of the number of lines.
fn with_crlf(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut rest = text;
    while let Some(at) = rest.find(['\r', '\n']) {
        let (line, end) = rest.split_at(at);
        out.push_str(line);
        out.push_str("\r\n");
        rest = end.strip_prefix("\r\n").or_else(|| end.get(1..)).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// The last look before the wire, whatever the code above and lettre made of the content: a bare CR or LF, an overlong
/// line or an octet above ASCII would be read differently from server to server.
fn check_wire(bytes: &[u8], smtputf8: bool) -> Result<(), Invalid> {
    let broken = |what: &str| Err(Invalid::new("message", format!("{what}; report it as a fault of outboxd")));
    if !smtputf8 && !bytes.is_ascii() {
        return broken("came out with octets above ASCII");
    }
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return broken("came out with a line that CRLF does not end");
        };
        if line.len() > limits::LINE_MAX_OCTETS {
            return broken("came out with a line over 998 octets");
        }
        if line.contains(&b'\r') {
            return broken("came out with a bare CR");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
