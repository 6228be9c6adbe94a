//! Where the server can misbehave ([`Stage`]) and how ([`Action`]). Words only: the session performs them.

use std::fmt;
use std::time::Duration;

/// Where in the protocol a rule applies. Only a legal command reaches the script; an illegal one is refused before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// In place of the greeting.
    Connect,
    /// In place of the answer to EHLO or HELO.
    Ehlo,
    /// In place of the answer to STARTTLS. A reply that starts with `2` is followed by the handshake.
    StartTls,
    /// In place of the TLS handshake (implicit or after STARTTLS); a reply is written in clear.
    Handshake,
    /// In place of the verdict on AUTH, when the client has said all it has to say.
    Auth,
    /// In place of the answer to MAIL.
    Mail,
    /// In place of the answer to RCPT.
    Rcpt,
    /// In place of the answer to DATA. A reply that starts with `3` is followed by the body.
    Data,
    /// While the body comes in, decided before its first byte. A reply is written at once and the body is read on.
    Body,
    /// After the final dot. Whatever is neither `Proceed` nor [`Action::AcceptThen`] throws the message away.
    EndOfData,
    /// After the answer to the end of data, before the next command. A delay here ends, without its action, when the
    /// client speaks first.
    Idle,
    /// In place of the answer to RSET.
    Rset,
    /// In place of the answer to QUIT; the connection is closed afterwards.
    Quit,
    /// In place of the answer to NOOP, VRFY, EXPN, HELP and unknown verbs.
    Other,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 14] = [
        Self::Connect,
        Self::Ehlo,
        Self::StartTls,
        Self::Handshake,
        Self::Auth,
        Self::Mail,
        Self::Rcpt,
        Self::Data,
        Self::Body,
        Self::EndOfData,
        Self::Idle,
        Self::Rset,
        Self::Quit,
        Self::Other,
    ];

    /// The name that labels use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Ehlo => "ehlo",
            Self::StartTls => "starttls",
            Self::Handshake => "handshake",
            Self::Auth => "auth",
            Self::Mail => "mail",
            Self::Rcpt => "rcpt",
            Self::Data => "data",
            Self::Body => "body",
            Self::EndOfData => "end of data",
            Self::Idle => "idle",
            Self::Rset => "rset",
            Self::Quit => "quit",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the server does at a stage. Replies to earlier commands of a pipelined group are always written first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// What a good server does.
    Proceed,
    /// These bytes, as they are, in place of the reply. The command took effect if they start with `2` (DATA: `3`).
    Reply(Vec<u8>),
    /// These bytes, then a tidy close (with `close_notify` under TLS).
    ReplyThenClose(Vec<u8>),
    /// A cut: FIN without a word (and, under TLS, without `close_notify`).
    Close,
    /// A cut by RST.
    Reset,
    /// Neither read nor answer until the client leaves or the server stops.
    Hang,
    /// Wait, whatever the client does meanwhile, and then act.
    Delay(Duration, Box<Action>),
    /// At [`Stage::Body`]: act once this many bytes of the body have come in, if it is that long. Elsewhere: act.
    AfterBytes(u64, Box<Action>),
    /// At [`Stage::EndOfData`]: take responsibility for the message, and then act. Elsewhere: act.
    AcceptThen(Box<Action>),
}

impl Action {
    /// [`Action::Reply`] of one line; CRLF is added.
    #[must_use]
    pub fn reply(line: &str) -> Self {
        Self::Reply(format!("{line}\r\n").into_bytes())
    }

    /// [`Action::ReplyThenClose`] of one line; CRLF is added.
    #[must_use]
    pub fn reply_then_close(line: &str) -> Self {
        Self::ReplyThenClose(format!("{line}\r\n").into_bytes())
    }

    /// `self`, after `delay`.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self::Delay(delay, Box::new(self))
    }

    /// `self`, once `bytes` of the body have come in.
    #[must_use]
    pub fn after_bytes(self, bytes: u64) -> Self {
        Self::AfterBytes(bytes, Box::new(self))
    }

    /// The message is accepted, and then `self`: the answer lost, late or garbled.
    #[must_use]
    pub fn after_accepting(self) -> Self {
        Self::AcceptThen(Box::new(self))
    }

    /// Whether a client could read "accepted" from this, however late.
    pub(super) fn answers(&self) -> bool {
        match self {
            Self::Proceed => true,
            Self::Reply(bytes) | Self::ReplyThenClose(bytes) => bytes.starts_with(b"2") && bytes.ends_with(b"\n"),
            Self::Close | Self::Reset | Self::Hang => false,
            Self::Delay(_, next) | Self::AfterBytes(_, next) | Self::AcceptThen(next) => next.answers(),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = |bytes: &[u8]| match bytes.get(..3) {
            Some(code) if code.iter().all(u8::is_ascii_digit) => String::from_utf8_lossy(code).into_owned(),
            Some(_) | None => "garbage".to_owned(),
        };
        match self {
            Self::Proceed => f.write_str("proceed"),
            Self::Reply(bytes) => write!(f, "reply {}", code(bytes)),
            Self::ReplyThenClose(bytes) => write!(f, "reply {} and close", code(bytes)),
            Self::Close => f.write_str("close"),
            Self::Reset => f.write_str("reset"),
            Self::Hang => f.write_str("hang"),
            Self::Delay(delay, next) => write!(f, "after {delay:?} {next}"),
            Self::AfterBytes(bytes, next) => write!(f, "after {bytes} bytes {next}"),
            Self::AcceptThen(next) => write!(f, "accept, then {next}"),
        }
    }
}
