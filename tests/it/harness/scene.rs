//! One database, one SMTP server that can misbehave, one configuration: where most tests of the worker play.
//!
//! It says how an attempt must have ended as the database tells it, never as a return value does.

use std::fmt::Write as _;

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::smtp::{Action, Mailbox, Options, Rule, SmtpServer, Stage, Tls, self_signed};
use outboxd::store::enqueue::NewNotification;
use outboxd::store::story::{Attempt, Story};
use tempfile::TempDir;

use super::rows::plain;
use super::{Config, PATIENCE, TestDb, Worker, eventually};

/// A database, a server for the provider `primary`, and the worker's configuration.
pub(crate) struct Scene {
    pub(crate) db: TestDb,
    pub(crate) server: SmtpServer,
    pub(crate) config: Config,
    /// Certificates, for as long as they may be read.
    pub(crate) directory: TempDir,
}

impl Scene {
    /// A server that behaves, in clear.
    pub(crate) async fn new() -> Self {
        Self::with(Options::default()).await
    }

    /// A server like this, in clear.
    pub(crate) async fn with(options: Options) -> Self {
        let db = TestDb::new().await;
        let server = SmtpServer::start(options).await.unwrap();
        let config = Config::new(&db).provider("primary", server.addr());
        Self { db, server, config, directory: TempDir::new().unwrap() }
    }

    /// A server under TLS, with a certificate for `localhost` from a root that the worker trusts. `security` is the
    /// configuration's word.
    pub(crate) async fn under_tls(security: &str, mut options: Options) -> Self {
        let certificate = self_signed(&["localhost"]).unwrap();
        options.tls = match security {
            "implicit-tls" => Tls::Implicit(certificate.server),
            _ => Tls::StartTls(certificate.server),
        };
        Self::with(options)
            .await
            .set("provider.primary.security", security)
            .set("provider.primary.tls_server_name", "localhost")
            .trusting(&certificate.root_pem)
    }

    /// Trusts this root.
    pub(crate) fn trusting(self, root_pem: &str) -> Self {
        let file = self.directory.path().join("root.pem");
        std::fs::write(&file, root_pem).unwrap();
        self.set("provider.primary.tls_ca_file", file.to_str().unwrap())
    }

    /// Sets a key of the configuration.
    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        self.config = self.config.set(key, value);
        self
    }

    /// Adds a rule to what the server does wrong.
    pub(crate) fn rule(self, rule: Rule) -> Self {
        self.server.script().push(rule);
        self
    }

    /// What the server does at a stage, the first time.
    pub(crate) fn once(self, stage: Stage, action: Action) -> Self {
        self.rule(Rule::at(stage, action).once())
    }

    /// Starts the worker.
    pub(crate) fn worker(&self) -> Worker {
        Worker::start(&self.config)
    }

    /// What the server accepted.
    pub(crate) fn mailbox(&self) -> Mailbox {
        self.server.mailbox()
    }

    /// Stores a plain notification.
    pub(crate) async fn enqueue(&self) -> NotificationId {
        self.db.enqueue(&plain("acme")).await
    }

    /// Stores a plain notification to this recipient.
    pub(crate) async fn enqueue_to(&self, recipient: &str) -> NotificationId {
        self.db.enqueue(&NewNotification { recipient: recipient.to_owned(), ..plain("acme") }).await
    }

    /// Stores so many notifications, to `r1@example.net` and so on.
    pub(crate) async fn enqueue_many(&self, count: usize) -> Vec<NotificationId> {
        let mut ids = Vec::with_capacity(count);
        for number in 1..=count {
            ids.push(self.enqueue_to(&format!("r{number}@example.net")).await);
        }
        ids
    }

    /// Waits until a notification is in this state, and tells its story.
    pub(crate) async fn until(&self, id: NotificationId, state: &str) -> Story {
        self.until_story(&format!("it is {state}"), id, |story| story.notification.state == state).await
    }

    /// Waits until a notification's story is as `right` wants it, and tells it.
    pub(crate) async fn until_story(&self, what: &str, id: NotificationId, right: impl Fn(&Story) -> bool) -> Story {
        eventually(what, PATIENCE, async || {
            let story = self.db.story(id).await;
            if right(&story) { Ok(story) } else { Err(story) }
        })
        .await
    }

    /// Waits until every notification is in this state.
    pub(crate) async fn until_all(&self, state: &str) {
        eventually(&format!("all are {state}"), PATIENCE, async || {
            let counts: Vec<(String, i64)> =
                sqlx::query_as("select state, count(*) from outboxd.delivery group by state order by state")
                    .fetch_all(&self.db.pool)
                    .await
                    .unwrap();
            if counts.iter().all(|(is, _)| is == state) { Ok(()) } else { Err(counts) }
        })
        .await;
    }

    /// How often a notification was put back under suspicion.
    pub(crate) async fn suspicions(&self, id: NotificationId) -> i16 {
        sqlx::query_scalar("select suspicions from outboxd.delivery where notification_id = $1")
            .bind(id.0)
            .fetch_one(&self.db.pool)
            .await
            .unwrap()
    }

    /// What the server accepted of one notification, which is `count` deliveries.
    pub(crate) fn assert_deliveries(&self, id: NotificationId, count: u64) {
        assert_eq!(self.mailbox().deliveries(&id.to_string()), count, "deliveries of {id}");
        assert!(self.mailbox().altered().is_empty(), "every attempt sends the same bytes");
        assert_eq!(self.server.violations(), Vec::<String>::new(), "the client keeps to the protocol");
    }
}

/// How an attempt must have ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    outcome: &'static str,
    phase: &'static str,
    code: Option<i16>,
    says: &'static str,
    begun: bool,
    counted: bool,
}

/// Known not to have been accepted, before *begin*, at no cost.
pub(crate) const fn not_sent(phase: &'static str) -> Ended {
    Ended { outcome: "not_sent", phase, code: None, says: "", begun: false, counted: false }
}

/// Refused for now with this code before *begin*, for one try.
pub(crate) const fn deferred(phase: &'static str, code: i16) -> Ended {
    Ended { outcome: "deferred", phase, code: Some(code), says: "", begun: false, counted: true }
}

/// Refused for good with this code, before *begin*.
pub(crate) const fn refused(phase: &'static str, code: i16) -> Ended {
    Ended { outcome: "refused", ..deferred(phase, code) }
}

/// In doubt, which uses up a try.
pub(crate) const fn uncertain() -> Ended {
    Ended { outcome: "uncertain", phase: "end_of_data", code: None, says: "", begun: true, counted: true }
}

/// Accepted.
pub(crate) const fn sent(code: i16) -> Ended {
    Ended { outcome: "sent", code: Some(code), ..uncertain() }
}

impl Ended {
    /// With a reply of this code.
    pub(crate) const fn code(mut self, code: i16) -> Self {
        self.code = Some(code);
        self
    }

    /// With these words in the reply or the error.
    pub(crate) const fn says(mut self, words: &'static str) -> Self {
        self.says = words;
        self
    }

    /// After *begin*.
    pub(crate) const fn begun(mut self) -> Self {
        self.begun = true;
        self
    }

    /// At no cost.
    pub(crate) const fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }

    /// Whether an attempt of this story ended so, in words where it did not.
    pub(crate) fn check(&self, attempt: &Attempt) -> Result<(), String> {
        let told = format!(
            "{} {}",
            attempt.reply_text.as_deref().unwrap_or_default(),
            attempt.error.as_deref().unwrap_or_default()
        );
        let mut wrong = String::new();
        let mut expect = |right: bool, what: &str| {
            if !right {
                write!(wrong, " {what};").unwrap();
            }
        };
        expect(attempt.outcome.as_deref() == Some(self.outcome), "outcome");
        expect(attempt.phase.as_deref() == Some(self.phase), "phase");
        expect(attempt.reply_code == self.code, "reply code");
        expect(told.contains(self.says), "what the reply or the error says");
        expect(attempt.begun_at.is_some() == self.begun, "whether it had begun");
        expect(attempt.counted == self.counted, "whether it counts");
        expect(attempt.ended_by.as_deref() == Some("worker"), "who ended it");
        expect(!told.contains('@'), "no address in what is told");
        if wrong.is_empty() { Ok(()) } else { Err(format!("not as expected:{wrong} {attempt:#?} is not {self:#?}")) }
    }

    /// Fails the test where an attempt did not end so.
    pub(crate) fn assert(&self, attempt: &Attempt) {
        self.check(attempt).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}
