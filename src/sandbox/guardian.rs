//! Cleaning up after this process however it ends, and the small facts about the machine that takes.
//!
//! A guardian is a shell that waits on a pipe only this process holds open: when the process exits, is killed, or drops
//! the guardian, the pipe closes and the shell runs its clean-up. It must never be on the way of the work itself.

use std::ffi::OsStr;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rand::RngExt as _;

/// Ports are drawn from here: below what Linux (32768) and macOS (49152) give to outgoing connections, so that a server
/// which is restarted finds its port free, and a client that calls a stopped server cannot be connected to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How many ports are tried before giving up: with half of [`PORTS`] taken, all of these fail once in a million runs.
const PORT_TRIES: usize = 20;

/// How long a server may take until it listens or is gone: it takes milliseconds, on a busy machine tens of them.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// The account a program runs under when this process is root and the program refuses to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    /// User id.
    pub(super) uid: u32,
    /// Group id.
    pub(super) gid: u32,
}

impl Account {
    /// The first of `names` that the machine knows.
    pub(super) fn first_of(names: &[&str]) -> Result<Self> {
        names.iter().find_map(|name| Some(Self { uid: id(&["-u", name])?, gid: id(&["-g", name])? })).with_context(
            || format!("running as root, but the machine has none of these accounts: {}", names.join(", ")),
        )
    }
}

/// Whether this process runs as root.
pub(super) fn is_root() -> bool {
    id(&["-u"]) == Some(0)
}

fn id(args: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(args).output().ok()?;
    if output.status.success() { String::from_utf8(output.stdout).ok()?.trim().parse().ok() } else { None }
}

/// A command that runs under `account`, if one is given, in a group of its own so that a terminal's Ctrl-C does not reach it.
pub(super) fn command(program: impl AsRef<OsStr>, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command.process_group(0).stdin(Stdio::null());
    command
}

/// Runs a command to its end; its own words are in the error when it fails.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!(
        "{name} failed ({}): {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A port on 127.0.0.1 that nobody listens on now.
///
/// # Errors
///
/// When none is found, which takes a machine with most of its ports in use.
pub fn free_port() -> Result<u16> {
    (0..PORT_TRIES)
        .map(|_| rand::rng().random_range(PORTS))
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .ok_or_else(|| anyhow!("no free port found on 127.0.0.1 in {PORTS:?}"))
}

/// Waits until a connection to `address` is accepted, or until it no longer is.
pub(super) fn wait_until(address: SocketAddr, listening: bool) -> Result<()> {
    /// How often it is looked: a start is worth no finer grain.
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    let until = Instant::now() + LISTEN_LIMIT;
    while TcpStream::connect_timeout(&address, LISTEN_LIMIT).is_ok() != listening {
        if Instant::now() > until {
            bail!(
                "{address} {} after {LISTEN_LIMIT:?}",
                if listening { "is not listened on" } else { "is still listened on" }
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Sends a signal, named as in `kill -s` (`TERM`, `KILL`, `STOP`, `CONT`), to a process.
///
/// # Errors
///
/// When the process is gone or may not be signalled.
pub fn signal(name: &str, pid: u32) -> Result<()> {
    // The shell's own `kill`: slim images have no such program.
    run(Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid.to_string()])).map(|_| ())
}

/// A shell that runs a clean-up when this value is dropped or this process ends, even by SIGKILL.
#[derive(Debug)]
pub(super) struct Guardian {
    shell: Child,
}

impl Guardian {
    /// Stands guard: `cleanup` is shell text in which `args` are `$1`, `$2` and so on. Runs under `account`, if given.
    pub(super) fn new(cleanup: &str, args: &[&Path], account: Option<Account>) -> Result<Self> {
        let script = format!(
            "trap '' HUP INT TERM\n\
             cd /\n\
             read -r word\n\
             [ \"$word\" = keep ] && exit 0\n\
             {cleanup}\n"
        );
        let shell = command("sh", account)
            .args(["-c", &script, "outboxd-guardian"])
            .args(args)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a shell to clean up")?;
        Ok(Self { shell })
    }

    /// Calls the guard off: nothing is cleaned up.
    pub(super) fn dismiss(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A shell that is gone already cleans nothing up either.
            let _ = pipe.write_all(b"keep\n");
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A child process that does not outlive this one.
#[derive(Debug)]
pub struct GuardedChild {
    child: Child,
    guardian: Guardian,
}

impl GuardedChild {
    /// Starts `command`. It is killed when this value is dropped and when this process ends, however it ends.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        match Guardian::new("kill -s KILL \"$1\"", &[Path::new(&child.id().to_string())], None) {
            Ok(guardian) => Ok(Self { child, guardian }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process itself: its pipes and its exit status.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    ///
    /// When the operating system cannot tell.
    pub fn wait(&mut self) -> Result<std::process::ExitStatus> {
        self.child.wait().context("cannot wait for a child process")
    }
}

impl Drop for GuardedChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The process id may belong to somebody else from here on.
        self.guardian.dismiss();
    }
}
