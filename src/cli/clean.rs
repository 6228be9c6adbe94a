//! `outboxd clean`: removes what is past its retention, once. `outboxd worker` does it by itself.

use std::io::Write;

use super::Exit;
use crate::app;
use crate::config::Loaded;
use crate::worker::retention::{Removed, clean};

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Removes all that is older than its period, and counts it.
///
/// # Errors
/// When the database cannot be reached; what was removed by then stays removed.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut line = app::dsn(&loaded.settings.database)?.line();
    let removed = clean(&mut line, &app::periods(&loaded.settings)).await?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&removed)?)?;
    } else {
        let Removed { receipts, messages, notifications, attempts_of } = removed;
        writeln!(
            out,
            "removed {receipts} receipts, {messages} messages, {notifications} notifications, and the attempts of {attempts_of} more"
        )?;
    }
    Ok(Exit::Success)
}
