//! `outboxd evidence maillog`: what mail servers' logs prove.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use humantime_serde::re::humantime;
use time::{OffsetDateTime, UtcOffset};

use super::Exit;
use super::bounces::{self, BouncesArgs};
use super::decide::operator;
use crate::app;
use crate::config::Loaded;
use crate::evidence::follow::Clock;
use crate::evidence::maillog::{Reader, Summary};
use crate::evidence::position::{self, State};

/// The commands about evidence.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Read the log of Postfix or Exim and record what it proves
    Maillog(MaillogArgs),
    /// Read what came back to a mailbox and record what it proves
    Bounces(BouncesArgs),
}

/// The arguments of `maillog`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    outboxd evidence maillog /var/log/mail.log --provider primary\n  \
    journalctl -u postfix -o short-iso | outboxd evidence maillog - --provider primary\n  \
    outboxd evidence maillog mail.log.2.gz mail.log.1 mail.log --provider primary --complete\n  \
    outboxd evidence maillog /var/log/mail.log --provider primary --resume /var/lib/outboxd/maillog.json   # from cron\n\n\
    Reading the same lines again changes nothing. docs/evidence.md says what each line proves.")]
pub struct MaillogArgs {
    /// The logs, the oldest first, plain or gzip; - for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The provider whose log it is
    #[arg(long, value_name = "NAME", required_if_eq("complete", "true"))]
    provider: Option<String>,
    /// The logs hold every line of that provider between their first and last: what they do not show accepted, was not
    #[arg(long)]
    complete: bool,
    /// Go on where the last run with this file stopped, also when the log was rotated since
    #[arg(long, value_name = "FILE", conflicts_with = "complete")]
    resume: Option<PathBuf>,
    /// With --complete: how far inside the logs' time an attempt must have begun, for what is still on its way
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = humantime::parse_duration)]
    margin: std::time::Duration,
    /// The offset of times that tell none, such as +02:00
    #[arg(long, value_name = "OFFSET", default_value = "+00:00", value_parser = offset, allow_hyphen_values = true)]
    utc_offset: UtcOffset,
    /// The domain of the Message-IDs (mail.message_id_domain)
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Who records it [default: the user of the operating system]
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of them.
///
/// # Errors
/// When a log cannot be read or the database not written; what was recorded by then stays, and doing it again does the rest.
pub async fn run(
    command: &Command,
    loaded: &Loaded,
    mut input: impl Read + Send + 'static,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    match command {
        Command::Maillog(args) => maillog(args, loaded, input, out).await,
        Command::Bounces(args) => bounces::run(args, loaded, &mut input, out).await,
    }
}

async fn maillog(
    args: &MaillogArgs,
    loaded: &Loaded,
    input: impl Read + Send + 'static,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let configured =
        loaded.settings.providers.values().next().map(|provider| provider.identity.message_id_domain().to_owned());
    let Some(domain) = args.domain.clone().or(configured) else {
        bail!(
            "the domain of the Message-IDs is not known: give --domain, or configure mail.message_id_domain and a provider"
        );
    };
    let mut line = app::dsn(&loaded.settings.database)?.line();
    let state = match &args.resume {
        Some(path) => State::load(path).with_context(|| format!("--resume {}", path.display()))?,
        None => State::default(),
    };
    let clock = Clock::new(args.utc_offset, OffsetDateTime::now_utc());
    let who = operator(args.who.as_deref())?;
    let mut reader = Reader::new(&mut line, &domain, clock, state, args.provider.clone(), who);
    let mut input = Some(input);
    for file in &args.files {
        if file == Path::new("-") {
            let Some(input) = input.take() else { bail!("standard input can be read once only") };
            reader.read(&mut *position::plain(Box::new(input))?).await.context("standard input")?;
            continue;
        }
        let parts = reader.state.parts(file).with_context(|| file.display().to_string())?;
        if parts.lost {
            reader.lost();
        }
        // All are opened before one is read: rotation meanwhile changes names, and not what is open.
        let opened: Vec<_> = parts
            .parts
            .iter()
            .map(|part| position::open_at(part).with_context(|| part.path.display().to_string()))
            .collect::<anyhow::Result<_>>()?;
        for (part, (head, mut log)) in parts.parts.iter().zip(opened) {
            let name = || part.path.display().to_string();
            let read = reader.read(&mut *log).await.with_context(name)?;
            // The last one is the log itself.
            reader.state.note(file, &head, part.from + read);
        }
    }
    if let (true, Some(provider)) = (args.complete, &args.provider) {
        let margin = time::Duration::try_from(args.margin).context("--margin")?;
        reader.conclude(provider, margin).await?;
    }
    if let Some(path) = &args.resume {
        reader.state.save(path).with_context(|| format!("--resume {}", path.display()))?;
    }
    let summary = reader.end();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&summary)?)?;
    } else {
        tell(&summary, out)?;
    }
    Ok(Exit::Success)
}

fn tell(summary: &Summary, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{} lines: {} new pieces of evidence, {} known already, {} about mail that is not here",
        summary.lines, summary.new, summary.known, summary.unknown
    )?;
    if summary.not_accepted > 0 {
        writeln!(out, "{} attempts are not in the complete log: they were not accepted", summary.not_accepted)?;
    }
    for (moved, count) in &summary.moved {
        writeln!(out, "{count} from {moved}")?;
    }
    if summary.contradictions > 0 {
        writeln!(out, "{} disagree with the record: see `outboxd list` and `outboxd show`", summary.contradictions)?;
    }
    if summary.lost > 0 {
        writeln!(out, "{} logs were rotated away unread: read the rotated files once, by their names", summary.lost)?;
    }
    if summary.forgotten > 0 {
        writeln!(out, "{} queue ids were lost sight of: read the log in smaller parts", summary.forgotten)?;
    }
    Ok(())
}

fn offset(text: &str) -> Result<UtcOffset, String> {
    let format = time::macros::format_description!("[offset_hour sign:mandatory]:[offset_minute]");
    UtcOffset::parse(text, format).map_err(|_| "is not an offset such as +02:00".to_owned())
}
