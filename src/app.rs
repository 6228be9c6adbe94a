//! The composition root: settings become running parts, supervised together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use sqlx::PgConnection;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::{Database, Settings};
use crate::http::ops::{self, Health};
use crate::mail::provider::Provider;
use crate::retry::full_jitter;
use crate::shutdown::Shutdown;
use crate::store::line::Dsn;
use crate::store::migrate;
use crate::worker;

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

/// Runs the worker and its health endpoint until `shutdown`.
///
/// # Errors
/// When the schema is not there, the health endpoint cannot be served, or a part that should run ends.
pub async fn run_worker(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let health = Health::new(shutdown.clone());
    let ended = watch::Sender::new(false);
    let ops = match settings.ops_listen {
        None => None,
        Some(address) => {
            let listener =
                TcpListener::bind(address).await.with_context(|| format!("cannot listen on ops.listen = {address}"))?;
            tracing::info!(address = %listener.local_addr()?, "health endpoint");
            let mut until = ended.subscribe();
            Some(tokio::spawn(ops::serve(listener, ops::router(health.clone()), async move {
                // The sender outlives every wait; an error would mean the end too.
                let _ = until.wait_for(|ended| *ended).await;
            })))
        }
    };
    let result = async {
        if !wait_for_schema(&settings.database, &health, &shutdown).await? {
            return Ok(());
        }
        let worker = worker_settings(&settings)?;
        let health = health.clone();
        worker::run(worker, &dsn(&settings.database)?, shutdown, move |answered| {
            if answered {
                health.database_answered(Instant::now());
            }
        })
        .await
    }
    .await;
    if result.is_err() {
        health.task_stopped("worker");
    }
    ended.send_replace(true);
    if let Some(ops) = ops {
        ops.await.context("the health endpoint failed")??;
    }
    result
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
        wakeup,
        retry: settings.retry.clone(),
        routes,
    })
}
