//! The sections of the message API and of retention.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::reader::{self, Notes, Section};
use super::{Api, IssuedKeys, Retention};
use crate::domain::issued_key::{KeyMint, SECRET_MIN_OCTETS};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Optional,
    Required,
}

const MODES: &[(&str, Mode)] = &[("off", Mode::Off), ("optional", Mode::Optional), ("required", Mode::Required)];

/// Anything else was a problem; this only lets the reading go on.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(super) fn read(mut section: Section, notes: &mut Notes) -> Api {
    let listen = section.optional("listen", notes, |kind| {
        let text = reader::text(kind)?;
        text.parse().map_err(|_| "an address such as \"127.0.0.1:8080\"".to_owned())
    });
    let api = Api {
        listen: listen.unwrap_or(NOWHERE),
        connections: section.value("connections", notes, reader::count),
        in_flight: section.value("in_flight", notes, reader::count),
        account_in_flight: section.value("account_in_flight", notes, reader::count),
        body_max_bytes: section.value("body_max_bytes", notes, reader::count),
        request_timeout: section.value("request_timeout", notes, reader::some_time),
        statement_timeout: section.value("statement_timeout", notes, reader::some_time),
        lock_timeout: section.value("lock_timeout", notes, reader::some_time),
        issued_keys: issued_keys(&mut section, notes),
    };
    section.end(notes);
    api
}

fn issued_keys(section: &mut Section, notes: &mut Notes) -> Option<IssuedKeys> {
    let mode = section.optional("issued_keys", notes, reader::choice(MODES)).unwrap_or(Mode::Off);
    let secret = section.secret("key_secret", notes).filter(|secret| !secret.is_empty());
    let file = section.optional("key_secret_file", notes, reader::text);
    let window = section.value("key_window", notes, reader::some_time);
    if mode == Mode::Off {
        return None;
    }
    let secret = match (secret, file) {
        (Some(_), Some(_)) => {
            notes.problem("api.key_secret and api.key_secret_file are both set; keep one");
            return None;
        }
        (Some(secret), None) => secret,
        (None, Some(file)) => match std::fs::read_to_string(&file) {
            // Editors and `echo` end a file with a line feed that is no part of the secret.
            Ok(text) => text.trim_end_matches(['\r', '\n']).to_owned(),
            Err(error) => {
                notes.problem(format!("api.key_secret_file: {file} cannot be read: {error}"));
                return None;
            }
        },
        (None, None) => {
            notes.problem(
                "api.issued_keys needs api.key_secret or api.key_secret_file; set one, or issued_keys = \"off\"",
            );
            return None;
        }
    };
    let Some(mint) = KeyMint::new(secret.as_bytes()) else {
        notes.problem(format!(
            "api.key_secret is shorter than {SECRET_MIN_OCTETS} characters; make one with `openssl rand -hex 32`"
        ));
        return None;
    };
    Some(IssuedKeys { mint, required: mode == Mode::Required, window })
}

pub(super) fn read_retention(mut section: Section, notes: &mut Notes) -> Retention {
    let retention = Retention {
        every: section.value("every", notes, reader::some_time),
        receipts: section.value("receipts", notes, reader::some_time),
        messages: section.value("messages", notes, reader::some_time),
        notifications: section.value("notifications", notes, reader::some_time),
        attempts: section.value("attempts", notes, reader::some_time),
    };
    section.end(notes);
    retention
}
