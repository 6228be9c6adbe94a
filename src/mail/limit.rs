//! A time limit that does not throw away what has already come.
//!
//! It waits for no more than it was told to, but for one last look.

use std::pin::pin;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// How long the last look takes at most: a runtime sees within a turn what the kernel holds for it, even a busy one within
/// this, and beside limits of seconds it is nothing.
const LAST_LOOK: Duration = Duration::from_millis(50);

/// Awaits `work` for `limit`, and then takes one last look.
///
/// A process that was paused, or a machine that slept, wakes to a limit that is long over and an answer that has long been
/// in its socket, and may be told of the first before the second: on Linux the wait for sockets ends with EINTR and nothing to
/// report when a stopped process goes on (signal(7)). Without the look, what is known would become doubt.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    match timeout(limit, work.as_mut()).await {
        Ok(done) => Ok(done),
        Err(_) => timeout(LAST_LOOK, work).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_had_come_when_the_limit_was_noticed_counts() {
        let work = async {
            // The whole process is slow on purpose, as one that is stopped.
            std::thread::sleep(Duration::from_millis(30));
            // The runtime needs some turns to see what has come meanwhile.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            "an answer"
        };
        assert_eq!(within(Duration::from_millis(10), work).await.ok(), Some("an answer"));
    }

    #[tokio::test]
    async fn what_never_comes_is_not_waited_for() {
        assert!(within(Duration::from_millis(10), std::future::pending::<()>()).await.is_err());
    }
}
