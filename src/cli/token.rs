//! `outboxd token`: who may call the message API.
//!
//! A token is printed once, when it is made, and on standard output alone; the database keeps its hash.

use std::io::Write;
use std::time::Duration;

use anyhow::Context as _;
use humantime_serde::re::humantime;
use ring::rand::SecureRandom as _;
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Exit, table};
use crate::app;
use crate::cli::list::at;
use crate::config::Loaded;
use crate::domain::token::{RANDOM_OCTETS, Scope, Token};
use crate::store::tokens;

/// The longest life of a token that has an end: beyond it, leave the end out.
const LIFE_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The commands about tokens.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a token and print it, once
    Create(CreateArgs),
    /// List tokens, by what is known of them
    List(ListArgs),
    /// Revoke a token: from then on it is refused, and gets no replay either
    Revoke(RevokeArgs),
}

/// The arguments of `create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  token=$(outboxd token create --account acme --scope messages.create --label shop)")]
pub struct CreateArgs {
    /// The account that it speaks for
    #[arg(long, value_parser = account)]
    account: String,
    /// What it allows: `messages.create` (with look-ups of its own operations), `look_up` or `evidence.record`; may be given more than once
    #[arg(long = "scope", required = true, value_name = "SCOPE")]
    scopes: Vec<Scope>,
    /// What it is for, for people
    #[arg(long, default_value = "", hide_default_value = true, value_parser = label)]
    label: String,
    /// When it ends, counted from now, such as 90d [default: never]
    #[arg(long, value_name = "TIME", value_parser = life)]
    expires_in: Option<Duration>,
    /// Answer in JSON, with the token's id
    #[arg(long)]
    json: bool,
}

/// The arguments of `list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this account's
    #[arg(long)]
    account: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The token's id, as `outboxd token list` shows it
    id: Uuid,
}

/// Runs one of them.
///
/// # Errors
/// When the database fails.
pub async fn run(command: &Command, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    match command {
        Command::Create(args) => {
            let mut random = [0; RANDOM_OCTETS];
            ring::rand::SystemRandom::new()
                .fill(&mut random)
                .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
            let token = Token::new(random);
            let expires_at = args.expires_in.map(|life| OffsetDateTime::now_utc() + life);
            let mut tx = sqlx::Connection::begin(&mut conn).await?;
            let id = tokens::create(&mut tx, &token, &args.account, &args.scopes, &args.label, expires_at).await?;
            tx.commit().await.context("whether the token was stored is not known: see `outboxd token list`")?;
            if args.json {
                writeln!(out, "{}", json!({ "id": id, "account": args.account, "token": token.reveal() }))?;
            } else {
                writeln!(out, "{}", token.reveal())?;
            }
            Ok(Exit::Success)
        }
        Command::List(args) => {
            let found = tokens::list(&mut conn, args.account.as_deref()).await?;
            if args.json {
                serde_json::to_writer_pretty(&mut *out, &found)?;
                writeln!(out)?;
                return Ok(Exit::Success);
            }
            let rows: Vec<Vec<String>> = found
                .into_iter()
                .map(|token| {
                    let end = match (token.revoked_at, token.expires_at) {
                        (Some(revoked), _) => format!("revoked {}", at(revoked)),
                        (None, Some(expires)) => at(expires),
                        (None, None) => "never".to_owned(),
                    };
                    vec![
                        token.id.to_string(),
                        token.account_id,
                        token.operations.join(" "),
                        at(token.created_at),
                        end,
                        token.label,
                    ]
                })
                .collect();
            table::write(out, &["id", "account", "scopes", "made", "ends", "label"], &rows)?;
            Ok(Exit::Success)
        }
        Command::Revoke(args) => {
            let mut tx = sqlx::Connection::begin(&mut conn).await?;
            let found = tokens::revoke(&mut tx, args.id).await?;
            tx.commit().await.context("whether the token is revoked is not known: run it again")?;
            writeln!(out, "{}", if found { "revoked" } else { "there is no token of this id" })?;
            Ok(if found { Exit::Success } else { Exit::Refused })
        }
    }
}

fn account(text: &str) -> Result<String, String> {
    if (1..=200).contains(&text.len()) && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err("is empty, over 200 octets, or has a NUL".to_owned())
    }
}

fn label(text: &str) -> Result<String, String> {
    if text.len() <= 200 && !text.contains('\0') {
        Ok(text.to_owned())
    } else {
        Err("is over 200 octets, or has a NUL".to_owned())
    }
}

fn life(text: &str) -> Result<Duration, String> {
    let life = humantime::parse_duration(text).map_err(|_| "is not a time such as 90d".to_owned())?;
    if life.is_zero() || life > LIFE_MAX { Err("is nought, or longer than ten years".to_owned()) } else { Ok(life) }
}
