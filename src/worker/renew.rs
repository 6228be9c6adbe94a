//! Keeping the leases of what is held, so that only a worker that is dead, paused or cut off loses one.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::store::Line;

use super::held::Held;

/// How many leases one statement renews.
const BATCH_MAX_ROWS: usize = 1_000;

/// Renews every held lease each `every`, for as long as it is awaited.
pub async fn renew(mut line: Line, held: Held, lease: Duration, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // In one order everywhere, so that two renewals of one worker's successor and itself meet in the same one.
        let mut claims = held.all();
        claims.sort_unstable();
        for chunk in claims.chunks(BATCH_MAX_ROWS) {
            if let Err(error) = line.renew(chunk, lease).await {
                tracing::warn!(rows = chunk.len(), %error, "leases not renewed, trying again in {every:?}");
            }
        }
    }
}
