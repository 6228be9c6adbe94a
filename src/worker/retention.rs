//! Retention: every so often, whatever is older than its period goes, batch by batch.
//!
//! It never hurries the database: one batch at a time, on a line of its own.

use std::time::Duration;

use uuid::Uuid;

use crate::store::retention::{BATCH_ROWS, Batch};
use crate::store::{Line, StoreError};

/// How long things are kept.
#[derive(Debug, Clone)]
pub struct Periods {
    /// Receipts, from the operation.
    pub receipts: Duration,
    /// Messages, from the operation.
    pub messages: Duration,
    /// Notifications, from when they became final.
    pub notifications: Duration,
    /// Attempts and evidence, from when their notification became final.
    pub attempts: Duration,
}

/// What one round removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Removed {
    /// Receipts.
    pub receipts: u64,
    /// Messages.
    pub messages: u64,
    /// Notifications, with their attempts and evidence.
    pub notifications: u64,
    /// Notifications that stay, whose attempts and evidence went.
    pub attempts_of: u64,
}

/// Removes all that is older than its period.
///
/// # Errors
/// When the database cannot be reached; what was removed by then stays removed.
pub async fn clean(line: &mut Line, periods: &Periods) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    loop {
        let batch = line.remove_receipts(periods.receipts).await?;
        removed.receipts += batch;
        if batch < BATCH_ROWS.unsigned_abs() {
            break;
        }
    }
    let mut after = Uuid::nil();
    while let Batch { removed: batch, last: Some(last) } = line.remove_messages(periods.messages, after).await? {
        removed.messages += batch;
        after = last;
    }
    after = Uuid::nil();
    while let Batch { removed: batch, last: Some(last) } =
        line.remove_notifications(periods.notifications, after).await?
    {
        removed.notifications += batch;
        after = last;
    }
    after = Uuid::nil();
    while let Batch { removed: batch, last: Some(last) } = line.remove_attempts(periods.attempts, after).await? {
        removed.attempts_of += batch;
        after = last;
    }
    Ok(removed)
}

/// Cleans for as long as it is awaited. A failure is left to the next round.
pub async fn keep_clean(mut line: Line, periods: Periods, every: Duration) {
    loop {
        match clean(&mut line, &periods).await {
            Ok(removed) if removed != Removed::default() => {
                let Removed { receipts, messages, notifications, attempts_of } = removed;
                tracing::info!(receipts, messages, notifications, attempts_of, "removed what is past its retention");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "retention is put off"),
        }
        tokio::time::sleep(every).await;
    }
}
