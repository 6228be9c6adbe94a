//! The schema: applying migrations, and knowing whether they are applied.
//!
//! Migrations live in a schema and a table of outboxd's own, so that they do not meet the migrations of the application
//! whose database this is.

use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, raw_sql};

const TABLE: &str = "outboxd.migration";

fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.dangerous_set_table_name(TABLE);
    migrator.create_schema("outboxd");
    migrator
}

/// The lock that one process holds while it migrates: "outboxd" in ASCII.
const LOCK: i64 = 0x006f_7574_626f_7864;

/// Migrations whose text had to change after a release, with the checksum (SHA-384, hexadecimal) of the text that was: only a
/// superuser could apply it. What it made is the same; `20261201000019` sees to it.
const AMENDED: [(i64, &str); 2] = [
    (
        20_261_201_000_004,
        "c1560f3206f13ce4d00cb2c8b3ea8be728c389c1c74504675c6ba516048aa8ffad1d85c1507913b732d4ed6ee0ea6fad",
    ),
    (
        20_261_201_000_009,
        "41ca23baf6c8f8139f3553db3b2114c600080ea064c2e3b3eff7cd374670fa133c67c59e4c2e6a02afe62e784e34574d",
    ),
];

/// How often a process that waits for another's migrations looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Applies what is missing, up only, one migration a transaction. Indexes are built without one, while producers and workers go on.
///
/// One process at a time: the others look again and again instead of waiting inside a statement, since an index that is built
/// concurrently waits for every statement that is running (PostgreSQL documentation, CREATE INDEX).
///
/// # Errors
/// When a migration fails (it is rolled back; an index that was not finished is removed the next time), or one that was applied
/// has been changed since.
pub async fn migrate(conn: &mut PgConnection) -> Result<(), MigrateError> {
    // What changes a table bounds its own wait for locks; building an index takes as long as it takes.
    raw_sql("set statement_timeout = 0; set lock_timeout = 0").execute(&mut *conn).await?;
    while !sqlx::query_scalar!(r#"select pg_try_advisory_lock($1) as "locked!""#, LOCK).fetch_one(&mut *conn).await? {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let done = async {
        remove_unfinished_indexes(&mut *conn).await?;
        acknowledge_amended(&mut *conn).await?;
        migrator().run(&mut *conn).await
    }
    .await;
    // A connection that broke has let go of it.
    let _ = sqlx::query_scalar!("select pg_advisory_unlock($1)", LOCK).fetch_one(&mut *conn).await;
    raw_sql("reset statement_timeout; reset lock_timeout").execute(conn).await?;
    done
}

/// Lets what was applied with an earlier text of [`AMENDED`] stand for the present one.
async fn acknowledge_amended(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    if !sqlx::query_scalar!("select to_regclass($1) is not null as \"known!\"", TABLE).fetch_one(&mut *conn).await? {
        return Ok(());
    }
    for (version, before) in AMENDED {
        let Some(now) = migrator().iter().find(|ours| ours.version == version).map(|ours| ours.checksum.to_vec())
        else {
            continue;
        };
        // Not checked when compiled: the table is sqlx's own.
        sqlx::query("update outboxd.migration set checksum = $3 where version = $1 and checksum = decode($2, 'hex')")
            .bind(version)
            .bind(before)
            .bind(now)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Removes indexes that an interrupted migration has not finished.
async fn remove_unfinished_indexes(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let names = sqlx::query_scalar!(
        r#"
        select i.indexrelid::regclass::text as "name!" from pg_index i join pg_class c on c.oid = i.indexrelid
        where c.relnamespace = to_regnamespace('outboxd') and not i.indisvalid
        "#
    )
    .fetch_all(&mut *conn)
    .await?;
    for name in names {
        tracing::info!(name, "removing an index that was not finished");
        raw_sql(AssertSqlSafe(format!("drop index concurrently if exists {name}"))).execute(&mut *conn).await?;
    }
    Ok(())
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
