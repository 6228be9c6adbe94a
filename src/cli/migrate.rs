//! `outboxd migrate`: applies the migrations that this release brings.

use std::io::Write;

use crate::app;
use crate::config::Loaded;
use crate::store::migrate;

use super::Exit;

/// Applies what is missing and says how much that was.
///
/// # Errors
/// When the database cannot be reached, or only through a transaction-pooling pooler, or a migration fails; that one is
/// rolled back.
pub async fn run(loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    anyhow::ensure!(
        !loaded.settings.database.transaction_pooling,
        "database.transaction_pooling = true: migrations need a session of their own; set database.url to a direct address \
         and transaction_pooling to false for this command (OUTBOXD__DATABASE__URL, OUTBOXD__DATABASE__TRANSACTION_POOLING)"
    );
    let mut conn = app::connect(&loaded.settings.database).await?;
    let pending = migrate::pending(&mut conn).await?;
    migrate::migrate(&mut conn).await?;
    match pending {
        0 => writeln!(out, "the schema is current")?,
        applied => writeln!(out, "applied {applied} migrations; the schema is current")?,
    }
    Ok(Exit::Success)
}
