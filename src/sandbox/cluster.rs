//! A private PostgreSQL cluster made from the machine's installed server programs, for the demo, the tests and the bench.
//!
//! It owns one temporary directory and one port on 127.0.0.1, and both are given back however this process ends. It never
//! touches a PostgreSQL that it did not start, and never listens beyond the loopback interface and its own directory.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::guardian::{Account, Guardian, command, free_port, is_root, run, signal};
use super::programs;

/// The cluster's only role, a superuser.
const ROLE: &str = "postgres";

/// The time for a start. It takes a tenth of a second, crash recovery after a long test a few; a machine that is compiling
/// at the same time can be ten times slower.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often it is looked whether the server is ready: a start is worth no finer grain.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long a killed server's processes may hold on to its shared memory: as long as their current statement runs.
const LINGER: Duration = Duration::from_secs(20);

/// How often a start is tried when somebody else takes the port between finding it free and using it.
const START_TRIES: u32 = 3;

/// Settings of every private cluster: enough connections for a test run's pools, and a log that says what happened.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("max_connections", "300"),
    ("shared_buffers", "128MB"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_line_prefix", "%m [%p] %d %a "),
    ("log_lock_waits", "on"),
];

/// Settings that trade what a power cut would lose for speed. Killing processes still loses nothing.
const NOT_DURABLE: &[(&str, &str)] = &[
    ("fsync", "off"),
    ("synchronous_commit", "off"),
    ("full_page_writes", "off"),
    ("max_wal_size", "512MB"),
    ("autovacuum_naptime", "10s"),
];

/// What is cleaned up, and how, once this process is gone: `$1` is the programs' directory, `$2` the cluster's.
const CLEANUP: &str = r#"
"$1/pg_ctl" stop -D "$2/data" -m immediate -t 20
rm -rf "$2"
# A half-made cluster may still have been writing.
[ -e "$2" ] && sleep 1 && rm -rf "$2"
"#;

/// What a private cluster is to be like.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether commits reach the disk (`fsync`, `synchronous_commit`, `full_page_writes`). Off is right for tests.
    pub durable: bool,
    /// Further settings, which win over the others.
    pub settings: Vec<(String, String)>,
    /// The port on 127.0.0.1; a free one when `None`.
    pub port: Option<u16>,
}

/// A running private cluster. Dropping it, or ending the process in any way, stops it and removes its directory.
#[derive(Debug)]
pub struct Cluster {
    programs: PathBuf,
    directory: PathBuf,
    account: Option<Account>,
    port: u16,
    databases: AtomicU32,
    server: Mutex<Option<Child>>,
    guardian: Mutex<Guardian>,
}

impl Cluster {
    /// Makes and starts a cluster; it accepts connections when this returns. Blocks for about two seconds.
    ///
    /// # Errors
    ///
    /// When PostgreSQL's server programs are not installed (the error says what to install), or they fail (the error
    /// carries their words).
    pub fn start(options: &Options) -> Result<Self> {
        let programs = programs::postgresql()?;
        let account = if is_root() { Some(Account::first_of(&[ROLE, "nobody"])?) } else { None };
        let directory =
            tempfile::Builder::new().prefix("outboxd-pg-").tempdir().context("cannot make a directory")?.keep();
        let give_away = |path: &Path| match account {
            Some(Account { uid, gid }) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        };
        give_away(&directory).context("cannot give the cluster's directory away")?;
        // Before anything else is in the directory, so that nothing stays behind.
        let guardian = Guardian::new(CLEANUP, &[&programs, &directory], account)?;
        let mut cluster = Self {
            programs,
            directory,
            account,
            port: 0,
            databases: AtomicU32::new(0),
            server: Mutex::new(None),
            guardian: Mutex::new(guardian),
        };
        fs::create_dir(cluster.sockets())
            .and_then(|()| give_away(&cluster.sockets()))
            .context("cannot make a directory")?;
        cluster.init(options)?;
        let mut tries = START_TRIES;
        loop {
            tries -= 1;
            cluster.port = options.port.map_or_else(free_port, Ok)?;
            cluster.configure(&setting("port", &cluster.port.to_string()))?;
            match cluster.launch() {
                Err(error)
                    if options.port.is_none() && tries > 0 && error.to_string().contains("Address already in use") => {}
                done => return done.map(|()| cluster),
            }
        }
    }

    /// The address of a database of this cluster, over TCP. No password is asked for.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a database of this cluster, over its Unix socket: a little faster than TCP.
    #[must_use]
    pub fn socket_url(&self, database: &str) -> String {
        let host = self.sockets().to_string_lossy().replace('/', "%2F");
        format!("postgres://{ROLE}@{host}:{}/{database}", self.port)
    }

    /// The directory that holds everything of the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes a database with a name of its own, as a copy of `template` when one is given, and returns the name.
    ///
    /// # Errors
    ///
    /// When the server refuses: a template must have no open connection.
    pub async fn create_database(&self, template: Option<&str>) -> Result<String> {
        let name = format!("db_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let template = template.unwrap_or("template1");
        let options: sqlx::postgres::PgConnectOptions = self.socket_url("postgres").parse()?;
        let mut connection = options.connect().await.context("cannot connect to the private cluster")?;
        connection
            .execute(AssertSqlSafe(format!(r#"CREATE DATABASE "{name}" TEMPLATE "{}""#, template.replace('"', "\"\""))))
            .await
            .with_context(|| format!("cannot make database {name} from {template}"))?;
        connection.close().await?;
        Ok(name)
    }

    /// Stops without a checkpoint, as `pg_ctl -m immediate` does: every connection is cut, the next start recovers.
    ///
    /// # Errors
    ///
    /// When it is not running or cannot be signalled.
    pub fn stop_immediate(&self) -> Result<()> {
        self.end("QUIT")
    }

    /// Kills the server's first process with SIGKILL; the others notice and end. [`Cluster::restart`] starts it again.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn crash(&self) -> Result<()> {
        self.end("KILL")
    }

    /// Starts again on the same port, after stopping at once if it runs. Committed data is there again.
    ///
    /// # Errors
    ///
    /// When it will not stop or start.
    pub fn restart(&self) -> Result<()> {
        if self.server().is_some() {
            self.stop_immediate()?;
        }
        let until = Instant::now() + LINGER;
        loop {
            match self.launch() {
                Err(error)
                    if Instant::now() < until && error.to_string().contains("pre-existing shared memory block") => {}
                done => return done,
            }
        }
    }

    /// The server's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_file()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Leaves the cluster running after this process, for a look, and tells how to connect, stop and remove it.
    #[must_use = "this text is the only way to find the cluster again"]
    pub fn keep(&self) -> String {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner).dismiss();
        let id = self.server().take().map(|server| server.id()).unwrap_or_default();
        format!(
            "private PostgreSQL left running\n  connect: psql '{}'\n  log:     {}\n  stop:    kill -QUIT {id} && rm -rf {}",
            self.url("postgres"),
            self.log_file().display(),
            self.directory.display()
        )
    }

    /// Makes the data directory and its configuration.
    fn init(&self, options: &Options) -> Result<()> {
        run(self
            .command("initdb")
            .args(["--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"])
            .arg("--pgdata")
            .arg(self.data()))?;

        let sockets = self.sockets().to_string_lossy().into_owned();
        let fixed = SETTINGS.iter().chain(if options.durable { &[][..] } else { NOT_DURABLE });
        let text: String = fixed
            .map(|&(name, value)| (name, value))
            .chain([("unix_socket_directories", sockets.as_str())])
            .chain(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map(|(name, value)| setting(name, value))
            .collect();
        self.configure(&text)
    }

    /// Adds to the configuration, where the last word counts.
    fn configure(&self, text: &str) -> Result<()> {
        let mut file = fs::OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?;
        file.write_all(text.as_bytes()).context("cannot write the private cluster's configuration")
    }

    /// Starts the server and waits until it takes connections. The error holds what the server wrote meanwhile.
    fn launch(&self) -> Result<()> {
        let mut log = fs::OpenOptions::new().append(true).create(true).open(self.log_file())?;
        let start = usize::try_from(log.seek(SeekFrom::End(0))?)?;
        let mut server = self
            .command("postgres")
            .arg("-D")
            .arg(self.data())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run postgres")?;
        let until = Instant::now() + START_LIMIT;
        let trouble = loop {
            if self.is_ready(server.id()) {
                *self.server() = Some(server);
                return Ok(());
            }
            if server.try_wait()?.is_some() {
                break "does not start";
            }
            if Instant::now() > until {
                let _ = server.kill();
                server.wait()?;
                break "is not ready in time";
            }
            std::thread::sleep(LOOK_EVERY);
        };
        let log = self.log();
        bail!("the private PostgreSQL {trouble}, and says:\n{}", log.get(start..).unwrap_or(&log))
    }

    /// Whether the server with this process id says in its lock file that it takes connections.
    fn is_ready(&self, server: u32) -> bool {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines().map(str::trim);
        lines.next() == Some(server.to_string().as_str()) && lines.any(|line| line == "ready")
    }

    /// Sends the server's first process a signal that ends it, and waits for that.
    fn end(&self, signal_name: &str) -> Result<()> {
        let mut server = self.server().take().context("the private cluster is not running")?;
        signal(signal_name, server.id())?;
        server.wait().context("cannot wait for the private cluster to end")?;
        Ok(())
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = command(self.programs.join(program), self.account);
        command.current_dir(&self.directory);
        command
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn sockets(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("log")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Stopped already is as good; the guardian, dropped next, removes the directory.
        let _ = self.stop_immediate();
    }
}

/// One line of postgresql.conf.
fn setting(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_with_quotes_stays_one_setting() {
        assert_eq!(setting("log_line_prefix", r"it's a \ %m"), "log_line_prefix = 'it''s a \\\\ %m'\n");
    }
}
