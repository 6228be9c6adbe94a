//! `outboxd audit`: who decided what, and why.

use std::io::Write;

use time::OffsetDateTime;
use uuid::Uuid;

use super::which::moment;
use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::store::audit::{COLUMNS, Decision, Filter, csv, decisions};

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  outboxd audit --since 7d\n  outboxd audit --action replay --as ada --csv > replays.csv"
)]
pub struct Args {
    /// Only what this person decided
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
    /// Only actions that begin so, such as resolve, cancel, pause, resume, replay
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only about this notification
    #[arg(long, value_name = "ID")]
    notification: Option<Uuid>,
    /// Only about this replay
    #[arg(long, value_name = "ID")]
    replay: Option<Uuid>,
    /// Only at this time or later (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<OffsetDateTime>,
    /// Only before this time (RFC 3339, or an age such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<OffsetDateTime>,
    /// Only numbers below this one: the last of the page before
    #[arg(long, value_name = "NUMBER")]
    below: Option<i64>,
    /// So many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Answer in JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Answer in CSV (RFC 4180)
    #[arg(long)]
    csv: bool,
}

/// Prints a page, the newest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let filter = Filter {
        who: args.who.clone(),
        action: args.action.clone(),
        notification: args.notification,
        replay: args.replay,
        since: args.since,
        until: args.until,
        below: args.below,
    };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let found = decisions(&mut conn, &filter, args.limit).await?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &found)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    if args.csv {
        out.write_all(csv(&found).as_bytes())?;
        return Ok(Exit::Success);
    }
    let rows: Vec<Vec<String>> = found.iter().map(Decision::cells).collect();
    table::write(out, &COLUMNS, &rows)?;
    if let Some(last) = found.last().filter(|_| found.len() == args.limit as usize) {
        writeln!(out, "\nthere may be more: add --below {}", last.id)?;
    }
    Ok(Exit::Success)
}
