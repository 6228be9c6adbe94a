//! A private, headless Chromium behind its own ChromeDriver: for tests that do a person's work in a browser.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::guardian::{GuardedChild, Guardian, command, free_port, wait_until};
use super::programs;

/// Where packages put the programs, besides PATH.
const PROGRAM_DIRS: &[&str] = &["/usr/bin", "/usr/lib/chromium"];

/// Chromium's processes are found by the directory that they were given, and ended with it.
const CLEANUP: &str = r#"
pkill -KILL -f -- "$1/profile"
sleep 0.2
rm -rf "$1"
"#;

/// A running ChromeDriver. Dropping it, or ending the process in any way, ends it and its browsers.
#[derive(Debug)]
pub struct ChromeDriver {
    port: u16,
    directory: PathBuf,
    /// Held for what their drops do, in this order.
    _child: GuardedChild,
    _guardian: Guardian,
}

impl ChromeDriver {
    /// Why none can run here, if none can.
    #[must_use]
    pub fn unavailable() -> Option<&'static str> {
        let installed = |name| programs::find(name, PROGRAM_DIRS).is_some();
        (!installed("chromium") || !installed("chromedriver"))
            .then_some("Chromium is not installed: run `make setup`, or `apt-get install chromium chromium-driver`")
    }

    /// Starts one. It listens when this returns.
    ///
    /// # Errors
    ///
    /// When it is [unavailable](ChromeDriver::unavailable), or does not listen.
    pub fn start() -> Result<Self> {
        if let Some(reason) = Self::unavailable() {
            bail!("{reason}");
        }
        let program = programs::find("chromedriver", PROGRAM_DIRS).context("chromedriver is not installed")?;
        let directory =
            tempfile::Builder::new().prefix("outboxd-browser-").tempdir().context("cannot make a directory")?.keep();
        let guardian = Guardian::new(CLEANUP, &[&directory], None)?;
        let port = free_port()?;
        let log = File::create(directory.join("log")).context("cannot write ChromeDriver's log")?;
        let mut driver = command(program, None);
        driver.arg(format!("--port={port}")).stdout(log.try_clone()?).stderr(log);
        let child = GuardedChild::spawn(&mut driver)?;
        wait_until(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), true).context("ChromeDriver does not listen")?;
        Ok(Self { port, directory, _child: child, _guardian: guardian })
    }

    /// Where it takes WebDriver's commands.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a session must ask for: no window, nothing of the machine's own browser, and no host but this one.
    #[must_use]
    pub fn capabilities(&self, profile: &str, width: u32, height: u32, dark: bool) -> serde_json::Value {
        let profile = self.directory.join("profile").join(profile);
        let mut args = vec![
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--force-color-profile=srgb".to_owned(),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1".to_owned(),
            format!("--user-data-dir={}", profile.display()),
            format!("--window-size={width},{height}"),
        ];
        if dark {
            args.push("--blink-settings=preferredColorScheme=0".to_owned());
        }
        let mut options = serde_json::json!({ "args": args });
        // A window is never narrower than 500 pixels; what is narrower is a phone's.
        if width < 500 {
            options["mobileEmulation"] =
                serde_json::json!({ "deviceMetrics": { "width": width, "height": height, "pixelRatio": 1.0 } });
        }
        serde_json::json!({ "goog:chromeOptions": options })
    }
}
