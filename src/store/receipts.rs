//! Receipts for an API of one's own: reserve an operation, do its work, complete it, all in one transaction of the caller's.
//!
//! These are `outboxd.reserve` and `outboxd.complete` (see `migrations/`); docs/own-api.md tells how to use them.

use sqlx::postgres::{PgConnection, PgDatabaseError};

use crate::domain::ids::NotificationId;
use crate::domain::operation::Operation;

/// Whether an operation is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    /// It is: do its work in this transaction, then [`complete`] it.
    New,
    /// It was stored before: this is its answer.
    Known {
        /// The status.
        status: u16,
        /// The body, byte for byte.
        body: String,
    },
}

/// Why an operation was not reserved. The transaction can only be rolled back then, as after any SQL error.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// The key was used for other content.
    #[error("the request key was used for other content; new content needs a new key")]
    PayloadMismatch,
    /// Its content was erased; the key stays taken.
    #[error("the operation's content was erased")]
    Erased,
    /// Another transaction that has reserved it did not end within `lock_timeout`: ask again.
    #[error("another request with this key is under way")]
    InProgress,
    /// Anything else that the database says.
    #[error(transparent)]
    Database(sqlx::Error),
}

impl From<sqlx::Error> for ReserveError {
    fn from(error: sqlx::Error) -> Self {
        let code = error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
            .map(|error| error.code().to_owned());
        match code.as_deref() {
            Some("OB003") => Self::PayloadMismatch,
            Some("OB006") => Self::Erased,
            Some("55P03") => Self::InProgress,
            _ => Self::Database(error),
        }
    }
}

/// Reserves an operation in the caller's transaction, or gives its stored answer. `payload_hash` says what its content is, in 1
/// to 100 octets: the same content, the same octets, for as long as receipts are retained.
///
/// Waits for another transaction that has reserved it, at most for `lock_timeout`, which the caller should set. The transaction
/// must be READ COMMITTED, PostgreSQL's default.
///
/// # Errors
/// [`ReserveError`].
pub async fn reserve(
    conn: &mut PgConnection,
    operation: &Operation,
    payload_hash: &[u8],
) -> Result<Reserved, ReserveError> {
    let row = sqlx::query!(
        r#"select is_new as "is_new!", response_status, response_body from outboxd.reserve($1, $2, $3, $4)"#,
        operation.account_id,
        operation.operation,
        operation.request_key.as_str(),
        payload_hash,
    )
    .fetch_one(conn)
    .await?;
    match (row.is_new, row.response_status.and_then(|status| u16::try_from(status).ok()), row.response_body) {
        (false, Some(status), Some(body)) => Ok(Reserved::Known { status, body }),
        _ => Ok(Reserved::New),
    }
}

/// Stores the answer to an operation that the same transaction has reserved. Only after its commit is acknowledged may it be
/// given. `notifications` are those of this operation: its receipt stays until they are final.
///
/// # Errors
/// When the database fails or the operation is not reserved; the transaction can only be rolled back then.
pub async fn complete(
    conn: &mut PgConnection,
    operation: &Operation,
    status: u16,
    body: &str,
    notifications: &[NotificationId],
) -> Result<(), sqlx::Error> {
    let ids: Vec<_> = notifications.iter().map(|id| id.0).collect();
    sqlx::query!(
        "select outboxd.complete($1, $2, $3, $4, $5, $6)::text",
        operation.account_id,
        operation.operation,
        operation.request_key.as_str(),
        i32::from(status),
        body,
        &ids,
    )
    .fetch_one(conn)
    .await?;
    Ok(())
}
