//! What time alone decides: leases that ran out, recovery windows that end, resends that come due, deadlines that pass.
//!
//! Every statement is bounded, passes over rows that someone else is seeing to, and may run on any number of workers at
//! once. Each returns how many rows it moved.

use std::time::Duration;

use super::{Line, StoreError};
use crate::domain::ids::NotificationId;

/// How many rows one sweep moves: a crash of a large worker is swept in a few statements, each of them short.
pub const SWEEP_MAX_ROWS: i64 = 1_000;

/// How many claims in a row a notification may lose before *begin* until it is taken for the reason: a row that crashes
/// the process that reads it must not do so for ever.
pub const MAX_LOST_CLAIMS: i16 = 10;

/// What a sweep of leases did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many notifications it moved.
    pub rows: u64,
    /// Of these, those whose attempt had begun: with which provider each.
    pub uncertain: Vec<(String, NotificationId)>,
}

impl Line {
    /// Ends the attempts whose lease ran out: before *begin* nothing can have left, so the notification is pending
    /// again at once and at no cost; after it, it is uncertain, unless evidence has proved its or an earlier attempt's acceptance.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn sweep_leases(&mut self, max_tries: u16, resend_after: Duration) -> Result<Swept, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with lost as (
                select d.notification_id, d.attempts, d.state as was, d.fence,
                    coalesce(d.proven_attempt < d.attempts or (d.state = 'transmitting' and d.proven_attempt = d.attempts), false)
                        as proven
                from outboxd.delivery d
                where d.lease_until <= now()
                order by d.lease_until
                limit $1
                for update skip locked
            ),
            ended as (
                update outboxd.attempt a
                set ended_at = now(), ended_by = 'lease',
                    outcome = case when lost.was = 'transmitting' then 'uncertain' else 'not_sent' end,
                    phase = case when lost.was = 'transmitting' then 'begin' else 'claim' end,
                    error = case when lost.was = 'transmitting' then 'lease lost after begin' else 'lease lost before begin' end,
                    counted = lost.was = 'transmitting'
                from lost
                where a.notification_id = lost.notification_id and a.number = lost.attempts
                returning a.*, lost.proven
            )
            update outboxd.delivery d
            set (state, changed_at, reason, due_at, ready, worker, lease_until, tries, lost_claims, doubt_since,
                 doubt_until, doubt_scope, resend_until, resend_at, closes_at, duplicate_possible, resend_decided, replay_id) = (
                select v.state, now(), case when v.state = 'failed' then 'exhausted' end,
                    case when v.state = 'pending' then now() end, v.state = 'pending', null::text, null::timestamptz,
                    d.tries + ended.counted::integer,
                    case when d.state = 'claimed' then d.lost_claims + 1 else 0 end,
                    v.doubt_since, v.doubt_until, v.doubt_scope, v.resend_until,
                    case when v.state = 'uncertain' and d.state = 'transmitting' and d.tries + 1 < $2
                              and now() + make_interval(secs => $3) <= v.resend_until
                         then now() + make_interval(secs => $3) end,
                    case when v.state = 'uncertain' then v.doubt_until end,
                    d.duplicate_possible
                        or (d.state = 'transmitting' and d.doubt_since is not null
                            and (ended.dedup_window is null or ended.begun_at > d.doubt_since + ended.dedup_window)),
                    d.resend_decided and v.state = 'pending',
                    case when v.state = 'pending' then d.replay_id end
                from (
                    select
                        case when ended.proven then 'sent'
                             when d.state = 'transmitting' then 'uncertain'
                             when d.lost_claims + 1 < $4 then 'pending'
                             when d.doubt_since is not null then 'uncertain'
                             else 'failed' end as state,
                        case when ended.proven then null
                             when d.state = 'transmitting' then coalesce(d.doubt_since, ended.begun_at)
                             else d.doubt_since end as doubt_since,
                        case when ended.proven then null
                             when d.state = 'transmitting' then coalesce(d.doubt_until, ended.begun_at + ended.recovery_window)
                             else d.doubt_until end as doubt_until,
                        case when ended.proven then null
                             when d.state = 'transmitting' then coalesce(d.doubt_scope, ended.dedup_scope)
                             else d.doubt_scope end as doubt_scope,
                        case when ended.proven then null
                             when d.state = 'transmitting' and d.doubt_since is null then ended.begun_at + ended.resend_room
                             else d.resend_until end as resend_until
                ) v
            )
            from ended
            where d.notification_id = ended.notification_id and d.fence = ended.fence and d.state in ('claimed', 'transmitting')
            returning d.notification_id, ended.provider, ended.counted
            "#,
            SWEEP_MAX_ROWS,
            i32::from(max_tries),
            resend_after.as_secs_f64(),
            i32::from(MAX_LOST_CLAIMS),
        );
        let moved = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        let rows = u64::try_from(moved.len()).unwrap_or(u64::MAX);
        let begun = moved.into_iter().filter(|row| row.counted);
        Ok(Swept { rows, uncertain: begun.map(|row| (row.provider, NotificationId(row.notification_id))).collect() })
    }

    /// Releases uncertain notifications to be resent under G3 (b), where that is still safe; where it no longer is, the
    /// plan is dropped and they wait for evidence. Returns how many were released.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn release_resends(&mut self, deadline: Duration) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query_scalar!(
            r#"
            with due as (
                select d.notification_id,
                    d.resend_until >= now()
                        and coalesce(d.expires_at, coalesce(d.renewed_at, d.first_due_at) + make_interval(secs => $2)) > now() as safe
                from outboxd.delivery d
                where d.resend_at <= now()
                order by d.resend_at
                limit $1
                for update skip locked
            ),
            released as (
                update outboxd.delivery d
                set state = case when due.safe then 'pending' else d.state end,
                    changed_at = case when due.safe then now() else d.changed_at end,
                    due_at = case when due.safe then now() end,
                    ready = due.safe,
                    closes_at = case when not due.safe then d.closes_at end,
                    resend_at = null
                from due
                where d.notification_id = due.notification_id
                returning due.safe
            )
            select count(*) filter (where safe) as "released!" from released
            "#,
            SWEEP_MAX_ROWS,
            deadline.as_secs_f64(),
        );
        let released = self.bound(query.fetch_one(&mut conn)).await?;
        self.put(conn).await?;
        Ok(u64::try_from(released).unwrap_or_default())
    }

    /// Takes back resends that were released and not begun in time: they are uncertain again.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn recall_resends(&mut self) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with late as (
                select d.notification_id from outboxd.delivery d
                where d.resend_until < now() and d.due_at is not null
                order by d.resend_until
                limit $1
                for update skip locked
            )
            update outboxd.delivery d
            set state = 'uncertain', changed_at = now(), due_at = null, ready = false, closes_at = d.doubt_until, replay_id = null
            from late
            where d.notification_id = late.notification_id
            "#,
            SWEEP_MAX_ROWS,
        );
        let moved = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(moved)
    }

    /// Ends recovery windows: what nothing has settled by now waits for a person.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn close_windows(&mut self) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with over as (
                select d.notification_id from outboxd.delivery d
                where d.closes_at <= now()
                order by d.closes_at
                limit $1
                for update skip locked
            )
            update outboxd.delivery d
            set state = 'unresolved', changed_at = now(), closes_at = null, resend_at = null
            from over
            where d.notification_id = over.notification_id
            "#,
            SWEEP_MAX_ROWS,
        );
        let moved = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(moved)
    }

    /// Gives up pending notifications whose own expiry passed. (A deadline by policy is seen when they are claimed or
    /// settled.) One with an earlier attempt in doubt is uncertain instead.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn expire(&mut self) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with over as (
                select d.notification_id from outboxd.delivery d
                where d.expires_at <= now() and d.due_at is not null
                order by d.expires_at
                limit $1
                for update skip locked
            )
            update outboxd.delivery d
            set state = case when d.doubt_since is null then 'failed' else 'uncertain' end,
                reason = case when d.doubt_since is null then 'expired' end,
                closes_at = d.doubt_until,
                changed_at = now(), due_at = null, ready = false, resend_decided = false, replay_id = null
            from over
            where d.notification_id = over.notification_id
            "#,
            SWEEP_MAX_ROWS,
        );
        let moved = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(moved)
    }
}
