//! One function a section: raw values to the section's settings. What concerns several sections stands in `rules`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use secrecy::SecretString;
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::reader::{Notes, REDACTED, Section, Table};
use super::{
    Database, Entry, Lease, Log, LogFormat, Purpose, Recovery, Settings, Sources, Wakeup, Worker, api, client, console,
    events, provider, reader, rules,
};
use crate::domain::policy::{OnUncertain, RetryPolicy};
use crate::mail::provider::ProviderSettings;
use crate::mail::trust;

/// Reads every section and checks the whole; `None` where not even that is possible. What is wrong stands in `notes`.
pub(super) fn read(root: &mut Section, sources: &Sources, purpose: Purpose, notes: &mut Notes) -> Option<Settings> {
    let (database, listen_url) = database(root.child("database", notes), sources, notes);
    let worker = worker(root.child("worker", notes), sources, notes);
    let lease = lease(root.child("lease", notes), notes);
    let retry = retry(root.child("retry", notes), notes);
    let recovery = recovery(root.child("recovery", notes), notes);
    let settle_patience = only(root.child("settle", notes), "patience", notes);
    let maintenance_every = only(root.child("maintenance", notes), "every", notes);
    let wakeup = wakeup(root.child("wakeup", notes), listen_url, &database, notes);
    let api = api::read(root.child("api", notes), notes);
    let retention = api::read_retention(root.child("retention", notes), notes);
    // Of a caller's, perhaps on the same machine: only checked here.
    client::read(root.child("client", notes), notes);
    let before_sending = notes.problems.len();
    let (message_id_domain, hello) = mail(root.child("mail", notes), notes);
    let routes = routes(root.child("route", notes), notes);
    let (names, providers) = providers(root, &recovery, &hello, &message_id_domain, notes);
    let sends = purpose == Purpose::Send || !names.is_empty();
    if !sends {
        notes.problems.truncate(before_sending);
    }
    let events = events::read(root.child("events", notes), notes);
    let console = console::read(root.child("console", notes), notes);
    let ops_listen = ops(root.child("ops", notes), notes);
    let log = log(root.child("log", notes), notes);
    let settings = Settings {
        database,
        api,
        retention,
        worker,
        lease,
        retry,
        settle_patience,
        maintenance_every,
        wakeup,
        routes,
        providers,
        events,
        console,
        ops_listen,
        log: log?,
    };
    rules::check(&settings, sends.then_some(names.as_slice()), notes);
    Some(settings)
}

fn database(mut section: Section, sources: &Sources, notes: &mut Notes) -> (Database, String) {
    let mut url = section.secret("url", notes).unwrap_or_default();
    if let (true, Some(fallback)) = (url.is_empty(), sources.database_url()) {
        url = fallback.to_owned();
        if let Some(entry) = notes.entries.last_mut() {
            *entry = Entry { key: entry.key.clone(), value: REDACTED.into(), origin: "DATABASE_URL".to_owned() };
        }
    }
    let postgres = |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    if url.is_empty() {
        notes.problem("database.url is missing: set it, or DATABASE_URL, to postgres://USER:PASSWORD@HOST/NAME");
    } else if !postgres(&url) {
        notes.problem("database.url must begin with postgres:// or postgresql://");
    }
    let statement_timeout = section.value("statement_timeout", notes, reader::some_time);
    let lock_timeout = section.value("lock_timeout", notes, reader::some_time);
    let transaction_pooling = section.value("transaction_pooling", notes, reader::switch);
    let listen_url = section.secret("listen_url", notes).unwrap_or_default();
    if !listen_url.is_empty() && !postgres(&listen_url) {
        notes.problem("database.listen_url must begin with postgres:// or postgresql://, or be empty");
    }
    section.end(notes);
    let url = SecretString::from(url);
    let database = Database { url, statement_timeout, lock_timeout, transaction_pooling };
    (database, listen_url)
}

fn worker(mut section: Section, sources: &Sources, notes: &mut Notes) -> Worker {
    let name = section.value("name", notes, reader::text);
    let worker = Worker {
        name: if name.is_empty() { sources.host_name.clone() } else { name },
        poll_interval: section.value("poll_interval", notes, reader::some_time),
        grace: section.value("grace", notes, reader::duration),
        in_flight_bytes: section.value("in_flight_bytes", notes, reader::count),
        claim_max: section.value("claim_max", notes, reader::count),
    };
    section.end(notes);
    worker
}

fn lease(mut section: Section, notes: &mut Notes) -> Lease {
    let duration = section.value("duration", notes, reader::some_time);
    let renew_every = section.value("renew_every", notes, reader::duration);
    section.end(notes);
    Lease { duration, renew_every: Some(renew_every).filter(|every| !every.is_zero()) }
}

fn retry(mut section: Section, notes: &mut Notes) -> RetryPolicy {
    let policy = RetryPolicy {
        base: section.value("base", notes, reader::some_time),
        cap: section.value("cap", notes, reader::some_time),
        max_tries: section.value("max_tries", notes, reader::count),
        deadline: section.value("deadline", notes, reader::some_time),
        stated_delay_cap: section.value("stated_delay_cap", notes, reader::some_time),
    };
    section.end(notes);
    policy
}

fn recovery(mut section: Section, notes: &mut Notes) -> Recovery {
    let on_uncertain = section.optional("on_uncertain", notes, reader::choice(provider::ON_UNCERTAIN));
    let recovery = Recovery {
        on_uncertain: on_uncertain.unwrap_or(OnUncertain::Hold),
        window: section.value("window", notes, reader::some_time),
        clock_margin: section.value("clock_margin", notes, reader::duration),
    };
    section.end(notes);
    recovery
}

/// A section with one duration.
fn only(mut section: Section, key: &'static str, notes: &mut Notes) -> Duration {
    let duration = section.value(key, notes, reader::some_time);
    section.end(notes);
    duration
}

fn wakeup(mut section: Section, listen_url: String, database: &Database, notes: &mut Notes) -> Option<Wakeup> {
    let enabled = section.value("enabled", notes, reader::switch);
    let heartbeat = section.value("heartbeat", notes, reader::some_time);
    section.end(notes);
    if enabled && database.transaction_pooling && listen_url.is_empty() {
        notes.problem(
            "database.transaction_pooling = true: LISTEN does not go through such a pooler; set database.listen_url to a \
             direct address, or wakeup.enabled = false to poll only",
        );
    }
    let url = if listen_url.is_empty() { database.url.clone() } else { listen_url.into() };
    enabled.then_some(Wakeup { url, heartbeat })
}

fn mail(mut section: Section, notes: &mut Notes) -> (String, String) {
    let given = section.value("message_id_domain", notes, reader::text);
    let domain = domain(&given).unwrap_or_else(|| {
        notes.problem(if given.is_empty() {
            "mail.message_id_domain is missing: set it to a domain of yours, such as \"mail.example.com\"".to_owned()
        } else {
            format!("mail.message_id_domain: {given:?} is not a domain; set it to one of yours, such as \"mail.example.com\"")
        });
        String::new()
    });
    let hello = section.value("hello", notes, reader::text);
    section.end(notes);
    let literal = hello.starts_with('[') && hello.ends_with(']') && hello.chars().all(|c| c.is_ascii_graphic());
    let hello = match hello.as_str() {
        "" => domain.clone(),
        _ if literal => hello,
        _ => self::domain(&hello).unwrap_or_else(|| {
            notes.problem(format!(
                "mail.hello: {hello:?} is neither a domain nor an address in brackets (RFC 5321, 4.1.4); leave it empty to \
                 use mail.message_id_domain"
            ));
            String::new()
        }),
    };
    (domain, hello)
}

/// A domain in ASCII of at least two labels (RFC 1035, 2.3.1; RFC 5890 for the others).
fn domain(text: &str) -> Option<String> {
    let ascii = idna::domain_to_ascii(text).ok()?;
    let label = |label: &str| {
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        plain && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    (ascii.len() <= 253 && ascii.contains('.') && ascii.split('.').all(label)).then_some(ascii)
}

fn routes(mut section: Section, notes: &mut Notes) -> BTreeMap<String, Vec<String>> {
    let names = section.names();
    let routes = names.into_iter().filter_map(|name| {
        let providers = section.named(&name, notes, reader::list)?;
        Some((name, providers))
    });
    routes.collect()
}

/// The names of all providers in the configuration, and those that can be used.
fn providers(
    root: &mut Section,
    recovery: &Recovery,
    hello: &str,
    message_id_domain: &str,
    notes: &mut Notes,
) -> (Vec<String>, BTreeMap<String, ProviderSettings>) {
    let (given, embedded) = root.child("provider_defaults", notes).into_tables();
    provider::check_defaults("provider_defaults", &given, &embedded, notes);
    let roots = trust::system_roots();
    let tables: Vec<(String, Table)> = root.child("provider", notes).tables(notes);
    let names = tables.iter().map(|(name, _)| name.clone()).collect();
    let mut providers = BTreeMap::new();
    for (name, table) in tables {
        let section = Section::new(format!("provider.{name}"), table)
            .or("provider_defaults", given.clone())
            .or("provider_defaults", embedded.clone());
        let common = provider::Common { recovery, hello, message_id_domain, roots: &roots };
        if let Some(settings) = provider::read(&name, section, &common, notes) {
            providers.insert(name, settings);
        }
    }
    (names, providers)
}

fn ops(mut section: Section, notes: &mut Notes) -> Option<SocketAddr> {
    let listen = section.value("listen", notes, |kind| match reader::text(kind)?.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "an address such as \"127.0.0.1:9464\", or empty".to_owned()),
    });
    section.end(notes);
    listen
}

fn log(mut section: Section, notes: &mut Notes) -> Option<Log> {
    const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = section.optional("format", notes, reader::choice(FORMATS));
    let level = section.optional("level", notes, |kind| {
        let expected = "a level (error, warn, info, debug, trace, off), perhaps with targets: \"info,sqlx=warn\"";
        // A bare word that is no level would be taken for a target, and a mistyped level would silence everything.
        let text = reader::text(kind)?;
        let known = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
        let parsed: Option<Targets> = text.split(',').all(known).then(|| text.parse().ok()).flatten();
        parsed.ok_or_else(|| expected.to_owned())
    });
    section.end(notes);
    Some(Log { format: format?, level: level? })
}
