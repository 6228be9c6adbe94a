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
use crate::store::story::{
    Attempt, Decision, Evidence, Notification, Operation, ReplayItem, Story, of_message, of_operation, story,
};

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
    writeln!(out, "  what next  {}", what_next(n))?;
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
    for (time, words) in timeline(story) {
        writeln!(out, "  {:24}  {words}", at(time))?;
    }
    Ok(())
}

/// All that happened, by time: from the operation to the last decision.
fn timeline(story: &Story) -> Vec<(OffsetDateTime, String)> {
    let mut events = Vec::new();
    if let Some(operation) = &story.operation {
        let Operation { message_id, operation: kind, request_key, created_at, receipt_status, .. } = operation;
        let receipt =
            receipt_status.map_or("retention has removed its receipt".to_owned(), |status| format!("receipt {status}"));
        events.push((*created_at, format!("operation {kind} {request_key}: {receipt}, message {message_id}")));
    }
    events.push((story.notification.created_at, "stored".to_owned()));
    for attempt in &story.attempts {
        of_attempt(attempt, &mut events);
    }
    for evidence in &story.evidence {
        let Evidence { attempt_number, kind, proves, source, reference, recorded_by, .. } = evidence;
        let words = format!(
            "evidence about attempt {attempt_number}: {proves} ({kind} from {source}, {reference}, recorded by {recorded_by})"
        );
        events.push((evidence.received_at, words));
    }
    for decision in &story.decisions {
        let state = |snapshot: &Option<serde_json::Value>| {
            let state = snapshot.as_ref().and_then(|snapshot| snapshot["state"].as_str());
            state.unwrap_or_default().to_owned()
        };
        let Decision { decided_by, action, reason, before, after, .. } = decision;
        let words = format!("{decided_by} decided: {action}, {} to {} ({reason})", state(before), state(after));
        events.push((decision.decided_at, words));
    }
    for item in &story.replays {
        let ReplayItem { replay_id, planned_by, reason, class, outcome, .. } = item;
        events.push((item.planned_at, format!("planned in replay {replay_id} by {planned_by} as {class} ({reason})")));
        if let (Some(done), Some(outcome)) = (item.done_at, outcome) {
            events.push((done, format!("{} by replay {replay_id}", outcome.replace('_', " "))));
        }
    }
    // Stable: what happened at one time stays in the order in which it must have.
    events.sort_by_key(|(time, _)| *time);
    events
}

fn of_attempt(attempt: &Attempt, events: &mut Vec<(OffsetDateTime, String)>) {
    let Attempt { number, provider, worker, fence, .. } = attempt;
    let replay = attempt.replay_id.map(|replay| format!(", for replay {replay}")).unwrap_or_default();
    events.push((
        attempt.claimed_at,
        format!("attempt {number}: claimed by {worker} for {provider}, fence {fence}{replay}"),
    ));
    if let Some(begun) = attempt.begun_at {
        events.push((begun, format!("attempt {number}: begun, from here on the body may have left")));
    }
    let (Some(ended), Some(outcome), Some(phase)) = (attempt.ended_at, &attempt.outcome, &attempt.phase) else {
        return;
    };
    let reply =
        attempt.reply_code.map(|code| format!(": {code} {}", attempt.reply_text.as_deref().unwrap_or_default()));
    let error = attempt.error.as_ref().map(|error| format!(": {error}"));
    let counted = if attempt.counted { "" } else { " (no try used up)" };
    let reply = reply.unwrap_or_default();
    let words =
        format!("attempt {number}: {outcome} at {phase}{}{}{counted}", reply.trim_end(), error.unwrap_or_default());
    // What a server said cannot steer a terminal.
    events.push((ended, words.chars().map(|c| if c.is_control() { '?' } else { c }).collect()));
}

/// What happens to it by itself from here on.
fn what_next(n: &Notification) -> String {
    let until = |time: Option<OffsetDateTime>| time.map(at).unwrap_or_default();
    match n.state.as_str() {
        "pending" if n.doubt_since.is_some() => {
            format!(
                "to be resent in the dedup scope {} until {}",
                n.doubt_scope.as_deref().unwrap_or_default(),
                until(n.resend_until)
            )
        }
        "pending" => format!("to be sent, due {}", until(n.due_at)),
        "claimed" | "transmitting" => {
            format!(
                "a worker ({}) is at it; its lease runs until {}",
                n.worker.as_deref().unwrap_or_default(),
                until(n.lease_until)
            )
        }
        "uncertain" => match n.resend_at {
            Some(resend) => {
                format!("to be resent at {} where that is still safe; evidence settles it before", at(resend))
            }
            None => format!(
                "waits for evidence until {}, then for a person; it is not resent by itself",
                until(n.doubt_until)
            ),
        },
        "unresolved" => "waits for a person: it may have been accepted".to_owned(),
        "failed" => "nothing: known not to have been accepted, and given up".to_owned(),
        "sent" => "nothing: the provider took responsibility".to_owned(),
        "bounced" => "nothing: it was taken and came back".to_owned(),
        _ => "nothing".to_owned(),
    }
}

/// To the millisecond, in UTC.
fn at(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    time.to_offset(UtcOffset::UTC).format(form).unwrap_or_else(|_| time.to_string())
}
