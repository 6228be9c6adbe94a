//! The whole story of one notification, for a person: what was promised, what was tried, what is known.

use serde::Serialize;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::content::RawContent;
use crate::domain::ids::NotificationId;

mod timeline;

pub use timeline::{Event, Kind};

/// Everything on record about one notification.
#[derive(Debug, Clone, Serialize)]
pub struct Story {
    /// The operation that it comes from, where the message API stored it.
    pub operation: Option<Operation>,
    /// Identity, addressing and state.
    pub notification: Notification,
    /// Every attempt, in order.
    pub attempts: Vec<Attempt>,
    /// Every piece of evidence, in the order in which it came.
    pub evidence: Vec<Evidence>,
    /// Every decision about it, in order.
    pub decisions: Vec<Decision>,
    /// Every replay that it was planned in, in order.
    pub replays: Vec<ReplayItem>,
}

/// The operation, its receipt and its message.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.message and outboxd.receipt, explained there")]
pub struct Operation {
    pub message_id: Uuid,
    pub operation: String,
    pub request_key: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// The status of the receipt; `None` where retention has removed it.
    pub receipt_status: Option<i16>,
    /// How many notifications the message has.
    pub notifications: i32,
}

/// A decision of a person's.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.decision, explained there")]
pub struct Decision {
    #[serde(with = "time::serde::rfc3339")]
    pub decided_at: OffsetDateTime,
    pub decided_by: String,
    pub action: String,
    pub reason: String,
    pub before: Option<serde_json::Value>,
    pub after: Option<serde_json::Value>,
}

/// What became of it in a replay.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.replay and outboxd.replay_item, explained there")]
pub struct ReplayItem {
    pub replay_id: Uuid,
    #[serde(with = "time::serde::rfc3339")]
    pub planned_at: OffsetDateTime,
    pub planned_by: String,
    pub reason: String,
    pub class: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub done_at: Option<OffsetDateTime>,
    pub outcome: Option<String>,
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
    /// The replay that it was made for.
    pub replay_id: Option<Uuid>,
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

/// Reads the whole story; `None` where there is no such notification. It is the story of one moment where `conn` is in a
/// transaction that repeats its reads; else a worker may have gone on between the state and the attempts.
///
/// # Errors
/// When the database cannot be read.
pub async fn story(conn: &mut PgConnection, id: NotificationId) -> Result<Option<Story>, sqlx::Error> {
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
    .fetch_optional(&mut *conn)
    .await?;
    let Some(notification) = notification else { return Ok(None) };
    let attempts = sqlx::query_as!(
        Attempt,
        r#"
        select number, provider, dedup_scope, worker, fence, claimed_at, begun_at, ended_at, ended_by, phase, outcome,
            reply_code, enhanced_code, reply_text, error, counted, replay_id
        from outboxd.attempt where notification_id = $1 order by number
        "#,
        id.0
    )
    .fetch_all(&mut *conn)
    .await?;
    let evidence = sqlx::query_as!(
        Evidence,
        r#"
        select attempt_number, kind, proves, source, reference, detail, happened_at, received_at, recorded_by
        from outboxd.evidence where notification_id = $1 order by id
        "#,
        id.0
    )
    .fetch_all(&mut *conn)
    .await?;
    let decisions = sqlx::query_as!(
        Decision,
        r#"
        select decided_at, decided_by, action, reason, before, after
        from outboxd.decision where notification_id = $1 order by id
        "#,
        id.0
    )
    .fetch_all(&mut *conn)
    .await?;
    let replays = sqlx::query_as!(
        ReplayItem,
        r#"
        select i.replay_id, r.created_at as planned_at, r.created_by as planned_by, r.reason, i.class, i.done_at, i.outcome
        from outboxd.replay_item i join outboxd.replay r on r.id = i.replay_id
        where i.notification_id = $1 order by i.replay_id
        "#,
        id.0
    )
    .fetch_all(&mut *conn)
    .await?;
    let operation = operation(conn, notification.message_ref.as_deref()).await?;
    Ok(Some(Story { operation, notification, attempts, evidence, decisions, replays }))
}

/// The operation of a message that the API stored: others refer to messages of their own, in whatever form.
async fn operation(conn: &mut PgConnection, message_ref: Option<&str>) -> Result<Option<Operation>, sqlx::Error> {
    let Some(id) = message_ref.and_then(|text| text.parse::<Uuid>().ok()) else { return Ok(None) };
    sqlx::query_as!(
        Operation,
        r#"
        select m.id as message_id, m.operation, m.request_key, m.created_at, r.response_status as "receipt_status?",
            cardinality(m.notification_ids) as "notifications!"
        from outboxd.message m
        left join outboxd.receipt r
            on r.account_id = m.account_id and r.operation = m.operation and r.request_key = m.request_key
        where m.id = $1
        "#,
        id
    )
    .fetch_optional(conn)
    .await
}

/// The notifications of a message that the API stored; `None` where there is no such message.
///
/// # Errors
/// When the database cannot be read.
pub async fn of_message(conn: &mut PgConnection, id: Uuid) -> Result<Option<Vec<Uuid>>, sqlx::Error> {
    sqlx::query_scalar!("select notification_ids from outboxd.message where id = $1", id).fetch_optional(conn).await
}

/// The notifications of an operation; `None` where there is no receipt of it.
///
/// # Errors
/// When the database cannot be read.
pub async fn of_operation(
    conn: &mut PgConnection,
    account_id: &str,
    operation: &str,
    request_key: &str,
) -> Result<Option<Vec<Uuid>>, sqlx::Error> {
    sqlx::query_scalar!(
        "select notification_ids from outboxd.receipt where account_id = $1 and operation = $2 and request_key = $3",
        account_id,
        operation,
        request_key
    )
    .fetch_optional(conn)
    .await
}

/// Whether there is such a notification.
///
/// # Errors
/// When the database cannot be read.
pub async fn exists(conn: &mut PgConnection, id: NotificationId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select exists (select from outboxd.outbox where id = $1) as "exists!""#, id.0)
        .fetch_one(conn)
        .await
}

/// What a notification says, as it was promised; `None` where there is no such notification, or its content was erased.
///
/// # Errors
/// When the database cannot be read.
pub async fn content(conn: &mut PgConnection, id: NotificationId) -> Result<Option<RawContent>, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select created_at, sender, sender_name, recipient, recipient_name, reply_to, subject, body_text, body_html, headers,
            attachments, list_unsubscribe, list_unsubscribe_post
        from outboxd.outbox where id = $1 and erased_at is null
        "#,
        id.0
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| RawContent {
        id,
        created_at: row.created_at,
        sender: row.sender,
        sender_name: row.sender_name,
        recipient: row.recipient,
        recipient_name: row.recipient_name,
        reply_to: row.reply_to,
        subject: row.subject,
        body_text: row.body_text,
        body_html: row.body_html,
        headers: row.headers,
        attachments: row.attachments,
        list_unsubscribe: row.list_unsubscribe,
        list_unsubscribe_post: row.list_unsubscribe_post,
    }))
}
