//! `outboxd stats` and `outboxd watch`: how much is where, once or again and again.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::domain::state::State;
use crate::shutdown::Shutdown;
use crate::store::doctor::{self, Facts, Pause, Provider, Waiting};
use crate::store::stats;

/// The arguments of `stats`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `watch`.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime_serde::re::humantime::parse_duration)]
    every: Duration,
    /// One JSON object a look, a line each
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Stats {
    states: BTreeMap<State, u64>,
    facts: Facts,
    waiting: Vec<Waiting>,
    providers: Vec<Provider>,
    pauses: Vec<Pause>,
}

async fn read(loaded: &Loaded) -> anyhow::Result<Stats> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    Ok(Stats {
        states: stats::states(&mut conn).await?,
        facts: doctor::facts(&mut conn).await?,
        waiting: doctor::routes(&mut conn).await?,
        providers: doctor::providers(&mut conn).await?,
        pauses: doctor::pauses(&mut conn).await?,
    })
}

/// Prints how much is where.
///
/// # Errors
/// When the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let stats = read(loaded).await?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &stats)?;
        writeln!(out)?;
    } else {
        print(&stats, out)?;
    }
    Ok(Exit::Success)
}

/// Prints it again and again, until SIGINT or SIGTERM.
///
/// # Errors
/// When the database cannot be read at first, or the answer not written. Later, a database that does not answer is waited
/// for.
pub async fn watch(args: &WatchArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::on_signals()?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let mut looked = false;
    while !shutdown.is_draining() {
        match read(loaded).await {
            Ok(stats) if args.json => writeln!(out, "{}", serde_json::to_string(&stats)?)?,
            Ok(stats) => {
                if terminal {
                    // Home, and clear what is below (ECMA-48, 8.3.39).
                    write!(out, "\u{1b}[H\u{1b}[J")?;
                }
                print(&stats, out)?;
            }
            Err(error) if looked => writeln!(out, "STALE: the database does not answer: {error:#}")?,
            Err(error) => return Err(error),
        }
        looked = true;
        out.flush()?;
        tokio::select! {
            () = tokio::time::sleep(args.every.max(Duration::from_millis(100))) => {}
            () = shutdown.draining() => {}
        }
    }
    Ok(Exit::Success)
}

fn print(stats: &Stats, out: &mut impl Write) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> =
        stats.states.iter().map(|(state, count)| vec![state.to_string(), count.to_string()]).collect();
    table::write(out, &["state", "notifications"], &rows)?;
    let ready = stats
        .facts
        .oldest_ready_seconds
        .map_or("nothing is ready".to_owned(), |age| format!("the oldest ready one waits for {age:.0} s"));
    writeln!(out, "\n{ready}; {} recovery windows end within an hour", stats.facts.closing_within_an_hour)?;
    if !stats.waiting.is_empty() {
        writeln!(out)?;
        let rows: Vec<Vec<String>> =
            stats.waiting.iter().map(|route| vec![route.name.clone(), format!("{:.0} s", route.seconds)]).collect();
        table::write(out, &["route", "oldest ready"], &rows)?;
    }
    if !stats.providers.is_empty() {
        writeln!(out)?;
        let rows: Vec<Vec<String>> = stats
            .providers
            .iter()
            .map(|provider| {
                let counts = [
                    provider.running,
                    provider.sent,
                    provider.deferred,
                    provider.refused,
                    provider.not_sent,
                    provider.uncertain,
                ];
                let mut row = vec![provider.name.clone()];
                row.extend(counts.iter().map(ToString::to_string));
                row.push(provider.last_error.clone().unwrap_or_default());
                row
            })
            .collect();
        let heading =
            ["provider, last hour", "running", "sent", "deferred", "refused", "not sent", "uncertain", "last trouble"];
        table::write(out, &heading, &rows)?;
    }
    for pause in &stats.pauses {
        writeln!(out, "\npaused: {} {} by {}: {}", pause.kind, pause.name, pause.paused_by, pause.reason)?;
    }
    Ok(())
}
