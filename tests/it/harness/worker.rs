//! A worker in the test's own process, on settings that are read from configuration text as the program reads them.
//!
//! Its times are short, so that what a worker does after minutes is seen in a test; every one of them can be set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use outboxd::config::{Purpose, Sources, load};
use outboxd::sandbox::smtp::{Options, SmtpServer};
use outboxd::shutdown::Shutdown;
use tokio::task::JoinHandle;

use super::rows::plain;
use super::{PATIENCE, TestDb, eventually};

/// What is not as in `config/default.toml`: no TLS, no health endpoint, no console, and short times.
const QUICK: &[(&str, &str)] = &[
    ("worker.name", "test"),
    ("worker.poll_interval", "50ms"),
    ("maintenance.every", "50ms"),
    ("retry.base", "20ms"),
    ("retry.cap", "100ms"),
    ("recovery.window", "1h"),
    ("recovery.clock_margin", "1s"),
    ("mail.message_id_domain", "mail.example.org"),
    ("ops.listen", ""),
    ("console.listen", ""),
    ("provider_defaults.security", "plaintext"),
    ("provider_defaults.send_deadline", "60s"),
    ("provider_defaults.timeouts.body", "30s"),
    ("provider_defaults.timeouts.end_of_data", "30s"),
    ("provider_defaults.breaker.open_min", "20ms"),
    ("provider_defaults.breaker.open_max", "100ms"),
];

/// Configuration text in the making. Every value is a text: the reader takes numbers and lists from texts, too.
#[derive(Debug, Clone)]
pub(crate) struct Config(BTreeMap<String, String>);

impl Config {
    /// The database of this test, and short times.
    pub(crate) fn new(db: &TestDb) -> Self {
        let quick = QUICK.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self(quick).set("database.url", &db.url)
    }

    /// The database of this test and the defaults.
    pub(crate) fn bare(db: &TestDb) -> Self {
        Self(BTreeMap::new()).set("database.url", &db.url)
    }

    /// Sets one key, such as `retry.base`.
    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        self.0.insert(key.to_owned(), value.to_owned());
        self
    }

    /// A provider of this name, reached at `addr`. The route `default` leads to `primary` unless it is set.
    pub(crate) fn provider(self, name: &str, addr: SocketAddr) -> Self {
        self.set(&format!("provider.{name}.host"), &addr.ip().to_string())
            .set(&format!("provider.{name}.port"), &addr.port().to_string())
    }

    /// The text, for a file.
    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (key, value)| {
            writeln!(text, "{key} = {value:?}").unwrap();
            text
        })
    }
}

/// A worker at work. Dropped, it claims no more; what is running runs on until the test ends. (What is to be killed is a
/// [`super::Proc`].)
#[derive(Debug)]
pub(crate) struct Worker {
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Worker {
    /// Starts the worker that the program would run on this configuration.
    pub(crate) fn start(config: &Config) -> Self {
        let file = Some((PathBuf::from("test.toml"), config.text()));
        let sources = Sources { file, env: BTreeMap::new(), host_name: "test.example".to_owned() };
        let settings = load(&sources, Purpose::Send).unwrap_or_else(|invalid| panic!("{invalid}")).settings;
        let shutdown = Shutdown::new();
        let task = tokio::spawn(outboxd::app::run_worker(settings, shutdown.clone()));
        Self { shutdown, task }
    }

    /// Drains it as SIGTERM does, and waits until it has ended well.
    pub(crate) async fn drain(mut self) {
        self.shutdown.drain();
        (&mut self.task).await.expect("a worker that does not panic").expect("a worker that drains");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_worker_in_the_tests_own_process_sends_and_drains() {
    let db = TestDb::new().await;
    let server = SmtpServer::start(Options::default()).await.unwrap();
    let worker = Worker::start(&Config::new(&db).provider("primary", server.addr()));
    let id = db.enqueue(&plain("acme")).await;
    eventually("it is sent", PATIENCE, async || {
        let story = db.story(id).await;
        (story.notification.state == "sent").then_some(()).ok_or(story)
    })
    .await;
    assert_eq!(server.mailbox().deliveries(&id.to_string()), 1);
    worker.drain().await;
}
