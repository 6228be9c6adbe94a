//! Parse, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use outboxd::cli::{Cli, Exit};

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(exit) => exit.into(),
        Err(error) => {
            let exit = Exit::of_error(&error);
            if exit != Exit::Unread {
                // If standard error is gone, the exit code still tells.
                let _ = writeln!(std::io::stderr(), "outboxd: {error:#}");
            }
            exit.into()
        }
    }
}
