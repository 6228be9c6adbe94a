//! The demo: a shop, two workers and two SMTP servers, everything that can go wrong, and a proof from both sides at the end.
//!
//! Real parts only: it starts this program as its workers and asks PostgreSQL and the servers what is true. It must leave
//! nothing behind unless it is told to.

mod drama;
mod intent;
mod proof;
mod report;
mod screen;
mod shop;
mod stage;
mod truth;
mod watch;
mod weather;

use std::collections::BTreeMap;
use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sqlx::postgres::PgPool;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::MissedTickBehavior;

pub use screen::Look;

use crate::domain::state::State;
use screen::{Ink, Screen, grouped};
use shop::Shop;
use stage::Stage;
use truth::Facts;

/// How often progress is looked at: as often as an eye can follow.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long it is waited, once all is written, until nothing moves by itself any more: all retries and resends together take
/// some ten seconds.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// What the demo is to be like.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the faults, the messages and the trouble in the shop are drawn from. Timing is the machine's.
    pub seed: u64,
    /// How many messages are written.
    pub messages: usize,
    /// Whether the database is left behind.
    pub keep: bool,
    /// How it is shown.
    pub look: Look,
}

/// Runs the demo and tells whether every equation of the proof holds.
///
/// # Errors
/// When a part cannot be started, a worker ends by itself, or the demo is interrupted.
pub async fn run(options: &Options, out: &mut dyn Write) -> Result<bool> {
    tokio::select! {
        ended = perform(options, out) => ended,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            bail!("interrupted; nothing of the demo is left behind")
        }
    }
}

async fn perform(options: &Options, out: &mut dyn Write) -> Result<bool> {
    let mut screen = Screen::new(out, options.look);
    let title = format!(
        "outboxd demo, seed {}: a shop writes {} messages; two workers, two SMTP servers, and everything goes wrong",
        options.seed,
        grouped(options.messages)
    );
    screen.line(screen.ink(Ink::Bold, title))?;
    screen.event("starting a private PostgreSQL and the servers: dedup recognises repeated ids, plain does not")?;
    let mut stage = Stage::set(options.seed).await?;
    let shop = Shop::open(&stage.url, intent::plan(options.seed, options.messages)).await?;
    stage.start_worker("A")?;
    stage.start_worker("B")?;
    screen.event("workers A and B are started; the shop opens")?;

    let pool = stage.pool.clone();
    let mut faults = Faults::new(&stage);
    let (tell, mut told) = unbounded_channel();
    {
        let mut play = pin!(async {
            let trade = tokio::spawn(std::sync::Arc::clone(&shop).trade());
            drama::play(&mut stage, &shop, &tell).await?;
            trade.await??;
            let _ = tell.send("everything is written; what is under way comes to its end".to_owned());
            settle(&mut stage).await
        });
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = &mut play => break ended?,
                Some(event) = told.recv() => screen.event(&event)?,
                _ = ticks.tick() => {
                    if let Some(text) = progress(&pool, &shop, &mut faults).await {
                        screen.progress(&text)?;
                    }
                }
            }
        }
        while let Ok(event) = told.try_recv() {
            screen.event(&event)?;
        }
    }
    stage.drain().await?;
    screen.event("the workers have drained; nothing runs any more")?;

    let facts = Facts::gather(&stage.pool, shop.ledger(), &stage.dedup, &stage.plain).await?;
    let equations = proof::prove(&facts);
    report::states(&mut screen, &facts)?;
    report::faults(&mut screen, &stage, &facts)?;
    report::doubts(&mut screen, &stage, &facts).await?;
    report::proof(&mut screen, &equations)?;
    report::offenders(&mut screen, &stage, &equations).await?;
    let holds = equations.iter().all(proof::Equation::holds);
    let seconds = screen.elapsed().as_secs_f64();
    let verdict = if holds {
        screen.ink(Ink::Good, format_args!("All {} equations hold.", equations.len()))
    } else {
        screen.ink(
            Ink::Bad,
            "The proof fails: this is a fault of outboxd; please report it with the seed and the stories above.",
        )
    };
    screen.line(format_args!("\n{verdict}"))?;
    screen.line(report::summary(options.seed, &facts, &equations, seconds))?;
    if options.keep {
        screen.line(format_args!("\n{}", stage.keep()?))?;
    }
    Ok(holds)
}

/// Waits until nothing moves by itself any more. If that takes too long, the proof tells what is stuck.
async fn settle(stage: &mut Stage) -> Result<()> {
    let until = Instant::now() + SETTLE_LIMIT;
    while watch::moving(&stage.pool).await? > 0 && Instant::now() < until {
        stage.check_workers()?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// The line of progress; `None` while the database is away.
async fn progress(pool: &PgPool, shop: &Shop, faults: &mut Faults) -> Option<String> {
    let states = watch::states(pool).await.ok()?;
    let count = |state| states.get(&state).copied().unwrap_or_default();
    Some(format!(
        "written {}/{}  pending {}  sending {}  sent {}  failed {}  in doubt {}   {}",
        grouped(shop.done()),
        grouped(shop.total()),
        count(State::Pending),
        count(State::Claimed) + count(State::Transmitting),
        count(State::Sent),
        count(State::Failed),
        count(State::Uncertain) + count(State::Unresolved),
        faults.latest(),
    ))
}

/// The fault that struck last.
struct Faults {
    servers: [(&'static str, super::smtp::ScriptHandle); 2],
    seen: BTreeMap<(&'static str, String), u64>,
    latest: String,
}

impl Faults {
    fn new(stage: &Stage) -> Self {
        let servers = [("dedup", stage.dedup.script()), ("plain", stage.plain.script())];
        Self { servers, seen: BTreeMap::new(), latest: String::new() }
    }

    fn latest(&mut self) -> &str {
        for (name, script) in &self.servers {
            for (label, count) in weather::struck(script) {
                let seen = self.seen.entry((name, label.clone())).or_default();
                if *seen < count {
                    self.latest = format!("{name}: {label}");
                    *seen = count;
                }
            }
        }
        &self.latest
    }
}
