//! `outboxd operator`: who may sign in to the console.

use std::io::Write;

use serde_json::json;

use super::decide::operator;
use super::list::at;
use super::{Exit, table};
use crate::app;
use crate::config::Loaded;
use crate::domain::operator::Role;
use crate::domain::token::{RANDOM_OCTETS, Token};
use crate::http::console::sign_in;
use crate::store::decide::{self, Decider};
use crate::store::operators::{self, Proof};

/// The commands about operators.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Add one, and print the token to sign in with, once
    Add(AddArgs),
    /// List them
    List(ListArgs),
    /// End what one may do, with every session, at once
    Disable(DisableArgs),
}

/// The arguments of `add`.
#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// The name that stands beside every decision
    #[arg(value_parser = name)]
    name: String,
    /// What they may do: viewer (look, with recipients masked), operator (decide), admin (pause, end sessions)
    #[arg(long)]
    role: Role,
    /// Who they are to the identity provider (console.oidc.claim): they sign in there and get no token
    #[arg(long, value_name = "CLAIM", value_parser = identity)]
    identity: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `disable`.
#[derive(Debug, clap::Args)]
pub struct DisableArgs {
    /// The name
    name: String,
}

/// Runs one of them.
///
/// # Errors
/// When the database fails.
pub async fn run(command: &Command, loaded: &Loaded, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut conn = app::connect(&loaded.settings.database).await?;
    match command {
        Command::Add(args) => {
            let token = Token::new(rand::random::<[u8; RANDOM_OCTETS]>());
            let hash = sign_in::hash(&token)?;
            let proof = args.identity.as_deref().map_or(Proof::Token(&hash), Proof::Identity);
            if !operators::add(&mut conn, &args.name, args.role, proof, &operator(None)?).await? {
                writeln!(
                    out,
                    "there is, or was, an operator {:?}, or one of that identity: each is given once",
                    args.name
                )?;
                return Ok(Exit::Refused);
            }
            let by = operator(None)?;
            let decider = Decider { who: &by, reason: "outboxd operator add" };
            let subject = format!("operator {} as {}", args.name, args.role);
            decide::about(&mut conn, "operator add", &subject, &decider).await?;
            if let Some(identity) = &args.identity {
                if args.json {
                    writeln!(out, "{}", json!({ "name": args.name, "role": args.role.name(), "identity": identity }))?;
                } else {
                    writeln!(out, "{} signs in at the identity provider as {identity}", args.name)?;
                }
                return Ok(Exit::Success);
            }
            if args.json {
                writeln!(out, "{}", json!({ "name": args.name, "role": args.role.name(), "token": token.reveal() }))?;
            } else {
                writeln!(out, "{}", token.reveal())?;
            }
        }
        Command::List(args) => {
            let operators = operators::list(&mut conn).await?;
            if args.json {
                serde_json::to_writer_pretty(&mut *out, &operators)?;
                writeln!(out)?;
                return Ok(Exit::Success);
            }
            let rows: Vec<Vec<String>> = operators
                .iter()
                .map(|operator| {
                    vec![
                        operator.name.clone(),
                        operator.role.clone(),
                        format!("{} by {}", at(operator.created_at), operator.created_by),
                        operator
                            .disabled_at
                            .map_or_else(|| "may sign in".to_owned(), |time| format!("disabled {}", at(time))),
                        operator.identity.clone().unwrap_or_else(|| "a token".to_owned()),
                        operator.sessions.to_string(),
                    ]
                })
                .collect();
            table::write(out, &["name", "role", "added", "", "signs in by", "sessions"], &rows)?;
        }
        Command::Disable(args) => {
            if !operators::disable(&mut conn, &args.name).await? {
                writeln!(out, "there is no operator {:?} who may sign in", args.name)?;
                return Ok(Exit::Refused);
            }
            let by = operator(None)?;
            let decider = Decider { who: &by, reason: "outboxd operator disable" };
            decide::about(&mut conn, "operator disable", &format!("operator {}", args.name), &decider).await?;
            writeln!(out, "{} may not sign in any more, and is signed out everywhere", args.name)?;
        }
    }
    Ok(Exit::Success)
}

fn name(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
        return Err("is empty, longer than 200 octets, or has a control character".to_owned());
    }
    Ok(text.to_owned())
}

fn identity(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.len() > 300 || text.chars().any(char::is_control) {
        return Err("is empty, longer than 300 octets, or has a control character".to_owned());
    }
    Ok(text.to_owned())
}
