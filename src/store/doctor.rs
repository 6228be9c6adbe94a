//! What the database knows of its own health, for `outboxd doctor` and `outboxd stats`. Reads only.

use serde::Serialize;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;

/// What was read, at one moment or nearly so.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "each is named for what it says; units stand in the names")]
pub struct Facts {
    #[serde(with = "time::serde::rfc3339")]
    pub database_time: OffsetDateTime,
    pub server_version: i32,
    pub only_reads: bool,
    pub fsync: bool,
    pub full_page_writes: bool,
    pub connections_used: i64,
    pub connections_max: i32,
    pub listeners: i64,
    pub oldest_transaction_seconds: Option<f64>,
    pub oldest_transaction_pid: Option<i32>,
    pub prepared_transactions: i64,
    pub slots_holding_back: i64,
    pub leases_overdue: i64,
    pub due_not_ready: i64,
    pub oldest_ready_seconds: Option<f64>,
    pub unresolved: i64,
    pub closing_within_an_hour: i64,
    pub contradictions: i64,
}

/// One of outboxd's tables.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of pg_stat_user_tables")]
pub struct Table {
    pub name: String,
    pub live_rows: i64,
    pub dead_rows: i64,
    pub bytes: i64,
}

/// What waits on a route, or for a resend in a dedup scope.
#[derive(Debug, Clone, Serialize)]
pub struct Waiting {
    /// The route or the scope.
    pub name: String,
    /// Since when its oldest ready row waits, in seconds.
    pub seconds: f64,
}

/// What became of a provider's attempts for notifications stored lately.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the outcomes of outboxd.attempt")]
pub struct Provider {
    pub name: String,
    pub running: i64,
    pub sent: i64,
    pub deferred: i64,
    pub refused: i64,
    pub not_sent: i64,
    pub uncertain: i64,
    pub last_error: Option<String>,
    pub last_phase: Option<String>,
    pub last_outcome: Option<String>,
}

/// A pause in force.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.pause")]
pub struct Pause {
    pub kind: String,
    pub name: String,
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    pub paused_by: String,
    pub reason: String,
}

/// How far back [`providers`] looks, in seconds.
pub const LATELY_SECONDS: u32 = 3_600;

/// Reads the facts. A role that may not see other sessions sees fewer of them.
///
/// # Errors
/// When the database cannot be read.
pub async fn facts(conn: &mut PgConnection) -> Result<Facts, sqlx::Error> {
    sqlx::query_as!(
        Facts,
        r#"
        select clock_timestamp() as "database_time!", current_setting('server_version_num')::integer as "server_version!",
            pg_is_in_recovery() as "only_reads!", current_setting('fsync')::boolean as "fsync!",
            current_setting('full_page_writes')::boolean as "full_page_writes!",
            (select count(*) from pg_stat_activity where backend_type = 'client backend') as "connections_used!",
            current_setting('max_connections')::integer as "connections_max!",
            (select count(*) from pg_stat_activity
             where datname = current_database() and application_name = 'outboxd' and query ilike 'listen%') as "listeners!",
            held.seconds as oldest_transaction_seconds, held.pid as oldest_transaction_pid,
            (select count(*) from pg_prepared_xacts) as "prepared_transactions!",
            (select count(*) from pg_replication_slots where xmin is not null or catalog_xmin is not null) as "slots_holding_back!",
            (select count(*) from outboxd.delivery where lease_until < now() - interval '1 minute') as "leases_overdue!",
            (select count(*) from outboxd.delivery where due_at < now() - interval '1 minute' and not ready) as "due_not_ready!",
            extract(epoch from now() - least(
                (select min(due_at) from outboxd.delivery where ready and doubt_scope is null),
                (select min(due_at) from outboxd.delivery where ready and doubt_scope is not null)))::float8 as oldest_ready_seconds,
            (select count(*) from outboxd.delivery where doubt_since is not null and state = 'unresolved') as "unresolved!",
            (select count(*) from outboxd.delivery where closes_at < now() + interval '1 hour') as "closing_within_an_hour!",
            (select count(*) from outboxd.delivery where contradiction) as "contradictions!"
        from (select) one
        left join lateral (
            select a.pid, extract(epoch from now() - a.xact_start)::float8 as seconds from pg_stat_activity a
            where a.xact_start is not null and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
            order by a.xact_start limit 1
        ) held on true
        "#
    )
    .fetch_one(conn)
    .await
}

/// The sizes of outboxd's tables.
///
/// # Errors
/// When the database cannot be read.
pub async fn tables(conn: &mut PgConnection) -> Result<Vec<Table>, sqlx::Error> {
    sqlx::query_as!(
        Table,
        r#"
        select relname::text as "name!", n_live_tup as "live_rows!", n_dead_tup as "dead_rows!",
            pg_total_relation_size(relid) as "bytes!"
        from pg_stat_user_tables where schemaname = 'outboxd' order by pg_total_relation_size(relid) desc
        "#
    )
    .fetch_all(conn)
    .await
}

/// The routes on which ready notifications wait, each found by one probe of the claim's own index.
///
/// # Errors
/// When the database cannot be read.
pub async fn routes(conn: &mut PgConnection) -> Result<Vec<Waiting>, sqlx::Error> {
    sqlx::query_as!(
        Waiting,
        r#"
        with recursive routes as (
            (select d.route from outboxd.delivery d where d.ready and d.doubt_scope is null order by d.route limit 1)
            union all
            select next.route from routes cross join lateral (
                select d.route from outboxd.delivery d
                where d.ready and d.doubt_scope is null and d.route > routes.route order by d.route limit 1) next
        )
        select routes.route as "name!", extract(epoch from now() - oldest.due_at)::float8 as "seconds!"
        from routes cross join lateral (
            select min(d.due_at) as due_at from outboxd.delivery d
            where d.ready and d.doubt_scope is null and d.route = routes.route) oldest
        "#
    )
    .fetch_all(conn)
    .await
}

/// The dedup scopes in which resends wait.
///
/// # Errors
/// When the database cannot be read.
pub async fn scopes(conn: &mut PgConnection) -> Result<Vec<Waiting>, sqlx::Error> {
    sqlx::query_as!(
        Waiting,
        r#"
        select d.doubt_scope as "name!", extract(epoch from now() - min(d.due_at))::float8 as "seconds!"
        from outboxd.delivery d where d.ready and d.doubt_scope is not null group by d.doubt_scope order by 1
        "#
    )
    .fetch_all(conn)
    .await
}

/// What each provider's attempts came to, for notifications stored in the last [`LATELY_SECONDS`]. (Ids tell their time, so
/// that only those are read.)
///
/// # Errors
/// When the database cannot be read.
pub async fn providers(conn: &mut PgConnection) -> Result<Vec<Provider>, sqlx::Error> {
    sqlx::query_as!(
        Provider,
        r#"
        select a.provider as "name!", count(*) filter (where a.ended_at is null) as "running!",
            count(*) filter (where a.outcome = 'sent') as "sent!", count(*) filter (where a.outcome = 'deferred') as "deferred!",
            count(*) filter (where a.outcome = 'refused') as "refused!",
            count(*) filter (where a.outcome = 'not_sent') as "not_sent!",
            count(*) filter (where a.outcome = 'uncertain') as "uncertain!",
            (array_agg(concat(a.phase, ': ', coalesce(a.reply_code || ' ' || a.reply_text, a.error)) order by a.claimed_at desc)
                filter (where a.outcome is not null and a.outcome <> 'sent'))[1] as last_error,
            (array_agg(a.phase order by a.claimed_at desc)
                filter (where a.outcome is not null and a.outcome <> 'sent'))[1] as last_phase,
            (array_agg(a.outcome order by a.claimed_at desc)
                filter (where a.outcome is not null and a.outcome <> 'sent'))[1] as last_outcome
        from outboxd.attempt a
        where a.notification_id >= (lpad(to_hex((extract(epoch from now()) - $1::float8)::bigint * 1000), 12, '0')
            || repeat('0', 20))::uuid
        group by a.provider order by a.provider
        "#,
        f64::from(LATELY_SECONDS),
    )
    .fetch_all(conn)
    .await
}

/// The pauses in force.
///
/// # Errors
/// When the database cannot be read.
pub async fn pauses(conn: &mut PgConnection) -> Result<Vec<Pause>, sqlx::Error> {
    sqlx::query_as!(Pause, "select kind, name, since, paused_by, reason from outboxd.pause order by kind, name")
        .fetch_all(conn)
        .await
}
