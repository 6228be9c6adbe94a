//! The command line: one file a subcommand. A command reads its arguments, calls what does the work, and says what came out.
//!
//! A new command is a file here and a variant of [`Command`].

pub mod config_check;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Invalid, Loaded, Sources};

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked to.
    Success = 0,
    /// It could not; standard error says why.
    Failure = 1,
    /// The command line or the configuration is wrong: trying again changes nothing. Also what clap ends with.
    Usage = 2,
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
        if error.is::<Invalid>() { Self::Usage } else { Self::Failure }
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
    /// About the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
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
        match &self.command {
            Command::Config(ConfigCommand::Check(args)) => config_check::run(args, self.load(), &mut std::io::stdout()),
        }
    }

    /// The settings that this process is to run on.
    fn load(&self) -> Result<Loaded, Invalid> {
        Sources::of_this_process(self.config.as_deref()).and_then(|sources| config::load(&sources))
    }
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
