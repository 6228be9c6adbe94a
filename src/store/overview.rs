//! How much is where now. Reads only, and reads nothing that grows with what is finished.

use sqlx::postgres::PgConnection;

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

/// How much is unfinished.
///
/// # Errors
/// When the database cannot be read.
pub async fn unfinished(conn: &mut PgConnection) -> Result<Unfinished, sqlx::Error> {
    let row = sqlx::query!(
        r#"
        select (select count(*) from outboxd.delivery where ready and doubt_scope is null)
                + (select count(*) from outboxd.delivery where ready and doubt_scope is not null)
                + (select count(*) from outboxd.delivery where due_at is not null and not ready) as "pending!",
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
