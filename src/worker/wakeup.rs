//! Hearing the hint that there is work, and noticing when nothing is heard any more.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::retry::full_jitter;
use crate::store::Line;
use crate::store::line::Dsn;
use crate::store::listen::{Heard, Listener};

/// How long connecting may take.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Listens for as long as it is awaited, calling `wake` for each hint and after each reconnection.
///
/// Each `heartbeat` a notification to itself goes out through `line`; one that has not come back by the next is taken
/// for a dead connection, and a new one is made. Meanwhile polling goes on, so silence costs only latency.
pub async fn listen(dsn: Dsn, mut line: Line, name: String, heartbeat: Duration, wake: impl Fn() + Send) {
    let mut failures = 0u16;
    loop {
        match Listener::open(&dsn, name.clone(), OPEN_LIMIT).await {
            Ok(listener) => {
                if failures > 0 {
                    tracing::info!(failures, "listening again");
                }
                failures = 0;
                // Rows may have come between the last hint and this registration.
                wake();
                let reason = hear(listener, &mut line, &name, heartbeat, &wake).await;
                tracing::warn!(reason, "wake-up connection lost, making a new one; polling goes on");
            }
            Err(error) if failures == 0 => tracing::warn!(%error, "cannot listen for wake-ups; polling goes on"),
            Err(_) => {}
        }
        failures = failures.saturating_add(1);
        tokio::time::sleep(full_jitter(Duration::from_millis(100), heartbeat, failures)).await;
    }
}

/// Hears until the connection is lost, and says how it was.
async fn hear(
    mut listener: Listener,
    line: &mut Line,
    name: &str,
    heartbeat: Duration,
    wake: &(impl Fn() + Send),
) -> &'static str {
    let mut awaited = false;
    let mut next_beat = Instant::now();
    loop {
        match timeout_at(next_beat, listener.hear()).await {
            Ok(Ok(Heard::Hint)) => wake(),
            Ok(Ok(Heard::Heartbeat)) => awaited = false,
            Ok(Ok(Heard::Other)) => {}
            Ok(Ok(Heard::Reconnected)) => {
                awaited = false;
                wake();
            }
            Ok(Err(_)) => return "connection error",
            Err(_) if awaited => return "no heartbeat came back",
            Err(_) => {
                next_beat = Instant::now() + heartbeat;
                // A database that does not take the heartbeat says nothing about the listener.
                awaited = Listener::beat(name, line).await.is_ok();
            }
        }
    }
}
