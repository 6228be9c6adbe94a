//! What the demo plays on: a private PostgreSQL, two SMTP servers, the configuration, and worker processes.
//!
//! All of it lives in the cluster's directory and ends with this process, unless it is kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::super::cluster::{self, Cluster};
use super::super::guardian::{GuardedChild, signal};
use super::super::smtp::{self, Dedup, SmtpServer};
use super::weather;
use crate::store::migrate::migrate;

const CONFIG: &str = include_str!("config.toml");

/// As the configuration says.
const DEDUP_HEADER: &str = "X-Notification-ID";
const DEDUP_WINDOW: Duration = Duration::from_secs(60);

/// How long a worker may take to drain: its grace of ten seconds, and writing what it knows.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// How often it is looked whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The parts. Dropping it ends them, the workers first.
pub(super) struct Stage {
    workers: Vec<Worker>,
    /// Deduplicates on the id.
    pub(super) dedup: SmtpServer,
    /// Does not.
    pub(super) plain: SmtpServer,
    /// Connections for the demo's own questions.
    pub(super) pool: PgPool,
    /// The database's address.
    pub(super) url: String,
    config: PathBuf,
    directory: PathBuf,
    cluster: Arc<Cluster>,
}

/// A worker process.
#[derive(Debug)]
struct Worker {
    name: &'static str,
    child: GuardedChild,
    /// Ended on purpose.
    killed: bool,
}

impl Stage {
    /// Sets the stage.
    pub(super) async fn set(seed: u64) -> Result<Self> {
        // Durable, since the demo kills PostgreSQL too.
        let options = cluster::Options { durable: true, ..cluster::Options::default() };
        let cluster = Arc::new(tokio::task::spawn_blocking(move || Cluster::start(&options)).await??);
        let url = cluster.url(&cluster.create_database(None).await?);
        let pool = PgPoolOptions::new().max_connections(3).connect(&url).await?;
        migrate(&mut *pool.acquire().await?).await?;

        let dedup = Dedup { header: DEDUP_HEADER.to_owned(), window: DEDUP_WINDOW };
        let server = async |seed, dedup| {
            let script = weather::script(seed);
            let server =
                SmtpServer::start(smtp::Options { dedup, script, keep_bodies: false, ..smtp::Options::default() })
                    .await?;
            weather::worsen(&server.script());
            anyhow::Ok(server)
        };
        let (dedup, plain) = (server(seed, Some(dedup)).await?, server(!seed, None).await?);

        let directory = cluster.directory().to_owned();
        let config = directory.join("outboxd.toml");
        let text = CONFIG
            .replace("@DATABASE@", &url)
            .replace("@DEDUP@", &dedup.addr().port().to_string())
            .replace("@PLAIN@", &plain.addr().port().to_string());
        fs::write(&config, text).context("cannot write the workers' configuration")?;
        Ok(Self { workers: Vec::new(), dedup, plain, pool, url, config, directory, cluster })
    }

    /// Starts a worker.
    pub(super) fn start_worker(&mut self, name: &'static str) -> Result<()> {
        let log = File::create(self.directory.join(format!("worker-{name}.log")))?;
        let mut command = self.outboxd(&["worker"])?;
        command.env("OUTBOXD__WORKER__NAME", name).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.workers.push(Worker { name, child: GuardedChild::spawn(&mut command)?, killed: false });
        Ok(())
    }

    /// Kills a worker with SIGKILL.
    pub(super) fn kill_worker(&mut self, name: &str) -> Result<()> {
        let worker = self.worker(name)?;
        worker.killed = true;
        worker.child.child().kill().context("cannot kill a worker")?;
        worker.child.wait().map(drop)
    }

    /// Sends a worker a signal.
    pub(super) fn signal_worker(&mut self, name: &str, signal_name: &str) -> Result<()> {
        signal(signal_name, self.worker(name)?.child.id())
    }

    /// Kills PostgreSQL's first process, and starts it again.
    pub(super) async fn crash_database(&self) -> Result<()> {
        let cluster = Arc::clone(&self.cluster);
        tokio::task::spawn_blocking(move || {
            cluster.crash()?;
            cluster.restart()
        })
        .await?
    }

    /// Fails if a worker has ended that nobody killed.
    pub(super) fn check_workers(&mut self) -> Result<()> {
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            if let Some(status) = worker.child.child().try_wait()? {
                bail!(
                    "worker {} ended by itself ({status}); its last words:\n{}",
                    worker.name,
                    tail(&self.directory, worker.name)
                );
            }
        }
        Ok(())
    }

    /// Asks the workers to drain and waits until they have; then stops the servers, so that nothing changes any more.
    pub(super) async fn drain(&mut self) -> Result<()> {
        for worker in self.workers.iter().filter(|worker| !worker.killed) {
            signal("TERM", worker.child.id())?;
        }
        let until = Instant::now() + DRAIN_LIMIT;
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            let status = loop {
                if let Some(status) = worker.child.child().try_wait()? {
                    break status;
                }
                ensure!(Instant::now() < until, "worker {} does not drain within {DRAIN_LIMIT:?}", worker.name);
                tokio::time::sleep(LOOK_EVERY).await;
            };
            worker.killed = true;
            ensure!(
                status.success(),
                "worker {} did not end well ({status}):\n{}",
                worker.name,
                tail(&self.directory, worker.name)
            );
        }
        for server in [&self.dedup, &self.plain] {
            server.pause().await;
            server.cut_connections().await;
        }
        Ok(())
    }

    /// What `outboxd show ID` says.
    pub(super) async fn show(&self, id: &str) -> Result<String> {
        let mut command = self.outboxd(&["show", id])?;
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        ensure!(output.status.success(), "outboxd show failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Leaves the database and the configuration behind, and tells how to look at them.
    pub(super) fn keep(&self) -> Result<String> {
        let (cluster, config) = (self.cluster.keep(), self.config.display());
        let program = std::env::current_exe()?;
        let psql = self.url.as_str();
        Ok(format!(
            "{cluster}\n\
             the demo's own database\n  \
             rows:    psql '{psql}' -c 'select * from outboxd.delivery limit 10'\n  \
             a story: {} show ID --config {config}\n  \
             logs:    {}",
            program.display(),
            self.directory.join("worker-*.log").display(),
        ))
    }

    /// This very program, on the demo's configuration and no other.
    fn outboxd(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(args).arg("--config").arg(&self.config);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OUTBOXD_")) {
            command.env_remove(name);
        }
        Ok(command)
    }

    fn worker(&mut self, name: &str) -> Result<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.name == name).with_context(|| format!("there is no worker {name}"))
    }
}

/// The end of a worker's log.
fn tail(directory: &Path, name: &str) -> String {
    let text = fs::read_to_string(directory.join(format!("worker-{name}.log"))).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
