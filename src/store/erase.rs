//! Erasing one account's content: in place, a bounded stretch of rows at a time, and what is needed to refuse a reused key stays.
//!
//! Done again it does what is left; what is under way is counted and left alone.

use uuid::Uuid;

use super::{Line, StoreError};

/// Rows of all accounts that one statement passes over.
const STRETCH_ROWS: i64 = 10_000;

/// What was erased, or is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Erased {
    /// Notifications that were waiting or in doubt and are cancelled now.
    pub cancelled: u64,
    /// Notifications whose content is gone.
    pub notifications: u64,
    /// Messages whose content is gone.
    pub messages: u64,
    /// Receipts that refuse their key from now on.
    pub receipts: u64,
    /// Notifications that a worker has right now: they were left alone.
    pub under_way: u64,
}

impl Line {
    /// Erases the account's notifications in the next stretch of ids above `after`: what it did, and the last id of the
    /// stretch; `None` at the end.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn erase_notifications(
        &mut self,
        account_id: &str,
        after: Uuid,
    ) -> Result<(Erased, Option<Uuid>), StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with stretch as materialized (
                select o.id, o.account_id = $1 and o.erased_at is null as wanted from outboxd.outbox o
                where o.id > $2 order by o.id limit $3
            ),
            theirs as materialized (
                select d.notification_id as id, d.state from outboxd.delivery d
                join stretch on stretch.id = d.notification_id and stretch.wanted
                for update of d
            ),
            withdrawn as (
                update outboxd.delivery d
                set state = 'cancelled', changed_at = now(), reason = null, due_at = null, ready = false, resend_at = null,
                    closes_at = null, resend_decided = false
                from theirs
                where d.notification_id = theirs.id and theirs.state in ('pending', 'failed', 'uncertain', 'unresolved')
                returning d.notification_id
            ),
            counts as materialized (
                select (select count(*) from withdrawn) as cancelled,
                    count(*) filter (where state in ('claimed', 'transmitting')) as under_way,
                    count(*) filter (where state not in ('claimed', 'transmitting')) as notifications,
                    array_agg(id) filter (where state not in ('claimed', 'transmitting')) as ids
                from theirs
            )
            select (select max(id::text)::uuid from stretch) as last, cancelled as "cancelled!", under_way as "under_way!",
                notifications as "notifications!", outboxd.erase_notifications(ids)::text as done
            from counts
            "#,
            account_id,
            after,
            STRETCH_ROWS,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        let Some(row) = rows.into_iter().next() else { return Ok((Erased::default(), None)) };
        let count = |count: i64| u64::try_from(count).unwrap_or_default();
        let erased = Erased {
            cancelled: count(row.cancelled),
            notifications: count(row.notifications),
            under_way: count(row.under_way),
            ..Erased::default()
        };
        Ok((erased, row.last))
    }

    /// Erases the account's messages in the next stretch of ids above `after`: how many, and the last id of the stretch.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn erase_messages(&mut self, account_id: &str, after: Uuid) -> Result<(u64, Option<Uuid>), StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with stretch as materialized (
                select m.id, m.account_id = $1 and m.erased_at is null as wanted from outboxd.message m
                where m.id > $2 order by m.id limit $3
            ),
            gone as (
                update outboxd.message m set content = null, erased_at = now()
                from stretch where m.id = stretch.id and stretch.wanted and m.erased_at is null returning m.id
            )
            select (select max(id::text)::uuid from stretch) as last, (select count(*) from gone) as "erased!"
            "#,
            account_id,
            after,
            STRETCH_ROWS,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(rows.into_iter().next().map_or((0, None), |row| (u64::try_from(row.erased).unwrap_or_default(), row.last)))
    }

    /// Erases some of the account's receipts: each refuses its key from then on. Nought when none is left.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn erase_receipts(&mut self, account_id: &str) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with batch as materialized (
                select r.ctid as at from outboxd.receipt r
                where r.account_id = $1 and r.erased_at is null
                limit $2
                for update
            )
            update outboxd.receipt r
            set payload_hash = null, response_status = null, response_body = null, erased_at = now()
            from batch where r.ctid = batch.at
            "#,
            account_id,
            STRETCH_ROWS,
        );
        let erased = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(erased)
    }
}
