//! Removing what is older than its period, in bounded batches; every comparison is by the database's clock.
//!
//! Nothing in progress is removed: a reservation that has not committed is invisible here, and what a notification's state
//! forbids is passed over. Several processes may do this at once; each passes over rows that another has locked.

use std::time::Duration;

use uuid::Uuid;

use super::{Line, StoreError};

/// Rows in one batch: a short statement, and a short list of locks.
pub const BATCH_ROWS: i64 = 1_000;

/// What a batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows removed.
    pub removed: u64,
    /// The last id; the next batch begins after it. `None` when there was none.
    pub last: Option<Uuid>,
}

impl Batch {
    fn new(removed: i64, last: Option<Uuid>) -> Self {
        Self { removed: u64::try_from(removed).unwrap_or_default(), last }
    }
}

impl Line {
    /// Removes receipts whose operation is older than `period` and whose notifications are all final.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn remove_receipts(&mut self, period: Duration) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with old as materialized (
                select r.ctid as at from outboxd.receipt r
                where r.created_at < now() - make_interval(secs => $1)
                  and (r.response_status is not null or r.erased_at is not null) and outboxd.all_final(r.notification_ids)
                order by r.created_at
                limit $2
                for update skip locked
            )
            delete from outboxd.receipt r using old where r.ctid = old.at
            "#,
            period.as_secs_f64(),
            BATCH_ROWS,
        );
        let removed = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(removed)
    }

    /// Removes messages with an id above `after` that are older than `period` and whose notifications are all final.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn remove_messages(&mut self, period: Duration, after: Uuid) -> Result<Batch, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with old as materialized (
                select m.id from outboxd.message m
                where m.id > $3 and m.id < outboxd.least_id(now() - make_interval(secs => $1))
                  and m.created_at < now() - make_interval(secs => $1) and outboxd.all_final(m.notification_ids)
                order by m.id
                limit $2
                for update skip locked
            ),
            removed as (delete from outboxd.message m using old where m.id = old.id returning m.id)
            select count(*) as "removed!", max(id::text)::uuid as last from removed
            "#,
            period.as_secs_f64(),
            BATCH_ROWS,
            after,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(rows.into_iter().next().map(|row| Batch::new(row.removed, row.last)).unwrap_or_default())
    }

    /// Removes notifications with an id above `after` that have been final for longer than `period`, with their attempts and
    /// evidence.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn remove_notifications(&mut self, period: Duration, after: Uuid) -> Result<Batch, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with old as materialized (
                select d.notification_id as id from outboxd.delivery d
                where d.notification_id > $3 and d.notification_id < outboxd.least_id(now() - make_interval(secs => $1))
                  and d.state in ('sent', 'bounced', 'failed', 'cancelled')
                  and d.changed_at < now() - make_interval(secs => $1)
                order by d.notification_id
                limit $2
                for update skip locked
            ),
            batch as materialized (select count(*) as removed, max(id::text)::uuid as last, array_agg(id) as ids from old)
            select removed as "removed!", last, outboxd.remove_notifications(ids)::text as done from batch where removed > 0
            "#,
            period.as_secs_f64(),
            BATCH_ROWS,
            after,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(rows.into_iter().next().map(|row| Batch::new(row.removed, row.last)).unwrap_or_default())
    }

    /// Removes the attempts and the evidence of notifications with an id above `after` that have been final for longer than
    /// `period`. It counts the notifications.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn remove_attempts(&mut self, period: Duration, after: Uuid) -> Result<Batch, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with old as materialized (
                select d.notification_id as id from outboxd.delivery d
                where d.notification_id > $3 and d.notification_id < outboxd.least_id(now() - make_interval(secs => $1))
                  and d.state in ('sent', 'bounced', 'failed', 'cancelled')
                  and d.changed_at < now() - make_interval(secs => $1)
                  and exists (select from outboxd.attempt a where a.notification_id = d.notification_id)
                order by d.notification_id
                limit $2
                for update skip locked
            ),
            batch as materialized (select count(*) as removed, max(id::text)::uuid as last, array_agg(id) as ids from old)
            select removed as "removed!", last, outboxd.remove_attempts(ids)::text as done from batch where removed > 0
            "#,
            period.as_secs_f64(),
            BATCH_ROWS,
            after,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(rows.into_iter().next().map(|row| Batch::new(row.removed, row.last)).unwrap_or_default())
    }
}
