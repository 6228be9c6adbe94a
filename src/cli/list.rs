//! `outboxd list` and `outboxd uncertain`: what is where, a page at a time.

use std::io::Write;
use std::time::Duration;

use humantime_serde::re::humantime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::domain::state::State;
use crate::store::search::{self, Filter, Listed};

use super::which::Which;

/// How much, and how it is told.
#[derive(Debug, clap::Args)]
pub struct Page {
    /// So many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  outboxd list --state failed --since 2h\n  outboxd list --provider primary --code 550 --json\n  \
    outboxd list --account acme --below 01a230e5-9f38-7878-abaa-63e052288578   # the next page"
)]
pub struct Args {
    /// Only this state
    #[arg(long)]
    state: Option<State>,
    /// Only what failed for this reason
    #[arg(long, value_parser = ["refused", "exhausted", "expired", "invalid"])]
    reason: Option<String>,
    /// Only ids below this one: the last of the page before
    #[arg(long, value_name = "ID")]
    below: Option<Uuid>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    page: Page,
}

/// The arguments of `uncertain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "What it says can be settled with `outboxd resolve ID --sent|--not-sent|--resend --reason …`.")]
pub struct UncertainArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    page: Page,
}

/// Prints a page, the newest first.
///
/// # Errors
/// When the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let filter = Filter { state: args.state, reason: args.reason.clone(), below: args.below, ..args.which.filter() };
    let found = search::list(&mut conn, &filter, args.page.limit as usize, usize::MAX).await?.rows;
    if args.page.json {
        return as_json(&found, out);
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|row| {
            let state = row.reason.as_ref().map_or(row.state.clone(), |reason| format!("{} ({reason})", row.state));
            vec![
                row.id.to_string(),
                state,
                at(row.changed_at),
                row.account_id.clone(),
                row.recipient.clone(),
                row.attempts.to_string(),
                row.provider.clone().unwrap_or_default(),
                last_word(row),
            ]
        })
        .collect();
    table::write(out, &["id", "state", "since", "account", "recipient", "attempts", "provider", "last answer"], &rows)?;
    if let Some(last) = found.last().filter(|_| found.len() == args.page.limit as usize) {
        writeln!(out, "\nthere may be more: add --below {}", last.id)?;
    }
    Ok(Exit::Success)
}

/// Prints what waits for evidence or a person, the least time left first.
///
/// # Errors
/// When the database cannot be read.
pub async fn run_uncertain(args: &UncertainArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let found =
        search::uncertain(&mut conn, &args.which.filter(), None, args.page.limit as usize, usize::MAX).await?.rows;
    if args.page.json {
        return as_json(&found, out);
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|row| {
            vec![
                row.id.to_string(),
                row.state.clone(),
                time_left(row.seconds_left.unwrap_or_default()),
                row.account_id.clone(),
                row.recipient.clone(),
                row.provider.clone().unwrap_or_default(),
                row.resend_at.map_or_else(|| "held".to_owned(), |resend| format!("resend at {}", at(resend))),
                last_word(row),
            ]
        })
        .collect();
    table::write(out, &["id", "state", "time left", "account", "recipient", "provider", "plan", "why"], &rows)?;
    Ok(Exit::Success)
}

fn as_json(found: &[Listed], out: &mut impl Write) -> anyhow::Result<Exit> {
    serde_json::to_writer_pretty(&mut *out, found)?;
    writeln!(out)?;
    Ok(Exit::Success)
}

/// What the last attempt came to, in a few words.
fn last_word(row: &Listed) -> String {
    let said = match (&row.reply_code, &row.reply_text, &row.error) {
        (Some(code), text, _) => format!("{code} {}", text.as_deref().unwrap_or_default()),
        (None, _, Some(error)) => error.clone(),
        (None, _, None) => row.outcome.clone().unwrap_or_default(),
    };
    match &row.phase {
        Some(phase) => format!("{phase}: {said}"),
        None => said,
    }
}

fn time_left(seconds: f64) -> String {
    if seconds <= 0.0 {
        return "over".to_owned();
    }
    // Whole minutes, from ten of them on: nobody decides by the second.
    let seconds = if seconds > 600.0 { (seconds / 60.0).floor() * 60.0 } else { seconds.floor() };
    humantime::format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string()
}

pub(super) fn at(time: OffsetDateTime) -> String {
    time.replace_nanosecond(0).unwrap_or(time).format(&Rfc3339).unwrap_or_default()
}
