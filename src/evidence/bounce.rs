//! A bounce: a message in a mailbox that may be a delivery status notification (RFC 3464; RFC 6533 for international mail) about a
//! mail of ours.
//!
//! Pure. Whoever knows a notification's id, which its recipient does, can write a message that looks like one: it can say that a mail
//! came back, and never that it was not accepted.

use mail_parser::{Message, MessageParser, MimeHeaders as _, PartType};
use ring::digest::{SHA256, digest};
use time::OffsetDateTime;

use super::follow::id_of;
use crate::domain::evidence::Proof;
use crate::domain::ids::NotificationId;

/// Parts of a message that are looked at: a report has three.
const PARTS_MAX: usize = 100;

/// Recipients of one report that are looked at: ours is one.
const GROUPS_MAX: usize = 20;

/// What is kept of a server's words, in characters.
const WORDS_MAX_CHARS: usize = 500;

/// The headers besides `Message-ID` that carry the id by themselves.
const ID_HEADERS: [&str; 2] = ["x-notification-id", "resend-idempotency-key"];

/// The headers that tell to whom a message came.
const TO_HEADERS: [&str; 5] = ["to", "delivered-to", "x-original-to", "envelope-to", "x-envelope-to"];

/// How mail of ours is known.
#[derive(Debug, Clone, Default)]
pub struct Ours {
    /// The right sides of Message-IDs.
    pub domains: Vec<String>,
    /// The addresses that bounces come to, in two parts: before and after the id.
    pub addresses: Vec<(String, String)>,
}

/// What a message says about a mail of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The notification.
    pub id: NotificationId,
    /// What it proves.
    pub proof: Proof,
    /// `Action` and `Status`.
    pub status: String,
    /// The server's own words.
    pub words: String,
    /// What tells it from all others, and is the same when it is read again.
    pub reference: String,
    /// When, by the message.
    pub at: Option<OffsetDateTime>,
}

/// What a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bounce {
    /// A report about a mail of ours: one or more findings.
    Report(Vec<Found>),
    /// It came to the bounce address of a mail of ours and is no report: an automatic answer, or a bounce of an old kind. A person
    /// may want to see it.
    Other(Found),
    /// Not about a mail of ours, as far as it tells.
    NotOurs,
}

/// Reads a message.
#[must_use]
pub fn read(octets: &[u8], ours: &Ours) -> Bounce {
    let Some(message) = MessageParser::default().parse(octets) else { return Bounce::NotOurs };
    let head = fields(octets);
    let addressed = TO_HEADERS.iter().flat_map(|name| all(&head, name)).find_map(|to| ours.addressed(to));
    let mut status = None;
    let mut original = None;
    for part in every_part(&message) {
        let kind = part.content_type().map(|kind| {
            let subtype = kind.subtype().unwrap_or_default();
            format!("{}/{subtype}", kind.ctype()).to_ascii_lowercase()
        });
        match kind.as_deref() {
            Some("message/delivery-status" | "message/global-delivery-status") => status = Some(part.contents()),
            Some("message/rfc822" | "text/rfc822-headers" | "message/global" | "message/global-headers") => {
                original = original.or_else(|| ours.named(&fields(part.contents())));
            }
            _ => {}
        }
    }
    // The address is more than what is quoted: it was made for this one mail.
    let Some(id) = addressed.or(original) else { return Bounce::NotOurs };
    let at = message.date().and_then(|date| OffsetDateTime::from_unix_timestamp(date.to_timestamp()).ok());
    let reference = reference(&head, octets);
    let found = |proof, status: &str, words: &str, reference: String| Found {
        id,
        proof,
        status: plain(status),
        words: plain(words),
        reference,
        at,
    };
    let Some(report) = status else {
        return Bounce::Other(found(Proof::Inconclusive, "", "no delivery report", reference));
    };
    let groups = groups(report);
    let findings: Vec<Found> = groups
        .iter()
        .filter_map(|group| {
            let action = first(group, "action")?.to_ascii_lowercase();
            let proof = match action.split([' ', '(', ';']).next().unwrap_or_default() {
                "failed" => Proof::Bounced,
                "delivered" => Proof::Delivered,
                // What waits, or went on to where no report comes from, was accepted.
                "delayed" | "relayed" | "expanded" => Proof::Accepted,
                _ => Proof::Inconclusive,
            };
            let status = format!("{action} {}", first(group, "status").unwrap_or_default());
            Some((proof, status, first(group, "diagnostic-code").unwrap_or_default().to_owned()))
        })
        .take(GROUPS_MAX)
        .enumerate()
        .map(|(at, (proof, status, words))| {
            let reference = if at == 0 { reference.clone() } else { format!("{reference} {at}") };
            found(proof, &status, &words, reference)
        })
        .collect();
    if findings.is_empty() {
        return Bounce::Other(found(Proof::Inconclusive, "", "a delivery report that says nothing", reference));
    }
    Bounce::Report(findings)
}

impl Ours {
    /// The id in an address that bounces come to; letters of either case are the same to most servers.
    fn addressed(&self, to: &str) -> Option<NotificationId> {
        let to = to.to_ascii_lowercase();
        self.addresses.iter().find_map(|(before, after)| {
            let (before, after) = (before.to_ascii_lowercase(), after.to_ascii_lowercase());
            to.match_indices(&before).find_map(|(at, _)| {
                let id = to.get(at + before.len()..)?.get(..36)?;
                let rest = to.get(at + before.len() + 36..)?;
                if rest.starts_with(&after) { id.parse().ok() } else { None }
            })
        })
    }

    /// The id that a message's own headers carry.
    fn named(&self, headers: &[(String, String)]) -> Option<NotificationId> {
        let message_id = first(headers, "message-id").and_then(|value| {
            let value = value.trim().strip_prefix('<')?.strip_suffix('>')?;
            self.domains.iter().find_map(|domain| id_of(value, domain))
        });
        message_id.or_else(|| ID_HEADERS.iter().find_map(|name| first(headers, name)?.trim().parse().ok()))
    }
}

/// The parts of a message, those of a message inside it not among them.
fn every_part<'m>(message: &'m Message<'m>) -> impl Iterator<Item = &'m mail_parser::MessagePart<'m>> {
    message.parts.iter().filter(|part| !matches!(part.body, PartType::Multipart(_))).take(PARTS_MAX)
}

/// The fields of each group of a report: the message's, then one for each recipient (RFC 3464, 2.1).
fn groups(report: &[u8]) -> Vec<Vec<(String, String)>> {
    let text = String::from_utf8_lossy(report).replace("\r\n", "\n");
    text.split("\n\n").map(|group| fields(group.trim_start_matches('\n').as_bytes())).collect()
}

/// Header fields up to the first empty line, names in lower case, folded lines joined.
fn fields(octets: &[u8]) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in octets.split(|octet| *octet == b'\n') {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_empty() {
            break;
        }
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    fields
}

fn all<'f>(fields: &'f [(String, String)], name: &str) -> impl Iterator<Item = &'f str> {
    fields.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
}

fn first<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
}

/// The message's own Message-ID; without one, what it is.
fn reference(head: &[(String, String)], octets: &[u8]) -> String {
    match first(head, "message-id") {
        Some(id) if !id.is_empty() => plain(id),
        _ => digest(&SHA256, octets).as_ref().iter().take(16).map(|octet| format!("{octet:02x}")).collect(),
    }
}

fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(WORDS_MAX_CHARS)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests;
