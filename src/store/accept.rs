//! Accepting an operation: receipt, message and notifications in one statement, and so in one transaction.
//!
//! It tells what is *known* after a failure: that nothing was stored, or that nobody can say yet. It never tries again by
//! itself.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::domain::content::Invalid;
use crate::domain::fingerprint::Fingerprint;
use crate::domain::operation::Operation;
use crate::domain::submission::Submission;

use super::{Line, StoreError};

/// The stored answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Whether this statement stored it; else it was there.
    pub is_new: bool,
    /// The status to answer.
    pub status: u16,
    /// The body to answer, byte for byte.
    pub body: String,
}

/// Why there is no receipt.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The key names another intent. Nothing was stored.
    #[error("the key was used for other content")]
    PayloadMismatch,
    /// The operation was stored once, and its content erased since.
    #[error("the operation's content was erased")]
    Erased,
    /// Another transaction with this key is under way. Nothing was stored by this one.
    #[error("another request with this key is under way")]
    InProgress,
    /// The database refuses a value. Nothing was stored.
    #[error(transparent)]
    Invalid(Invalid),
    /// A receipt without an answer, which no transaction can commit. Nothing was stored.
    #[error("the stored receipt has no answer: {0}")]
    Incomplete(String),
    /// The database undid it for a passing reason. Nothing was stored; asking again may succeed.
    #[error("the database could not do it now: {0}")]
    Undone(StoreError),
    /// The database undid it and would again. Nothing was stored.
    #[error("the database refuses the statement: {0}")]
    Refused(StoreError),
    /// There was no connection to ask on. Nothing was stored.
    #[error("the database cannot be reached: {0}")]
    Unreachable(StoreError),
    /// The statement was sent and not acknowledged: it may be stored, undone, or still running.
    #[error("the commit was not acknowledged: {0}")]
    Unacknowledged(StoreError),
}

impl Line {
    /// Stores the operation, or gives the receipt that it has. The receipt is committed when this returns it.
    ///
    /// Waits for a transaction with the same key that is still running, at most for `lock_timeout`.
    ///
    /// # Errors
    /// [`AcceptError`]; only [`AcceptError::Unacknowledged`] leaves open whether the operation is stored.
    pub async fn accept(
        &mut self,
        operation: &Operation,
        fingerprint: &Fingerprint,
        submission: &Submission,
    ) -> Result<Receipt, AcceptError> {
        let mut conn = self.take().await.map_err(AcceptError::Unreachable)?;
        // All rows are awaited, and with them PostgreSQL's ReadyForQuery, which it sends after the commit
        // (PostgreSQL documentation, 55.2.3); the first row alone would come before it.
        let query = sqlx::query!(
            r#"select is_new as "is_new!", response_status as "status!", response_body as "body!"
               from outboxd.accept_message($1, $2, $3, $4, $5::text::jsonb)"#,
            operation.account_id,
            operation.operation,
            operation.request_key.as_str(),
            fingerprint.as_bytes(),
            submission.canonical(),
        );
        let rows = match self.bound(query.fetch_all(&mut conn)).await.map_err(after_sending) {
            Ok(rows) => rows,
            Err(unacknowledged @ AcceptError::Unacknowledged(_)) => return Err(unacknowledged),
            Err(refused) => {
                // A caller that is refused again and again must not cost a new connection each time.
                self.put_refused(conn);
                return Err(refused);
            }
        };
        self.put(conn).await.map_err(after_sending)?;
        let row = rows.into_iter().next();
        let receipt = row.and_then(|row| {
            Some(Receipt { is_new: row.is_new, status: u16::try_from(row.status).ok()?, body: row.body })
        });
        receipt.ok_or_else(|| AcceptError::Incomplete("the statement gave no answer".to_owned()))
    }
}

/// What a failure after sending proves. PostgreSQL sends an ERROR after it has undone the transaction; a FATAL ends the
/// session, and may come when the commit is done and not yet acknowledged.
fn after_sending(error: StoreError) -> AcceptError {
    let StoreError::Database(sqlx::Error::Database(database)) = &error else {
        return AcceptError::Unacknowledged(error);
    };
    let Some(postgres) = database.try_downcast_ref::<PgDatabaseError>() else {
        return AcceptError::Unacknowledged(error);
    };
    match postgres.severity() {
        PgSeverity::Fatal | PgSeverity::Panic => AcceptError::Unacknowledged(error),
        PgSeverity::Error
        | PgSeverity::Warning
        | PgSeverity::Notice
        | PgSeverity::Debug
        | PgSeverity::Info
        | PgSeverity::Log => undone(postgres.code(), postgres).unwrap_or_else(|| by_class(error)),
    }
}

/// The refusals that have a meaning of their own.
fn undone(code: &str, error: &PgDatabaseError) -> Option<AcceptError> {
    match code {
        "OB001" => {
            let field = error.column().unwrap_or("body");
            // The field's name stands before the problem, too; there it is the one of outboxd.enqueue.
            let problem = error.message().split_once(": ").map_or(error.message(), |(_, problem)| problem);
            let field = if field.starts_with("recipient") { "recipients".to_owned() } else { field.to_owned() };
            let remedy = error.hint().unwrap_or_default().trim_end_matches('.');
            Some(AcceptError::Invalid(Invalid::new(field, format!("{problem}; {remedy}"))))
        }
        "OB003" => Some(AcceptError::PayloadMismatch),
        "OB004" => Some(AcceptError::Incomplete(error.message().to_owned())),
        "OB006" => Some(AcceptError::Erased),
        // The wait for another transaction's receipt; any other lock says nothing about this operation. A server that
        // speaks another language makes this an ordinary passing failure.
        "55P03" if error.r#where().is_some_and(|at| at.contains("inserting index tuple")) => {
            Some(AcceptError::InProgress)
        }
        _ => None,
    }
}

/// Passing: a rolled back transaction (40), no resources (53), an intervention or a cancel (57, among it statement_timeout), a
/// system's fault (58), a lock (55), a server that only reads (25006), a receipt that went (OB005).
fn by_class(error: StoreError) -> AcceptError {
    let StoreError::Database(sqlx::Error::Database(database)) = &error else {
        return AcceptError::Unacknowledged(error);
    };
    let code = database.code().unwrap_or_default();
    let passing = ["40", "53", "55", "57", "58", "25006", "OB005"].iter().any(|class| code.starts_with(class));
    if passing { AcceptError::Undone(error) } else { AcceptError::Refused(error) }
}
