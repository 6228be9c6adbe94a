//! `outboxd resolve`, `cancel`, `pause` and `resume`: what a person decides, with the reason, on record.

use std::io::Write;

use serde_json::json;

use super::Exit;
use crate::app;
use crate::config::Loaded;
use crate::domain::ids::NotificationId;
use crate::store::decide::{self, Decided, Decider, Pausable, Resolution};

/// Who decides, and why.
#[derive(Debug, clap::Args)]
pub struct By {
    /// Why, in your own words: it stays on record
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// Who decides [default: the user of the operating system]
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    who: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The arguments of `resolve`.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("resolution").required(true).args(["sent", "not_sent", "resend"]),
    after_help = "Examples:\n  \
        outboxd resolve ID --sent --reason 'in the provider'\"'\"'s log as 4F1'\n  \
        outboxd resolve ID --not-sent --reason 'the provider has no trace of it'\n  \
        outboxd resolve ID --resend --reason 'a second copy does no harm'"
)]
pub struct ResolveArgs {
    /// The notification's id
    id: NotificationId,
    /// It was accepted: it is sent
    #[arg(long)]
    sent: bool,
    /// It was not accepted: it is tried again
    #[arg(long)]
    not_sent: bool,
    /// With --not-sent: it is not tried again
    #[arg(long, requires = "not_sent")]
    give_up: bool,
    /// Nobody knows: send it once more, although it may then arrive twice
    #[arg(long)]
    resend: bool,
    /// With --resend: also where a provider is known to have taken it
    #[arg(long, requires = "resend")]
    duplicate: bool,
    #[command(flatten)]
    by: By,
}

/// The arguments of `cancel`.
#[derive(Debug, clap::Args)]
pub struct CancelArgs {
    /// The notification's id
    id: NotificationId,
    #[command(flatten)]
    by: By,
}

/// The arguments of `pause` and `resume`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["all", "provider", "account"]))]
pub struct PauseArgs {
    /// Everything
    #[arg(long)]
    all: bool,
    /// One provider
    #[arg(long, value_name = "NAME", value_parser = name)]
    provider: Option<String>,
    /// One account
    #[arg(long, value_name = "ACCOUNT", value_parser = name)]
    account: Option<String>,
    #[command(flatten)]
    by: By,
}

impl By {
    /// The decider; the name of the operating system's user is taken where none is given.
    pub(super) fn decider(&self) -> anyhow::Result<(String, &str)> {
        Ok((operator(self.who.as_deref())?, self.reason.as_str()))
    }
}

/// Who is at the terminal.
pub(super) fn operator(named: Option<&str>) -> anyhow::Result<String> {
    match named {
        Some(name) => Ok(name.to_owned()),
        None => {
            whoami::username().map_err(|error| anyhow::anyhow!("who decides is not known ({error}): give --as NAME"))
        }
    }
}

/// Settles an uncertain notification.
///
/// # Errors
/// When the database fails.
pub async fn resolve(args: &ResolveArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let resolution = if args.sent {
        Resolution::Sent
    } else if args.not_sent {
        Resolution::NotSent { give_up: args.give_up }
    } else {
        Resolution::Resend { duplicate: args.duplicate }
    };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let (who, reason) = args.by.decider()?;
    let decided = decide::resolve(&mut conn, args.id, resolution, &Decider { who: &who, reason }).await?;
    tell(args.id, &decided, args.by.json, out)
}

/// Withdraws a notification.
///
/// # Errors
/// When the database fails.
pub async fn cancel(args: &CancelArgs, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    let (who, reason) = args.by.decider()?;
    let decided = decide::cancel(&mut conn, args.id, &Decider { who: &who, reason }).await?;
    tell(args.id, &decided, args.by.json, out)
}

fn tell(id: NotificationId, decided: &Decided, json: bool, out: &mut impl Write) -> anyhow::Result<Exit> {
    let (exit, answer, words) = match decided {
        Decided::Unknown => (
            Exit::Refused,
            json!({ "id": id, "done": false, "why": "there is no such notification" }),
            format!("there is no notification {id}"),
        ),
        Decided::Refused { state, why } => (
            Exit::Refused,
            json!({ "id": id, "done": false, "state": state, "why": why }),
            format!("{id} is {state}: {why}; nothing was changed"),
        ),
        Decided::Done { before, after } => (
            Exit::Success,
            json!({ "id": id, "done": true, "before": before, "after": after }),
            format!("{id} was {before} and is {after}; the decision is on record"),
        ),
    };
    if json {
        writeln!(out, "{answer}")?
    } else {
        writeln!(out, "{words}")?
    }
    Ok(exit)
}

/// Pauses or, with `resume`, ends a pause.
///
/// # Errors
/// When the database fails.
pub async fn pause(args: &PauseArgs, resume: bool, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let what = match (&args.provider, &args.account) {
        (Some(name), _) => Pausable::Provider(name.clone()),
        (None, Some(name)) => Pausable::Account(name.clone()),
        (None, None) => Pausable::All,
    };
    let named = match &what {
        Pausable::All => "everything".to_owned(),
        Pausable::Provider(name) => format!("provider {name}"),
        Pausable::Account(name) => format!("account {name}"),
    };
    let mut conn = app::connect(&loaded.settings.database).await?;
    let (who, reason) = args.by.decider()?;
    let decider = Decider { who: &who, reason };
    let (changed, words) = if resume {
        let changed = decide::resume(&mut conn, &what, &decider).await?;
        (changed, if changed { format!("{named} is claimed again") } else { format!("{named} was not paused") })
    } else {
        let changed = decide::pause(&mut conn, &what, &decider).await?;
        let done = format!("{named} is paused: nothing new is claimed, what is under way ends");
        (changed, if changed { done } else { format!("{named} was paused already") })
    };
    if args.by.json {
        writeln!(out, "{}", json!({ "what": named, "changed": changed }))?
    } else {
        writeln!(out, "{words}")?
    }
    Ok(Exit::Success)
}

fn reason(text: &str) -> Result<String, String> {
    bounded(text, 2_000)
}

fn name(text: &str) -> Result<String, String> {
    bounded(text, 200)
}

fn bounded(text: &str, most: usize) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.len() > most || text.contains('\0') {
        return Err(format!("is empty, longer than {most} octets, or has a NUL"));
    }
    Ok(text.to_owned())
}
