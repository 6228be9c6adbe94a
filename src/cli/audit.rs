//! `outboxd audit`: who decided what, and why.

use std::io::Write;

use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::list::at;
use super::which::moment;
use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::store::audit::{Decision, Filter, decisions};

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
    let heading = ["number", "when", "who", "what", "about", "before", "after", "why"];
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    if args.csv {
        csv(out, heading.iter().copied())?;
        for row in &rows {
            csv(out, row.iter().map(String::as_str))?;
        }
        return Ok(Exit::Success);
    }
    table::write(out, &heading, &rows)?;
    if let Some(last) = found.last().filter(|_| found.len() == args.limit as usize) {
        writeln!(out, "\nthere may be more: add --below {}", last.id)?;
    }
    Ok(Exit::Success)
}

fn row(decision: &Decision) -> Vec<String> {
    let about = match (decision.notification_id, decision.replay_id, &decision.subject) {
        (Some(id), _, _) => id.to_string(),
        (None, Some(id), _) => format!("replay {id}"),
        (None, None, subject) => subject.clone().unwrap_or_default(),
    };
    vec![
        decision.id.to_string(),
        at(decision.decided_at),
        decision.decided_by.clone(),
        decision.action.clone(),
        about,
        state(decision.before.as_ref()),
        state(decision.after.as_ref()),
        decision.reason.clone(),
    ]
}

fn state(snapshot: Option<&Value>) -> String {
    snapshot.and_then(|snapshot| snapshot["state"].as_str()).unwrap_or_default().to_owned()
}

/// A record of RFC 4180. A cell that a spreadsheet would take for a formula is made a text.
fn csv<'c>(out: &mut impl Write, cells: impl Iterator<Item = &'c str>) -> std::io::Result<()> {
    let cells: Vec<String> = cells
        .map(|cell| {
            let cell =
                if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell.to_owned() };
            if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
        })
        .collect();
    write!(out, "{}\r\n", cells.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be_and_are_no_formulas() {
        let mut out = Vec::new();
        csv(&mut out, ["plain", "a \"b\", c", "=1+1", "two\nlines", ""].into_iter()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "plain,\"a \"\"b\"\", c\",'=1+1,\"two\nlines\",\r\n");
    }
}
