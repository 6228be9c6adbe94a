//! `outboxd show`: the whole story of a notification, by its id, its message's, or its operation's key.

use std::io::Write;

use sqlx::postgres::PgConnection;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use crate::app;
use crate::config::Loaded;
use crate::domain::ids::NotificationId;
use crate::domain::operation::CREATE_MESSAGE;
use crate::store::story::{Story, of_message, of_operation, story};

use super::Exit;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  outboxd show 01a230e5-9f38-7878-abaa-63e052288578\n  outboxd show --account acme --key order-17"
)]
pub struct Args {
    /// The id of a notification, or of a message that the API stored
    #[arg(required_unless_present = "key")]
    id: Option<Uuid>,
    /// The key of an operation
    #[arg(long, value_name = "KEY", requires = "account", conflicts_with = "id")]
    key: Option<String>,
    /// With --key: the account
    #[arg(long, value_name = "ACCOUNT", requires = "key")]
    account: Option<String>,
    /// With --key: the operation's type
    #[arg(long, value_name = "NAME", requires = "key", default_value = CREATE_MESSAGE)]
    operation: String,
    /// Answer in JSON: the story, or a list of stories where a message or an operation was asked for
    #[arg(long)]
    json: bool,
}

/// Prints the story, or the stories.
///
/// # Errors
/// When the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    if let Some(id) = args.id {
        if let Some(story) = story(&mut conn, NotificationId(id)).await? {
            if args.json {
                serde_json::to_writer_pretty(&mut *out, &story)?;
                writeln!(out)?;
            } else {
                print(&story, out)?;
            }
            return Ok(Exit::Success);
        }
        let Some(ids) = of_message(&mut conn, id).await? else {
            anyhow::bail!("there is no notification or message {id}; its transaction may not have committed");
        };
        return stories(&mut conn, &format!("message {id}"), &ids, args.json, out).await;
    }
    let (account, key) = (args.account.as_deref().unwrap_or_default(), args.key.as_deref().unwrap_or_default());
    let what = format!("operation {} {key} of {account}", args.operation);
    let Some(ids) = of_operation(&mut conn, account, &args.operation, key).await? else {
        anyhow::bail!(
            "there is no receipt of {what}: it was never stored, is still under way, was rolled back, or retention has removed it"
        );
    };
    stories(&mut conn, &what, &ids, args.json, out).await
}

async fn stories(
    conn: &mut PgConnection,
    what: &str,
    ids: &[Uuid],
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(story(conn, NotificationId(*id)).await?);
    }
    if json {
        serde_json::to_writer_pretty(&mut *out, &found)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let removed = ids.len() - found.len();
    let removed = if removed == 0 { String::new() } else { format!(", of which retention has removed {removed}") };
    writeln!(out, "{what}: {} notifications{removed}", ids.len())?;
    for story in &found {
        writeln!(out)?;
        print(story, out)?;
    }
    Ok(Exit::Success)
}

fn print(story: &Story, out: &mut impl Write) -> std::io::Result<()> {
    let n = &story.notification;
    writeln!(out, "notification {}", n.id)?;
    let reason = n.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    writeln!(out, "  state      {}{reason} since {}", n.state, at(n.changed_at))?;
    writeln!(out, "  what next  {}", n.what_next())?;
    writeln!(out, "  account    {}", n.account_id)?;
    writeln!(out, "  from       {}", n.sender)?;
    writeln!(out, "  to         {}", n.recipient)?;
    writeln!(out, "  subject    {}", n.subject)?;
    writeln!(out, "  route      {}, priority {}", n.route, n.priority)?;
    if let Some(key) = &n.dedup_key {
        writeln!(out, "  dedup key  {key}")?;
    }
    if let Some(message) = &n.message_ref {
        writeln!(out, "  message    {message}")?;
    }
    if let Some(expires) = n.expires_at {
        writeln!(out, "  expires    {}", at(expires))?;
    }
    if n.duplicate_possible {
        writeln!(out, "  ATTENTION  the recipient may get it twice")?;
    }
    if n.contradiction {
        writeln!(out, "  ATTENTION  evidence and record disagree")?;
    }
    writeln!(out)?;
    for event in story.timeline() {
        writeln!(out, "  {:24}  {}", at(event.at), event.words)?;
    }
    Ok(())
}

/// To the millisecond, in UTC.
fn at(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    time.to_offset(UtcOffset::UTC).format(form).unwrap_or_else(|_| time.to_string())
}
