//! `outboxd submit`: stores a message through the API, once, however often it takes to know it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use humantime_serde::re::humantime;
use secrecy::SecretString;
use serde_json::json;

use super::Exit;
use crate::client::{Client, Draft, DraftError, Outcome};
use crate::config::Caller;
use crate::domain::operation::RequestKey;

/// The most that is read as a body, in octets: above what the API takes by default.
const BODY_MAX_OCTETS: u64 = 32 * 1024 * 1024;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        outboxd submit message.json --key order-17-confirmation --url https://api.example.org/v1/messages\n  \
        outboxd submit --resume                     # every draft whose outcome is not known\n  \
        outboxd submit --resume outboxd-drafts/019….draft\n\n\
        Ends with 0 confirmed, 3 rejected, 4 unconfirmed (the draft stays). docs/submit.md says what it does and why.")]
pub struct Args {
    /// The body of POST /v1/messages: a file, or - for standard input
    #[arg(default_value = "-", hide_default_value = true, conflicts_with = "resume")]
    file: PathBuf,
    /// The request key, made once for this intent [default: a fresh UUID]
    #[arg(long, conflicts_with = "resume", value_parser = key)]
    key: Option<RequestKey>,
    /// Go on with a draft; without a name, with every one in the directory of drafts
    #[arg(long, value_name = "DRAFT", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,
    /// Where the API is (client.url) [a draft keeps its own]
    #[arg(long)]
    url: Option<String>,
    /// A file with the token (client.token_file)
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Where drafts are kept (client.drafts)
    #[arg(long, value_name = "DIRECTORY")]
    drafts: Option<PathBuf>,
    /// How long to keep trying (client.deadline)
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    deadline: Option<Duration>,
    /// How often at most (client.tries)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    tries: Option<u16>,
    /// How long each attempt may take (client.try_timeout)
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    try_timeout: Option<Duration>,
    /// How old a draft may be when it is sent (client.window)
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    window: Option<Duration>,
    /// Keep the draft of a confirmed or rejected operation
    #[arg(long)]
    keep: bool,
    /// Answer in JSON, one line for each draft
    #[arg(long)]
    json: bool,
}

/// Submits, and says what is known at the end.
///
/// # Errors
/// When nothing could be sent: no draft could be saved, no token or address is there, or a draft is in use.
pub async fn run(args: Args, mut caller: Caller, input: &mut impl Read, out: &mut impl Write) -> anyhow::Result<Exit> {
    let limits = &mut caller.limits;
    limits.deadline = args.deadline.unwrap_or(limits.deadline);
    limits.tries = args.tries.unwrap_or(limits.tries);
    limits.try_timeout = args.try_timeout.unwrap_or(limits.try_timeout);
    limits.window = args.window.unwrap_or(limits.window);
    let token = token(&args, &caller)?;
    let client = Client::new(token, caller.limits.clone(), caller.allow_plaintext)?;
    let directory = args.drafts.clone().unwrap_or_else(|| caller.drafts.clone());
    let paths = match &args.resume {
        None => {
            let url = args.url.clone().unwrap_or_else(|| caller.url.clone());
            anyhow::ensure!(!url.is_empty(), "where the API is was not said: give --url, or set client.url");
            let body = body(&args.file, input)?;
            let key = match args.key.clone() {
                Some(key) => key,
                None => RequestKey::new(uuid::Uuid::now_v7().to_string())?,
            };
            let draft =
                Draft::create(&directory, &url, key, body).context("nothing was sent: the draft cannot be saved")?;
            return end(&client, draft, &args, out).await;
        }
        Some(Some(path)) => vec![path.clone()],
        Some(None) => Draft::list(&directory)?,
    };
    let mut worst = Exit::Success;
    for path in paths {
        let exit = match Draft::open(&path) {
            Ok(draft) => end(&client, draft, &args, out).await?,
            Err(error @ DraftError::InUse { .. }) if args.resume == Some(None) => {
                tracing::warn!(%error, "passed over");
                Exit::Unconfirmed
            }
            Err(error) => return Err(error.into()),
        };
        // What needs a look most is told: unconfirmed above rejected above confirmed.
        if exit as u8 > worst as u8 {
            worst = exit;
        }
    }
    Ok(worst)
}

async fn end(client: &Client, mut draft: Draft, args: &Args, out: &mut impl Write) -> anyhow::Result<Exit> {
    let outcome = client.submit(&mut draft).await?;
    let (key, path) = (draft.key().as_str().to_owned(), draft.path().to_owned());
    let resume = format!("outboxd submit --resume {}", path.display());
    let (exit, answer) = match &outcome {
        Outcome::Confirmed { status, body, replayed } => {
            let receipt: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
            (
                Exit::Success,
                json!({ "outcome": "confirmed", "key": key, "status": status, "replayed": replayed, "receipt": receipt }),
            )
        }
        Outcome::Rejected { status, code, detail } => (
            Exit::Refused,
            json!({ "outcome": "rejected", "key": key, "status": status, "code": code, "detail": detail }),
        ),
        Outcome::Unconfirmed { why, in_doubt, tries } => (
            Exit::Unconfirmed,
            json!({ "outcome": "unconfirmed", "key": key, "why": why, "in_doubt": in_doubt, "tries": tries, "draft": path, "resume": resume }),
        ),
    };
    if args.json {
        writeln!(out, "{answer}")?;
    } else {
        match &outcome {
            Outcome::Confirmed { body, replayed: false, .. } => writeln!(out, "confirmed: {body}")?,
            Outcome::Confirmed { body, replayed: true, .. } => {
                writeln!(out, "confirmed, stored by an earlier request: {body}")?
            }
            Outcome::Rejected { status: 0, detail, .. } => writeln!(out, "rejected: {detail}")?,
            Outcome::Rejected { status, code, detail } => writeln!(out, "rejected: {status} {code}: {detail}")?,
            Outcome::Unconfirmed { why, in_doubt, .. } => {
                let known = if *in_doubt { "it may be stored" } else { "none of this draft's attempts stored it" };
                writeln!(out, "unconfirmed: {known}; {why}\nthe draft stays; go on with\n  {resume}")?;
            }
        }
    }
    // Only what is known, and has been told, may go.
    out.flush()?;
    if exit != Exit::Unconfirmed && !args.keep {
        draft.remove()?;
    }
    Ok(exit)
}

fn token(args: &Args, caller: &Caller) -> anyhow::Result<SecretString> {
    match (args.token_file.as_ref(), &caller.token, &caller.token_file) {
        (Some(path), _, _) | (None, None, Some(path)) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("the token file {}", path.display()))?;
            Ok(text.trim().into())
        }
        (None, Some(token), _) => Ok(token.clone()),
        (None, None, None) => {
            bail!("there is no token: give --token-file, or set client.token_file or OUTBOXD__CLIENT__TOKEN")
        }
    }
}

/// The exact body, which has to be text in UTF-8 as JSON is (RFC 8259, 8.1).
fn body(file: &Path, input: &mut impl Read) -> anyhow::Result<String> {
    let mut octets = Vec::new();
    if file == Path::new("-") {
        input.take(BODY_MAX_OCTETS + 1).read_to_end(&mut octets).context("standard input")?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| file.display().to_string())?;
        opened.take(BODY_MAX_OCTETS + 1).read_to_end(&mut octets).with_context(|| file.display().to_string())?;
    }
    anyhow::ensure!(octets.len() as u64 <= BODY_MAX_OCTETS, "the body is over {BODY_MAX_OCTETS} octets; shorten it");
    String::from_utf8(octets).map_err(|_| anyhow::anyhow!("the body is not UTF-8, as JSON is; nothing was sent"))
}

fn key(text: &str) -> Result<RequestKey, String> {
    RequestKey::new(text).map_err(|problem| problem.to_string())
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| "is not a time such as 30s".to_owned())?;
    if time.is_zero() { Err("is nought".to_owned()) } else { Ok(time) }
}
