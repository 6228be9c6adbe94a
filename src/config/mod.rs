//! Settings: read from all sources, checked as a whole, and from then on plain values that cannot be wrong.
//!
//! Every problem is reported at once, each with the keys it is about and what to do. The rest of the program never sees a
//! raw setting, and no secret leaves this room readable.

mod api;
mod client;
mod console;
mod events;
mod identity;
mod layers;
mod provider;
mod reader;
mod rules;
mod sections;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use secrecy::SecretString;
use tracing_subscriber::filter::Targets;

pub use client::{Caller, load_caller};
pub use layers::Sources;
pub use reader::{Entry, REDACTED};

use crate::client::oidc;
use crate::domain::issued_key::KeyMint;
use crate::domain::policy::{OnUncertain, RetryPolicy};
use crate::evidence::events::Source;
use crate::mail::provider::ProviderSettings;
use reader::{Notes, Section};

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// One line each: the keys it is about and the remedy.
    pub problems: Vec<String>,
}

impl Invalid {
    fn one(problem: String) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration is not usable:")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

/// Settings that hold together, and what there is to say about them.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the program runs on.
    pub settings: Settings,
    /// What is allowed but should be known at every start.
    pub warnings: Vec<String>,
    /// Every key in force and where it came from; secrets are redacted.
    pub entries: Vec<Entry>,
}

/// The validated settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database.
    pub database: Database,
    /// The message API.
    pub api: Api,
    /// How long finished things are kept.
    pub retention: Retention,
    /// The worker.
    pub worker: Worker,
    /// Claims.
    pub lease: Lease,
    /// Retries of what is known not to be accepted.
    pub retry: RetryPolicy,
    /// How long to keep trying to record a known result.
    pub settle_patience: Duration,
    /// How often expired leases and closed windows are swept.
    pub maintenance_every: Duration,
    /// Listening for new work; `None` to poll only.
    pub wakeup: Option<Wakeup>,
    /// The routes: each at least one provider, every one of them in `providers`.
    pub routes: BTreeMap<String, Vec<String>>,
    /// The providers by name.
    pub providers: BTreeMap<String, ProviderSettings>,
    /// Providers' events that the API takes, by the name in their address.
    pub events: BTreeMap<String, EventSource>,
    /// The console.
    pub console: Console,
    /// Where health and metrics are served; `None` for nowhere.
    pub ops_listen: Option<SocketAddr>,
    /// The log.
    pub log: Log,
}

/// How the database is reached.
#[derive(Debug, Clone)]
pub struct Database {
    /// Its address.
    pub url: SecretString,
    /// How long one statement may run.
    pub statement_timeout: Duration,
    /// How long a statement waits for a lock.
    pub lock_timeout: Duration,
    /// Whether `url` leads through a transaction-pooling proxy: no session state, no kept statements.
    pub transaction_pooling: bool,
}

/// How the message API is served.
#[derive(Debug, Clone)]
pub struct Api {
    /// Where.
    pub listen: SocketAddr,
    /// Connections to the database.
    pub connections: u16,
    /// Requests under way at once.
    pub in_flight: u32,
    /// Requests of one account under way at once.
    pub account_in_flight: u32,
    /// The largest body, in octets.
    pub body_max_bytes: u64,
    /// How long a request may take from its first octet to its answer.
    pub request_timeout: Duration,
    /// How long one statement may run.
    pub statement_timeout: Duration,
    /// How long a request waits for another one with the same key.
    pub lock_timeout: Duration,
    /// Request keys that the server issues; `None` for none.
    pub issued_keys: Option<IssuedKeys>,
}

/// How the console is served.
#[derive(Debug, Clone)]
pub struct Console {
    /// Where; `None` for nowhere, where it is one part of several.
    pub listen: Option<SocketAddr>,
    /// Connections to the database.
    pub connections: u16,
    /// How long somebody stays signed in.
    pub session: Duration,
    /// How long somebody stays signed in who does nothing.
    pub idle: Duration,
    /// Whether the cookie is sent over TLS only.
    pub secure_cookie: bool,
    /// The identity provider at which operators may sign in.
    pub oidc: Option<oidc::Settings>,
}

/// Events of one provider.
#[derive(Debug, Clone)]
pub struct EventSource {
    /// The provider, as `[provider.NAME]` calls it.
    pub provider: String,
    /// How they are signed and told.
    pub source: Source,
}

/// Request keys with a verifiable time of issue.
#[derive(Debug, Clone)]
pub struct IssuedKeys {
    /// What they are made with.
    pub mint: KeyMint,
    /// Whether other keys are refused.
    pub required: bool,
    /// How long after its issue a key may be used.
    pub window: Duration,
}

/// How long finished things are kept.
#[derive(Debug, Clone)]
pub struct Retention {
    /// How often what is older is removed.
    pub every: Duration,
    /// Receipts, from the operation.
    pub receipts: Duration,
    /// Messages, from the operation.
    pub messages: Duration,
    /// Notifications, from when they became final.
    pub notifications: Duration,
    /// Attempts and evidence, from when their notification became final.
    pub attempts: Duration,
}

/// How a worker works.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The first part of its name.
    pub name: String,
    /// How often to look for work that no wake-up announced.
    pub poll_interval: Duration,
    /// How long a drain waits for messages under way.
    pub grace: Duration,
    /// Bytes of message content in memory at once.
    pub in_flight_bytes: u64,
    /// Rows per claim at most.
    pub claim_max: u32,
}

impl Worker {
    /// A name for one run of this worker: never the same twice, so that it cannot take its predecessor's claims for its own.
    #[must_use]
    pub fn new_identity(&self) -> String {
        let boot = uuid::Uuid::new_v4().simple().to_string();
        format!("{}-{}", self.name, &boot[..8])
    }
}

/// How long a claim holds.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Without renewal.
    pub duration: Duration,
    /// How often it is renewed; `None` for never.
    pub renew_every: Option<Duration>,
}

/// How new work is listened for.
#[derive(Debug, Clone)]
pub struct Wakeup {
    /// Where: never through a transaction-pooling proxy.
    pub url: SecretString,
    /// How often the listening connection is probed.
    pub heartbeat: Duration,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log.
#[derive(Debug, Clone)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// What is logged.
    pub level: Targets,
}

/// The recovery terms that a provider may override.
struct Recovery {
    on_uncertain: OnUncertain,
    window: Duration,
    clock_margin: Duration,
}

/// What the program is going to do with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To send: there must be a provider.
    Send,
    /// Anything else: without any provider, `[mail]` and `[route]` may be left out, too.
    Other,
}

/// Reads and checks everything.
///
/// # Errors
/// With everything that is wrong.
pub fn load(sources: &Sources, purpose: Purpose) -> Result<Loaded, Invalid> {
    let (defaults, all) = sources.layers()?;
    let mut notes = Notes::default();
    let mut root = Section::new("", all).or("", defaults);
    let settings = sections::read(&mut root, sources, purpose, &mut notes);
    root.end(&mut notes);
    let Some(settings) = settings.filter(|_| notes.problems.is_empty()) else {
        return Err(Invalid { problems: notes.problems });
    };
    Ok(Loaded { settings, warnings: notes.warnings, entries: notes.entries })
}
