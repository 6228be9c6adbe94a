//! What time alone decides: rows that come due, leases that run out, windows that end.
//!
//! Every worker does this, for the rows of all; the statements pass over what another is seeing to.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::retry::full_jitter;
use crate::store::recovery::SWEEP_MAX_ROWS;
use crate::store::{Line, StoreError};

use super::pulse::Found;

/// How the timekeeper works.
#[derive(Debug, Clone)]
pub struct TimekeeperSettings {
    /// The longest time between two looks for rows that come due.
    pub poll_interval: Duration,
    /// The time between two rounds of sweeps.
    pub maintenance_every: Duration,
    /// How many tries a notification has.
    pub max_tries: u16,
    /// The upper bound of the delay before the resend of a notification whose worker died.
    pub resend_base: Duration,
    /// The deadline of notifications without an expiry of their own.
    pub deadline: Duration,
}

/// Runs for as long as it is awaited; `found` is told of attempts whose workers were lost, `paused` which providers are, `wake` is called when there may be something to claim, `answered` after every round with whether
/// the database answered.
pub async fn keep_time(
    mut line: Line,
    settings: TimekeeperSettings,
    found: Found,
    paused: watch::Sender<Vec<String>>,
    wake: impl Fn() + Send,
    answered: impl Fn(bool) + Send,
) {
    let mut next_sweep = Instant::now();
    let mut failures = 0u16;
    loop {
        let round = async {
            if Instant::now() >= next_sweep {
                next_sweep = Instant::now() + settings.maintenance_every;
                if sweep(&mut line, &settings, &found, &wake).await? {
                    next_sweep = Instant::now();
                }
            }
            line.promote().await
        };
        let pause = match round.await {
            Ok(promoted) => {
                if failures > 0 {
                    tracing::info!(failures, "the database answers again");
                }
                failures = 0;
                answered(true);
                let changed = paused.send_if_modified(|known| {
                    let changed = *known != promoted.paused_providers;
                    known.clone_from(&promoted.paused_providers);
                    changed
                });
                if promoted.rows > 0 || changed {
                    wake();
                }
                let until_sweep = next_sweep.saturating_duration_since(Instant::now());
                settings.poll_interval.min(until_sweep).min(promoted.next_in.unwrap_or(Duration::MAX))
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(%error, "the database does not answer");
                }
                failures = failures.saturating_add(1);
                answered(false);
                full_jitter(Duration::from_millis(100), settings.poll_interval, failures)
            }
        };
        // A floor, so that a row that comes due again and again cannot make this spin.
        tokio::time::sleep(pause.max(Duration::from_millis(2))).await;
    }
}

/// One round of sweeps; says whether one of them met its bound, so that there may be more to do at once.
async fn sweep(
    line: &mut Line,
    settings: &TimekeeperSettings,
    found: &Found,
    wake: &(impl Fn() + Send),
) -> Result<bool, StoreError> {
    let resend_after = full_jitter(settings.resend_base, settings.resend_base, 0);
    let swept = line.sweep_leases(settings.max_tries, resend_after).await?;
    let leases = swept.rows;
    swept.uncertain.into_iter().for_each(|(provider, id)| found.uncertain(provider, id));
    let recalled = line.recall_resends().await?;
    let expired = line.expire().await?;
    let closed = line.close_windows().await?;
    let released = line.release_resends(settings.deadline).await?;
    let weighed = line.weigh_again().await?;
    let mut more = false;
    for (what, rows) in [
        ("leases lost", leases),
        ("resends come too late", recalled),
        ("notifications expired", expired),
        ("recovery windows over", closed),
        ("resends released", released),
        ("notifications weighed again", weighed),
    ] {
        if rows > 0 {
            tracing::info!(rows, "{what}");
        }
        more |= rows >= SWEEP_MAX_ROWS.unsigned_abs();
    }
    if leases > 0 || released > 0 || weighed > 0 {
        wake();
    }
    Ok(more)
}
