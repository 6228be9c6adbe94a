//! `outboxd evidence bounces`: what came back, from files, maildirs and IMAP.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use mail_parser::mailbox::mbox::MessageIterator;
use secrecy::SecretString;

use super::Exit;
use super::decide::operator;
use crate::app;
use crate::client::imap::{Access, DEFAULT_PORT, Mailbox};
use crate::config::Loaded;
use crate::evidence::bounce::Ours;
use crate::evidence::bounces::{MESSAGE_MAX_OCTETS, Recorder, Summary, mark, unread};

/// How a mailbox in one file begins (RFC 4155).
const MBOX: &[u8] = b"From ";

/// The arguments of `bounces`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    outboxd evidence bounces /var/mail/bounces/Maildir --mark\n  \
    outboxd evidence bounces --imap imaps://mail.example.com/INBOX --username bounces --password-file /run/secrets/imap --mark\n  \
    outboxd evidence bounces - < one-message.eml      # from a mail server's pipe\n\n\
    Reading the same message again changes nothing. docs/evidence.md says what each report proves.")]
pub struct BouncesArgs {
    /// Messages, mboxes or maildirs; - for one message from standard input
    #[arg(required_unless_present = "imap")]
    paths: Vec<PathBuf>,
    /// A mailbox to read over IMAP, such as imaps://mail.example.com/INBOX (port 993 unless it names one)
    #[arg(long, value_name = "URL", requires = "username", requires = "password_file")]
    imap: Option<String>,
    /// Who reads it
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// A file with the password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Certificates in PEM to trust besides the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Mark what was read as read (maildir, IMAP), so that it is not read again
    #[arg(long)]
    mark: bool,
    /// The provider through which the mail went
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// The domain of the Message-IDs [default: mail.message_id_domain]
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// The address that bounces come to, with {id} in it [default: each provider's bounce_address]
    #[arg(long, value_name = "ADDRESS")]
    bounce_address: Option<String>,
    /// Who records it [default: the user of the operating system]
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Reads all of them.
///
/// # Errors
/// When a mailbox cannot be read or the database not written; what was recorded by then stays, and doing it again does the rest.
pub async fn run(
    args: &BouncesArgs,
    loaded: &Loaded,
    input: &mut impl Read,
    out: &mut impl Write,
) -> anyhow::Result<Exit> {
    let ours = ours(args, loaded)?;
    let mut line = app::dsn(&loaded.settings.database)?.line();
    let mut recorder = Recorder::new(&mut line, ours, args.provider.clone(), operator(args.who.as_deref())?);
    for path in &args.paths {
        let name = || path.display().to_string();
        if path == Path::new("-") {
            let mut octets = Vec::new();
            input.take(MESSAGE_MAX_OCTETS as u64 + 1).read_to_end(&mut octets).context("standard input")?;
            ensure!(
                octets.len() <= MESSAGE_MAX_OCTETS,
                "standard input: a message is longer than {MESSAGE_MAX_OCTETS} octets"
            );
            recorder.message(&octets).await?;
        } else if path.is_dir() {
            maildir(path, args.mark, &mut recorder).await.with_context(name)?;
        } else {
            file(path, &mut recorder).await.with_context(name)?;
        }
    }
    if let Some(url) = &args.imap {
        imap(&access(url, args)?, args.mark, &mut recorder).await.context("--imap")?;
    }
    let summary = &recorder.summary;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(summary)?)?;
    } else {
        tell(summary, out)?;
    }
    Ok(Exit::Success)
}

/// How mail of ours is known, from the command line or the configuration.
fn ours(args: &BouncesArgs, loaded: &Loaded) -> anyhow::Result<Ours> {
    let identities: Vec<_> = loaded.settings.providers.values().map(|provider| &provider.identity).collect();
    let domains = match &args.domain {
        Some(domain) => vec![domain.clone()],
        None => identities.iter().map(|identity| identity.message_id_domain().to_owned()).collect(),
    };
    let templates: Vec<&str> = match &args.bounce_address {
        Some(template) => vec![template],
        None => identities.iter().filter_map(|identity| identity.bounce_address()).collect(),
    };
    let mut addresses = Vec::new();
    for template in templates {
        let Some((before, after)) = template.split_once("{id}") else {
            bail!("--bounce-address has no {{id}}: give one such as bounce+{{id}}@bounces.example.com")
        };
        addresses.push((before.to_owned(), after.to_owned()));
    }
    ensure!(
        !domains.is_empty() || !addresses.is_empty(),
        "how mail of ours is known is not said: give --domain or --bounce-address, or configure mail.message_id_domain and a provider"
    );
    Ok(Ours { domains, addresses })
}

async fn maildir(path: &Path, marking: bool, recorder: &mut Recorder<'_>) -> anyhow::Result<()> {
    for message in unread(path).context("it is no maildir: it needs the folders new and cur")? {
        // Another reader may have moved it meanwhile.
        let Some(octets) = message_in(&message)? else {
            recorder.summary.passed_over += 1;
            continue;
        };
        recorder.message(&octets).await?;
        if marking {
            match mark(path, &message) {
                // Another reader has moved it: it is recorded all the same.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                marked => marked?,
            }
        }
    }
    Ok(())
}

/// A message; `None` where it is gone or too long.
fn message_in(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.metadata()?.len() > MESSAGE_MAX_OCTETS as u64 {
        return Ok(None);
    }
    let mut octets = Vec::new();
    file.take(MESSAGE_MAX_OCTETS as u64).read_to_end(&mut octets)?;
    Ok(Some(octets))
}

/// One message, or an mbox.
async fn file(path: &Path, recorder: &mut Recorder<'_>) -> anyhow::Result<()> {
    let mut start = Vec::new();
    File::open(path)?.take(MBOX.len() as u64).read_to_end(&mut start)?;
    if start == MBOX {
        for message in MessageIterator::new(BufReader::new(File::open(path)?)) {
            let Ok(message) = message else { bail!("the mbox cannot be read to its end") };
            recorder.message(message.contents()).await?;
        }
        return Ok(());
    }
    match message_in(path)? {
        Some(octets) => recorder.message(&octets).await?,
        None => recorder.summary.passed_over += 1,
    }
    Ok(())
}

async fn imap(access: &Access, marking: bool, recorder: &mut Recorder<'_>) -> anyhow::Result<()> {
    let mut mailbox = Mailbox::open(access).await?;
    for id in mailbox.unseen().await? {
        let Some(octets) = mailbox.fetch(id, MESSAGE_MAX_OCTETS).await? else {
            recorder.summary.passed_over += 1;
            continue;
        };
        recorder.message(&octets).await?;
        if marking {
            mailbox.mark(id).await?;
        }
    }
    mailbox.close().await;
    Ok(())
}

fn access(url: &str, args: &BouncesArgs) -> anyhow::Result<Access> {
    let form = "--imap is not imaps://HOST[:PORT]/MAILBOX; plain IMAP would show the password on the way";
    let (place, mailbox) = url.strip_prefix("imaps://").context(form)?.split_once('/').context(form)?;
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => (host, port.parse().ok().context(form)?),
        _ => (place, DEFAULT_PORT),
    };
    ensure!(!host.is_empty() && !mailbox.is_empty() && !host.contains('@'), form);
    let (Some(username), Some(file)) = (&args.username, &args.password_file) else { bail!(form) };
    let password = std::fs::read_to_string(file).with_context(|| format!("--password-file {}", file.display()))?;
    let roots_pem = match &args.ca_file {
        Some(file) => Some(std::fs::read(file).with_context(|| format!("--ca-file {}", file.display()))?),
        None => None,
    };
    Ok(Access {
        host: host.to_owned(),
        port,
        mailbox: mailbox.to_owned(),
        username: username.clone(),
        password: SecretString::from(password.trim_end_matches(['\r', '\n']).to_owned()),
        roots_pem,
    })
}

fn tell(summary: &Summary, out: &mut impl Write) -> std::io::Result<()> {
    let Summary { messages, reports, other, not_ours, .. } = summary;
    writeln!(
        out,
        "{messages} messages: {reports} delivery reports about mail of ours, {other} others that came to its address, {not_ours} not ours"
    )?;
    writeln!(
        out,
        "{} new pieces of evidence, {} known already, {} about mail that is not here",
        summary.new, summary.known, summary.unknown
    )?;
    for (moved, count) in &summary.moved {
        writeln!(out, "{count} from {moved}")?;
    }
    if summary.contradictions > 0 {
        writeln!(out, "{} disagree with the record: see `outboxd list` and `outboxd show`", summary.contradictions)?;
    }
    if summary.passed_over > 0 {
        writeln!(out, "{} were gone or longer than {MESSAGE_MAX_OCTETS} octets", summary.passed_over)?;
    }
    Ok(())
}
