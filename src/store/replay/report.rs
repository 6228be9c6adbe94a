//! What a replay is and came to, for people. Reads only.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// Rows of each class that a plan shows.
const SAMPLES: i64 = 3;

/// A replay as it stands.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.replay, explained there")]
pub struct Replay {
    pub id: Uuid,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub created_by: String,
    pub reason: String,
    pub filter: Value,
    pub state: String,
    pub risky_included: bool,
    pub rate_per_second: Option<f64>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Rows in its plan.
    pub planned: i64,
    /// Rows of it that are done, whatever became of them.
    pub done: i64,
}

/// How many rows of a plan are of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Class {
    /// `safe`, `within_window`, `risky`, `not_possible`.
    pub class: String,
    /// Why it is not possible.
    pub why: Option<String>,
    /// So many.
    pub rows: i64,
}

/// One row of a plan, for a person to look at.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.replay_item and of what it is about")]
pub struct Sample {
    pub class: String,
    pub notification_id: Uuid,
    pub state: String,
    pub account_id: String,
    pub recipient: String,
    pub provider: Option<String>,
    /// The last attempt's reply, or its error.
    pub last_answer: Option<String>,
}

/// What a replay came to, by now.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The replay.
    pub replay: Replay,
    /// What was planned.
    pub classes: Vec<Class>,
    /// Rows by what became of them in the replay: `replayed`, `changed`, `expired`, `left_out`; `open` is still to be done.
    pub items: BTreeMap<String, i64>,
    /// The states that the replayed rows are in now.
    pub states: BTreeMap<String, i64>,
    /// The attempts that were made for it, by outcome; `running` has none yet.
    pub attempts: BTreeMap<String, i64>,
}

impl Report {
    /// Replayed rows that wait or are under way.
    #[must_use]
    pub fn moving(&self) -> i64 {
        ["pending", "claimed", "transmitting"].iter().filter_map(|state| self.states.get(*state)).sum()
    }
}

/// Some rows of each class of a plan.
///
/// # Errors
/// When the database cannot be read.
pub async fn samples(conn: &mut PgConnection, id: Uuid) -> Result<Vec<Sample>, sqlx::Error> {
    sqlx::query_as!(
        Sample,
        r#"
        select i.class, i.notification_id, d.state, d.account_id, o.recipient, a.provider as "provider?",
            coalesce(a.reply_code || ' ' || a.reply_text, a.error) as last_answer
        from unnest(array['safe', 'within_window', 'risky', 'not_possible']) with ordinality as c (class, place)
        cross join lateral (
            select * from outboxd.replay_item i where i.replay_id = $1 and i.class = c.class order by i.notification_id limit $2
        ) i
        join outboxd.delivery d on d.notification_id = i.notification_id
        join outboxd.outbox o on o.id = i.notification_id
        left join outboxd.attempt a on a.notification_id = i.notification_id and a.number = d.attempts
        order by c.place, i.notification_id
        "#,
        id,
        SAMPLES,
    )
    .fetch_all(conn)
    .await
}

/// The newest replays.
///
/// # Errors
/// When the database cannot be read.
pub async fn list(conn: &mut PgConnection, limit: u32) -> Result<Vec<Replay>, sqlx::Error> {
    sqlx::query_as!(
        Replay,
        r#"
        select r.*, c.planned as "planned!", c.done as "done!"
        from (select * from outboxd.replay order by id desc limit $1) r
        cross join lateral (
            select count(*) as planned, count(done_at) as done from outboxd.replay_item i where i.replay_id = r.id) c
        order by r.id desc
        "#,
        i64::from(limit),
    )
    .fetch_all(conn)
    .await
}

/// What a replay came to, by now, however long it takes to count; `None` where there is none of this id.
///
/// # Errors
/// When the database cannot be read.
pub async fn report(conn: &mut PgConnection, id: Uuid) -> Result<Option<Report>, sqlx::Error> {
    let mut tx = conn.begin_with("begin isolation level repeatable read read only").await?;
    sqlx::query!("set local statement_timeout = 0").execute(&mut *tx).await?;
    report_within(&mut tx, id).await
}

/// The same within a transaction of one moment, and its statement timeout.
///
/// # Errors
/// When the database cannot be read.
pub async fn report_within(tx: &mut PgConnection, id: Uuid) -> Result<Option<Report>, sqlx::Error> {
    let replay = sqlx::query_as!(
        Replay,
        r#"
        select r.*, c.planned as "planned!", c.done as "done!"
        from outboxd.replay r
        cross join lateral (
            select count(*) as planned, count(done_at) as done from outboxd.replay_item i where i.replay_id = r.id) c
        where r.id = $1
        "#,
        id,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(replay) = replay else { return Ok(None) };
    let classes = sqlx::query_as!(
        Class,
        r#"select class, why, count(*) as "rows!" from outboxd.replay_item where replay_id = $1 group by class, why
           order by array_position(array['safe', 'within_window', 'risky', 'not_possible'], class), why"#,
        id,
    )
    .fetch_all(&mut *tx)
    .await?;
    let items = sqlx::query!(
        r#"select coalesce(outcome, 'open') as "name!", count(*) as "rows!" from outboxd.replay_item where replay_id = $1 group by 1"#,
        id,
    )
    .fetch_all(&mut *tx)
    .await?;
    let states = sqlx::query!(
        r#"
        select d.state as name, count(*) as "rows!"
        from outboxd.replay_item i join outboxd.delivery d on d.notification_id = i.notification_id
        where i.replay_id = $1 and i.outcome = 'replayed' group by d.state
        "#,
        id,
    )
    .fetch_all(&mut *tx)
    .await?;
    let attempts = sqlx::query!(
        r#"
        select coalesce(a.outcome, 'running') as "name!", count(*) as "rows!"
        from outboxd.replay_item i
        join outboxd.attempt a on a.notification_id = i.notification_id and a.replay_id = i.replay_id
        where i.replay_id = $1 and i.outcome = 'replayed' group by 1
        "#,
        id,
    )
    .fetch_all(&mut *tx)
    .await?;
    Ok(Some(Report {
        replay,
        classes,
        items: items.into_iter().map(|row| (row.name, row.rows)).collect(),
        states: states.into_iter().map(|row| (row.name, row.rows)).collect(),
        attempts: attempts.into_iter().map(|row| (row.name, row.rows)).collect(),
    }))
}

/// How many rows of a replay are pending or under way, and how many it has replayed: less to ask than the whole report.
///
/// # Errors
/// When the database cannot be read.
pub async fn moving(conn: &mut PgConnection, id: Uuid) -> Result<(i64, i64), sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select count(*) filter (where d.state in ('pending', 'claimed', 'transmitting')) as "moving!", count(*) as "replayed!"
        from outboxd.replay_item i join outboxd.delivery d on d.notification_id = i.notification_id
        where i.replay_id = $1 and i.outcome = 'replayed'
        "#,
        id,
    )
    .fetch_one(conn)
    .await?;
    Ok((row.moving, row.replayed))
}

/// The dedup scopes through which rows of a plan would be sent again, and how many: only a provider of that scope may.
///
/// # Errors
/// When the database cannot be read.
pub async fn scopes(conn: &mut PgConnection, id: Uuid) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"
        select d.doubt_scope as "scope!", count(*) as "rows!"
        from outboxd.replay_item i join outboxd.delivery d on d.notification_id = i.notification_id
        where i.replay_id = $1 and i.done_at is null and d.doubt_scope is not null
        group by d.doubt_scope order by d.doubt_scope
        "#,
        id,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.scope, row.rows)).collect())
}
