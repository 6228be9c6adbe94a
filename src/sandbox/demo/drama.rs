//! What is done to the workers, to PostgreSQL and to a provider while the shop trades, and when.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::mpsc::UnboundedSender;

use super::intent::Part;
use super::shop::Shop;
use super::stage::Stage;
use super::watch::{self, Held};

/// How often it is looked whether the moment has come: a send takes some eighty milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(4);

/// A worker is struck once it has this many sends in flight.
const IN_FLIGHT: i64 = 8;

/// How long that is waited for; a small demo never has so many, and is content with one.
const CROWD_LIMIT: Duration = Duration::from_secs(2);

/// How long one is waited for.
const ANY_LIMIT: Duration = Duration::from_secs(5);

/// Time between two acts, so that they can be told apart.
const INTERLUDE: Duration = Duration::from_millis(2_500);

/// How long a provider is away.
const OUTAGE: Duration = Duration::from_millis(1_500);

/// How long it is waited for that a paused worker's leases are gone: their five seconds, and a slow machine.
const LEASE_LIMIT: Duration = Duration::from_secs(20);

/// How much longer than that a worker is paused.
const AFTER_LEASE: Duration = Duration::from_secs(2);

/// How long a continued worker may take to hand in what it knows.
const LATE_LIMIT: Duration = Duration::from_secs(5);

/// Plays it all.
pub(super) async fn play(stage: &mut Stage, shop: &Shop, tell: &UnboundedSender<String>) -> Result<()> {
    let tell = |text: String| {
        // Nobody listens any more when the demo is being given up.
        let _ = tell.send(text);
    };

    tokio::time::sleep(INTERLUDE).await;
    shop.begin(Part::Newsletter);
    tell("a newsletter goes out: one account has a backlog".to_owned());
    crowd(stage, "A").await?;
    stage.kill_worker("A")?;
    let Held { begun, claimed } = watch::held(&stage.pool, "A").await?;
    tell(format!("worker A is killed (SIGKILL) with {begun} sends in flight and {claimed} more claimed"));

    tokio::time::sleep(INTERLUDE).await;
    stage.start_worker("C")?;
    tell("worker C takes its place".to_owned());

    tokio::time::sleep(INTERLUDE).await;
    stage.crash_database().await?;
    tell("PostgreSQL was killed (SIGKILL) and has recovered".to_owned());

    tokio::time::sleep(INTERLUDE).await;
    shop.begin(Part::Sale);
    tell("a sale begins: everybody writes at once".to_owned());
    pause(stage, &tell).await?;

    stage.dedup.pause().await;
    stage.dedup.cut_connections().await;
    tell("provider dedup is down: every connection is cut, new ones are refused".to_owned());
    tokio::time::sleep(OUTAGE).await;
    stage.dedup.resume().await?;
    tell("provider dedup is back".to_owned());
    Ok(())
}

/// Stops worker B past its lease and lets it go on.
async fn pause(stage: &mut Stage, tell: &impl Fn(String)) -> Result<()> {
    crowd(stage, "B").await?;
    stage.signal_worker("B", "STOP")?;
    let Held { begun, claimed } = watch::held(&stage.pool, "B").await?;
    tell(format!("worker B is paused (SIGSTOP) with {begun} sends in flight and {claimed} more claimed"));
    let until = Instant::now() + LEASE_LIMIT;
    while watch::held(&stage.pool, "B").await? != Held::default() && Instant::now() < until {
        tokio::time::sleep(10 * LOOK_EVERY).await;
    }
    // Time for the others to act on it: where the provider deduplicates, they send again.
    tokio::time::sleep(AFTER_LEASE).await;
    let (before, _) = watch::late_results(&stage.pool, "B").await?;
    stage.signal_worker("B", "CONT")?;
    tell("worker B goes on (SIGCONT): its leases are over, others have its notifications".to_owned());
    let until = Instant::now() + LATE_LIMIT;
    while watch::late_results(&stage.pool, "B").await?.0 < before + begun && Instant::now() < until {
        tokio::time::sleep(10 * LOOK_EVERY).await;
    }
    let (late, accepted) = watch::late_results(&stage.pool, "B").await?;
    tell(format!("worker B hands in {late} late results as evidence; {accepted} of them prove an acceptance"));
    Ok(())
}

/// Waits until a worker has sends in flight, as many as there will be.
async fn crowd(stage: &Stage, worker: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        let in_flight = watch::held(&stage.pool, worker).await?.begun;
        let waited = begin.elapsed();
        if in_flight >= IN_FLIGHT || (in_flight > 0 && waited > CROWD_LIMIT) || waited > CROWD_LIMIT + ANY_LIMIT {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
