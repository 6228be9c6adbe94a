//! The whole story of one notification, for a person: what was promised, what was tried, what is known.

use serde::Serialize;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::ids::NotificationId;

/// Everything on record about one notification.
#[derive(Debug, Clone, Serialize)]
pub struct Story {
    /// Identity, addressing and state.
    pub notification: Notification,
    /// Every attempt, in order.
    pub attempts: Vec<Attempt>,
    /// Every piece of evidence, in the order in which it came.
    pub evidence: Vec<Evidence>,
}

/// A notification as it stands.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.outbox and outboxd.delivery, explained there")]
pub struct Notification {
    pub id: Uuid,
    pub account_id: String,
    pub message_ref: Option<String>,
    pub dedup_key: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub sender: String,
    pub recipient: String,
    pub subject: String,
    pub route: String,
    pub priority: i16,
    pub state: String,
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub first_due_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    pub tries: i16,
    pub worker: Option<String>,
    pub fence: i64,
    #[serde(with = "time::serde::rfc3339::option")]
    pub lease_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub doubt_since: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub doubt_until: Option<OffsetDateTime>,
    pub doubt_scope: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub resend_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub resend_at: Option<OffsetDateTime>,
    pub duplicate_possible: bool,
    pub contradiction: bool,
}

/// One attempt as recorded.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.attempt, explained there")]
pub struct Attempt {
    pub number: i32,
    pub provider: String,
    pub dedup_scope: String,
    pub worker: String,
    pub fence: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub claimed_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub begun_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    pub ended_by: Option<String>,
    pub phase: Option<String>,
    pub outcome: Option<String>,
    pub reply_code: Option<i16>,
    pub enhanced_code: Option<String>,
    pub reply_text: Option<String>,
    pub error: Option<String>,
    pub counted: bool,
}

/// One piece of evidence as recorded.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.evidence, explained there")]
pub struct Evidence {
    pub attempt_number: i32,
    pub kind: String,
    pub proves: String,
    pub source: String,
    pub reference: String,
    pub detail: serde_json::Value,
    #[serde(with = "time::serde::rfc3339::option")]
    pub happened_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub received_at: OffsetDateTime,
    pub recorded_by: String,
}

/// Reads the whole story as of one moment; `None` where there is no such notification. `conn` must be outside a transaction.
///
/// # Errors
/// When the database cannot be read.
pub async fn story(conn: &mut PgConnection, id: NotificationId) -> Result<Option<Story>, sqlx::Error> {
    // One snapshot, so that the state and the attempts do not contradict each other while a worker is at work.
    let mut tx = conn.begin_with("begin isolation level repeatable read read only").await?;
    let notification = sqlx::query_as!(
        Notification,
        r#"
        select o.id, o.account_id, o.message_ref, o.dedup_key, o.created_at, o.sender, o.recipient, o.subject, d.route,
            d.priority, d.state, d.reason, d.changed_at, d.first_due_at, d.due_at, d.expires_at, d.tries, d.worker,
            d.fence, d.lease_until, d.doubt_since, d.doubt_until, d.doubt_scope, d.resend_until, d.resend_at,
            d.duplicate_possible, d.contradiction
        from outboxd.outbox o
        join outboxd.delivery d on d.notification_id = o.id
        where o.id = $1
        "#,
        id.0
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(notification) = notification else { return Ok(None) };
    let attempts = sqlx::query_as!(
        Attempt,
        r#"
        select number, provider, dedup_scope, worker, fence, claimed_at, begun_at, ended_at, ended_by, phase, outcome,
            reply_code, enhanced_code, reply_text, error, counted
        from outboxd.attempt where notification_id = $1 order by number
        "#,
        id.0
    )
    .fetch_all(&mut *tx)
    .await?;
    let evidence = sqlx::query_as!(
        Evidence,
        r#"
        select attempt_number, kind, proves, source, reference, detail, happened_at, received_at, recorded_by
        from outboxd.evidence where notification_id = $1 order by id
        "#,
        id.0
    )
    .fetch_all(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Some(Story { notification, attempts, evidence }))
}
