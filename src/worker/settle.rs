//! Group commit of results, outside every cancelled scope: what is known is written, however long the database is away,
//! within a bound.

use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

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

/// How often it is looked whether a row that somebody else had locked is free again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            if waiting.is_empty() {
                if receiver.recv_many(&mut results, BATCH_MAX_ROWS).await == 0 {
                    break;
                }
            } else {
                let received = timeout(LOOK_AGAIN, receiver.recv_many(&mut results, BATCH_MAX_ROWS)).await;
                if received == Ok(0) {
                    // Nothing more will come: only those that wait are left.
                    sleep(LOOK_AGAIN).await;
                }
                take_free(&mut line, &mut waiting, &mut results, &held).await;
            }
            let locked = write(&mut line, &results, &settings).await;
            for result in results.drain(..) {
                if locked.contains(&(result.id(), result.fence())) {
                    waiting.push(Waiting { result, until: Instant::now() + settings.patience });
                } else {
                    held.remove(result.id(), result.fence());
                }
            }
            wake();
        }
    };
    (Settler(sender), serve)
}

/// A result whose row somebody else has locked, and until when that is borne: nothing else waits for it.
struct Waiting {
    result: Settlement,
    until: Instant,
}

/// Moves what can be written by now from `waiting` to `results`, and gives up what has waited for too long.
async fn take_free(line: &mut Line, waiting: &mut Vec<Waiting>, results: &mut Vec<Settlement>, held: &Held) {
    let unlocked = line.unlocked(waiting.iter().map(|one| one.result.id())).await.unwrap_or_default();
    let now = Instant::now();
    for Waiting { result, until } in std::mem::take(waiting) {
        if unlocked.contains(&result.id()) {
            results.push(result);
        } else if now < until {
            waiting.push(Waiting { result, until });
        } else {
            tracing::error!(id = %result.id(), "result given up: its row stayed locked; its lease will tell");
            held.remove(result.id(), result.fence());
        }
    }
}

/// Writes a batch; where the batch is refused for its data, each result on its own, so that none shares another's fate.
/// Returns the claims whose rows somebody else has locked.
async fn write(line: &mut Line, results: &[Settlement], settings: &SettleSettings) -> HashSet<(NotificationId, Fence)> {
    let mut locked = HashSet::new();
    if results.is_empty() {
        return locked;
    }
    match patiently(line, results, settings).await {
        Ok(Written::Settled(settled)) => {
            for late in results.iter().filter(|result| !settled.contains(&(result.id(), result.fence()))) {
                if !record_late(line, late, settings).await {
                    locked.insert((late.id(), late.fence()));
                }
            }
        }
        Ok(Written::Locked { unlocked }) => {
            let (free, others): (Vec<_>, Vec<_>) =
                results.iter().cloned().partition(|result| unlocked.contains(&result.id()));
            tracing::warn!(rows = others.len(), "somebody has locked rows whose results are known: the others go on");
            locked.extend(others.iter().map(|result| (result.id(), result.fence())));
            locked.extend(Box::pin(write(line, &free, settings)).await);
        }
        Err(error) if error.is_permanent() && results.len() > 1 => {
            for result in results {
                locked.extend(Box::pin(write(line, std::slice::from_ref(result), settings)).await);
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
    locked
}

/// What became of a batch.
enum Written {
    /// These claims were settled; the others' results are late.
    Settled(HashSet<(NotificationId, Fence)>),
    /// Nothing was written: some rows are locked by somebody else, and only these are not.
    Locked { unlocked: HashSet<NotificationId> },
}

async fn patiently(line: &mut Line, results: &[Settlement], settings: &SettleSettings) -> Result<Written, StoreError> {
    let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(5), settings.patience);
    loop {
        match line.settle(results, settings.deadline).await {
            Ok(settled) => return Ok(Written::Settled(settled)),
            Err(error) => {
                if error.is_lock_timeout()
                    && let Ok(unlocked) = line.unlocked(results.iter().map(Settlement::id)).await
                    && unlocked.len() < results.len()
                {
                    return Ok(Written::Locked { unlocked });
                }
                let Some(delay) = patience.next_delay().filter(|_| !error.is_permanent()) else { return Err(error) };
                tracing::warn!(rows = results.len(), %error, "settling failed, trying again");
                sleep(delay).await;
            }
        }
    }
}

/// Records a late result; `false` where somebody else has locked its row.
async fn record_late(line: &mut Line, result: &Settlement, settings: &SettleSettings) -> bool {
    let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(5), settings.patience);
    loop {
        match line.late_result(result, &settings.worker).await {
            // An earlier try took effect and its answer was lost.
            Ok(Late::AlreadySettled) => return true,
            Ok(Late::Gone) => {
                tracing::error!(id = %result.id(), "a result is about a notification that is no more");
                return true;
            }
            Ok(Late::Recorded(state)) => {
                tracing::warn!(id = %result.id(), fence = %result.fence(), %state, "late result recorded as evidence");
                return true;
            }
            Err(error) if error.is_lock_timeout() => return false,
            Err(error) => {
                let Some(delay) = patience.next_delay().filter(|_| !error.is_permanent()) else {
                    tracing::error!(id = %result.id(), %error, "late result given up");
                    return true;
                };
                sleep(delay).await;
            }
        }
    }
}
