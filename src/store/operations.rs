//! Looking up what is known about an operation or a message. Reads only.

use sqlx::types::Json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::operation::Operation;

use super::{Line, StoreError};

/// What is on record about an operation.
#[derive(Debug, Clone)]
pub struct Known {
    /// When it was stored.
    pub created_at: OffsetDateTime,
    /// The fingerprint of its content; `None` once that was erased.
    pub payload_hash: Option<Vec<u8>>,
    /// When its content was erased.
    pub erased_at: Option<OffsetDateTime>,
    /// The status that was answered.
    pub status: Option<u16>,
    /// The body that was answered, byte for byte.
    pub body: Option<String>,
}

/// A message with what has become of its notifications.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its id.
    pub id: Uuid,
    /// The type of operation that stored it.
    pub operation: String,
    /// That operation's key.
    pub request_key: String,
    /// When it was stored.
    pub created_at: OffsetDateTime,
    /// Its content in canonical form; `None` once erased.
    pub content: Option<serde_json::Value>,
    /// When its content was erased.
    pub erased_at: Option<OffsetDateTime>,
    /// In the order of its recipients.
    pub notifications: Vec<Notification>,
}

/// One of a message's notifications.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Its id.
    pub id: Uuid,
    /// What is on record; `None` once retention has removed it.
    pub standing: Option<Standing>,
}

/// How a notification stands.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Its state (docs/state-machine.md).
    pub state: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// Since when it is in this state.
    pub changed_at: OffsetDateTime,
    /// Whom it goes to.
    pub recipient: String,
    /// Attempts so far.
    pub attempts: i32,
    /// Whether the recipient may have got it twice.
    pub duplicate_possible: bool,
}

impl Line {
    /// What is on record about an operation; `None` where there is no receipt: it was never stored, it is still under way, or
    /// retention has removed it.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn operation(&mut self, operation: &Operation) -> Result<Option<Known>, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            "select created_at, payload_hash, erased_at, response_status, response_body from outboxd.receipt
             where account_id = $1 and operation = $2 and request_key = $3",
            operation.account_id,
            operation.operation,
            operation.request_key.as_str(),
        );
        let row = self.bound(query.fetch_optional(&mut conn)).await?;
        self.put(conn).await?;
        Ok(row.map(|row| Known {
            created_at: row.created_at,
            payload_hash: row.payload_hash,
            erased_at: row.erased_at,
            status: row.response_status.and_then(|status| u16::try_from(status).ok()),
            body: row.response_body,
        }))
    }

    /// A message of this account and its notifications; `None` where there is none.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn message(&mut self, account_id: &str, id: Uuid) -> Result<Option<Message>, StoreError> {
        let mut conn = self.take().await?;
        // One statement, so that all notifications are seen at one moment.
        let query = sqlx::query!(
            r#"
            select m.operation, m.request_key, m.created_at, m.content as "content: Json<serde_json::Value>", m.erased_at,
                n.id as "notification_id?", d.state as "state?", d.reason, d.changed_at as "changed_at?",
                o.recipient as "recipient?", d.attempts as "attempts?", d.duplicate_possible as "duplicate_possible?"
            from outboxd.message m
            left join lateral unnest(m.notification_ids) with ordinality as n (id, place) on true
            left join outboxd.outbox o on o.id = n.id
            left join outboxd.delivery d on d.notification_id = n.id
            where m.account_id = $1 and m.id = $2
            order by n.place
            "#,
            account_id,
            id,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        let mut message: Option<Message> = None;
        for row in rows {
            let message = message.get_or_insert_with(|| Message {
                id,
                operation: row.operation,
                request_key: row.request_key,
                created_at: row.created_at,
                content: row.content.map(|content| content.0),
                erased_at: row.erased_at,
                notifications: Vec::new(),
            });
            let Some(notification_id) = row.notification_id else { continue };
            let standing = match (row.state, row.changed_at, row.recipient, row.attempts) {
                (Some(state), Some(changed_at), Some(recipient), Some(attempts)) => Some(Standing {
                    state,
                    reason: row.reason,
                    changed_at,
                    recipient,
                    attempts,
                    duplicate_possible: row.duplicate_possible.unwrap_or(false),
                }),
                _ => None,
            };
            message.notifications.push(Notification { id: notification_id, standing });
        }
        Ok(message)
    }

    /// A fresh UUIDv7 by the database's clock, for a key to be issued.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn fresh_id(&mut self) -> Result<Uuid, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query_scalar!(r#"select outboxd.uuid_v7() as "id!""#);
        let id = self.bound(query.fetch_one(&mut conn)).await?;
        self.put(conn).await?;
        Ok(id)
    }
}
