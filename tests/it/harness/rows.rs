//! Rows to test with, and the words of the store in short.

use std::time::Duration;

use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::{Blame, Outcome, Phase, Reply, Verdict};
use outboxd::domain::policy::RecoveryTerms;
use outboxd::store::Line;
use outboxd::store::claim::{Claim, Claimed, Turn, What};
use outboxd::store::enqueue::{NewNotification, enqueue};
use outboxd::store::line::Dsn;
use outboxd::store::story::{Story, story};

use super::TestDb;

/// Long enough that it never ends by itself in a test.
pub(crate) const LONG: Duration = Duration::from_secs(3_600);

/// A notification like any other.
pub(crate) fn plain(account: &str) -> NewNotification {
    NewNotification {
        account_id: account.to_owned(),
        sender: "shop@example.org".to_owned(),
        recipient: "jo@example.net".to_owned(),
        subject: "Your order".to_owned(),
        body_text: Some("It is on its way.".to_owned()),
        ..NewNotification::default()
    }
}

/// A claim by worker `w1` for provider `primary`, which deduplicates for a day and may resend for an hour.
pub(crate) fn claim() -> Claim {
    Claim {
        route: "default".to_owned(),
        provider: "primary".to_owned(),
        terms: RecoveryTerms { dedup_scope: "primary".to_owned(), window: 24 * LONG, resend_room: Some(LONG) },
        dedup_window: Some(24 * LONG),
        worker: "w1".to_owned(),
        lease: LONG,
        deadline: 96 * LONG,
    }
}

/// A claim on terms under which nothing is resent by itself.
pub(crate) fn holding() -> Claim {
    let mut claim = claim();
    claim.terms.resend_room = None;
    claim.dedup_window = None;
    claim
}

/// A verdict without a story.
pub(crate) fn verdict(outcome: Outcome, phase: Phase) -> Verdict {
    let reply = (outcome == Outcome::Sent).then(|| Reply {
        code: 250,
        enhanced: Some("2.0.0".to_owned()),
        text: "queued as 4F1".to_owned(),
    });
    Verdict { outcome, phase, blame: Blame::Notification, reply, error: None }
}

impl TestDb {
    /// A line to this database.
    pub(crate) fn line(&self) -> Line {
        self.dsn().line()
    }

    /// The way to this database.
    pub(crate) fn dsn(&self) -> Dsn {
        self.dsn_of(false)
    }

    /// The way to this database as one takes it with `database.transaction_pooling` or without.
    pub(crate) fn dsn_of(&self, transaction_pooling: bool) -> Dsn {
        Dsn::new(&self.url, Duration::from_secs(20), Duration::from_secs(10), transaction_pooling).unwrap()
    }

    /// Stores a notification and commits.
    pub(crate) async fn enqueue(&self, new: &NewNotification) -> NotificationId {
        enqueue(&mut self.pool.acquire().await.unwrap(), new).await.unwrap()
    }

    /// Stores a plain notification and claims it.
    pub(crate) async fn claimed(&self, line: &mut Line, claim: &Claim) -> Claimed {
        let id = self.enqueue(&plain("acme")).await;
        let mut claimed = ready(line, claim, 1).await;
        assert_eq!(claimed.len(), 1, "{id} is ready");
        claimed.remove(0)
    }

    /// The whole story of a notification.
    pub(crate) async fn story(&self, id: NotificationId) -> Story {
        story(&mut self.pool.acquire().await.unwrap(), id).await.unwrap().expect("a notification of this id")
    }

    /// Its state.
    pub(crate) async fn state(&self, id: NotificationId) -> String {
        self.story(id).await.notification.state
    }

    /// Does what a person could do with `psql`.
    pub(crate) async fn sql(&self, statement: &str) -> Result<u64, sqlx::Error> {
        Ok(sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&self.pool).await?.rows_affected())
    }

    /// Moves every time that a notification's state depends on into the past.
    pub(crate) async fn age(&self, id: NotificationId, by: &str) {
        self.sql(&format!(
            "begin; set local session_replication_role = replica; -- no triggers
             update outboxd.delivery set first_due_at = first_due_at - interval '{by}', due_at = due_at - interval '{by}',
                lease_until = lease_until - interval '{by}', doubt_since = doubt_since - interval '{by}',
                doubt_until = doubt_until - interval '{by}', resend_until = resend_until - interval '{by}',
                resend_at = resend_at - interval '{by}', closes_at = closes_at - interval '{by}',
                expires_at = expires_at - interval '{by}'
             where notification_id = '{id}';
             update outboxd.attempt set begun_at = begun_at - interval '{by}' where notification_id = '{id}';
             commit"
        ))
        .await
        .unwrap();
    }
}

/// Claims what is ready, from the first account's turn on.
pub(crate) async fn ready(line: &mut Line, claim: &Claim, limit: u32) -> Vec<Claimed> {
    line.claim(claim, What::Ready(&mut Turn::default()), limit, u64::MAX).await.unwrap()
}
