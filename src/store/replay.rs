//! Replays: many notifications made pending again by one decision, planned once, then run at a rate.
//!
//! What may be done with a row is `outboxd.replay_verdict`'s to say, when it is planned and again when it is done: a row that
//! has changed in between is left alone.

use serde_json::json;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::decide::Decider;
use super::search::{Filter, filtered};

mod report;

pub use report::{Class, Replay, Report, Sample, list, moving, report, report_within, samples, scopes};

/// What became of a change to a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// There is no such replay.
    Unknown,
    /// It may not be done in this state; nothing was changed.
    Refused(String),
    /// It is done and on record.
    Done,
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// The replay is running; where it is not, nothing was done.
    pub running: bool,
    /// Rows made pending.
    pub replayed: u64,
    /// Rows that had changed since they were planned, and were left alone.
    pub changed: u64,
    /// Rows whose time was over, and were left alone.
    pub expired: u64,
    /// The last id that it looked at; `None` where nothing is left above the cursor.
    pub last: Option<Uuid>,
}

/// Plans a replay of what failed, is uncertain or unresolved, and is found by the filter. Without `risky`, what may have been
/// accepted where nobody deduplicates is left out.
///
/// # Errors
/// When the database fails; then nothing is planned.
pub async fn plan(
    conn: &mut PgConnection,
    filter: &Filter,
    risky: bool,
    decider: &Decider<'_>,
) -> Result<Uuid, sqlx::Error> {
    let id = Uuid::now_v7();
    let shown = serde_json::to_value(filter).unwrap_or_default();
    let mut tx = conn.begin().await?;
    // A plan can be over millions of rows, and it blocks nobody.
    sqlx::query!("set local statement_timeout = 0").execute(&mut *tx).await?;
    sqlx::query!(
        "insert into outboxd.replay (id, created_by, reason, filter, risky_included) values ($1, $2, $3, $4, $5)",
        id,
        decider.who,
        decider.reason,
        shown,
        risky,
    )
    .execute(&mut *tx)
    .await?;
    filtered!(
        query!,
        r#"
        with found as (
            select d.notification_id, d.fence, d.state,
                outboxd.replay_verdict(d.notification_id, d.state, d.reason, d.contradiction or d.sent_again_after is not null, d.expires_at, o.erased_at,
                    d.resend_until) as verdict"#,
        "outboxd.delivery d",
        r#"
            and (d.reason is not null or d.doubt_since is not null) and d.state in ('failed', 'uncertain', 'unresolved')
        ),
        judged as (
            select found.*, verdict in ('safe', 'within_window', 'risky') as possible,
                not (verdict in ('safe', 'within_window') or ($15 and verdict = 'risky')) as left_out
            from found
        )
        insert into outboxd.replay_item (replay_id, notification_id, class, why, fence, state, done_at, outcome)
        select $14, notification_id, case when possible then verdict else 'not_possible' end,
            case when not possible then verdict end, fence, state, case when left_out then now() end,
            case when left_out then 'left_out' end
        from judged"#,
        filter,
        id,
        risky
    )
    .execute(&mut *tx)
    .await?;
    record(&mut tx, id, "replay plan", decider, None).await?;
    tx.commit().await?;
    Ok(id)
}

/// Takes the session's lock on a replay, so that one process at a time runs it; `false` if another session has it.
///
/// # Errors
/// When the database cannot be reached.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"select pg_try_advisory_lock(hashtextextended('outboxd replay ' || $1::uuid, 0)) as "locked!""#,
        id
    )
    .fetch_one(conn)
    .await
}

/// Whether a process is running a replay right now.
///
/// # Errors
/// When the database cannot be reached.
pub async fn is_locked(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
            select from pg_locks l, hashtextextended('outboxd replay ' || $1::uuid, 0) as key
            where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
              and l.database = (select oid from pg_database where datname = current_database())
              and ((l.classid::bigint << 32) | l.objid::bigint) = key) as "locked!"
        "#,
        id
    )
    .fetch_one(conn)
    .await
}

/// Starts a replay, or goes on with one that was paused or left, at this rate.
///
/// # Errors
/// When the database fails; then nothing is changed.
pub async fn start(
    conn: &mut PgConnection,
    id: Uuid,
    rate_per_second: f64,
    decider: &Decider<'_>,
) -> Result<Changed, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let Some(state) = state_of(&mut tx, id).await? else { return Ok(Changed::Unknown) };
    if !["planned", "running", "paused"].contains(&state.as_str()) {
        return Ok(Changed::Refused(state));
    }
    sqlx::query!(
        "update outboxd.replay set state = 'running', rate_per_second = $2, started_at = coalesce(started_at, now()) where id = $1",
        id,
        rate_per_second,
    )
    .execute(&mut *tx)
    .await?;
    record(&mut tx, id, "replay run", decider, Some(&state)).await?;
    tx.commit().await?;
    Ok(Changed::Done)
}

/// Pauses a running replay, which then can be run on, or cancels one that is not over. What it made pending stays so.
///
/// # Errors
/// When the database fails; then nothing is changed.
pub async fn stop(
    conn: &mut PgConnection,
    id: Uuid,
    for_good: bool,
    decider: &Decider<'_>,
) -> Result<Changed, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let Some(state) = state_of(&mut tx, id).await? else { return Ok(Changed::Unknown) };
    let possible: &[&str] = if for_good { &["planned", "running", "paused"] } else { &["running"] };
    if !possible.contains(&state.as_str()) {
        return Ok(Changed::Refused(state));
    }
    sqlx::query!(
        "update outboxd.replay set state = case when $2 then 'cancelled' else 'paused' end, ended_at = case when $2 then now() end
         where id = $1",
        id,
        for_good,
    )
    .execute(&mut *tx)
    .await?;
    let action = if for_good { "replay cancel" } else { "replay pause" };
    record(&mut tx, id, action, decider, Some(&state)).await?;
    tx.commit().await?;
    Ok(Changed::Done)
}

/// Makes the next rows above the cursor pending, where nothing about them has changed since they were planned. Rows that someone
/// else has locked are passed over and stay open. One statement: it took effect as a whole or not at all.
///
/// # Errors
/// When the database cannot be reached.
pub async fn step(conn: &mut PgConnection, id: Uuid, above: Uuid, limit: u32) -> Result<Step, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        with running as materialized (
            -- A pause waits for the step, and the next step sees it.
            select r.id from outboxd.replay r where r.id = $1 and r.state = 'running' for share
        ),
        open as materialized (
            select i.notification_id, i.class, i.fence
            from running
            join outboxd.replay_item i on i.replay_id = running.id
            where i.done_at is null and i.notification_id > $2
            order by i.notification_id
            limit $3
        ),
        held as materialized (
            select d.notification_id, d.fence, d.contradiction, d.doubt_since is not null as in_doubt,
                outboxd.replay_verdict(d.notification_id, d.state, d.reason, d.contradiction or d.sent_again_after is not null, d.expires_at, o.erased_at,
                    d.resend_until) as verdict
            from open
            join outboxd.delivery d on d.notification_id = open.notification_id
            join outboxd.outbox o on o.id = open.notification_id
            for update of d skip locked
        ),
        judged as materialized (
            select open.notification_id,
                case when held.fence = open.fence and held.verdict = open.class then 'replayed'
                     when held.verdict = 'expired' or (held.verdict = 'risky' and open.class = 'within_window') then 'expired'
                     else 'changed' end as outcome,
                held.verdict
            from open
            left join held on held.notification_id = open.notification_id
            where held.notification_id is not null
               or not exists (select from outboxd.delivery d where d.notification_id = open.notification_id)
        ),
        replayed as (
            update outboxd.delivery d
            set state = 'pending', changed_at = now(), reason = null, due_at = now(), ready = true, renewed_at = now(),
                tries = 0, suspicions = 0, lost_claims = 0, resend_at = null, closes_at = null, replay_id = $1,
                resend_until = case when judged.verdict = 'within_window' then d.resend_until end,
                resend_decided = judged.verdict = 'risky' and d.doubt_since is not null,
                duplicate_possible = d.duplicate_possible or judged.verdict = 'risky',
                -- Of what failed although something was accepted, that says nothing new: else it would be *sent* unsent.
                sent_again_after = case when judged.verdict = 'risky' and d.state = 'failed' then d.attempts else d.sent_again_after end,
                proven_attempt = case when judged.verdict = 'risky' and d.state = 'failed' then null else d.proven_attempt end
            from judged
            where d.notification_id = judged.notification_id and judged.outcome = 'replayed'
        ),
        done as (
            update outboxd.replay_item i set done_at = now(), outcome = judged.outcome
            from judged
            -- What another process has done meanwhile stays as it put it down.
            where i.replay_id = $1 and i.notification_id = judged.notification_id and i.done_at is null
            returning i.outcome
        )
        select exists (select from running) as "running!", (select max(notification_id::text)::uuid from open) as last,
            count(*) filter (where outcome = 'replayed') as "replayed!",
            count(*) filter (where outcome = 'changed') as "changed!",
            count(*) filter (where outcome = 'expired') as "expired!",
            -- One a step, however many rows: workers that hear nothing find them by polling.
            case when count(*) > 0 then pg_notify('outboxd', '') end::text as woken
        from done
        "#,
        id,
        above,
        i64::from(limit),
    )
    .fetch_one(conn)
    .await?;
    let count = |rows: i64| u64::try_from(rows).unwrap_or_default();
    Ok(Step {
        running: row.running,
        replayed: count(row.replayed),
        changed: count(row.changed),
        expired: count(row.expired),
        last: row.last,
    })
}

/// Ends a running replay of which nothing is left; `false` where something is, or where it is not running.
///
/// # Errors
/// When the database cannot be reached.
pub async fn finish(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    let ended = sqlx::query!(
        "update outboxd.replay set state = 'done', ended_at = now()
         where id = $1 and state = 'running'
           and not exists (select from outboxd.replay_item where replay_id = $1 and done_at is null)",
        id,
    )
    .execute(conn)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// The state of a replay.
///
/// # Errors
/// When the database cannot be reached.
pub async fn state(conn: &mut PgConnection, id: Uuid) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("select state from outboxd.replay where id = $1", id).fetch_optional(conn).await
}

async fn state_of(tx: &mut PgConnection, id: Uuid) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("select state from outboxd.replay where id = $1 for update", id).fetch_optional(tx).await
}

async fn record(
    tx: &mut PgConnection,
    id: Uuid,
    action: &str,
    decider: &Decider<'_>,
    before: Option<&str>,
) -> Result<(), sqlx::Error> {
    let after = state(tx, id).await?;
    sqlx::query!(
        "insert into outboxd.decision (decided_by, action, reason, replay_id, before, after) values ($1, $2, $3, $4, $5, $6)",
        decider.who,
        action,
        decider.reason,
        id,
        before.map(|state| json!({ "state": state })),
        after.map(|state| json!({ "state": state })),
    )
    .execute(tx)
    .await?;
    Ok(())
}
