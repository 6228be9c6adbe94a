//! What is known about one attempt: where it ended ([`Phase`]), what that proves ([`Outcome`]) and who is at fault
//! ([`Blame`]).

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far an attempt had come when it ended, in the order in which an attempt runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Claimed, nothing done yet.
    Claim,
    /// The message was being built from stored data.
    Compose,
    /// The provider's name was being looked up.
    Resolve,
    /// The TCP connection was being made.
    Connect,
    /// TLS was being negotiated, by STARTTLS or at once.
    Tls,
    /// The server's 220 was awaited (RFC 5321, 3.1).
    Greeting,
    /// EHLO (RFC 5321, 4.1.1.1).
    Ehlo,
    /// AUTH (RFC 4954).
    Auth,
    /// MAIL FROM.
    Mail,
    /// RCPT TO.
    Rcpt,
    /// DATA, until 354.
    Data,
    /// *Begin*: the durable record that the body is about to leave.
    Begin,
    /// The message's bytes, before the end of data.
    Body,
    /// The end of data was (perhaps) written and the reply awaited.
    EndOfData,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 14] = [
        Self::Claim,
        Self::Compose,
        Self::Resolve,
        Self::Connect,
        Self::Tls,
        Self::Greeting,
        Self::Ehlo,
        Self::Auth,
        Self::Mail,
        Self::Rcpt,
        Self::Data,
        Self::Begin,
        Self::Body,
        Self::EndOfData,
    ];

    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Compose => "compose",
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Greeting => "greeting",
            Self::Ehlo => "ehlo",
            Self::Auth => "auth",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::Begin => "begin",
            Self::Body => "body",
            Self::EndOfData => "end_of_data",
        }
    }

    /// Whether this notification itself had been offered to the provider (MAIL or later).
    #[must_use]
    pub fn offered(self) -> bool {
        self >= Self::Mail
    }
}

/// What an ended attempt proves about the provider's acceptance of the notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Cannot have been accepted: it ended before the end of data, without a verdict on the notification.
    NotSent,
    /// Refused for now (4yz; RFC 5321, 4.2.1).
    Deferred,
    /// Refused for good (5yz).
    Refused,
    /// May have been accepted: the end of data was perhaps written and the answer is unknown.
    Uncertain,
    /// Accepted by the provider (2yz to the end of data).
    Sent,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] = [Self::NotSent, Self::Deferred, Self::Refused, Self::Uncertain, Self::Sent];

    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Deferred => "deferred",
            Self::Refused => "refused",
            Self::Uncertain => "uncertain",
            Self::Sent => "sent",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A server's reply, already safe to store: no NUL, no control characters, bounded length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The three-digit reply code (RFC 5321, 4.2).
    pub code: u16,
    /// The enhanced status code at the start of the text, such as `5.7.1` (RFC 2034), if there was one.
    pub enhanced: Option<String>,
    /// The text of all lines, joined by a space, escaped and cut to [`Reply::TEXT_MAX_BYTES`].
    pub text: String,
}

impl Reply {
    /// How much of a reply's text is kept: RFC 5321, 4.5.3.1.5 allows 512 octets a line; two lines' worth tells the story.
    pub const TEXT_MAX_BYTES: usize = 1024;
}

/// Whose fault a non-acceptance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The provider's or the network's: it backs the provider off and costs the notification nothing.
    Provider,
    /// Perhaps the provider's, perhaps the notification's: the provider's recent record decides.
    Suspect,
    /// The notification's own.
    Notification,
}

/// What one attempt came to: the result that the worker settles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is known.
    pub outcome: Outcome,
    /// Where the attempt ended.
    pub phase: Phase,
    /// Whose fault it is, if it was not accepted. Meaningless for `sent` and `uncertain`.
    pub blame: Blame,
    /// The reply that decided, if one came.
    pub reply: Option<Reply>,
    /// What happened, where no reply tells it: "connection reset", "no reply within 600s". Never an address or a secret.
    pub error: Option<String>,
}
