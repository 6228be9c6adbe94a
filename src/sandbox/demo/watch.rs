//! The demo's questions to the database while it runs. Read only; a database that is being killed answers nothing, and that is fine.

use std::collections::BTreeMap;

use sqlx::postgres::PgPool;

use crate::domain::state::State;
use crate::store::StoreError;
use crate::store::stats;

/// What a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    /// Sends that have begun.
    pub(super) begun: i64,
    /// Claims that have not.
    pub(super) claimed: i64,
}

/// How many notifications are in each state.
pub(super) async fn states(pool: &PgPool) -> Result<BTreeMap<State, u64>, StoreError> {
    stats::states(&mut *pool.acquire().await?).await
}

/// What the worker of this name holds.
pub(super) async fn held(pool: &PgPool, worker: &str) -> Result<Held, sqlx::Error> {
    let (begun, claimed) = sqlx::query_as(
        "select count(*) filter (where state = 'transmitting'), count(*) filter (where state = 'claimed')
         from outboxd.delivery where lease_until is not null and starts_with(worker, $1)",
    )
    .bind(format!("{worker}-"))
    .fetch_one(pool)
    .await?;
    Ok(Held { begun, claimed })
}

/// How many notifications will still move by themselves: everything but what is final or waits for evidence.
pub(super) async fn moving(pool: &PgPool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "select count(*) from outboxd.delivery
         where state in ('pending', 'claimed', 'transmitting') or resend_at is not null",
    )
    .fetch_one(pool)
    .await
}

/// How many late results the worker of this name has handed in, and how many of them say "accepted".
pub(super) async fn late_results(pool: &PgPool, worker: &str) -> Result<(i64, i64), sqlx::Error> {
    sqlx::query_as(
        "select count(*), count(*) filter (where proves = 'accepted')
         from outboxd.evidence where kind = 'late_result' and starts_with(recorded_by, $1)",
    )
    .bind(format!("{worker}-"))
    .fetch_one(pool)
    .await
}
