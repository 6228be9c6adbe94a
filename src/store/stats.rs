//! Counts for people and for health: how many notifications are in each state.

use std::collections::BTreeMap;

use sqlx::postgres::PgConnection;

use crate::domain::state::State;

use super::StoreError;

/// How many notifications are in each state; a state with none is 0.
///
/// Reads the whole table: for a demo, a report or a test, not for a request.
///
/// # Errors
/// When the database cannot be read or holds an unknown state.
pub async fn states(conn: &mut PgConnection) -> Result<BTreeMap<State, u64>, StoreError> {
    let mut counts: BTreeMap<State, u64> = State::ALL.into_iter().map(|state| (state, 0)).collect();
    let rows = sqlx::query!(r#"select state, count(*) as "count!" from outboxd.delivery group by state"#)
        .fetch_all(conn)
        .await?;
    for row in rows {
        let state: State =
            row.state.parse().map_err(|_| StoreError::Unknown { what: format!("state `{}`", row.state) })?;
        counts.insert(state, u64::try_from(row.count).unwrap_or_default());
    }
    Ok(counts)
}
