//! A private, real Dovecot: one maildir over IMAP under TLS, for tests of what reads mailboxes.
//!
//! Everything of it lives in one temporary directory and listens on one port of 127.0.0.1. Any name may log in, with the one
//! password.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::guardian::{Account, GuardedChild, Guardian, command, free_port, is_root, wait_until};
use super::programs;
use super::smtp::SelfSigned;

/// The password.
pub const PASSWORD: &str = "open-sesame";

/// Where packages put the program, besides PATH.
const PROGRAM_DIRS: &[&str] = &["/usr/sbin", "/usr/local/sbin"];

const SETTINGS: &str = "\
protocols = imap
base_dir = @DIR@/run
state_dir = @DIR@/state
log_path = @DIR@/log
listen = 127.0.0.1
ssl = required
ssl_cert = <@DIR@/server.pem
ssl_key = <@DIR@/server.pem
service imap-login {
  inet_listener imap {
    port = 0
  }
  inet_listener imaps {
    port = @PORT@
    ssl = yes
  }
}
passdb {
  driver = static
  args = password=@PASSWORD@
}
userdb {
  driver = static
  args = uid=@UID@ gid=@GID@ home=@DIR@/home
}
mail_location = maildir:@MAILDIR@
first_valid_uid = 1
first_valid_gid = 1
";

/// A running private Dovecot. Dropping it, or ending the process in any way, stops it and removes its directory.
#[derive(Debug)]
pub struct Dovecot {
    port: u16,
    directory: PathBuf,
    /// Held for what their drops do, in this order.
    _child: GuardedChild,
    _guardian: Guardian,
}

impl Dovecot {
    /// Why none can run here, if none can: it takes root and an installed Dovecot.
    #[must_use]
    pub fn unavailable() -> Option<&'static str> {
        if programs::find("dovecot", PROGRAM_DIRS).is_none() {
            Some("Dovecot is not installed: run `make setup`, or `apt-get install dovecot-imapd`")
        } else if !is_root() {
            Some("Dovecot can be started by root only")
        } else {
            None
        }
    }

    /// Starts one that serves a maildir, which becomes that of the account `nobody`. It listens when this returns.
    ///
    /// # Errors
    ///
    /// When it is [unavailable](Dovecot::unavailable), or does not listen; its own words are in the error.
    pub fn start(maildir: &Path, certificate: &SelfSigned) -> Result<Self> {
        if let Some(reason) = Self::unavailable() {
            bail!("{reason}");
        }
        let program = programs::find("dovecot", PROGRAM_DIRS).context("Dovecot is not installed")?;
        let reader = Account::first_of(&["nobody"])?;
        let directory =
            tempfile::Builder::new().prefix("outboxd-dovecot-").tempdir().context("cannot make a directory")?.keep();
        let guardian = Guardian::new("rm -rf \"$1\"", &[&directory], None)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).context("cannot open the directory")?;
        for name in ["run", "state", "home"] {
            fs::create_dir(directory.join(name)).with_context(|| format!("cannot make {name}"))?;
        }
        for path in [maildir, &directory.join("home")] {
            chown(path, Some(reader.uid), Some(reader.gid)).with_context(|| path.display().to_string())?;
        }
        fs::write(directory.join("server.pem"), &certificate.server_pem).context("cannot write the certificate")?;
        let port = free_port()?;
        let settings = SETTINGS
            .replace("@DIR@", directory.to_str().context("the temporary directory's name is not UTF-8")?)
            .replace("@MAILDIR@", maildir.to_str().context("the maildir's name is not UTF-8")?)
            .replace("@PORT@", &port.to_string())
            .replace("@PASSWORD@", PASSWORD)
            .replace("@UID@", &reader.uid.to_string())
            .replace("@GID@", &reader.gid.to_string());
        let file = directory.join("dovecot.conf");
        fs::write(&file, settings).context("cannot write dovecot.conf")?;
        let out = File::create(directory.join("out")).context("cannot write Dovecot's output")?;
        let mut dovecot = command(program, None);
        dovecot.args(["-F", "-c"]).arg(&file).stdout(out.try_clone()?).stderr(out);
        let child = GuardedChild::spawn(&mut dovecot)?;
        let dovecot = Self { port, directory, _child: child, _guardian: guardian };
        wait_until((Ipv4Addr::LOCALHOST, port).into(), true)
            .with_context(|| format!("Dovecot says:\n{}", dovecot.log()))?;
        Ok(dovecot)
    }

    /// Where it listens, for IMAP under TLS.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read(self.directory.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&[read("out"), read("log")].concat()).into_owned()
    }
}
