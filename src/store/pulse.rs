//! What workers say of their providers, and what is read of it.

use serde::Serialize;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::tally::{Tally, within_ms};

use super::{Line, StoreError};

/// What a worker says of one provider.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The provider.
    pub provider: String,
    /// How it stands with the provider now; `None` where the worker does not use it, and only counts for it.
    pub now: Option<Now>,
    /// What attempts came to since the last report.
    #[serde(flatten)]
    pub tally: Tally,
}

/// How it stands with a provider.
#[derive(Debug, Clone, Serialize)]
pub struct Now {
    /// What the breaker does: `closed`, `asked_to_wait`, `open` or `probing`.
    pub breaker: &'static str,
    /// For how many seconds from now it does that.
    pub breaker_seconds: Option<f64>,
    /// Messages under way.
    pub under_way: usize,
    /// Messages that may be under way.
    pub connections: u32,
}

/// A worker's breaker, as it said last.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The worker.
    pub worker: String,
    /// The provider.
    pub provider: String,
    /// What the breaker does.
    pub breaker: String,
    /// For how many more seconds.
    pub breaker_seconds: Option<f64>,
    /// Messages under way.
    pub under_way: i32,
    /// Messages that may be under way.
    pub connections: i32,
    /// How long ago that was said, in seconds.
    pub seconds_ago: f64,
}

/// What a provider's attempts came to in the last hour.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the outcomes of an attempt")]
pub struct Hour {
    pub provider: String,
    pub not_sent: i64,
    pub deferred: i64,
    pub refused: i64,
    pub uncertain: i64,
    pub sent: i64,
    /// Sent in the last minute.
    pub last_minute: i64,
}

/// How long a provider takes, in the last ten minutes: from the claim to its acceptance.
#[derive(Debug, Clone)]
pub struct Latency {
    /// The provider.
    pub provider: String,
    /// Half are within so many milliseconds.
    pub p50_ms: Option<u32>,
    /// 99 in 100 are.
    pub p99_ms: Option<u32>,
}

/// The last attempt that a provider did not accept, while it is kept.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns of outboxd.attempt")]
pub struct Trouble {
    pub provider: String,
    pub notification_id: Uuid,
    pub ended_at: OffsetDateTime,
    pub phase: Option<String>,
    pub reply_code: Option<i16>,
    pub told: Option<String>,
}

/// What the attempts of one stretch of time came to.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is named for its outcome")]
pub struct Stretch {
    pub at: OffsetDateTime,
    pub sent: i64,
    pub deferred: i64,
    pub refused: i64,
    pub uncertain: i64,
}

impl Line {
    /// Writes a worker's reports, numbered by itself: the same number again changes no count. What is older than a day, and
    /// workers that were not heard of for an hour, are forgotten.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn pulse(&mut self, worker: &str, number: i64, reports: &[Report]) -> Result<(), StoreError> {
        let reports = serde_json::to_value(reports).unwrap_or_default();
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with given as (
                select * from jsonb_to_recordset($3) as g (
                    provider text, now jsonb, not_sent integer, deferred integer, refused integer, uncertain integer,
                    sent integer, took integer[], trouble_id uuid)
            ),
            counted as (
                insert into outboxd.tally (worker, number, provider, not_sent, deferred, refused, uncertain, sent, took)
                select $1, $2, provider, not_sent, deferred, refused, uncertain, sent, took from given
                where not_sent + deferred + refused + uncertain + sent > 0
                on conflict do nothing
            ),
            forgotten as (delete from outboxd.tally where at < now() - interval '25 hours'),
            silent as (delete from outboxd.pulse where heard_at < now() - interval '1 hour' and worker <> $1)
            insert into outboxd.pulse as p (worker, provider, heard_at, breaker, breaker_until, under_way, connections,
                trouble_id, trouble_at)
            select $1, provider, now(), now ->> 'breaker', now() + make_interval(secs => (now ->> 'breaker_seconds')::float8),
                (now ->> 'under_way')::integer, (now ->> 'connections')::integer, trouble_id,
                case when trouble_id is not null then now() end
            from given where jsonb_typeof(now) = 'object'
            on conflict (worker, provider) do update set heard_at = excluded.heard_at, breaker = excluded.breaker,
                breaker_until = excluded.breaker_until, under_way = excluded.under_way, connections = excluded.connections,
                trouble_id = coalesce(excluded.trouble_id, p.trouble_id), trouble_at = coalesce(excluded.trouble_at, p.trouble_at)
            "#,
            worker,
            number,
            reports,
        );
        self.bound(query.execute(&mut conn)).await?;
        self.put(conn).await?;
        Ok(())
    }

    /// Says that a worker ended: it is not missed.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn no_pulse(&mut self, worker: &str) -> Result<(), StoreError> {
        let mut conn = self.take().await?;
        self.bound(sqlx::query!("delete from outboxd.pulse where worker = $1", worker).execute(&mut conn)).await?;
        self.put(conn).await?;
        Ok(())
    }
}

/// What every worker last said of each of its providers.
///
/// # Errors
/// When the database cannot be read.
pub async fn heard(conn: &mut PgConnection) -> Result<Vec<Heard>, sqlx::Error> {
    sqlx::query_as!(
        Heard,
        r#"
        select worker, provider, breaker, extract(epoch from breaker_until - now())::float8 as breaker_seconds,
            under_way, connections, extract(epoch from now() - heard_at)::float8 as "seconds_ago!"
        from outboxd.pulse order by provider, worker
        "#
    )
    .fetch_all(conn)
    .await
}

/// What each provider's attempts came to in the last hour.
///
/// # Errors
/// When the database cannot be read.
pub async fn last_hour(conn: &mut PgConnection) -> Result<Vec<Hour>, sqlx::Error> {
    sqlx::query_as!(
        Hour,
        r#"
        select provider, sum(not_sent) as "not_sent!", sum(deferred) as "deferred!", sum(refused) as "refused!",
            sum(uncertain) as "uncertain!", sum(sent) as "sent!",
            coalesce(sum(sent) filter (where at > now() - interval '1 minute'), 0) as "last_minute!"
        from outboxd.tally where at > now() - interval '1 hour' group by provider order by provider
        "#
    )
    .fetch_all(conn)
    .await
}

/// How long each provider takes.
///
/// # Errors
/// When the database cannot be read.
pub async fn latencies(conn: &mut PgConnection) -> Result<Vec<Latency>, sqlx::Error> {
    let rows = sqlx::query!(
        "select provider, took from outboxd.tally where at > now() - interval '10 minutes' and sent > 0 order by provider"
    )
    .fetch_all(conn)
    .await?;
    let mut sums: Vec<(String, Vec<u64>)> = Vec::new();
    for row in rows {
        if sums.last().is_none_or(|(provider, _)| *provider != row.provider) {
            sums.push((row.provider, vec![0; row.took.len()]));
        }
        let Some((_, sum)) = sums.last_mut() else { continue };
        for (sum, count) in sum.iter_mut().zip(row.took) {
            *sum += u64::try_from(count).unwrap_or_default();
        }
    }
    let told = |(provider, took): (String, Vec<u64>)| Latency {
        provider,
        p50_ms: within_ms(&took, 0.5),
        p99_ms: within_ms(&took, 0.99),
    };
    Ok(sums.into_iter().map(told).collect())
}

/// Each provider's last trouble.
///
/// # Errors
/// When the database cannot be read.
pub async fn troubles(conn: &mut PgConnection) -> Result<Vec<Trouble>, sqlx::Error> {
    sqlx::query_as!(
        Trouble,
        r#"
        select distinct on (p.provider) p.provider, a.notification_id, a.ended_at as "ended_at!", a.phase, a.reply_code,
            a.told
        from outboxd.pulse p
        -- Bounded, so that it is looked up and never joined the other way round.
        cross join lateral (
            select a.notification_id, a.ended_at, a.phase, a.reply_code, coalesce(a.reply_text, a.error) as told
            from outboxd.attempt a
            where a.notification_id = p.trouble_id and a.provider = p.provider and a.outcome <> 'sent'
            order by a.number desc limit 1
        ) a
        order by p.provider, p.trouble_at desc
        "#
    )
    .fetch_all(conn)
    .await
}

/// What attempts came to in each of the last `stretches` stretches of so many minutes, the oldest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn stretches(conn: &mut PgConnection, stretches: i32, minutes: i32) -> Result<Vec<Stretch>, sqlx::Error> {
    sqlx::query_as!(
        Stretch,
        r#"
        with ended as materialized (
            select date_bin(make_interval(mins => $2), t.at, 'epoch') as at, sum(sent) as sent, sum(deferred) as deferred,
                sum(refused) as refused, sum(uncertain) as uncertain
            from outboxd.tally t
            where t.at >= date_bin(make_interval(mins => $2), now(), 'epoch') - make_interval(mins => ($1 - 1) * $2)
            group by 1
        )
        select s.at as "at!", coalesce(e.sent, 0) as "sent!", coalesce(e.deferred, 0) as "deferred!",
            coalesce(e.refused, 0) as "refused!", coalesce(e.uncertain, 0) as "uncertain!"
        from generate_series(date_bin(make_interval(mins => $2), now(), 'epoch') - make_interval(mins => ($1 - 1) * $2), now(),
            make_interval(mins => $2)) s (at)
        left join ended e on e.at = s.at
        order by s.at
        "#,
        stretches,
        minutes,
    )
    .fetch_all(conn)
    .await
}
