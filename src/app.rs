//! The composition root: settings become running parts, supervised together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use sqlx::PgConnection;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::oidc::Oidc;
use crate::config::{Database, Retention, Settings};
use crate::http::api::Api;
use crate::http::console::Console;
use crate::http::ops::{self, Health};
use crate::http::serve::serve;
use crate::mail::provider::Provider;
use crate::retry::full_jitter;
use crate::shutdown::Shutdown;
use crate::store::line::Dsn;
use crate::store::lines::Lines;
use crate::store::{Line, migrate};
use crate::worker;
use crate::worker::retention::Periods;

/// How much longer than one request's time a drain waits for the requests under way.
const API_GRACE_MARGIN: Duration = Duration::from_secs(2);

/// How long a drain waits for pages under way.
const CONSOLE_GRACE: Duration = Duration::from_secs(5);

/// How often the database is asked whether it is there: several times within what readiness allows
/// ([`crate::http::ops::ANSWER_AGE_MAX`]).
const ASK_EVERY: Duration = Duration::from_secs(5);

/// The way to the database.
///
/// # Errors
/// When the URL is not one.
pub fn dsn(database: &Database) -> anyhow::Result<Dsn> {
    Dsn::new(
        database.url.expose_secret(),
        database.statement_timeout,
        database.lock_timeout,
        database.transaction_pooling,
    )
    .context("database.url")
}

/// A connection for a one-off command: see [`Dsn::connect`].
///
/// # Errors
/// When the database cannot be reached.
pub async fn connect(database: &Database) -> anyhow::Result<PgConnection> {
    dsn(database)?.connect().await.context("cannot reach the database (database.url)")
}

/// What one process is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The message API.
    Api,
    /// The operators' console.
    Console,
    /// The worker.
    Worker,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Console => "console",
            Self::Worker => "worker",
        }
    }
}

/// Runs the worker and its health endpoint until `shutdown`.
///
/// # Errors
/// As [`run`].
pub async fn run_worker(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    run(settings, &[Part::Worker], shutdown).await
}

/// Runs the parts and the health endpoint until `shutdown`. A part that ends before stops the others.
///
/// # Errors
/// When the schema is not there, an address cannot be listened on, or a part that should run ends; it is named.
pub async fn run(settings: Settings, parts: &[Part], shutdown: Shutdown) -> anyhow::Result<()> {
    let health = Health::new(shutdown.clone());
    let ended = watch::Sender::new(false);
    let ops = match settings.ops_listen {
        None => None,
        Some(address) => {
            let listener = listen("ops.listen", address).await?;
            let mut until = ended.subscribe();
            Some(tokio::spawn(ops::serve(listener, ops::router(health.clone()), async move {
                // The sender outlives every wait; an error would mean the end too.
                let _ = until.wait_for(|ended| *ended).await;
            })))
        }
    };
    let result = async {
        // Before the wait: an address that is taken is told at once.
        let api =
            if parts.contains(&Part::Api) { Some(listen("api.listen", settings.api.listen).await?) } else { None };
        let console = match settings.console.listen.filter(|_| parts.contains(&Part::Console)) {
            Some(address) => Some(listen("console.listen", address).await?),
            None if parts == [Part::Console] => anyhow::bail!("console.listen is empty: set it to IP:PORT"),
            None => None,
        };
        if !wait_for_schema(&settings.database, &health, &shutdown).await? {
            return Ok(());
        }
        let mut running = JoinSet::new();
        if let Some(listener) = api {
            let part = serve_api(settings.clone(), listener, health.clone(), shutdown.clone());
            running.spawn(async { (Part::Api, part.await) });
        }
        if let Some(listener) = console {
            let part = serve_console(settings.clone(), listener, shutdown.clone());
            running.spawn(async { (Part::Console, part.await) });
        }
        if parts.contains(&Part::Worker) {
            let part = work(settings.clone(), health.clone(), shutdown.clone());
            running.spawn(async { (Part::Worker, part.await) });
        }
        supervise(running, &health, &shutdown).await
    }
    .await;
    ended.send_replace(true);
    if let Some(ops) = ops {
        ops.await.context("the health endpoint failed")??;
    }
    result
}

/// Waits for the end of every part; the first that ends unasked stops the others, and its error is the one that is told.
async fn supervise(
    mut running: JoinSet<(Part, anyhow::Result<()>)>,
    health: &Health,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut first = Ok(());
    while let Some(joined) = running.join_next().await {
        let (name, result) = match joined {
            Ok((part, result)) => (part.name(), result),
            Err(error) => ("a part", Err(anyhow::Error::from(error))),
        };
        let asked = shutdown.is_draining();
        let result = match result {
            Ok(()) if !asked => Err(anyhow::anyhow!("it ended without being asked to")),
            result => result,
        };
        if let Err(error) = result {
            health.task_stopped(name);
            if first.is_ok() {
                first = Err(error.context(format!("{name} stopped")));
            }
            shutdown.drain();
        }
    }
    first
}

async fn listen(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {key} = {address}"))?;
    tracing::info!(address = %listener.local_addr()?, key, "listening");
    Ok(listener)
}

async fn work(settings: Settings, health: Health, shutdown: Shutdown) -> anyhow::Result<()> {
    let worker = worker_settings(&settings)?;
    worker::run(worker, &dsn(&settings.database)?, shutdown, move |answered| {
        if answered {
            health.database_answered(Instant::now());
        }
    })
    .await
}

/// Serves the message API until draining begins, then ends what is under way.
async fn serve_api(
    settings: Settings,
    listener: TcpListener,
    health: Health,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let dsn = Dsn::new(
        settings.database.url.expose_secret(),
        settings.api.statement_timeout,
        settings.api.lock_timeout,
        settings.database.transaction_pooling,
    )
    .context("database.url")?;
    let routes = if settings.providers.is_empty() { Vec::new() } else { settings.routes.keys().cloned().collect() };
    let lines = Lines::new(dsn.clone(), settings.api.connections);
    let router = Api::new(&settings.api, lines, routes, settings.events, settings.retention.receipts).router();
    let grace = settings.api.request_timeout + API_GRACE_MARGIN;
    tokio::select! {
        () = serve(listener, router, shutdown.draining(), grace) => Ok(()),
        () = shutdown.aborting() => Ok(()),
        () = keep_asking(dsn.line(), health) => Ok(()),
    }
}

/// Serves the console until draining begins.
async fn serve_console(settings: Settings, listener: TcpListener, shutdown: Shutdown) -> anyhow::Result<()> {
    let identities =
        settings.providers.iter().map(|(name, provider)| (name.clone(), provider.identity.clone())).collect();
    let oidc = settings.console.oidc.clone().map(Oidc::new).transpose()?;
    let console = Console::new(&settings.console, dsn(&settings.database)?, identities, oidc, shutdown.clone());
    tokio::select! {
        () = serve(listener, console.router(), shutdown.draining(), CONSOLE_GRACE) => Ok(()),
        () = shutdown.aborting() => Ok(()),
    }
}

/// Tells `health` for ever whether the database answers: an API that nobody calls would not know.
async fn keep_asking(mut line: Line, health: Health) {
    loop {
        if line.ping().await.is_ok() {
            health.database_answered(Instant::now());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Waits for the database, then looks at its schema. `false` when draining began first.
async fn wait_for_schema(database: &Database, health: &Health, shutdown: &Shutdown) -> anyhow::Result<bool> {
    let mut failures = 0u16;
    let mut said = String::new();
    while !shutdown.is_draining() {
        let looked = async {
            let mut conn = connect(database).await?;
            let pending = migrate::pending(&mut conn).await?;
            anyhow::Ok(pending)
        };
        let looked = tokio::select! {
            looked = looked => looked,
            () = shutdown.draining() => break,
        };
        match looked {
            Ok(0) => {
                health.schema_current();
                health.database_answered(Instant::now());
                return Ok(true);
            }
            Ok(pending) => {
                let problem = format!("the database lacks {pending} migrations of this release: run `outboxd migrate`");
                health.schema_wrong(problem.clone());
                anyhow::bail!(problem);
            }
            Err(error) => {
                // Once for each trouble: a server that came up may still refuse the password.
                let error = format!("{error:#}");
                if error != said {
                    tracing::warn!(error, "waiting for the database");
                    said = error;
                }
                failures = failures.saturating_add(1);
                let delay = full_jitter(Duration::from_millis(200), Duration::from_secs(5), failures);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = shutdown.draining() => {}
                }
            }
        }
    }
    Ok(false)
}

/// How long finished things are kept.
#[must_use]
pub fn periods(settings: &Settings) -> Periods {
    let Retention { receipts, messages, notifications, attempts, .. } = settings.retention;
    Periods { receipts, messages, notifications, attempts }
}

fn worker_settings(settings: &Settings) -> anyhow::Result<worker::Settings> {
    let now = Instant::now();
    let providers: BTreeMap<&str, Arc<Provider>> = settings
        .providers
        .iter()
        .map(|(name, provider)| (name.as_str(), Arc::new(Provider::new(provider.clone(), now))))
        .collect();
    let routes = settings
        .routes
        .iter()
        .map(|(route, names)| {
            let providers = names.iter().filter_map(|name| providers.get(name.as_str()).cloned()).collect();
            (route.clone(), providers)
        })
        .collect();
    let wakeup = settings
        .wakeup
        .as_ref()
        .map(|wakeup| {
            let direct = Dsn::new(
                wakeup.url.expose_secret(),
                settings.database.statement_timeout,
                settings.database.lock_timeout,
                false,
            )
            .context("database.listen_url")?;
            anyhow::Ok((direct, wakeup.heartbeat))
        })
        .transpose()?;
    Ok(worker::Settings {
        worker: settings.worker.new_identity(),
        poll_interval: settings.worker.poll_interval,
        grace: settings.worker.grace,
        in_flight_bytes: settings.worker.in_flight_bytes,
        claim_max: settings.worker.claim_max,
        lease: settings.lease.duration,
        renew_every: settings.lease.renew_every,
        settle_patience: settings.settle_patience,
        maintenance_every: settings.maintenance_every,
        retention: (periods(settings), settings.retention.every),
        wakeup,
        retry: settings.retry.clone(),
        routes,
    })
}
