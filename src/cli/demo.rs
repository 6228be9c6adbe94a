//! `outboxd demo`: real parts, every fault at once, and a proof from both sides. Needs no configuration.

use std::io::Write;

use crate::sandbox::demo::{Look, Options, run as perform};

use super::Exit;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What faults and messages are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many messages the shop writes
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// Leave the database for a look, and say how
    #[arg(long)]
    keep: bool,
    /// Show the outcome only
    #[arg(long)]
    quiet: bool,
}

/// Runs the demo; ends with [`Exit::Failure`] if the proof fails.
///
/// # Errors
/// When a part cannot be started or ends by itself.
pub async fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<Exit> {
    let options = Options {
        seed: args.seed,
        messages: usize::try_from(args.messages)?,
        keep: args.keep,
        look: Look::of_standard_output(args.quiet),
    };
    Ok(if perform(&options, out).await? { Exit::Success } else { Exit::Failure })
}
