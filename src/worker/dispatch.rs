//! When to claim, and how much: one dispatcher a route. A sending slot is taken before a notification is claimed for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use crate::mail::provider::{Provider, Ticket};
use crate::retry::full_jitter;
use crate::shutdown::Shutdown;
use crate::store::claim::{Claim, Claimed, Turn, What};
use crate::store::{Line, StoreError};

use super::deliver::{Context, deliver};

/// How long a dispatcher with a backlog waits for more slots to come free, so that a claim is worth its statement. Far
/// below any latency that matters while there is a backlog.
const GATHER: Duration = Duration::from_millis(4);

/// How often resends are looked for at each provider: their delay is tens of seconds.
const RESENDS_EVERY: Duration = Duration::from_secs(1);

/// How one route is served.
#[derive(Debug, Clone)]
pub struct DispatchSettings {
    /// The route's name, as rows carry it.
    pub route: String,
    /// This worker's name.
    pub worker: String,
    /// The longest time between two claims while there is room.
    pub poll_interval: Duration,
    /// How long a claim's lease lasts.
    pub lease: Duration,
    /// The deadline of notifications without an expiry of their own.
    pub deadline: Duration,
    /// The most rows that one statement claims.
    pub claim_max: u32,
}

/// The memory that claimed content may take.
#[derive(Debug)]
pub struct Budget {
    max_bytes: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { max_bytes, used: AtomicU64::new(0) })
    }

    fn left(&self) -> u64 {
        self.max_bytes.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Share {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes }
    }
}

/// A part of the budget, given back when dropped.
struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Claims for one route and starts an attempt for each claim, until draining begins.
#[derive(Debug)]
pub struct Dispatcher {
    /// How it works.
    pub settings: DispatchSettings,
    /// The route's providers, the preferred first.
    pub providers: Vec<Arc<Provider>>,
    /// Its own connection.
    pub line: Line,
    /// What attempts share.
    pub context: Arc<Context>,
    /// Where attempts run.
    pub attempts: TaskTracker,
    /// Told when there may be work.
    pub wake: Arc<Notify>,
    /// Told when a provider may have room again.
    pub freed: watch::Sender<()>,
    /// The providers that are paused. The claim itself looks, too: this is for choosing another one.
    pub paused: watch::Receiver<Vec<String>>,
    /// The memory budget.
    pub budget: Arc<Budget>,
}

impl Dispatcher {
    /// Runs until draining begins.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut turn = Turn::default();
        let mut next_resends = vec![Instant::now(); self.providers.len()];
        let mut failures = 0u16;
        let mut freed = self.freed.subscribe();
        while !shutdown.is_draining() {
            let round = async {
                self.claim_resends(&mut next_resends).await?;
                match self.choose(Instant::now()) {
                    Choice::Provider(provider) => {
                        let claimed = self.claim_for(&provider, What::Ready(&mut turn)).await?;
                        Ok(if claimed > 0 { After::More(provider) } else { After::Idle })
                    }
                    Choice::Wait(until) => Ok(After::Busy(until)),
                }
            };
            let after = match round.await {
                Ok(after) => {
                    failures = 0;
                    after
                }
                Err::<_, StoreError>(error) => {
                    if failures == 0 {
                        tracing::warn!(route = self.settings.route, %error, "cannot claim");
                    }
                    failures = failures.saturating_add(1);
                    After::Failed(full_jitter(Duration::from_millis(100), Duration::from_secs(5), failures))
                }
            };
            let poll = self.settings.poll_interval;
            match after {
                After::More(provider) => provider.gather(GATHER).await,
                After::Idle => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(poll) => {}
                    () = shutdown.draining() => {}
                },
                After::Busy(until) => {
                    let until = until.map_or(poll, |until| until.saturating_duration_since(Instant::now()));
                    tokio::select! {
                        _ = freed.changed() => {}
                        () = tokio::time::sleep(poll.min(until)) => {}
                        () = shutdown.draining() => {}
                    }
                }
                After::Failed(delay) => tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = shutdown.draining() => {}
                },
            }
        }
    }

    /// Claims what is to be resent, before anything new: its time is short, and a backlog would take every slot. Each
    /// provider is asked when it has room, and again at once where there may be more than that.
    async fn claim_resends(&mut self, next: &mut [Instant]) -> Result<(), StoreError> {
        for (provider, next) in self.providers.clone().iter().zip(next) {
            let now = Instant::now();
            let room = provider.room(now).messages.min(self.settings.claim_max);
            if room == 0 || now < *next {
                continue;
            }
            if self.claim_for(provider, What::Resends).await? < room as usize {
                *next = now + RESENDS_EVERY;
            }
        }
        Ok(())
    }

    /// The first provider that may be handed messages now. Another than the preferred one is chosen only while those
    /// before it are paused or backed off, not merely busy.
    fn choose(&self, now: Instant) -> Choice {
        let mut earliest: Option<Instant> = None;
        for provider in &self.providers {
            if self.paused.borrow().contains(&provider.settings().name) {
                continue;
            }
            let room = provider.room(now);
            if room.messages > 0 {
                return Choice::Provider(Arc::clone(provider));
            }
            earliest = earliest.into_iter().chain(room.next_at).min();
            if !room.backed_off {
                break;
            }
        }
        Choice::Wait(earliest)
    }

    /// Claims as much as the provider has room for and starts the attempts; returns how many.
    async fn claim_for(&mut self, provider: &Arc<Provider>, what: What<'_>) -> Result<usize, StoreError> {
        let budget = self.budget.left();
        let now = Instant::now();
        let wanted = provider.room(now).messages.min(self.settings.claim_max);
        if wanted == 0 || budget == 0 {
            return Ok(0);
        }
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| provider.admit(now)).take(wanted as usize).collect();
        let claim = self.claim(provider);
        let limit = u32::try_from(tickets.len()).unwrap_or(u32::MAX);
        let answer = if limit == 0 { Ok(Vec::new()) } else { self.line.claim(&claim, what, limit, budget).await };
        let claimed = match answer {
            Ok(claimed) => claimed,
            Err(error) => {
                // Nothing is offered to the provider, and so nothing of its rate is used up.
                tickets.into_iter().for_each(Ticket::unused);
                return Err(error);
            }
        };
        let count = claimed.len();
        for claimed in claimed {
            // Never more claims than tickets: the statement's limit is their number.
            let Some(ticket) = tickets.pop() else { break };
            self.start(ticket, claimed);
        }
        tickets.into_iter().for_each(Ticket::unused);
        Ok(count)
    }

    fn start(&self, ticket: Ticket, claimed: Claimed) {
        let holding = self.context.held.hold(claimed.id(), claimed.fence());
        let share = self.budget.take(claimed.size_bytes());
        let (context, freed) = (Arc::clone(&self.context), self.freed.clone());
        self.attempts.spawn(async move {
            deliver(context, ticket, claimed).await;
            holding.handed_over();
            drop(share);
            freed.send_replace(());
        });
    }

    fn claim(&self, provider: &Provider) -> Claim {
        let settings = provider.settings();
        Claim {
            route: self.settings.route.clone(),
            provider: settings.name.clone(),
            terms: settings.recovery.clone(),
            dedup_window: settings.dedup.as_ref().map(|dedup| dedup.window),
            worker: self.settings.worker.clone(),
            lease: self.settings.lease,
            deadline: self.settings.deadline,
        }
    }
}

enum Choice {
    Provider(Arc<Provider>),
    Wait(Option<Instant>),
}

/// What one round came to.
enum After {
    /// It claimed, and there may be more.
    More(Arc<Provider>),
    /// Nothing was ready.
    Idle,
    /// No provider has room, until then at the latest if time alone makes some.
    Busy(Option<Instant>),
    /// The database failed; again after this.
    Failed(Duration),
}
