//! `outboxd replay`: many notifications sent again after an outage, by a plan that can be looked at before it is run.

use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use uuid::Uuid;

use super::decide::By;
use super::list::at;
use super::which::Which;
use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::replay::{self, Ended};
use crate::shutdown::Shutdown;
use crate::store::decide::Decider;
use crate::store::line::Dsn;
use crate::store::replay::{self as store, Changed, Report};

mod tell;

use tell::{tell, tell_classes, tell_samples};

/// How often the end is looked for, once all is pending.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The commands about replays.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Plan one: what would be sent again, by how safe that is. Nothing is sent
    Plan(PlanArgs),
    /// Run one, or go on with one that was paused or killed
    Run(RunArgs),
    /// Pause a running one; `replay run` goes on with it
    Pause(StopArgs),
    /// Cancel one. What it has made pending stays so
    Cancel(StopArgs),
    /// Show what one came to, by now
    Show(ShowArgs),
    /// List the newest
    List(ListArgs),
}

/// The arguments of `replay plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    outboxd replay plan --provider primary --since 2h --reason 'primary was down'\n  \
    outboxd replay plan --failed refused --code 550 --text blocked --reason 'the block is lifted'\n\n\
    It is over what failed, is uncertain or unresolved. What may have been accepted where nobody deduplicates is left out\n\
    unless --include-risky asks for it.")]
pub struct PlanArgs {
    #[command(flatten)]
    which: Which,
    /// Only what failed for this reason
    #[arg(long, value_name = "REASON", value_parser = ["refused", "exhausted", "expired", "invalid"])]
    failed: Option<String>,
    /// Also send again what may have been accepted already: it may then arrive twice
    #[arg(long)]
    include_risky: bool,
    #[command(flatten)]
    by: By,
}

/// The arguments of `replay run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The replay's id, as `replay plan` printed it
    id: Uuid,
    /// How many notifications a second, such as 50 or 50/s
    #[arg(long, value_name = "N/s", default_value = "50/s", value_parser = rate)]
    rate: f64,
    /// Do not wait until all of them are sent or have failed
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    by: By,
}

/// The arguments of `replay pause` and `replay cancel`.
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    /// The replay's id
    id: Uuid,
    #[command(flatten)]
    by: By,
}

/// The arguments of `replay show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The replay's id
    id: Uuid,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `replay list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// So many at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of them.
///
/// # Errors
/// When the database fails.
pub async fn run(command: &Command, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    match command {
        Command::Plan(args) => plan(args, loaded, out).await,
        Command::Run(args) => go(args, loaded, out).await,
        Command::Pause(args) => stop(args, false, loaded, out).await,
        Command::Cancel(args) => stop(args, true, loaded, out).await,
        Command::Show(args) => show(args, loaded, out).await,
        Command::List(args) => list(args, loaded, out).await,
    }
}

async fn plan(args: &PlanArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let filter = crate::store::search::Filter { reason: args.failed.clone(), ..args.which.filter() };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let (who, reason) = args.by.decider()?;
    let id = store::plan(&mut conn, &filter, args.include_risky, &Decider { who: &who, reason }).await?;
    let samples = store::samples(&mut conn, id).await?;
    let Some(report) = store::report(&mut conn, id).await? else { return Ok(nothing(id, args.by.json, out)?) };
    if args.by.json {
        let answer = json!({
            "id": id, "classes": report.classes, "samples": samples, "risky_included": args.include_risky,
            "would_replay": would_replay(&report),
        });
        writeln!(out, "{answer:#}")?;
        return Ok(Exit::Success);
    }
    writeln!(out, "replay {id}\n")?;
    tell_classes(&report, out)?;
    if !samples.is_empty() {
        writeln!(out)?;
        tell_samples(&samples, out)?;
    }
    for warning in unserved(&mut conn, id, loaded).await? {
        writeln!(out, "\n{warning}")?;
    }
    let rows = would_replay(&report);
    let risky: i64 = report.classes.iter().filter(|class| class.class == "risky").map(|class| class.rows).sum();
    if risky > 0 && !args.include_risky {
        writeln!(out, "\n{risky} are left out since they may arrive twice: --include-risky plans them, too")?;
    }
    if rows == 0 {
        writeln!(out, "\nnothing would be sent")?;
    } else {
        writeln!(out, "\n{rows} would be sent again: outboxd replay run {id} --rate 50/s --reason …")?;
    }
    Ok(Exit::Success)
}

/// What of a plan would wait without an end: what may have been accepted goes only to a provider of its own dedup scope.
async fn unserved(conn: &mut sqlx::PgConnection, id: Uuid, loaded: &Loaded) -> anyhow::Result<Vec<String>> {
    let providers = &loaded.settings.providers;
    let pauses = crate::store::doctor::pauses(conn).await?;
    let paused =
        |name: &str| pauses.iter().any(|pause| pause.kind == "all" || (pause.kind == "provider" && pause.name == name));
    let mut warnings = Vec::new();
    for (scope, rows) in store::scopes(conn, id).await? {
        let mut serving = providers.iter().filter(|(_, provider)| provider.recovery.dedup_scope == scope).peekable();
        if !providers.is_empty() && serving.peek().is_none() {
            warnings.push(format!("WARNING: {rows} may only go through the dedup scope {scope:?}, which no configured provider has: they would wait"));
        } else if serving.peek().is_some() && serving.all(|(name, _)| paused(name)) {
            warnings.push(format!(
                "WARNING: {rows} may only go through the dedup scope {scope:?}, which is paused: they would wait"
            ));
        }
    }
    Ok(warnings)
}

fn would_replay(report: &Report) -> i64 {
    report.items.get("open").copied().unwrap_or_default()
}

async fn go(args: &RunArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let dsn = app::dsn(&loaded.settings.database)?;
    let shutdown = Shutdown::on_signals()?;
    let (who, reason) = args.by.decider()?;
    let decider = Decider { who: &who, reason };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let Some(before) = store::report(&mut conn, args.id).await? else {
        return Ok(nothing(args.id, args.by.json, out)?);
    };
    drop(conn);
    let bar = bar(would_replay(&before), "made pending");
    let ended = replay::run(&dsn, args.id, args.rate, &decider, &shutdown, |progress| {
        bar.set_position(progress.replayed + progress.passed_over);
    })
    .await;
    bar.finish_and_clear();
    let (exit, words) = match ended? {
        Ended::Unknown => return Ok(nothing(args.id, args.by.json, out)?),
        Ended::Done => (Exit::Success, None),
        Ended::Stopped(state) => (Exit::Refused, Some(format!("it was {state} by someone else"))),
        Ended::Interrupted => (Exit::Failure, Some("it is paused: `outboxd replay run` goes on with it".to_owned())),
        Ended::Elsewhere => (Exit::Refused, Some("another process is running it".to_owned())),
        Ended::Refused(state) => (Exit::Refused, Some(format!("it is {state}, and cannot be run"))),
    };
    if exit == Exit::Success && !args.no_wait {
        until_settled(&dsn, args.id, &shutdown).await?;
    }
    let mut conn = app::connect(&loaded.settings.database).await?;
    let Some(report) = store::report(&mut conn, args.id).await? else {
        return Ok(nothing(args.id, args.by.json, out)?);
    };
    tell(&report, args.by.json, out)?;
    if let (Some(words), false) = (words, args.by.json) {
        writeln!(out, "\n{words}")?;
    }
    Ok(exit)
}

/// Waits until nothing of the replay is pending or under way any more, or for a signal. A database that is away is waited for.
async fn until_settled(dsn: &Dsn, id: Uuid, shutdown: &Shutdown) -> anyhow::Result<()> {
    let bar = bar(0, "sent or failed");
    while !shutdown.is_draining() {
        if let Ok(mut conn) = dsn.connect().await
            && let Ok((moving, replayed)) = store::moving(&mut conn, id).await
        {
            bar.set_length(u64::try_from(replayed).unwrap_or_default());
            bar.set_position(u64::try_from(replayed - moving).unwrap_or_default());
            if moving == 0 {
                break;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.draining() => {}
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A bar on standard error where a person looks at it, else nothing.
fn bar(length: i64, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} {msg}, {per_sec:0}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(u64::try_from(length).unwrap_or_default()).with_style(style).with_message(what)
}

async fn stop(args: &StopArgs, for_good: bool, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let (who, reason) = args.by.decider()?;
    let now = if for_good { "cancelled" } else { "paused" };
    let (exit, done, words) = match store::stop(&mut conn, args.id, for_good, &Decider { who: &who, reason }).await? {
        Changed::Unknown => return Ok(nothing(args.id, args.by.json, out)?),
        Changed::Done => {
            (Exit::Success, true, format!("replay {} is {now}; what it has made pending is sent", args.id))
        }
        Changed::Refused(state) => {
            (Exit::Refused, false, format!("replay {} is {state}, and cannot be {now}", args.id))
        }
    };
    if args.by.json {
        writeln!(out, "{}", json!({ "id": args.id, "done": done, "why": (!done).then_some(&words) }))?;
    } else {
        writeln!(out, "{words}")?;
    }
    Ok(exit)
}

async fn show(args: &ShowArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let Some(report) = store::report(&mut conn, args.id).await? else { return Ok(nothing(args.id, args.json, out)?) };
    tell(&report, args.json, out)?;
    if report.replay.state == "running" && !args.json && !store::is_locked(&mut conn, args.id).await? {
        writeln!(out, "\nno process is running it: `outboxd replay run {}` goes on with it", args.id)?;
    }
    Ok(Exit::Success)
}

async fn list(args: &ListArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let replays = store::list(&mut conn, args.limit).await?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &replays)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let rows: Vec<Vec<String>> = replays
        .iter()
        .map(|replay| {
            vec![
                replay.id.to_string(),
                replay.state.clone(),
                at(replay.created_at),
                replay.created_by.clone(),
                format!("{} of {}", replay.done, replay.planned),
                replay.reason.clone(),
            ]
        })
        .collect();
    table::write(out, &["id", "state", "planned", "by", "done", "reason"], &rows)?;
    Ok(Exit::Success)
}

fn nothing(id: Uuid, json: bool, out: &mut impl Write) -> std::io::Result<Exit> {
    if json {
        writeln!(out, "{}", json!({ "id": id, "done": false, "why": "there is no such replay" }))?;
    } else {
        writeln!(out, "there is no replay {id}: `outboxd replay list` shows the newest")?;
    }
    Ok(Exit::Refused)
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 10_000.0 => Ok(rate),
        _ => Err("is not a number of notifications a second above nought and at most 10,000, such as 50/s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_a_second() {
        assert_eq!((rate("50/s"), rate("0.5"), rate("10000")), (Ok(50.0), Ok(0.5), Ok(10_000.0)));
        for wrong in ["0", "-1/s", "fast", "", "NaN", "inf", "10001/s", "5/min"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
