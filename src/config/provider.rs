//! One `[provider.NAME]` section: read, checked against itself, and made into [`ProviderSettings`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config::ValueKind;
use secrecy::SecretString;

use super::reader::{self, Notes, Section, Table};
use super::{Recovery, identity};
use crate::domain::policy::{OnUncertain, RecoveryTerms};
use crate::mail::breaker::BreakerSettings;
use crate::mail::compose::DEFAULT_DEDUP_HEADER;
use crate::mail::endpoint::{Auth, Endpoint, Mechanism, Security, Timeouts};
use crate::mail::pool::Limits;
use crate::mail::provider::{Dedup, ProviderSettings};
use crate::mail::rate::Rate;
use crate::mail::trust::{self, ClientConfig, RootCertStore, ServerName, TrustError};

pub(super) const ON_UNCERTAIN: &[(&str, OnUncertain)] = &[
    ("hold", OnUncertain::Hold),
    ("resend-within-window", OnUncertain::ResendWithinWindow),
    ("accept-duplicates", OnUncertain::AcceptDuplicates),
];

const SECURITY: &[(&str, Security)] =
    &[("implicit-tls", Security::ImplicitTls), ("starttls", Security::StartTls), ("plaintext", Security::Plaintext)];

const MECHANISMS: &[(&str, Option<Mechanism>)] = &[
    ("auto", None),
    ("plain", Some(Mechanism::Plain)),
    ("login", Some(Mechanism::Login)),
    ("xoauth2", Some(Mechanism::XOAuth2)),
];

/// The usual ports (RFC 8314, 7.3; RFC 6409, 3.1; RFC 5321).
const fn default_port(security: Security) -> u16 {
    match security {
        Security::ImplicitTls => 465,
        Security::StartTls => 587,
        Security::Plaintext => 25,
    }
}

/// Headers that every message has with a meaning of their own: a notification id in them would destroy it.
const TAKEN_HEADERS: [&str; 13] = [
    "from",
    "sender",
    "reply-to",
    "to",
    "cc",
    "bcc",
    "subject",
    "date",
    "mime-version",
    "received",
    "return-path",
    "in-reply-to",
    "references",
];

/// The longest name of a header, so that a UUID fits on its line (RFC 5322, 2.1.1: 78).
const HEADER_MAX_BYTES: usize = 38;

/// What all providers share.
pub(super) struct Common<'a> {
    pub(super) recovery: &'a Recovery,
    pub(super) hello: &'a str,
    pub(super) message_id_domain: &'a str,
    pub(super) roots: &'a RootCertStore,
}

/// A key in `[provider_defaults]` that has no default here does not belong there.
pub(super) fn check_defaults(path: &str, given: &Table, embedded: &Table, notes: &mut Notes) {
    let mut keys: Vec<_> = given.iter().collect();
    keys.sort_by_key(|(key, _)| *key);
    for (key, value) in keys {
        match (embedded.get(key).map(|default| &default.kind), &value.kind) {
            (None, _) => notes.problem(format!("unknown key {path}.{key}; set it in the section of each provider")),
            (Some(ValueKind::Table(default)), ValueKind::Table(table)) => {
                check_defaults(&format!("{path}.{key}"), table, default, notes);
            }
            // A wrong kind is found when the value is read.
            (Some(_), _) => {}
        }
    }
}

/// Reads the section; `None` if it cannot be used, and then `notes` says why.
pub(super) fn read(name: &str, mut s: Section, common: &Common<'_>, notes: &mut Notes) -> Option<ProviderSettings> {
    let key = |key: &str| format!("provider.{name}.{key}");
    let before = notes.problems.len();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) || name.contains("__") {
        notes.problem(format!(
            "provider.{name}: a provider's name is of 1 to 63 lower-case letters, digits, \"-\" and single \"_\"; rename it"
        ));
    }
    let host = host(&mut s, &key("host"), notes);
    let security = s.optional("security", notes, reader::choice(SECURITY)).unwrap_or(Security::ImplicitTls);
    let port = s.optional("port", notes, reader::count).unwrap_or(default_port(security));
    let auth = auth(&mut s, name, security, notes);
    let tls = tls(&mut s, name, security, &host, common.roots, notes);
    let connections: u32 = s.value("connections", notes, reader::count);
    let limits = Limits {
        max_idle: usize::try_from(connections).unwrap_or(usize::MAX),
        idle_timeout: s.value("idle_timeout", notes, reader::some_time),
        max_messages: s.value("messages_per_connection", notes, reader::count),
        max_age: s.value("connection_max_age", notes, reader::some_time),
    };
    let per_second = s.value("rate_per_second", notes, reader::rate);
    let burst = s.value("burst", notes, reader::count);
    let send_deadline = s.value("send_deadline", notes, reader::some_time);
    let timeouts = timeouts(s.child("timeouts", notes), notes);
    let breaker = breaker(s.child("breaker", notes), &key("breaker"), notes);
    let on_uncertain =
        s.optional("on_uncertain", notes, reader::choice(ON_UNCERTAIN)).unwrap_or(common.recovery.on_uncertain);
    let window = s.optional("recovery_window", notes, reader::some_time).unwrap_or(common.recovery.window);
    let dedup = if s.gives("dedup") { dedup(s.child("dedup", notes), name, notes) } else { None };
    // A provider that deduplicates on `Message-ID` needs no header of its own: that one is always sent.
    let header =
        dedup.as_ref().map(|dedup| dedup.header.as_str()).filter(|header| !header.eq_ignore_ascii_case("Message-ID"));
    // What is wrong with the header was said where it was read.
    let header = header.filter(|_| notes.problems.len() == before);
    let identity = identity::read(&mut s, common.message_id_domain, header, notes);
    s.end(notes);

    if send_deadline < timeouts.end_of_data {
        notes.problem(format!(
            "{} ({send_deadline:?}) is shorter than timeouts.end_of_data ({:?}): an answer that may still come would be given \
             up; raise the one or lower the other",
            key("send_deadline"),
            timeouts.end_of_data,
        ));
    }
    let terms = Terms { name, on_uncertain, window, dedup: dedup.as_ref(), send_deadline };
    let recovery = terms.check(common.recovery.clock_margin, notes);
    if notes.problems.len() > before {
        return None;
    }
    let (tls, server_name) = tls?;
    let hello = common.hello.to_owned();
    Some(ProviderSettings {
        name: name.to_owned(),
        endpoint: Endpoint { host, port, security, tls, server_name, auth, hello, timeouts },
        limits,
        connections,
        rate: (per_second > 0.0).then_some(Rate { per_second, burst }),
        send_deadline,
        breaker,
        dedup,
        identity: identity?,
        on_uncertain,
        recovery,
    })
}

fn host(s: &mut Section, key: &str, notes: &mut Notes) -> String {
    let host = s.optional("host", notes, reader::text);
    let host = host.unwrap_or_default();
    if host.is_empty() {
        notes.problem(format!("{key} is missing: set it to the provider's host name"));
    } else if ServerName::try_from(host.as_str()).is_err() {
        notes.problem(format!(
            "{key}: {host:?} is not a host name or an address; the port has a key of its own, `port`"
        ));
    }
    host
}

fn auth(s: &mut Section, name: &str, security: Security, notes: &mut Notes) -> Option<Auth> {
    let key = |key: &str| format!("provider.{name}.{key}");
    let username = s.optional("username", notes, reader::text).filter(|username| !username.is_empty());
    let password = s.secret("password", notes);
    let file = s.optional("password_file", notes, reader::text);
    let mechanism = s.optional("mechanism", notes, reader::choice(MECHANISMS)).unwrap_or_default();
    let password = match (password, file) {
        (Some(_), Some(_)) => {
            notes.problem(format!("{} and {} are both set; keep one", key("password"), key("password_file")));
            return None;
        }
        (Some(password), None) => Some((password, key("password"))),
        (None, Some(file)) => match std::fs::read_to_string(&file) {
            // Editors and `echo` end a file with a line feed that is no part of the password.
            Ok(text) => Some((text.trim_end_matches(['\r', '\n']).to_owned(), key("password_file"))),
            Err(error) => {
                notes.problem(format!("{}: {file} cannot be read: {error}", key("password_file")));
                return None;
            }
        },
        (None, None) => None,
    };
    match (username, password) {
        (None, None) => None,
        (None, Some((_, given))) => {
            notes.problem(format!("{given} is set without {}; set both or neither", key("username")));
            None
        }
        (Some(_), None) => {
            notes.problem(format!(
                "{} is set without a password; set {}, {} or neither",
                key("username"),
                key("password"),
                key("password_file"),
            ));
            None
        }
        (Some(username), Some((password, given))) => {
            if security == Security::Plaintext {
                notes.problem(format!(
                    "{} = \"plaintext\" would send {given} readable; use \"implicit-tls\" or \"starttls\", or leave out the \
                     credentials",
                    key("security"),
                ));
            }
            if password.is_empty() {
                notes.problem(format!("{given} is empty; set it, or leave out the credentials"));
            }
            if password.contains(char::is_control) || username.contains(char::is_control) {
                notes.problem(format!(
                    "{} or {given} contains a line break or another control character; remove it",
                    key("username")
                ));
            }
            Some(Auth { mechanism, username, secret: SecretString::from(password) })
        }
    }
}

fn tls(
    s: &mut Section,
    name: &str,
    security: Security,
    host: &str,
    roots: &RootCertStore,
    notes: &mut Notes,
) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
    let ca_file = s.optional("tls_ca_file", notes, reader::text).map(PathBuf::from);
    let own_name = s.optional("tls_server_name", notes, reader::text);
    let mut failed = |error: TrustError| notes.problem(format!("provider.{name}.tls_ca_file: {error}"));
    let client = if security == Security::Plaintext {
        trust::nobody().map_err(&mut failed).ok()?
    } else {
        trust::client(roots.clone(), ca_file.as_deref()).map_err(&mut failed).ok()?
    };
    if security == Security::Plaintext && (ca_file.is_some() || own_name.is_some()) {
        notes.problem(format!(
            "provider.{name}.tls_ca_file and tls_server_name mean nothing with security = \"plaintext\"; remove them, or use \
             \"implicit-tls\" or \"starttls\""
        ));
    }
    match ServerName::try_from(own_name.as_deref().unwrap_or(host).to_owned()) {
        Ok(server_name) => Some((client, server_name)),
        Err(_) => {
            // Without a name of its own, the host was found wrong already.
            if own_name.is_some() {
                notes.problem(format!("provider.{name}.tls_server_name is not a host name; give the certificate's"));
            }
            None
        }
    }
}

fn timeouts(mut s: Section, notes: &mut Notes) -> Timeouts {
    let mut time = |key| s.value(key, notes, reader::some_time);
    let timeouts = Timeouts {
        resolve: time("resolve"),
        connect: time("connect"),
        tls: time("tls"),
        greeting: time("greeting"),
        ehlo: time("ehlo"),
        auth: time("auth"),
        mail: time("mail"),
        rcpt: time("rcpt"),
        data: time("data"),
        block: time("block"),
        body: time("body"),
        end_of_data: time("end_of_data"),
    };
    s.end(notes);
    timeouts
}

fn breaker(mut s: Section, key: &str, notes: &mut Notes) -> BreakerSettings {
    let breaker = BreakerSettings {
        threshold: s.value("threshold", notes, reader::count),
        open_min: s.value("open_min", notes, reader::some_time),
        open_max: s.value("open_max", notes, reader::some_time),
    };
    s.end(notes);
    if breaker.open_min > breaker.open_max {
        notes.problem(format!(
            "{key}.open_min ({:?}) is longer than {key}.open_max ({:?}); lower the one or raise the other",
            breaker.open_min, breaker.open_max
        ));
    }
    breaker
}

fn dedup(mut s: Section, name: &str, notes: &mut Notes) -> Option<Dedup> {
    let key = |key: &str| format!("provider.{name}.dedup.{key}");
    let header = s.optional("header", notes, reader::text).unwrap_or_else(|| DEFAULT_DEDUP_HEADER.to_owned());
    let scope = s.optional("scope", notes, reader::text).unwrap_or_else(|| name.to_owned());
    let window = s.optional("window", notes, reader::some_time);
    s.end(notes);
    let lower = header.to_ascii_lowercase();
    let field_name = header.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    if header.is_empty() || header.len() > HEADER_MAX_BYTES || !field_name {
        notes.problem(format!(
            "{}: {header:?} is not the name of a header (RFC 5322, 3.6.8: at most {HEADER_MAX_BYTES} printable ASCII \
             characters without colon and space)",
            key("header"),
        ));
    } else if TAKEN_HEADERS.contains(&lower.as_str()) || lower.starts_with("content-") {
        notes.problem(format!(
            "{}: {header:?} has a meaning of its own; take another, such as {DEFAULT_DEDUP_HEADER}",
            key("header")
        ));
    }
    if scope.is_empty() {
        notes.problem(format!("{} is empty; leave it out to use the provider's name", key("scope")));
    }
    if window.is_none() {
        notes.problem(format!(
            "{} is missing: set it to how long the provider documents that it remembers",
            key("window")
        ));
    }
    Some(Dedup { header, scope, window: window? })
}

/// What the recovery terms of a provider follow from.
struct Terms<'a> {
    name: &'a str,
    on_uncertain: OnUncertain,
    window: Duration,
    dedup: Option<&'a Dedup>,
    send_deadline: Duration,
}

impl Terms<'_> {
    /// Works the terms out, and refuses a promise to resend that cannot be kept safely (G3 (b)).
    fn check(&self, margin: Duration, notes: &mut Notes) -> RecoveryTerms {
        let Self { name, on_uncertain, window, dedup, send_deadline } = *self;
        let scope = dedup.map_or_else(|| name.to_owned(), |dedup| dedup.scope.clone());
        let dedup_window = dedup.map(|dedup| dedup.window);
        let terms = RecoveryTerms::new(on_uncertain, scope, window, dedup_window, send_deadline, margin);
        let what = format!("provider.{name}.on_uncertain (or recovery.on_uncertain)");
        let windows = format!("provider.{name}.recovery_window (or recovery.window, {window:?})");
        match (on_uncertain, dedup_window) {
            (OnUncertain::Hold, _) => return terms,
            (OnUncertain::ResendWithinWindow, None) => {
                notes.problem(format!(
                    "{what} = \"resend-within-window\" would make duplicates: the provider is not said to deduplicate; \
                     describe its contract in [provider.{name}.dedup], or use \"hold\""
                ));
                return terms;
            }
            (OnUncertain::ResendWithinWindow, Some(dedup)) if window > dedup => {
                notes.problem(format!(
                    "{windows} is longer than provider.{name}.dedup.window ({dedup:?}): a resend could come after the \
                     provider forgot the first; shorten it, or use \"hold\""
                ));
            }
            (OnUncertain::ResendWithinWindow, Some(_)) => {}
            (OnUncertain::AcceptDuplicates, _) => notes.warning(format!(
                "{what} = \"accept-duplicates\": a message whose answer was lost is sent again, and its recipient may get it \
                 twice"
            )),
        }
        if terms.resend_room.is_none_or(|room| room.is_zero()) {
            notes.problem(format!(
                "{windows} leaves no room for a resend: it must exceed provider.{name}.send_deadline ({send_deadline:?}) and \
                 recovery.clock_margin ({margin:?}) together; lengthen it, shorten those, or use \"hold\""
            ));
        }
        terms
    }
}
