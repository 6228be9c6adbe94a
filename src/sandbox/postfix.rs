//! A private, real Postfix, and Postfix's own SMTP test programs: instruments for tests and the bench.
//!
//! Everything of it lives in one temporary directory and listens on one port of 127.0.0.1. It never reads or changes the
//! machine's own Postfix, asks no name server, and sends nothing anywhere: what is not for [`DOMAIN`] is refused or fails.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::guardian::{Account, GuardedChild, Guardian, command, free_port, is_root, run, wait_until};
use super::programs;

/// Mail to anybody at this domain is delivered.
pub const DOMAIN: &str = "outbox.test";

/// Mail to anybody at this domain is accepted and then bounces: the log says so, and a bounce goes to the sender.
pub const BOUNCE_DOMAIN: &str = "bounce.test";

/// Mail to anybody at this domain is accepted and then stays in the queue.
pub const DEFER_DOMAIN: &str = "defer.test";

/// Where packages put Postfix's programs, besides PATH.
const PROGRAM_DIRS: &[&str] = &["/usr/sbin", "/usr/lib/postfix/sbin", "/usr/libexec/postfix", "/usr/local/sbin"];

/// What is cleaned up, and how, once this process is gone: `$1` is the directory. Postfix may be in the middle of a start:
/// without a configuration that fails, and what has begun already stands in the directory, by which it is found.
const CLEANUP: &str = r#"
rm -rf "$1/config"
quiet=0
while [ $quiet -lt 2 ]; do
    found=$(ls -l /proc/[0-9]*/cwd | sed -n "s|.*/proc/\([0-9]*\)/cwd -> $1/.*|\1|p")
    if [ -n "$found" ]; then quiet=0; kill -s KILL $found; else quiet=$((quiet + 1)); fi
    sleep 0.2
done
rm -rf "$1"
"#;

/// The services of a Postfix that takes mail on one port and delivers it here. None is chrooted.
const MASTER: &str = "\
127.0.0.1:@PORT@ inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
nouser unix - n n - - pipe
  user=nobody argv=/bin/sh -c {echo no such mailbox; exit 67}
full unix - n n - - pipe
  user=nobody argv=/bin/sh -c {echo mailbox is full; exit 75}
proxymap unix - - n - - proxymap
showq unix n - n - - showq
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
";

/// The settings of such a Postfix. At most 20 processes a service: a flood must not take the machine.
const MAIN: &str = "\
compatibility_level = 3.6
queue_directory = @DIR@/queue
data_directory = @DIR@/data
maillog_file = @DIR@/mail.log
maillog_file_prefixes = @DIR@
myhostname = mail.outbox.test
mydomain = outbox.test
myorigin = outbox.test
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
disable_dns_lookups = yes
smtpd_peername_lookup = no
smtpd_relay_restrictions = permit_mynetworks, reject
enable_long_queue_ids = yes
default_process_limit = 20
alias_maps =
alias_database =
biff = no
virtual_mailbox_domains = outbox.test
virtual_mailbox_base = @DIR@/mail
virtual_mailbox_maps = static:box/
virtual_minimum_uid = 1
virtual_uid_maps = static:@UID@
virtual_gid_maps = static:@GID@
local_transport = error:5.1.2 this server has no local mailboxes
default_transport = error:5.1.2 this server sends nothing out
transport_maps = inline:{ {bounce.test = nouser:} {defer.test = full:} }
";

/// A running private Postfix. Dropping it, or ending the process in any way, stops it and removes its directory.
#[derive(Debug)]
pub struct Postfix {
    program: PathBuf,
    directory: PathBuf,
    port: u16,
    /// Held for what its drop does.
    _guardian: Guardian,
}

impl Postfix {
    /// Why no private Postfix can run here, if none can: it takes root and an installed Postfix.
    #[must_use]
    pub fn unavailable() -> Option<&'static str> {
        if programs::find("postfix", PROGRAM_DIRS).is_none() {
            Some("Postfix is not installed: run `make setup`, or `apt-get install postfix`")
        } else if !is_root() {
            Some("Postfix can be started by root only")
        } else {
            None
        }
    }

    /// Starts one that accepts mail when this returns, with further `main.cf` settings that win over its own. Blocks for
    /// about two seconds.
    ///
    /// # Errors
    ///
    /// When it is [unavailable](Postfix::unavailable), or Postfix's own words when it will not start.
    pub fn start(settings: &[(&str, &str)]) -> Result<Self> {
        if let Some(reason) = Self::unavailable() {
            bail!("{reason}");
        }
        let program = programs::find("postfix", PROGRAM_DIRS).context("Postfix is not installed")?;
        let owner = Account::first_of(&["postfix"])?;
        let reader = Account::first_of(&["nobody"])?;

        let directory =
            tempfile::Builder::new().prefix("outboxd-postfix-").tempdir().context("cannot make a directory")?.keep();
        // Postfix's services run under accounts of their own and must get in.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).context("cannot open the directory")?;
        let guardian = Guardian::new(CLEANUP, &[&directory], None)?;
        for (name, account) in [("config", None), ("queue", None), ("data", Some(owner)), ("mail", Some(reader))] {
            let path = directory.join(name);
            fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
            if let Some(Account { uid, gid }) = account {
                chown(&path, Some(uid), Some(gid)).with_context(|| format!("cannot give {} away", path.display()))?;
            }
        }

        let port = free_port()?;
        let mut main = MAIN
            .replace("@DIR@", directory.to_str().context("the temporary directory's name is not UTF-8")?)
            .replace("@UID@", &reader.uid.to_string())
            .replace("@GID@", &reader.gid.to_string());
        for (name, value) in settings {
            main.push_str(&format!("{name} = {value}\n"));
        }
        fs::write(directory.join("config/main.cf"), main).context("cannot write main.cf")?;
        fs::write(directory.join("config/master.cf"), MASTER.replace("@PORT@", &port.to_string()))
            .context("cannot write master.cf")?;

        let postfix = Self { program, directory, port, _guardian: guardian };
        postfix.launch()?;
        Ok(postfix)
    }

    /// Where it takes mail.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The messages delivered so far, as they lie in the mailbox, oldest first. One mailbox holds everybody's mail; each
    /// message says in `Delivered-To` whose it is.
    ///
    /// # Errors
    ///
    /// When the mailbox cannot be read.
    pub fn maildir(&self) -> Result<Vec<Vec<u8>>> {
        let new = self.mailbox().join("new");
        if !new.exists() {
            return Ok(Vec::new());
        }
        let mut files = fs::read_dir(new)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.sort();
        files.iter().map(|file| fs::read(file).with_context(|| format!("cannot read {}", file.display()))).collect()
    }

    /// The mailbox's directory, a maildir. It is there once the first message has come.
    #[must_use]
    pub fn mailbox(&self) -> PathBuf {
        self.directory.join("mail/box")
    }

    /// The mail log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_file()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The mail log's file.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.directory.join("mail.log")
    }

    /// Stops it at once: connections are cut, what is in the queue stays there.
    ///
    /// # Errors
    ///
    /// When it is not running.
    pub fn abort(&self) -> Result<()> {
        self.control("abort")?;
        // `postfix abort` returns before its processes are gone; all of them that serve mail hold the socket.
        wait_until(self.address(), false)
    }

    /// Starts it again on the same port after [`Postfix::abort`].
    ///
    /// # Errors
    ///
    /// When it will not start, or runs already.
    pub fn launch(&self) -> Result<()> {
        self.control("start")
            .and_then(|()| wait_until(self.address(), true))
            .with_context(|| format!("Postfix says:\n{}", self.log()))
    }

    fn control(&self, word: &str) -> Result<()> {
        run(command(&self.program, None).arg("-c").arg(self.directory.join("config")).arg(word)).map(|_| ())
    }
}

/// A running `smtp-sink`: takes mail as fast as it comes and throws it away, or misbehaves as its arguments say.
#[derive(Debug)]
pub struct SmtpSink {
    port: u16,
    /// Held for what its drop does.
    _child: GuardedChild,
}

impl SmtpSink {
    /// Where it takes mail.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

/// Starts `smtp-sink` (see its manual page for `args`) on a free port of 127.0.0.1. It listens when this returns; finding
/// that out has used one connection.
///
/// # Errors
///
/// When it is not installed, or stops at once.
pub fn smtp_sink(args: &[&str]) -> Result<SmtpSink> {
    /// Connections the kernel holds for it while it is busy: more than any client here opens at once.
    const BACKLOG: &str = "1000";
    let port = free_port()?;
    let mut sink = command(test_program("smtp-sink")?, None);
    if is_root() {
        sink.args(["-u", "nobody"]);
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    sink.args(args).args([&address.to_string(), BACKLOG]).stdout(Stdio::null());
    let mut child = GuardedChild::spawn(&mut sink)?;
    wait_until(address, true)?;
    if let Some(status) = child.child().try_wait()? {
        bail!("smtp-sink stopped at once ({status})");
    }
    Ok(SmtpSink { port, _child: child })
}

/// Starts `smtp-source` (see its manual page for `args`) towards `to`. Its output is piped; wait for it, or drop it to end it.
///
/// # Errors
///
/// When it is not installed.
pub fn smtp_source(args: &[&str], to: SocketAddr) -> Result<GuardedChild> {
    let mut source = command(test_program("smtp-source")?, None);
    GuardedChild::spawn(source.args(args).arg(to.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn test_program(name: &str) -> Result<PathBuf> {
    programs::find(name, PROGRAM_DIRS)
        .with_context(|| format!("{name} is not installed: run `make setup`, or `apt-get install postfix`"))
}
