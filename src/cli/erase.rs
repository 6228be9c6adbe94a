//! `outboxd erase`: erases one account's content, and keeps its keys taken.

use std::io::Write;

use uuid::Uuid;

use super::Exit;
use crate::app;
use crate::config::Loaded;
use crate::store::erase::Erased;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It cannot be undone. docs/retention.md says what is erased, what stays, and what backups keep."
)]
pub struct Args {
    /// The account
    #[arg(long)]
    account: String,
    /// Really do it
    #[arg(long, required = true)]
    yes: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Erases all that the account has at this time; ends with [`Exit::Refused`] where something is under way and stays.
///
/// # Errors
/// When the database cannot be reached; what was erased by then stays erased, and doing it again does the rest.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut line = app::dsn(&loaded.settings.database)?.line();
    let mut all = Erased::default();
    // Receipts first: from then on a retry finds its key refused, not its message gone.
    loop {
        let erased = line.erase_receipts(&args.account).await?;
        all.receipts += erased;
        if erased == 0 {
            break;
        }
    }
    let mut after = Uuid::nil();
    while let (erased, Some(last)) = line.erase_messages(&args.account, after).await? {
        all.messages += erased;
        after = last;
    }
    after = Uuid::nil();
    while let (erased, Some(last)) = line.erase_notifications(&args.account, after).await? {
        all.cancelled += erased.cancelled;
        all.notifications += erased.notifications;
        all.under_way += erased.under_way;
        after = last;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&all)?)?;
    } else {
        let Erased { cancelled, notifications, messages, receipts, under_way } = all;
        writeln!(
            out,
            "erased {notifications} notifications ({cancelled} of them cancelled first), {messages} messages and {receipts} receipts"
        )?;
        if under_way > 0 {
            writeln!(
                out,
                "{under_way} notifications are under way and were left: run it again when their leases are over"
            )?;
        }
    }
    Ok(if all.under_way > 0 { Exit::Refused } else { Exit::Success })
}
