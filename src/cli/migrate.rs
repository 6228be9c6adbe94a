//! `outboxd migrate`: applies the migrations that this release brings.

use std::io::Write;

use crate::app;
use crate::config::Loaded;
use crate::store::migrate;

use super::Exit;

/// Applies what is missing and says how much that was.
///
/// # Errors
/// When the database cannot be reached or a migration fails; that one is rolled back.
pub async fn run(loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let pending = migrate::pending(&mut conn).await?;
    migrate::migrate(&mut conn).await?;
    match pending {
        0 => writeln!(out, "the schema is current")?,
        applied => writeln!(out, "applied {applied} migrations; the schema is current")?,
    }
    Ok(Exit::Success)
}
