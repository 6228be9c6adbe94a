//! `outboxd doctor`: what is wrong, and what to do about it.
//!
//! Each finding is drawn by a pure function from what was read, so that a test can show it every illness.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;
use time::OffsetDateTime;

use super::{Exit, table};
use crate::app;
use crate::config::{Loaded, Settings};
use crate::store::doctor::{self, Facts, Pause, Provider, Table, Waiting};
use crate::store::migrate;

/// The oldest PostgreSQL that is supported.
const SERVER_VERSION_MIN: i32 = 150_000;

/// How far the two clocks may be apart, in seconds: the margin that windows have by default.
const CLOCK_SKEW_MAX_SECONDS: f64 = 30.0;

/// A transaction older than this keeps dead rows from being removed long enough to slow claims down, in seconds.
const TRANSACTION_MAX_SECONDS: f64 = 300.0;

/// Ready rows that wait longer than this, in seconds, wait for something that is missing.
const READY_MAX_SECONDS: f64 = 60.0;

/// Dead rows above which, and above the live ones, a table is called bloated: below, it is the ordinary churn between two vacuums.
const DEAD_ROWS_MAX: i64 = 50_000;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    Look,
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    level: Level,
    check: &'static str,
    found: String,
    remedy: String,
}

struct Seen {
    facts: Facts,
    here: OffsetDateTime,
    pending_migrations: usize,
    tables: Vec<Table>,
    routes: Vec<Waiting>,
    scopes: Vec<Waiting>,
    providers: Vec<Provider>,
    pauses: Vec<Pause>,
}

/// Looks at everything, and ends with [`Exit::Failure`] if something is wrong.
///
/// # Errors
/// When the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let pending_migrations = migrate::pending(&mut conn).await.context("the migrations on record")?;
    anyhow::ensure!(
        pending_migrations == 0,
        "the database lacks {pending_migrations} migrations of this release: run `outboxd migrate` first"
    );
    let seen = Seen {
        facts: doctor::facts(&mut conn).await?,
        here: OffsetDateTime::now_utc(),
        pending_migrations,
        tables: doctor::tables(&mut conn).await?,
        routes: doctor::routes(&mut conn).await?,
        scopes: doctor::scopes(&mut conn).await?,
        providers: doctor::providers(&mut conn).await?,
        pauses: doctor::pauses(&mut conn).await?,
    };
    let findings = diagnose(&seen, &loaded.settings);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &findings)?;
        writeln!(out)?;
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|finding| {
                let level = match finding.level {
                    Level::Ok => "ok",
                    Level::Look => "look",
                    Level::Wrong => "WRONG",
                };
                vec![level.to_owned(), finding.check.to_owned(), finding.found.clone()]
            })
            .collect();
        table::write(out, &["", "what", "found"], &rows)?;
        for finding in findings.iter().filter(|finding| finding.level != Level::Ok) {
            writeln!(out, "\n{}: {}\n  {}", finding.check, finding.found, finding.remedy)?;
        }
    }
    let wrong = findings.iter().any(|finding| finding.level == Level::Wrong);
    Ok(if wrong { Exit::Failure } else { Exit::Success })
}

/// Everything that can be said, the worst first.
fn diagnose(seen: &Seen, settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut say = |check: &'static str, bad: Option<Level>, found: String, remedy: &str| {
        let level = bad.unwrap_or(Level::Ok);
        findings.push(Finding { level, check, found, remedy: remedy.to_owned() });
    };
    let when = |bad: bool, level: Level| bad.then_some(level);
    let facts = &seen.facts;

    say(
        "schema",
        when(seen.pending_migrations > 0, Level::Wrong),
        format!("{} migrations to apply", seen.pending_migrations),
        "Run `outboxd migrate`.",
    );
    say(
        "server",
        when(facts.server_version < SERVER_VERSION_MIN || facts.only_reads, Level::Wrong),
        format!(
            "PostgreSQL {}{}",
            facts.server_version / 10_000,
            if facts.only_reads { ", which only reads" } else { "" }
        ),
        "Use PostgreSQL 15 or newer, and the primary, not a standby.",
    );
    say(
        "durability",
        when(!facts.fsync || !facts.full_page_writes, Level::Wrong),
        format!("fsync {}, full_page_writes {}", on(facts.fsync), on(facts.full_page_writes)),
        "Turn both on: without them a crash of the machine can undo a *begin*, and a message is sent twice.",
    );
    let skew = (seen.here - facts.database_time).as_seconds_f64().abs();
    say(
        "clocks",
        when(skew > CLOCK_SKEW_MAX_SECONDS, Level::Look),
        format!("this machine and the database are {skew:.0} s apart"),
        "Only the database's clock decides a state, but log times and providers' windows do not: run NTP on both.",
    );
    let room = i64::from(facts.connections_max) - facts.connections_used;
    say(
        "connections",
        when(room < 10, Level::Look),
        format!("{} of {} used", facts.connections_used, facts.connections_max),
        "Raise max_connections, or put PgBouncer in between (database.transaction_pooling).",
    );
    let oldest = facts.oldest_transaction_seconds.unwrap_or_default();
    say(
        "held transactions",
        when(oldest > TRANSACTION_MAX_SECONDS, Level::Wrong),
        match facts.oldest_transaction_pid {
            Some(pid) => format!("the oldest is open for {oldest:.0} s (pid {pid})"),
            None => "none".to_owned(),
        },
        "Dead rows stay while it is open, and claims slow down: end it (select pg_terminate_backend(PID)), and set \
         idle_in_transaction_session_timeout.",
    );
    say(
        "held back otherwise",
        when(facts.prepared_transactions + facts.slots_holding_back > 0, Level::Look),
        format!(
            "{} prepared transactions, {} replication slots with an xmin",
            facts.prepared_transactions, facts.slots_holding_back
        ),
        "A forgotten prepared transaction or slot keeps dead rows for ever: look at pg_prepared_xacts and pg_replication_slots.",
    );
    let bloated = |table: &&Table| table.dead_rows > DEAD_ROWS_MAX.max(table.live_rows);
    let bloat: Vec<&Table> = seen.tables.iter().filter(bloated).collect();
    say(
        "bloat",
        when(!bloat.is_empty(), Level::Look),
        match bloat.first() {
            Some(table) => {
                format!("{} has {} dead rows beside {} live ones", table.name, table.dead_rows, table.live_rows)
            }
            None => "dead rows are within bounds".to_owned(),
        },
        "See that autovacuum is on and gets through; after a transaction was held open, VACUUM the table once.",
    );
    say(
        "leases",
        when(facts.leases_overdue > 0, Level::Wrong),
        format!("{} ran out over a minute ago", facts.leases_overdue),
        "No worker sweeps: start one; if one runs, its log says why it cannot.",
    );
    say(
        "schedule",
        when(facts.due_not_ready > 0, Level::Wrong),
        format!("{} are due for over a minute and not ready", facts.due_not_ready),
        "No worker promotes what comes due: start one; if one runs, its log says why it cannot.",
    );
    say(
        "listener",
        when(settings.wakeup.is_some() && facts.listeners == 0, Level::Look),
        format!("{} sessions listen for new work", facts.listeners),
        "Without one, work is found by polling alone (worker.poll_interval). Start a worker, or see why its listener fails.",
    );
    for waiting in &seen.routes {
        let served = settings.providers.is_empty() || settings.routes.contains_key(&waiting.name);
        say(
            "route",
            if served { when(waiting.seconds > READY_MAX_SECONDS, Level::Look) } else { Some(Level::Wrong) },
            format!("{:?}: the oldest ready one waits for {:.0} s", waiting.name, waiting.seconds),
            if served {
                "Providers are slow, their breakers open, something is paused, or no worker runs: see `outboxd stats` and its log."
            } else {
                "No route of this name is configured here: add [route], or send by a worker that has it."
            },
        );
    }
    for waiting in &seen.scopes {
        let known = settings.providers.is_empty()
            || settings.providers.values().any(|provider| provider.recovery.dedup_scope == waiting.name);
        say(
            "resends",
            if known { when(waiting.seconds > READY_MAX_SECONDS, Level::Look) } else { Some(Level::Wrong) },
            format!("dedup scope {:?}: the oldest waits for {:.0} s", waiting.name, waiting.seconds),
            "Only a provider of that scope may resend it: keep it configured, or settle them with `outboxd resolve`.",
        );
    }
    for provider in &seen.providers {
        let tried = provider.deferred + provider.refused + provider.not_sent + provider.uncertain;
        let bad = match provider.sent {
            0 if tried > 0 => Some(Level::Wrong),
            sent if provider.uncertain > 0 || tried > sent => Some(Level::Look),
            _ => None,
        };
        say(
            "provider",
            bad,
            format!(
                "{}, last hour: {} sent, {} deferred, {} refused, {} not sent, {} uncertain",
                provider.name,
                provider.sent,
                provider.deferred,
                provider.refused,
                provider.not_sent,
                provider.uncertain
            ),
            &format!("{}\n  Its last trouble: {}", remedy(provider), provider.last_error.as_deref().unwrap_or("none")),
        );
    }
    for pause in &seen.pauses {
        say(
            "pause",
            Some(Level::Look),
            format!("{} {} by {}: {}", pause.kind, pause.name, pause.paused_by, pause.reason),
            "Nothing of it is claimed: `outboxd resume` ends it.",
        );
    }
    say(
        "uncertain",
        when(facts.closing_within_an_hour > 0, Level::Look),
        format!("{} recovery windows end within an hour", facts.closing_within_an_hour),
        "See `outboxd uncertain`; bring evidence, or settle them.",
    );
    say(
        "unresolved",
        when(facts.unresolved > 0, Level::Look),
        format!("{} wait for a person", facts.unresolved),
        "They never move by themselves: `outboxd uncertain`, then `outboxd resolve`.",
    );
    say(
        "contradictions",
        when(facts.contradictions > 0, Level::Look),
        format!("{} notifications have evidence against what is on record", facts.contradictions),
        "Look at each with `outboxd show`; the record was not overwritten.",
    );
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// What to do about a provider, by its last trouble.
fn remedy(provider: &Provider) -> String {
    let name = &provider.name;
    let phase = provider.last_phase.as_deref().unwrap_or_default();
    // 530 to MAIL: authentication is required (RFC 4954, 6).
    let credentials =
        phase == "auth" || provider.last_error.as_deref().is_some_and(|error| error.starts_with("mail: 53"));
    if credentials {
        return format!(
            "It refuses the credentials: correct provider.{name}.username and its password, and restart the worker. Nothing was \
             offered, and no try is used up."
        );
    }
    match (phase, provider.last_outcome.as_deref()) {
        ("resolve" | "connect" | "tls" | "greeting" | "ehlo", _) => format!(
            "It cannot be reached. Everything waits, uses up no try and goes on by itself. To go through the next provider of the \
             route meanwhile: `outboxd pause --provider {name} --reason …`."
        ),
        (_, Some("uncertain")) => {
            "It loses answers: `outboxd uncertain` lists what may have been accepted; bring evidence (docs/evidence.md).".to_owned()
        }
        _ => "It refuses: `outboxd list --state failed` tells what. Once that is mended, `outboxd replay plan` (docs/replay.md)."
            .to_owned(),
    }
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "OFF" }
}
