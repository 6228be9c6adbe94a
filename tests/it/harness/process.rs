//! The real `outboxd` program as a test sees it: started with a configuration, signalled, read, and killed at the end.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use outboxd::sandbox::guardian::{GuardedChild, signal};
use tempfile::TempDir;

use super::{PATIENCE, eventually};

/// A running `outboxd`. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Proc {
    child: GuardedChild,
    directory: TempDir,
}

impl Proc {
    /// Starts `outboxd ARGS --config FILE`, where the file holds `config`.
    pub(crate) fn start(args: &[&str], config: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("outboxd.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
        command.args(args).arg("--config").arg(&file);
        Self::spawn(command, directory)
    }

    /// Starts any command whose words and end a test wants to see.
    pub(crate) fn spawn(mut command: Command, directory: TempDir) -> Self {
        let log = File::create(directory.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // The developer's own settings must not decide a test; where PostgreSQL is does not.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOXD_") && name != "OUTBOXD_PG_BIN" {
                command.env_remove(name);
            }
        }
        Self { child: GuardedChild::spawn(&mut command).unwrap(), directory }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The directory with the configuration and the log; a test may put more there.
    pub(crate) fn directory(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }

    /// All it has written so far, to standard output and standard error.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.path().join("log")).unwrap()).into_owned()
    }

    /// Waits for a line of the log that holds `text`, and returns the line. Panics when the program ends without it.
    pub(crate) async fn line_with(&mut self, text: &str) -> String {
        let found = eventually(&format!("the log holds {text:?}"), PATIENCE, async || {
            // The end is looked at first: what was written before it is then in the log.
            let ended = self.child.child().try_wait().unwrap();
            let log = self.log();
            match (log.lines().find(|line| line.contains(text)), ended) {
                (Some(line), _) => Ok(Ok(line.to_owned())),
                (None, Some(status)) => Ok(Err(format!("it ended ({status}) without {text:?} in its log:\n{log}"))),
                (None, None) => Err(log),
            }
        })
        .await;
        found.unwrap_or_else(|end| panic!("{end}"))
    }

    /// Asks it to stop (SIGTERM).
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Ends it without warning (SIGKILL).
    pub(crate) fn kill(&self) {
        self.signal("KILL");
    }

    /// Stops it in its tracks (SIGSTOP), as a paused machine would.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the program has ended", PATIENCE, async || {
            self.child.child().try_wait().unwrap().ok_or_else(|| self.log())
        })
        .await
    }

    fn signal(&self, name: &str) {
        signal(name, self.id()).unwrap();
    }
}

#[tokio::test]
async fn a_program_can_be_read_paused_resumed_and_ended() {
    use std::os::unix::process::ExitStatusExt as _;

    let mut counter = Command::new("sh");
    counter.args([
        "-c",
        "n=0; trap 'echo asked to stop; exit 7' TERM; while :; do n=$((n+1)); echo line $n; sleep 0.01; done",
    ]);
    let mut proc = Proc::spawn(counter, TempDir::new().unwrap());
    assert_eq!(proc.line_with("line 3").await, "line 3");
    proc.pause();
    let state =
        eventually("the program is stopped", PATIENCE, async || process_state(proc.id()).filter(|state| state == "T"));
    state.await;
    proc.terminate();
    assert!(!proc.log().contains("asked"), "a paused program does nothing");
    proc.resume();
    assert_eq!(proc.ended().await.code(), Some(7));
    assert!(proc.log().ends_with("asked to stop\n"));

    let mut sleeper = Command::new("sleep");
    sleeper.arg("600");
    let mut proc = Proc::spawn(sleeper, TempDir::new().unwrap());
    proc.kill();
    assert_eq!(proc.ended().await.signal(), Some(9));
}

#[tokio::test]
async fn the_real_program_is_given_its_configuration() {
    let mut proc = Proc::start(&["--version"], "# nothing");
    assert!(proc.directory().join("outboxd.toml").is_file());
    proc.ended().await;
}

/// The first letter of what `ps` says about a process: `R`, `S`, `T`.
fn process_state(id: u32) -> Option<String> {
    let output = Command::new("ps").args(["-o", "state=", "-p", &id.to_string()]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().get(..1).map(str::to_owned)
}
