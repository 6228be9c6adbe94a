//! The command line: one file a subcommand. A command reads its arguments, calls what does the work, and says what came out.
//!
//! A new command is a file here and a variant of [`Command`].

pub mod audit;
pub mod bounces;
pub mod clean;
pub mod config_check;
pub mod decide;
pub mod demo;
pub mod doctor;
pub mod enqueue;
pub mod erase;
pub mod evidence;
pub mod list;
pub mod manual;
pub mod migrate;
pub mod operator;
mod output;
pub mod replay;
pub mod show;
pub mod stats;
pub mod submit;
mod table;
pub mod token;
pub mod which;
pub mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::app::Part;
use crate::config::{self, Invalid, Purpose, Sources};

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked to.
    Success = 0,
    /// It could not; standard error says why.
    Failure = 1,
    /// The command line or the configuration is wrong: trying again changes nothing. Also what clap ends with.
    Usage = 2,
    /// What was asked for may not be done as things are, or what was named is not there. Nothing was changed.
    Refused = 3,
    /// Whether the operation is stored is not known: `outboxd submit` alone.
    Unconfirmed = 4,
    /// Nobody read standard output any more, as in `outboxd list | head`: what shells call ended by SIGPIPE. Nothing is printed about it.
    Unread = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// How a command that failed with `error` ends.
    #[must_use]
    pub fn of_error(error: &anyhow::Error) -> Self {
        if error.is::<Invalid>() {
            Self::Usage
        } else if output::is_unread(error) {
            Self::Unread
        } else {
            Self::Failure
        }
    }
}

/// A transactional outbox notification worker: it records what is known about every delivery and never guesses.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// The configuration file [default: $OUTBOXD_CONFIG, else ./outboxd.toml if it exists]
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it work: real parts, every fault at once, and a proof
    Demo(demo::Args),
    /// Send what is in the outbox until told to stop: SIGTERM drains, a second one aborts
    Worker,
    /// Serve the message API until told to stop (docs/api.md)
    Api,
    /// Serve the message API and the console, and send what is in the outbox, in one process
    Run,
    /// Serve the operators' console until told to stop (docs/console.md)
    Console,
    /// Apply the database migrations that this release brings
    Migrate,
    /// Remove what is past its retention, once
    Clean(clean::Args),
    /// Erase one account's content, and keep its keys taken
    Erase(erase::Args),
    /// Store a message through the API, once, and know it
    Submit(Box<submit::Args>),
    /// Make, list and revoke the tokens of the message API
    #[command(subcommand)]
    Token(token::Command),
    /// Make, list and disable the operators of the console
    #[command(subcommand)]
    Operator(operator::Command),
    /// Store one notification
    Enqueue(Box<enqueue::Args>),
    /// Show the whole story of one notification, of a message, or of an operation
    Show(show::Args),
    /// List notifications, the newest first
    List(list::Args),
    /// List what is uncertain or unresolved, the least time left first
    Uncertain(list::UncertainArgs),
    /// How much is in which state, and how the providers do
    Stats(stats::Args),
    /// The same again and again
    Watch(stats::WatchArgs),
    /// What is wrong, and what to do about it
    Doctor(doctor::Args),
    /// Settle an uncertain notification, or send it once more
    Resolve(decide::ResolveArgs),
    /// Record what others say about attempts
    #[command(subcommand)]
    Evidence(evidence::Command),
    /// Send many again after an outage: plan it, look at it, run it
    #[command(subcommand)]
    Replay(replay::Command),
    /// Who decided what, when and why
    Audit(audit::Args),
    /// Withdraw a notification
    Cancel(decide::CancelArgs),
    /// Claim nothing of an account, for a provider, or at all
    Pause(decide::PauseArgs),
    /// End a pause
    Resume(decide::PauseArgs),
    /// About the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the completions of a shell
    Completions(manual::CompletionsArgs),
    /// Print the manual page
    Man(manual::ManArgs),
}

/// The commands about the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting in force, where it came from and the recovery terms, or everything that is wrong
    Check(config_check::Args),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// When it could not do what it was asked to; nothing was printed about it yet.
    pub fn run(self) -> anyhow::Result<Exit> {
        let purpose = match self.command {
            Command::Worker | Command::Run | Command::Config(_) => Purpose::Send,
            _ => Purpose::Other,
        };
        let sources = Sources::of_this_process(self.config.as_deref());
        let out = &mut output::Output::new();
        let command = match self.command {
            // It has settings of its own, and needs none of the others.
            Command::Submit(args) => {
                let caller = config::load_caller(&sources?)?;
                return in_runtime(submit::run(*args, caller, &mut std::io::stdin(), out));
            }
            Command::Completions(args) => return manual::completions(&args, out),
            Command::Man(args) => return manual::man(&args, out),
            command => command,
        };
        let loaded = sources.and_then(|sources| config::load(&sources, purpose));
        match command {
            Command::Config(ConfigCommand::Check(args)) => config_check::run(&args, loaded, out),
            Command::Demo(args) => in_runtime(demo::run(&args, out)),
            Command::Worker => in_runtime(worker::run(loaded?, &[Part::Worker])),
            Command::Api => in_runtime(worker::run(loaded?, &[Part::Api])),
            Command::Console => in_runtime(worker::run(loaded?, &[Part::Console])),
            Command::Run => in_runtime(worker::run(loaded?, &[Part::Api, Part::Console, Part::Worker])),
            // Answered above.
            Command::Submit(_) | Command::Completions(_) | Command::Man(_) => Ok(Exit::Usage),
            Command::Clean(args) => in_runtime(clean::run(&args, &loaded?, out)),
            Command::Erase(args) => in_runtime(erase::run(&args, &loaded?, out)),
            Command::Token(command) => in_runtime(token::run(&command, &loaded?, out)),
            Command::Operator(command) => in_runtime(operator::run(&command, &loaded?, out)),
            Command::Migrate => in_runtime(migrate::run(&loaded?, out)),
            Command::Enqueue(args) => in_runtime(enqueue::run(*args, &loaded?, &mut std::io::stdin(), out)),
            Command::Show(args) => in_runtime(show::run(&args, &loaded?, out)),
            Command::List(args) => in_runtime(list::run(&args, &loaded?, out)),
            Command::Uncertain(args) => in_runtime(list::run_uncertain(&args, &loaded?, out)),
            Command::Stats(args) => in_runtime(stats::run(&args, &loaded?, out)),
            Command::Watch(args) => in_runtime(stats::watch(&args, &loaded?, out)),
            Command::Doctor(args) => in_runtime(doctor::run(&args, &loaded?, out)),
            Command::Resolve(args) => in_runtime(decide::resolve(&args, &loaded?, out)),
            Command::Evidence(command) => in_runtime(evidence::run(&command, &loaded?, std::io::stdin(), out)),
            Command::Replay(command) => in_runtime(replay::run(&command, &loaded?, out)),
            Command::Audit(args) => in_runtime(audit::run(&args, &loaded?, out)),
            Command::Cancel(args) => in_runtime(decide::cancel(&args, &loaded?, out)),
            Command::Pause(args) => in_runtime(decide::pause(&args, false, &loaded?, out)),
            Command::Resume(args) => in_runtime(decide::pause(&args, true, &loaded?, out)),
        }
    }
}

/// Runs an async command to its end. What still runs then (a blocked name look-up, say) is not waited for.
fn in_runtime(command: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let ended = runtime.block_on(command);
    runtime.shutdown_background();
    ended
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_configuration_is_told_apart_from_other_failures() {
        let invalid = anyhow::Error::from(Invalid { problems: vec![] }).context("at start");
        assert_eq!(Exit::of_error(&invalid), Exit::Usage);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("the database is away")), Exit::Failure);
    }
}
