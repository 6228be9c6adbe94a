//! What the console's first page tells: how much is where now, and what attempts came to lately. Reads only, and reads nothing that
//! grows with what is finished.

use sqlx::postgres::PgConnection;
use time::OffsetDateTime;

/// How much is in the states that are left again. Each count is of one partial index.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "each is named for its state")]
pub struct Unfinished {
    pub pending: i64,
    pub leased: i64,
    pub uncertain: i64,
    pub unresolved: i64,
    pub failed: i64,
    /// Final ones, of all: an estimate from the table's statistics.
    pub finished_about: i64,
}

/// What the attempts of one minute came to.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is named for its outcome")]
pub struct Minute {
    pub at: OffsetDateTime,
    pub sent: i64,
    pub deferred: i64,
    pub refused: i64,
    pub uncertain: i64,
}

/// How long a provider takes, for attempts that it accepted in the last hour.
#[derive(Debug, Clone)]
pub struct Latency {
    /// The provider.
    pub provider: String,
    /// Accepted in the last minute.
    pub last_minute: i64,
    /// From the claim to the answer, in milliseconds: half are faster.
    pub p50_ms: Option<f64>,
    /// One in a hundred is slower.
    pub p99_ms: Option<f64>,
}

/// How much is unfinished.
///
/// # Errors
/// When the database cannot be read.
pub async fn unfinished(conn: &mut PgConnection) -> Result<Unfinished, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select (select count(*) from outboxd.delivery where due_at is not null) as "pending!",
            (select count(*) from outboxd.delivery where lease_until is not null) as "leased!",
            (select count(*) from outboxd.delivery where closes_at is not null) as "uncertain!",
            (select count(*) from outboxd.delivery where doubt_since is not null and state = 'unresolved') as "unresolved!",
            (select count(*) from outboxd.delivery where reason is not null) as "failed!",
            (select greatest(reltuples, 0)::bigint from pg_class where oid = 'outboxd.delivery'::regclass) as "about!"
        "#
    )
    .fetch_one(conn)
    .await?;
    let rest = row.pending + row.leased + row.uncertain + row.unresolved + row.failed;
    Ok(Unfinished {
        pending: row.pending,
        leased: row.leased,
        uncertain: row.uncertain,
        unresolved: row.unresolved,
        failed: row.failed,
        finished_about: (row.about - rest).max(0),
    })
}

/// The outcomes of each of the last `minutes` minutes, of notifications stored in that time, the oldest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn minutes(conn: &mut PgConnection, minutes: u16) -> Result<Vec<Minute>, sqlx::Error> {
    sqlx::query_as!(
        Minute,
        r#"
        with ended as materialized (
            select date_trunc('minute', a.ended_at) as at, a.outcome
            from outboxd.attempt a
            where a.notification_id >= outboxd.least_id(now() - make_interval(mins => $1)) and a.ended_at is not null
        )
        select m.at as "at!", count(*) filter (where e.outcome = 'sent') as "sent!",
            count(*) filter (where e.outcome = 'deferred') as "deferred!",
            count(*) filter (where e.outcome = 'refused') as "refused!",
            count(*) filter (where e.outcome = 'uncertain') as "uncertain!"
        from generate_series(date_trunc('minute', now()) - make_interval(mins => $1 - 1), now(), interval '1 minute') m (at)
        left join ended e on e.at = m.at
        group by m.at order by m.at
        "#,
        i32::from(minutes),
    )
    .fetch_all(conn)
    .await
}

/// How long each provider takes, of notifications stored in the last hour.
///
/// # Errors
/// When the database cannot be read.
pub async fn latencies(conn: &mut PgConnection) -> Result<Vec<Latency>, sqlx::Error> {
    sqlx::query_as!(
        Latency,
        r#"
        with taken as materialized (
            select a.provider, a.ended_at, 1000 * extract(epoch from a.ended_at - a.claimed_at)::float8 as ms
            from outboxd.attempt a
            where a.notification_id >= outboxd.least_id(now() - interval '1 hour') and a.outcome = 'sent'
        )
        select provider as "provider!", count(*) filter (where ended_at > now() - interval '1 minute') as "last_minute!",
            percentile_cont(0.5) within group (order by ms) as p50_ms, percentile_cont(0.99) within group (order by ms) as p99_ms
        from taken group by provider order by provider
        "#
    )
    .fetch_all(conn)
    .await
}
