//! `outboxd show ID`: the whole story of one notification.

use std::io::Write;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::app;
use crate::config::Loaded;
use crate::domain::ids::NotificationId;
use crate::store::story::{Attempt, Evidence, Notification, Story, story};

use super::Exit;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The notification's id
    id: NotificationId,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Prints the story.
///
/// # Errors
/// When there is no such notification or the database cannot be read.
pub async fn run(args: &Args, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let Some(story) = story(&mut conn, args.id).await? else {
        anyhow::bail!("there is no notification {}; its transaction may not have committed", args.id);
    };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &story)?;
        writeln!(out)?;
    } else {
        print(&story, out)?;
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
    writeln!(out, "\n  {}  stored", at(n.created_at))?;
    for attempt in &story.attempts {
        print_attempt(attempt, out)?;
        for evidence in story.evidence.iter().filter(|evidence| evidence.attempt_number == attempt.number) {
            print_evidence(evidence, out)?;
        }
    }
    Ok(())
}

fn print_attempt(attempt: &Attempt, out: &mut impl Write) -> std::io::Result<()> {
    let Attempt { number, provider, worker, fence, .. } = attempt;
    writeln!(out, "  {}  attempt {number}: claimed by {worker} for {provider}, fence {fence}", at(attempt.claimed_at))?;
    if let Some(begun) = attempt.begun_at {
        writeln!(out, "  {}    begun: from here on the body may have left", at(begun))?;
    }
    let (Some(ended), Some(outcome), Some(phase)) = (attempt.ended_at, &attempt.outcome, &attempt.phase) else {
        return writeln!(out, "  {:24}    still running", "");
    };
    let reply = attempt.reply_code.map(|code| {
        format!(": {code} {}", attempt.reply_text.as_deref().unwrap_or_default())
    });
    let error = attempt.error.as_ref().map(|error| format!(": {error}"));
    let counted = if attempt.counted { "" } else { " (no try used up)" };
    writeln!(
        out,
        "  {}    {outcome} at {phase}{}{}{counted}",
        at(ended),
        reply.unwrap_or_default().trim_end(),
        error.unwrap_or_default()
    )
}

fn print_evidence(evidence: &Evidence, out: &mut impl Write) -> std::io::Result<()> {
    let Evidence { kind, proves, source, reference, recorded_by, .. } = evidence;
    writeln!(
        out,
        "  {}    evidence: {proves} ({kind} from {source}, {reference}, recorded by {recorded_by})",
        at(evidence.received_at)
    )
}

/// What happens to it by itself from here on.
fn what_next(n: &Notification) -> String {
    let until = |time: Option<OffsetDateTime>| time.map(at).unwrap_or_default();
    match n.state.as_str() {
        "pending" if n.doubt_since.is_some() => {
            format!("to be resent in the dedup scope {} until {}", n.doubt_scope.as_deref().unwrap_or_default(), until(n.resend_until))
        }
        "pending" => format!("to be sent, due {}", until(n.due_at)),
        "claimed" | "transmitting" => {
            format!("a worker ({}) is at it; its lease runs until {}", n.worker.as_deref().unwrap_or_default(), until(n.lease_until))
        }
        "uncertain" => match n.resend_at {
            Some(resend) => format!("to be resent at {} where that is still safe; evidence settles it before", at(resend)),
            None => format!("waits for evidence until {}, then for a person; it is not resent by itself", until(n.doubt_until)),
        },
        "unresolved" => "waits for a person: it may have been accepted".to_owned(),
        "failed" => "nothing: known not to have been accepted, and given up".to_owned(),
        "sent" => "nothing: the provider took responsibility".to_owned(),
        "bounced" => "nothing: it was taken and came back".to_owned(),
        _ => "nothing".to_owned(),
    }
}

fn at(time: OffsetDateTime) -> String {
    let whole = time.replace_millisecond(time.millisecond()).unwrap_or(time);
    whole.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}
