//! The schema: applying migrations, and knowing whether they are applied.
//!
//! Migrations live in a schema and a table of outboxd's own, so that they do not meet the migrations of the application
//! whose database this is.

use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::postgres::PgConnection;

const TABLE: &str = "outboxd.migration";

fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.dangerous_set_table_name(TABLE);
    migrator.create_schema("outboxd");
    migrator
}

/// Applies what is missing, up only, one migration a transaction, under an advisory lock.
///
/// # Errors
/// When a migration fails (it is rolled back), or one that was applied has been changed since.
pub async fn migrate(conn: &mut PgConnection) -> Result<(), MigrateError> {
    migrator().run(conn).await
}

/// How many migrations of this release are still to be applied. A newer schema than this release knows is fine: every
/// migration works beside the previous release.
///
/// # Errors
/// When the database cannot be read.
pub async fn pending(conn: &mut PgConnection) -> Result<usize, MigrateError> {
    let known =
        sqlx::query_scalar!("select to_regclass($1) is not null as \"known!\"", TABLE).fetch_one(&mut *conn).await?;
    let applied = if known { conn.list_applied_migrations(TABLE).await? } else { Vec::new() };
    Ok(migrator().iter().filter(|ours| !applied.iter().any(|theirs| theirs.version == ours.version)).count())
}
