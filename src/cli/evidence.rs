//! `outboxd evidence maillog`: what mail servers' logs prove.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use humantime_serde::re::humantime;
use time::{OffsetDateTime, UtcOffset};

use super::Exit;
use super::decide::operator;
use crate::app;
use crate::config::Loaded;
use crate::evidence::maillog::{Reader, Summary};
use crate::evidence::postfix::Follower;

/// How a file that gzip made begins (RFC 1952, 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The commands about evidence.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Read Postfix's log and record what it proves
    Maillog(MaillogArgs),
}

/// The arguments of `maillog`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    outboxd evidence maillog /var/log/mail.log --provider primary\n  \
    journalctl -u postfix -o short-iso | outboxd evidence maillog - --provider primary\n  \
    outboxd evidence maillog mail.log.2.gz mail.log.1 mail.log --provider primary --complete\n\n\
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
    input: impl Read + Send + 'static,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let Command::Maillog(args) = command;
    let configured =
        loaded.settings.providers.values().next().map(|provider| provider.identity.message_id_domain().to_owned());
    let Some(domain) = args.domain.clone().or(configured) else {
        bail!(
            "the domain of the Message-IDs is not known: give --domain, or configure mail.message_id_domain and a provider"
        );
    };
    let mut line = app::dsn(&loaded.settings.database)?.line();
    let follower = Follower::new(&domain, args.utc_offset, OffsetDateTime::now_utc());
    let mut reader = Reader::new(&mut line, follower, args.provider.clone(), operator(args.who.as_deref())?);
    let mut input = Some(input);
    for file in &args.files {
        let log: Box<dyn Read + Send> = if file == Path::new("-") {
            match input.take() {
                Some(input) => Box::new(input),
                None => bail!("standard input can be read once only"),
            }
        } else {
            Box::new(File::open(file).with_context(|| file.display().to_string())?)
        };
        let mut log = plain(log).with_context(|| file.display().to_string())?;
        reader.read(&mut *log).await.with_context(|| file.display().to_string())?;
    }
    if let (true, Some(provider)) = (args.complete, &args.provider) {
        let margin = time::Duration::try_from(args.margin).context("--margin")?;
        reader.conclude(provider, margin).await?;
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
    if summary.forgotten > 0 {
        writeln!(out, "{} queue ids were lost sight of: read the log in smaller parts", summary.forgotten)?;
    }
    Ok(())
}

/// The log as it was before gzip had it.
fn plain(log: Box<dyn Read + Send>) -> std::io::Result<Box<dyn BufRead + Send>> {
    let mut log = BufReader::new(log);
    let gzip = log.fill_buf()?.starts_with(&GZIP);
    // Rotated logs are often several gzip members in one file.
    Ok(if gzip { Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(log))) } else { Box::new(log) })
}

fn offset(text: &str) -> Result<UtcOffset, String> {
    let format = time::macros::format_description!("[offset_hour sign:mandatory]:[offset_minute]");
    UtcOffset::parse(text, format).map_err(|_| "is not an offset such as +02:00".to_owned())
}
