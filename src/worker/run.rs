//! Puts the worker's parts together, and takes them apart in order: no new claims, running sends, results, leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::policy::RetryPolicy;
use crate::mail::provider::Provider;
use crate::shutdown::Shutdown;
use crate::store::line::Dsn;

use super::begin::beginner;
use super::deliver::Context;
use super::dispatch::{Budget, DispatchSettings, Dispatcher};
use super::held::Held;
use super::pulse::{Found, LAST_WORD_MAX, beat};
use super::renew::renew;
use super::retention::{Periods, keep_clean};
use super::settle::{SettleSettings, settler};
use super::timekeeper::{TimekeeperSettings, keep_time};
use super::wakeup::listen;

/// How long results may take to be written once everything else has ended, at a shutdown. A supervisor's patience is
/// short; what is not written by then is told by its lease.
const FINAL_SETTLE: Duration = Duration::from_secs(20);

/// How often connections that have lain idle for too long are looked for. A server that takes no more of them than it has
/// lets others wait meanwhile: a second beside limits of tens of seconds.
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// How a worker works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, unique to this run of the process.
    pub worker: String,
    /// The longest time between two looks for work.
    pub poll_interval: Duration,
    /// How long running sends may take to finish at a shutdown.
    pub grace: Duration,
    /// The memory that claimed content may take, in bytes, shared out evenly to the routes.
    pub in_flight_bytes: u64,
    /// The most rows that one statement claims.
    pub claim_max: u32,
    /// How long a claim's lease lasts.
    pub lease: Duration,
    /// How often leases are renewed; `None` for never.
    pub renew_every: Option<Duration>,
    /// How long a batch of results is tried.
    pub settle_patience: Duration,
    /// The time between two rounds of sweeps.
    pub maintenance_every: Duration,
    /// How long finished things are kept, and how often what is older is removed.
    pub retention: (Periods, Duration),
    /// Where to listen for wake-ups and how often to prove that it works; `None` for polling alone.
    pub wakeup: Option<(Dsn, Duration)>,
    /// How failures are retried.
    pub retry: RetryPolicy,
    /// The providers of each route, the preferred first.
    pub routes: BTreeMap<String, Vec<Arc<Provider>>>,
}

/// Works until `shutdown` says otherwise, then drains. `answered` is told after every round of the timekeeper whether
/// the database answers.
///
/// # Errors
/// Names the task that ended by itself: none ever should. Also when results could not be written at the end, and when
/// aborted: leases then tell what is known.
pub async fn run(
    settings: Settings,
    dsn: &Dsn,
    shutdown: Shutdown,
    answered: impl Fn(bool) + Send + 'static,
) -> anyhow::Result<()> {
    let held = Held::default();
    let wakers: Vec<Arc<Notify>> = settings.routes.keys().map(|_| Arc::new(Notify::new())).collect();
    let wake = {
        let wakers = wakers.clone();
        move || wakers.iter().for_each(|waker| waker.notify_one())
    };
    let freed = watch::Sender::new(());
    let paused = watch::Sender::new(Vec::new());

    let (beginner, begin_task) = beginner(dsn.line());
    let settle_settings = SettleSettings {
        worker: settings.worker.clone(),
        patience: settings.settle_patience,
        deadline: settings.retry.deadline,
    };
    let (settler, settle_task) = settler(dsn.line(), held.clone(), settle_settings, wake.clone());
    let context = Arc::new(Context {
        beginner,
        settler,
        held: held.clone(),
        retry: settings.retry.clone(),
        cut: CancellationToken::new(),
    });
    let cut = context.cut.clone();

    // Tasks that end only with the worker; the first to end before is a fault.
    let mut standing: JoinSet<&'static str> = JoinSet::new();
    let timekeeper = TimekeeperSettings {
        poll_interval: settings.poll_interval,
        maintenance_every: settings.maintenance_every,
        max_tries: settings.retry.max_tries,
        resend_base: settings.retry.base,
        deadline: settings.retry.deadline,
    };
    let found = Found::default();
    let (line, finding, waking, pausing) = (dsn.line(), found.clone(), wake.clone(), paused.clone());
    standing.spawn(async move {
        keep_time(line, timekeeper, finding, pausing, waking, answered).await;
        "timekeeper"
    });
    let (line, (periods, every)) = (dsn.line(), settings.retention.clone());
    standing.spawn(async move {
        keep_clean(line, periods, every).await;
        "retention"
    });
    if let Some(every) = settings.renew_every {
        let (line, held, lease) = (dsn.line(), held.clone(), settings.lease);
        standing.spawn(async move {
            renew(line, held, lease, every).await;
            "lease renewal"
        });
    }
    let providers: Vec<Arc<Provider>> = settings.routes.values().flatten().cloned().collect();
    let last_word = CancellationToken::new();
    let pulse = tokio::spawn(beat(dsn.line(), settings.worker.clone(), providers.clone(), found, last_word.clone()));
    standing.spawn(async move {
        let mut looks = tokio::time::interval(IDLE_LOOK_EVERY);
        loop {
            looks.tick().await;
            providers.iter().for_each(|provider| _ = provider.pool().prune());
        }
    });
    if let Some((direct, heartbeat)) = settings.wakeup.clone() {
        let (line, name, wake) = (dsn.line(), settings.worker.clone(), wake.clone());
        standing.spawn(async move {
            listen(direct, line, name, heartbeat, wake).await;
            "wake-up listener"
        });
    }
    let mut begin_task = tokio::spawn(begin_task);
    let mut settle_task = tokio::spawn(settle_task);

    let attempts = TaskTracker::new();
    // Each route its own share: large messages to a provider that hangs must not hold up the others.
    let share = settings.in_flight_bytes / u64::try_from(settings.routes.len()).unwrap_or(u64::MAX).max(1);
    let mut dispatchers: JoinSet<()> = JoinSet::new();
    for ((route, providers), waker) in settings.routes.iter().zip(wakers) {
        let dispatcher = Dispatcher {
            settings: DispatchSettings {
                route: route.clone(),
                worker: settings.worker.clone(),
                poll_interval: settings.poll_interval,
                lease: settings.lease,
                deadline: settings.retry.deadline,
                claim_max: settings.claim_max,
            },
            providers: providers.clone(),
            line: dsn.line(),
            context: Arc::clone(&context),
            attempts: attempts.clone(),
            wake: waker,
            freed: freed.clone(),
            paused: paused.subscribe(),
            budget: Budget::new(share.max(1)),
        };
        dispatchers.spawn(dispatcher.run(shutdown.clone()));
    }
    drop(context);
    tracing::info!(worker = settings.worker, routes = settings.routes.len(), "working");

    // Whether all results were written, once settling has ended.
    let mut settled = None;
    let fault = tokio::select! {
        () = shutdown.draining() => None,
        ended = standing.join_next() => Some(match ended {
            Some(Ok(name)) => format!("{name} ended"),
            Some(Err(error)) => format!("a task failed: {error}"),
            None => "no task is running".to_owned(),
        }),
        Some(ended) = dispatchers.join_next(), if !shutdown.is_draining() => match ended {
            // A dispatcher that ends because draining began can win this race.
            Ok(()) if shutdown.is_draining() => None,
            Ok(()) => Some("a dispatcher ended".to_owned()),
            Err(error) => Some(format!("a dispatcher failed: {error}")),
        },
        ended = &mut begin_task => {
            // As settling below: by itself only when no attempt is left to begin.
            (!shutdown.is_draining()).then(|| format!("begin ended: {ended:?}"))
        }
        ended = &mut settle_task => {
            // It ends by itself when nothing can be handed over any more, and can win this race too.
            let complete = ended.is_ok() && shutdown.is_draining();
            settled = Some(complete);
            (!complete).then(|| format!("settling ended: {ended:?}"))
        }
    };

    shutdown.drain();
    let winding_up = async {
        tracing::info!(running = attempts.len(), "draining: no new claims");
        let finish = async {
            while dispatchers.join_next().await.is_some() {}
            attempts.close();
            attempts.wait().await;
        };
        tokio::pin!(finish);
        if tokio::time::timeout(settings.grace, &mut finish).await.is_err() {
            tracing::warn!(running = attempts.len(), "grace period over: giving back what has not begun");
            cut.cancel();
            finish.await;
        }
        // Every attempt has ended and with it the last way to hand over a begin or a result.
        match settled {
            Some(settled) => settled,
            None => matches!(tokio::time::timeout(FINAL_SETTLE, &mut settle_task).await, Ok(Ok(()))),
        }
    };
    let settled = tokio::select! {
        settled = winding_up => settled,
        () = shutdown.aborting() => anyhow::bail!("aborted; leases will tell what was running"),
    };
    begin_task.abort();
    standing.shutdown().await;
    last_word.cancel();
    if tokio::time::timeout(LAST_WORD_MAX, pulse).await.is_err() {
        tracing::debug!("the last word on the providers was not said in time");
    }
    for provider in settings.routes.values().flatten() {
        provider.pool().clear();
    }
    if let Some(fault) = fault {
        anyhow::bail!(fault);
    }
    anyhow::ensure!(settled, "not all results could be written at shutdown; their leases will tell");
    tracing::info!("drained");
    Ok(())
}
