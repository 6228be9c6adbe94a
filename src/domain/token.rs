//! The tokens by which callers show who they are, and what each may do.
//!
//! A token is random and shown once, when it is made; everything else knows its hash alone.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Begins every token, so that people and secret scanners can tell what it is.
const PREFIX: &str = "obx_";

/// Octets of randomness: beyond guessing, so that a plain SHA-256 hides it well enough.
pub const RANDOM_OCTETS: usize = 32;

/// A token in readable form. Neither shown nor logged, except by [`Token::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Makes a token of random octets.
    #[must_use]
    pub fn new(random: [u8; RANDOM_OCTETS]) -> Self {
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
    }

    /// Reads a token; `None` for what cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let random = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        (random.len() == RANDOM_OCTETS).then(|| Self(text.to_owned()))
    }

    /// The SHA-256 under which it is stored and found.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, self.0.as_bytes()).as_ref());
        hash
    }

    /// The token itself, for the one who asked for it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// One thing that a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// To create messages, and to look up those operations and messages.
    CreateMessages,
    /// To look up every operation and message of the account.
    LookUp,
    /// To record evidence about the account's notifications, and so to settle what is uncertain.
    RecordEvidence,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CreateMessages, Self::LookUp, Self::RecordEvidence];

    /// Its name, as the database and the command line have it. That of an operation is the operation's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateMessages => super::operation::CREATE_MESSAGE,
            Self::LookUp => "look_up",
            Self::RecordEvidence => "evidence.record",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no scope of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a scope; give `messages.create`, `look_up` or `evidence.record`")]
pub struct UnknownScope;

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or(UnknownScope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_made_and_shown_by_nobody_else() {
        let token = Token::new([7; 32]);
        assert_eq!(Token::parse(token.reveal()).as_ref(), Some(&token));
        assert!(!format!("{token:?}").contains(&token.reveal()[4..]));
        assert_ne!(token.hash(), Token::new([8; 32]).hash());
    }

    #[test]
    fn what_cannot_be_a_token_is_told_without_asking_the_database() {
        let good = Token::new([7; 32]).reveal().to_owned();
        for text in ["", "obx_", &good[4..], &good[..good.len() - 1], &format!("{good}A"), &format!("{good} "), "obx_!"]
        {
            assert_eq!(Token::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_scope_is_found_by_its_name() {
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
        }
        assert_eq!("admin".parse::<Scope>(), Err(UnknownScope));
    }
}
