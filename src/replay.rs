//! Running a replay: steps at a rate until nothing is left, on a connection of its own that may be lost and taken up again.
//!
//! It keeps nothing that matters in memory: what is done is in the database, so another process can go on where one was killed.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::retry::Patience;
use crate::shutdown::Shutdown;
use crate::store::StoreError;
use crate::store::decide::Decider;
use crate::store::line::Dsn;
use crate::store::replay::{self, Changed, Step};

/// Between two steps: a rate is even enough by the tenth of a second.
const TICK: Duration = Duration::from_millis(100);

/// How soon it is noticed that somebody has paused or cancelled it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Rows of one step at most: a short statement, and a short list of locks.
const STEP_MAX_ROWS: u32 = 1_000;

/// For how long a database that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(300);

/// How running ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of it is left.
    Done,
    /// Someone paused or cancelled it: its state.
    Stopped(String),
    /// This process was told to stop; the replay is paused.
    Interrupted,
    /// Another process runs it.
    Elsewhere,
    /// There is no such replay.
    Unknown,
    /// It cannot be run in this state.
    Refused(String),
}

/// Why running stopped although there is more to do. It can be run on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A session that was lost still has the replay to itself.
    #[error("another session has the replay to itself")]
    Taken,
}

impl From<sqlx::Error> for RunError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// How far it is, in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Rows made pending.
    pub replayed: u64,
    /// Rows left alone.
    pub passed_over: u64,
}

/// Runs a replay at `rate_per_second` until nothing is left of it, it is stopped, or `shutdown`. `seen` is told of every step.
///
/// # Errors
/// When the database is away for five minutes; the replay can then be run on.
pub async fn run(
    dsn: &Dsn,
    id: Uuid,
    rate_per_second: f64,
    decider: &Decider<'_>,
    shutdown: &Shutdown,
    mut seen: impl FnMut(Progress),
) -> Result<Ended, RunError> {
    let mut progress = Progress::default();
    let mut held_before = false;
    let mut patience = patience();
    loop {
        let failed = match taken(dsn, id).await {
            Ok(Some(mut conn)) => {
                if !held_before {
                    match replay::start(&mut conn, id, rate_per_second, decider).await? {
                        Changed::Unknown => return Ok(Ended::Unknown),
                        Changed::Refused(state) => return Ok(Ended::Refused(state)),
                        Changed::Done => held_before = true,
                    }
                }
                let mut told = |step: &Step| {
                    progress.replayed += step.replayed;
                    progress.passed_over += step.changed + step.expired;
                    seen(progress);
                };
                match steps(&mut conn, id, rate_per_second, decider, shutdown, &mut told).await {
                    Ok(ended) => return Ok(ended),
                    Err((error, moved)) => {
                        if moved {
                            patience = self::patience();
                        }
                        error
                    }
                }
            }
            // Our own session may still be there, where its connection broke without a word.
            Ok(None) if held_before => RunError::Taken,
            Ok(None) => return Ok(Ended::Elsewhere),
            Err(error) if held_before => error,
            Err(error) => return Err(error),
        };
        tracing::warn!(error = %failed, "the replay lost its connection, and goes on with a new one");
        let Some(delay) = patience.next_delay() else { return Err(failed) };
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = shutdown.draining() => return Err(failed),
        }
    }
}

fn patience() -> Patience {
    Patience::new(Duration::from_millis(200), Duration::from_secs(10), PATIENCE)
}

/// A connection that has the replay to itself; `None` if another has it.
async fn taken(dsn: &Dsn, id: Uuid) -> Result<Option<PgConnection>, RunError> {
    let mut conn = dsn.connect().await?;
    // A pooler hands sessions on, and with them a lock that nobody would let go: there a second process is not noticed,
    // which costs the even rate and nothing else.
    let mine = dsn.transaction_pooling() || replay::lock(&mut conn, id).await?;
    Ok(mine.then_some(conn))
}

/// Step after step; an error tells whether any step had worked.
async fn steps(
    conn: &mut PgConnection,
    id: Uuid,
    rate_per_second: f64,
    decider: &Decider<'_>,
    shutdown: &Shutdown,
    told: &mut impl FnMut(&Step),
) -> Result<Ended, (RunError, bool)> {
    let mut moved = false;
    let mut above = Uuid::nil();
    let mut allowance = Allowance::new(rate_per_second);
    let mut looked = Instant::now();
    loop {
        if shutdown.is_draining() {
            let interrupted = Decider { who: decider.who, reason: "the process that ran it was told to stop" };
            return match replay::stop(conn, id, false, &interrupted).await.map_err(|error| (error.into(), moved))? {
                Changed::Done => Ok(Ended::Interrupted),
                Changed::Refused(state) => Ok(Ended::Stopped(state)),
                Changed::Unknown => Ok(Ended::Unknown),
            };
        }
        let rows = allowance.rows();
        // A step tells whether it is still to go on; between two that are far apart it is asked.
        if rows == 0 && looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            let state = replay::state(conn, id).await.map_err(|error| (error.into(), moved))?;
            if state.as_deref() != Some("running") {
                return Ok(state.map_or(Ended::Unknown, Ended::Stopped));
            }
        }
        if rows > 0 {
            looked = Instant::now();
            let step = replay::step(conn, id, above, rows).await.map_err(|error| (error.into(), moved))?;
            moved = true;
            allowance.used(step.replayed);
            told(&step);
            if !step.running {
                let state = replay::state(conn, id).await.map_err(|error| (error.into(), moved))?;
                return Ok(state.map_or(Ended::Unknown, Ended::Stopped));
            }
            match step.last {
                Some(last) => above = last,
                None if replay::finish(conn, id).await.map_err(|error| (error.into(), moved))? => {
                    return Ok(Ended::Done);
                }
                // Rows that others had locked: once more from the first.
                None => above = Uuid::nil(),
            }
            // What was left alone costs nothing of the rate.
            if step.replayed == 0 && step.changed + step.expired > 0 {
                continue;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(TICK.max(allowance.until_next())) => {}
            () = shutdown.draining() => {}
        }
    }
}

/// How many rows the rate allows by now. What was not used is not saved up beyond one tick: after an outage of the database
/// the rate is still the rate.
#[derive(Debug)]
struct Allowance {
    rate_per_second: f64,
    rows: f64,
    at: Instant,
}

impl Allowance {
    fn new(rate_per_second: f64) -> Self {
        Self { rate_per_second, rows: 1.0, at: Instant::now() }
    }

    fn rows(&mut self) -> u32 {
        let now = Instant::now();
        let most = (self.rate_per_second * TICK.as_secs_f64() * 2.0).max(1.0);
        self.rows = (self.rows + self.rate_per_second * (now - self.at).as_secs_f64()).min(most);
        self.at = now;
        // Truncation is meant: a part of a row is not a row.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded, and never below nought")]
        let rows = self.rows.min(f64::from(STEP_MAX_ROWS)) as u32;
        rows
    }

    fn used(&mut self, rows: u64) {
        self.rows -= f64::from(u32::try_from(rows).unwrap_or(STEP_MAX_ROWS));
    }

    fn until_next(&self) -> Duration {
        Duration::try_from_secs_f64((1.0 - self.rows) / self.rate_per_second)
            .unwrap_or_default()
            .min(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_a_standstill_is_not_made_up_for() {
        let mut allowance = Allowance::new(1_000.0);
        assert_eq!(allowance.rows(), 1, "the first goes at once");
        allowance.used(1);
        allowance.at -= Duration::from_millis(100);
        let rows = allowance.rows();
        assert!((100..=110).contains(&rows), "{rows}");
        allowance.used(u64::from(rows));
        allowance.at -= Duration::from_secs(3_600);
        assert_eq!(allowance.rows(), 200, "two ticks' worth, not an hour's");
        let mut slow = Allowance::new(0.5);
        slow.used(1);
        assert!(slow.until_next() > Duration::from_millis(900));
        slow.at -= Duration::from_secs(1);
        assert_eq!(slow.rows(), 0);
        slow.at -= Duration::from_secs(1);
        assert_eq!(slow.rows(), 1);
    }
}
