//! Group commit of results, outside every cancelled scope: what is known is written, however long the database is away,
//! within a bound.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::domain::ids::{Fence, NotificationId};
use crate::retry::Patience;
use crate::store::evidence::Late;
use crate::store::settle::Settlement;
use crate::store::{Line, StoreError};

use super::held::Held;

/// How many results share one statement.
const BATCH_MAX_ROWS: usize = 500;

/// How many results may wait for the database before senders stop taking on more: about 1 KiB each.
const QUEUE_MAX_ROWS: usize = 10_000;

/// The way to hand over a result.
#[derive(Debug, Clone)]
pub struct Settler(mpsc::Sender<Settlement>);

impl Settler {
    /// Hands a result over. Waits only while the database is so far behind that the queue is full.
    pub async fn settle(&self, settlement: Settlement) {
        if let Err(refused) = self.0.send(settlement).await {
            tracing::error!(id = %refused.0.id(), "result dropped: settling has ended; the lease will tell");
        }
    }
}

/// How results are written.
#[derive(Debug, Clone)]
pub struct SettleSettings {
    /// This worker's name.
    pub worker: String,
    /// How long one batch is tried. In the worst case a result waits this long behind each batch before it, and is then
    /// tried as long itself; whatever is given up is told by its lease: it becomes uncertain, never lost.
    pub patience: Duration,
    /// The deadline of notifications without an expiry of their own.
    pub deadline: Duration,
}

/// Makes the handing-over side and the task that serves it until every [`Settler`] is gone and the queue is empty.
pub fn settler(
    mut line: Line,
    held: Held,
    settings: SettleSettings,
    wake: impl Fn() + Send + 'static,
) -> (Settler, impl Future<Output = ()> + Send) {
    let (sender, mut receiver) = mpsc::channel(QUEUE_MAX_ROWS);
    let serve = async move {
        let mut results: Vec<Settlement> = Vec::with_capacity(BATCH_MAX_ROWS);
        while receiver.recv_many(&mut results, BATCH_MAX_ROWS).await > 0 {
            write(&mut line, &results, &settings).await;
            for result in results.drain(..) {
                held.remove(result.id(), result.fence());
            }
            wake();
        }
    };
    (Settler(sender), serve)
}

/// Writes a batch; where the batch is refused for its data, each result on its own, so that none shares another's fate.
async fn write(line: &mut Line, results: &[Settlement], settings: &SettleSettings) {
    match patiently(line, results, settings).await {
        Ok(settled) => {
            for late in results.iter().filter(|result| !settled.contains(&(result.id(), result.fence()))) {
                record_late(line, late, settings).await;
            }
        }
        Err(error) if error.is_permanent() && results.len() > 1 => {
            for result in results {
                Box::pin(write(line, std::slice::from_ref(result), settings)).await;
            }
        }
        Err(error) => {
            tracing::error!(
                rows = results.len(),
                first = %results.first().map(|result| result.id().to_string()).unwrap_or_default(),
                %error,
                "results given up; their leases will tell"
            );
        }
    }
}

async fn patiently(
    line: &mut Line,
    results: &[Settlement],
    settings: &SettleSettings,
) -> Result<HashSet<(NotificationId, Fence)>, StoreError> {
    let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(5), settings.patience);
    loop {
        match line.settle(results, settings.deadline).await {
            Ok(settled) => return Ok(settled),
            Err(error) => {
                let Some(delay) = patience.next_delay().filter(|_| !error.is_permanent()) else { return Err(error) };
                tracing::warn!(rows = results.len(), %error, "settling failed, trying again");
                tokio::time::sleep(delay).await;
            }
        }
    }
}

async fn record_late(line: &mut Line, result: &Settlement, settings: &SettleSettings) {
    let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(5), settings.patience);
    loop {
        match line.late_result(result, &settings.worker).await {
            // An earlier try took effect and its answer was lost.
            Ok(Late::AlreadySettled) => return,
            Ok(Late::Gone) => {
                tracing::error!("a result is about a notification that is no more");
                return;
            }
            Ok(Late::Recorded(state)) => {
                tracing::warn!(id = %result.id(), fence = %result.fence(), %state, "late result recorded as evidence");
                return;
            }
            Err(error) => {
                let Some(delay) = patience.next_delay().filter(|_| !error.is_permanent()) else {
                    tracing::error!(id = %result.id(), %error, "late result given up");
                    return;
                };
                tokio::time::sleep(delay).await;
            }
        }
    }
}
