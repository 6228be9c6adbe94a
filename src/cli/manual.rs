//! `outboxd completions` and `outboxd man`: what a shell and `man` want to know of the command line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Exit};

/// The arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  outboxd completions bash > /usr/share/bash-completion/completions/outboxd")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The arguments of `man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  outboxd man | man -l -\n  outboxd man --dir /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Write a page for each command into this directory, instead of the one for all to standard output
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// Prints the completions.
///
/// # Errors
/// When they cannot be written.
pub fn completions(args: &CompletionsArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    // Into memory first: the generator takes a failed write for a reason to panic.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "outboxd", &mut text);
    out.write_all(&text)?;
    Ok(Exit::Success)
}

/// Prints the manual page, or writes one for each command.
///
/// # Errors
/// When they cannot be written.
pub fn man(args: &ManArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    match &args.dir {
        None => clap_mangen::Man::new(Cli::command()).render(out)?,
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
            clap_mangen::generate_to(Cli::command(), dir).with_context(|| dir.display().to_string())?;
        }
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_and_the_manual_know_every_command() {
        let commands: Vec<String> =
            Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            completions(&CompletionsArgs { shell }, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(commands.iter().all(|command| text.contains(command)), "{shell}");
        }
        let directory = tempfile::TempDir::new().unwrap();
        man(&ManArgs { dir: Some(directory.path().to_owned()) }, &mut Vec::new()).unwrap();
        for command in commands {
            assert!(directory.path().join(format!("outboxd-{command}.1")).is_file(), "{command}");
        }
    }
}
