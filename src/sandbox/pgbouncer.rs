//! A private PgBouncer in transaction mode: the pooler behind which a worker must get on by polling alone.
//!
//! It leads to one private cluster and to nowhere else, and lends few server sessions to many clients, so that whatever a
//! client leaves in a session meets the next one.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::cluster::Cluster;
use super::guardian::{Account, GuardedChild, Guardian, command, free_port, is_root, wait_until};
use super::programs;

/// Where packages put the program, besides PATH.
const PROGRAM_DIRS: &[&str] = &["/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin"];

/// Its settings. `auth_type = any` asks for no password, as the private cluster does.
const SETTINGS: &str = "\
[databases]
* = host=127.0.0.1 port=@SERVER@ user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = @PORT@
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = @SESSIONS@
max_client_conn = 500
";

/// A running private PgBouncer. Dropping it, or ending the process in any way, stops it and removes its directory.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    directory: PathBuf,
    /// Held for what their drops do, in this order.
    _child: GuardedChild,
    _guardian: Guardian,
}

impl PgBouncer {
    /// Why none can run here, if none can.
    #[must_use]
    pub fn unavailable() -> Option<&'static str> {
        programs::find("pgbouncer", PROGRAM_DIRS)
            .is_none()
            .then_some("PgBouncer is not installed: run `make setup`, or `apt-get install pgbouncer`")
    }

    /// Starts one that leads to `cluster` over at most `sessions` server sessions a database. It listens when this returns.
    ///
    /// # Errors
    ///
    /// When it is not installed, or does not listen; its own words are in the error.
    pub fn start(cluster: &Cluster, sessions: u16) -> Result<Self> {
        let program = programs::find("pgbouncer", PROGRAM_DIRS)
            .context("PgBouncer is not installed: run `make setup`, or `apt-get install pgbouncer`")?;
        // PgBouncer refuses to run as root.
        let account = if is_root() { Some(Account::first_of(&["postgres", "nobody"])?) } else { None };
        let directory =
            tempfile::Builder::new().prefix("outboxd-pgbouncer-").tempdir().context("cannot make a directory")?.keep();
        let guardian = Guardian::new("rm -rf \"$1\"", &[&directory], None)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).context("cannot open the directory")?;
        let port = free_port()?;
        let settings = SETTINGS
            .replace("@SERVER@", &cluster.port().to_string())
            .replace("@PORT@", &port.to_string())
            .replace("@SESSIONS@", &sessions.to_string());
        let file = directory.join("pgbouncer.ini");
        fs::write(&file, settings).context("cannot write pgbouncer.ini")?;
        let log = File::create(directory.join("log")).context("cannot write PgBouncer's log")?;
        let child = GuardedChild::spawn(command(program, account).arg(&file).stdout(log.try_clone()?).stderr(log))?;
        let bouncer = Self { port, directory, _child: child, _guardian: guardian };
        wait_until(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), true)
            .with_context(|| format!("PgBouncer says:\n{}", bouncer.log()))?;
        Ok(bouncer)
    }

    /// The address of one of the cluster's databases through it. No password is asked for.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.directory.join("log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}
