//! `outboxd enqueue`: stores one notification, from flags or as JSON from standard input.

use std::io::{Read, Write};

use anyhow::Context as _;
use sqlx::Connection as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::app;
use crate::config::Loaded;
use crate::store::enqueue::{EnqueueError, NewNotification, enqueue};

use super::Exit;

/// The most that is read from standard input, in bytes: the largest notification with its attachments in base64.
const INPUT_MAX_BYTES: u64 = 32 * 1024 * 1024;

/// The arguments. Prints the notification's id.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    outboxd enqueue --account acme --from shop@example.org --to jo@example.net --subject 'Hello' --text 'On its way.'\n  \
    outboxd enqueue --stdin < notification.json\n\n\
    docs/producers.md describes every field; a producer normally calls the SQL function outboxd.enqueue in its own transaction.")]
pub struct Args {
    /// Read a JSON object from standard input instead of flags; its fields are the parameters of outboxd.enqueue
    #[arg(long, conflicts_with_all = ["account", "from", "to", "subject", "text", "html"])]
    stdin: bool,
    /// The account that it belongs to
    #[arg(long, required_unless_present = "stdin", default_value = "", hide_default_value = true)]
    account: String,
    /// The address that it comes from
    #[arg(long, required_unless_present = "stdin", default_value = "", hide_default_value = true)]
    from: String,
    /// The address that it goes to
    #[arg(long, required_unless_present = "stdin", default_value = "", hide_default_value = true)]
    to: String,
    /// The subject
    #[arg(long, default_value = "", hide_default_value = true)]
    subject: String,
    /// The plain text
    #[arg(long)]
    text: Option<String>,
    /// The HTML
    #[arg(long)]
    html: Option<String>,
    /// The route [default: default]
    #[arg(long)]
    route: Option<String>,
    /// 0 (first) to 9 (last) among the account's own [default: 5]
    #[arg(long)]
    priority: Option<i32>,
    /// Not before this time, such as 2026-12-24T18:00:00+01:00
    #[arg(long, value_parser = parse_time)]
    not_before: Option<OffsetDateTime>,
    /// Not after this time
    #[arg(long, value_parser = parse_time)]
    expires_at: Option<OffsetDateTime>,
    /// The key of this intent: the same key and content give the same id
    #[arg(long)]
    dedup_key: Option<String>,
}

fn parse_time(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "give a time with its offset, such as 2026-12-24T18:00:00+01:00 (RFC 3339)".to_owned())
}

/// Stores the notification in a transaction of its own and prints its id once that has committed.
///
/// # Errors
/// With the field that is refused and the remedy, or when the database cannot be reached.
pub async fn run(args: Args, loaded: &Loaded, input: &mut impl Read, out: &mut impl Write) -> anyhow::Result<Exit> {
    let new = if args.stdin { from_json(input)? } else { from_flags(args) };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let mut tx = conn.begin().await?;
    let id = match enqueue(&mut tx, &new).await {
        Ok(id) => id,
        Err(refused @ (EnqueueError::Invalid { .. } | EnqueueError::KeyReused { .. })) => return Err(refused.into()),
        Err(error @ EnqueueError::Database(_)) => return Err(error).context("nothing was stored"),
    };
    tx.commit().await.context(
        "the commit was not acknowledged: whether it is stored is unknown; a second try with the same --dedup-key is safe",
    )?;
    writeln!(out, "{id}")?;
    Ok(Exit::Success)
}

fn from_json(input: &mut impl Read) -> anyhow::Result<NewNotification> {
    let mut text = String::new();
    input.take(INPUT_MAX_BYTES + 1).read_to_string(&mut text).context("standard input is not UTF-8 text")?;
    anyhow::ensure!(text.len() as u64 <= INPUT_MAX_BYTES, "standard input is over {INPUT_MAX_BYTES} bytes");
    // The path names the field: serde's own words only tell what was found there.
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(&text))
        .context("standard input is not a notification in JSON; docs/producers.md describes every field")
}

fn from_flags(args: Args) -> NewNotification {
    NewNotification {
        account_id: args.account,
        sender: args.from,
        recipient: args.to,
        subject: args.subject,
        body_text: args.text,
        body_html: args.html,
        route: args.route,
        priority: args.priority,
        not_before: args.not_before,
        expires_at: args.expires_at,
        dedup_key: args.dedup_key,
        ..NewNotification::default()
    }
}
