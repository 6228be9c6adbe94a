//! The sections `[events.NAME]`: providers' events that the API takes, and how they prove where they come from.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::EventSource;
use super::reader::{self, Notes, Section};
use crate::evidence::events::ses::PublicKey;
use crate::evidence::events::{Mailgun, Postmark, Resend, SendGrid, Ses, Source};

/// The kinds, as [`Source::name`] has them.
const KINDS: [&str; 5] = ["ses", "sendgrid", "mailgun", "postmark", "resend"];

pub(super) fn read(section: Section, notes: &mut Notes) -> BTreeMap<String, EventSource> {
    let tables = section.tables(notes);
    let sources = tables.into_iter().filter_map(|(name, table)| {
        let mut section = Section::new(format!("events.{name}"), table);
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
            notes.problem(format!(
                "events.{name}: it is part of an address, of 1 to 63 lower-case letters, digits, \"-\" and \"_\"; rename it"
            ));
        }
        let source = source(&mut section, notes);
        let provider = section.optional("provider", notes, reader::text);
        if provider.is_none() {
            notes.problem(format!("{} is missing: set it to the provider whose events they are", section.name("provider")));
        }
        section.end(notes);
        Some((name, EventSource { provider: provider?, source: source? }))
    });
    sources.collect()
}

fn source(section: &mut Section, notes: &mut Notes) -> Option<Source> {
    let kind = section.optional("kind", notes, |kind| {
        let text = reader::text(kind)?;
        KINDS.into_iter().find(|known| *known == text).ok_or_else(|| format!("one of {}", KINDS.join(", ")))
    });
    let Some(kind) = kind else {
        notes.problem(format!("{} is missing: set it to one of {}", section.name("kind"), KINDS.join(", ")));
        return None;
    };
    match kind {
        "ses" => ses(section, notes),
        "postmark" => {
            let username = section.optional("username", notes, reader::text).unwrap_or_default();
            let password = section.secret_or_file("password", "password_file", notes)?;
            if username.is_empty() {
                notes.problem(format!("{} is missing: set what the webhook's address has", section.name("username")));
                return None;
            }
            Some(Source::Postmark(Postmark::new(&username, &password)))
        }
        kind => {
            let key = section.secret_or_file("key", "key_file", notes)?;
            let source = match kind {
                "sendgrid" => SendGrid::new(&key).map(Source::SendGrid),
                "mailgun" => Some(Source::Mailgun(Mailgun::new(key.trim()))),
                _ => Resend::new(&key).map(Source::Resend),
            };
            if source.is_none() {
                notes
                    .problem(format!("{} is not a key of {kind}: copy it whole from its console", section.name("key")));
            }
            source
        }
    }
}

fn ses(section: &mut Section, notes: &mut Notes) -> Option<Source> {
    let topic = section.optional("topic_arn", notes, reader::text).unwrap_or_default();
    let file = section.optional("certificate_file", notes, reader::text);
    if !topic.starts_with("arn:") {
        notes.problem(format!(
            "{}: {topic:?} is not the ARN of an SNS topic; anyone may have a topic, so events are taken from one alone",
            section.name("topic_arn")
        ));
        return None;
    }
    let Some(file) = file else { return Some(Source::Ses(Box::new(Ses::new(&topic, None)))) };
    let certificate = std::fs::read(&file).ok();
    let key = certificate.and_then(|pem| PublicKey::of_certificate(&pem, OffsetDateTime::now_utc()));
    if key.is_none() {
        notes.problem(format!(
            "{}: {file} is no certificate in PEM that is valid today; leave it out to fetch Amazon's own",
            section.name("certificate_file")
        ));
    }
    Some(Source::Ses(Box::new(Ses::new(&topic, Some(key?)))))
}
