//! The section of the API's caller, which is read alone: a caller has neither database nor provider.

use std::path::PathBuf;

use secrecy::SecretString;

use super::reader::{self, Notes, Section};
use super::{Invalid, Sources};
use crate::client::Limits;

/// How `outboxd submit` calls the API.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Where `POST /v1/messages` is; empty if nobody said.
    pub url: String,
    /// The token, if it was given.
    pub token: Option<SecretString>,
    /// A file with the token.
    pub token_file: Option<PathBuf>,
    /// Where drafts are kept.
    pub drafts: PathBuf,
    /// How long it keeps trying.
    pub limits: Limits,
    /// Whether token and message may go to other machines over plain HTTP.
    pub allow_plaintext: bool,
}

pub(super) fn read(mut section: Section, notes: &mut Notes) -> Caller {
    let limits = Limits {
        deadline: section.value("deadline", notes, reader::some_time),
        tries: section.value("tries", notes, reader::count),
        try_timeout: section.value("try_timeout", notes, reader::some_time),
        window: section.value("window", notes, reader::some_time),
        ..Limits::default()
    };
    let caller = Caller {
        url: section.value("url", notes, reader::text),
        token: section.secret("token", notes).filter(|token| !token.is_empty()).map(SecretString::from),
        token_file: section.optional("token_file", notes, reader::text).map(PathBuf::from),
        drafts: section.value("drafts", notes, reader::text).into(),
        limits,
        allow_plaintext: section.value("allow_plaintext", notes, reader::switch),
    };
    section.end(notes);
    let Limits { try_timeout, window, .. } = caller.limits;
    if window <= try_timeout {
        notes.problem(format!(
            "client.window ({window:?}) is not longer than client.try_timeout ({try_timeout:?}): nothing could ever be sent; \
             raise the one or lower the other"
        ));
    }
    if caller.token.is_some() && caller.token_file.is_some() {
        notes.problem("client.token and client.token_file are both set; keep one");
    }
    caller
}

/// Reads the section of a caller; what else the configuration says or lacks does not matter.
///
/// # Errors
/// With everything that is wrong with it.
pub fn load_caller(sources: &Sources) -> Result<Caller, Invalid> {
    let (defaults, all) = sources.layers()?;
    let mut notes = Notes::default();
    let mut root = Section::new("", all).or("", defaults);
    let caller = read(root.child("client", &mut notes), &mut notes);
    if notes.problems.is_empty() { Ok(caller) } else { Err(Invalid { problems: notes.problems }) }
}
