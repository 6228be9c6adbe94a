//! One SMTP session with a provider, and on it one transaction at a time, phase by phase.
//!
//! Its only purpose is that the outcome is known exactly. Whatever is not expected ends the session: it is never
//! used again after a surprise, an expired limit or a dropped future, so a reply can never be taken for another's.

use std::fmt;
use std::io::Write as _;
use std::time::{Duration, Instant};

use tokio::time::timeout;

pub use super::body::inspect;
use super::body::inspect_address;
use super::classify::{Cause, Failure, SERVICE_CLOSING};
pub use super::endpoint::{Auth, Endpoint, Mechanism, Security, Timeouts};
use super::limit::within;
use super::open::{Capabilities, open};
use super::reply::Severity;
use super::stream::Connection;
use crate::domain::outcome::{Phase, Reply};

/// How long a reply is awaited that cannot change the verdict, or that a dead connection may still hold.
const AFTERTHOUGHT: Duration = Duration::from_secs(5);

/// How long the reply to QUIT is awaited.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who sends to whom, on the wire.
#[derive(Clone)]
pub struct Envelope {
    /// The return path, without angle brackets; empty for none.
    pub sender: String,
    /// The one recipient, without angle brackets.
    pub recipient: String,
    /// Whether an address or a header needs SMTPUTF8 (RFC 6531). Only such a message may have bytes above 127.
    pub smtputf8: bool,
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope").field("smtputf8", &self.smtputf8).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// MAIL may follow.
    Ready,
    /// RSET must come before MAIL.
    Unfinished,
    /// DATA was answered with 354: the message must follow, or nothing.
    Awaiting,
    /// Nothing may follow.
    Broken,
}

/// An open, authenticated connection to a provider.
pub struct Session {
    connection: Connection,
    offered: Capabilities,
    timeouts: Timeouts,
    state: State,
    phase: Phase,
    eight_bit: bool,
    commands: Vec<u8>,
    opened: Instant,
    offers: u32,
    pooled: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, phase, offers, .. } = self;
        f.debug_struct("Session")
            .field("state", state)
            .field("phase", phase)
            .field("offers", offers)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Resolves, connects, and makes the session ready for MAIL.
    ///
    /// # Errors
    /// In a phase before [`Phase::Mail`]: nothing of any notification has left.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, Failure> {
        let (connection, offered) = open(endpoint).await?;
        Ok(Self {
            connection,
            offered,
            timeouts: endpoint.timeouts.clone(),
            state: State::Ready,
            phase: Phase::Auth,
            eight_bit: false,
            commands: Vec::new(),
            opened: Instant::now(),
            offers: 0,
            pooled: false,
        })
    }

    /// Says MAIL, RCPT and DATA, in one write where the server takes PIPELINING (RFC 2920), until the 354.
    ///
    /// After `Ok` the only ways on are [`Self::transmit`] and dropping the session. `size` is the message's in bytes.
    ///
    /// # Errors
    /// In [`Phase::Mail`], [`Phase::Rcpt`] or [`Phase::Data`], of the first refusal: nothing of the body has left.
    /// [`Cause::Unsendable`] if the notification cannot be handed to this provider; then nothing at all was written.
    pub async fn offer(&mut self, envelope: &Envelope, size: usize) -> Result<(), Failure> {
        self.phase = Phase::Mail;
        self.inspect_offer(envelope, size).map_err(|why| Failure::new(Phase::Mail, Cause::Unsendable(why)))?;
        self.offers += 1;
        // A session that cannot be reset is as good as closed: an answer to RSET is none to this message.
        if self.state == State::Unfinished && self.reset().await.is_err() {
            return Err(Failure::new(Phase::Mail, Cause::Closed));
        }
        if self.state != State::Ready {
            return Err(Failure::new(Phase::Mail, Cause::Protocol("the session is not ready for MAIL")));
        }
        self.state = State::Broken;
        if !self.connection.is_quiet() {
            return Err(self.interrupted(Cause::Closed).await);
        }
        self.eight_bit = envelope.smtputf8;
        let [mail_end, rcpt_end] = self.write_commands(envelope, size);
        if self.offered.pipelining { self.offer_at_once().await } else { self.offer_singly(mail_end, rcpt_end).await }
    }

    fn inspect_offer(&self, envelope: &Envelope, size: usize) -> Result<(), &'static str> {
        inspect_address(&envelope.sender, envelope.smtputf8)?;
        inspect_address(&envelope.recipient, envelope.smtputf8)?;
        if envelope.recipient.is_empty() {
            return Err("the envelope has no recipient");
        }
        if envelope.smtputf8 && !(self.offered.smtputf8 && self.offered.eight_bit_mime) {
            return Err("the provider does not offer SMTPUTF8");
        }
        if self.offered.size_limit.is_some_and(|limit| size > limit) {
            return Err("the message is larger than the provider takes");
        }
        Ok(())
    }

    /// Puts the three commands into the buffer; returns where MAIL and RCPT end.
    fn write_commands(&mut self, envelope: &Envelope, size: usize) -> [usize; 2] {
        let out = &mut self.commands;
        out.clear();
        out.extend_from_slice(b"MAIL FROM:<");
        out.extend_from_slice(envelope.sender.as_bytes());
        out.push(b'>');
        if self.offered.size {
            // Writing to a vector cannot fail.
            let _ = write!(out, " SIZE={size}");
        }
        if self.eight_bit {
            out.extend_from_slice(b" BODY=8BITMIME SMTPUTF8");
        }
        out.extend_from_slice(b"\r\n");
        let mail_end = out.len();
        out.extend_from_slice(b"RCPT TO:<");
        out.extend_from_slice(envelope.recipient.as_bytes());
        out.extend_from_slice(b">\r\n");
        let rcpt_end = out.len();
        out.extend_from_slice(b"DATA\r\n");
        [mail_end, rcpt_end]
    }

    async fn offer_at_once(&mut self) -> Result<(), Failure> {
        self.say(self.timeouts.mail, 0, usize::MAX).await?;
        let mut refusal: Option<Failure> = None;
        let mut in_step = true;
        for (phase, limit) in self.offer_phases() {
            let (at, limit) = match &refusal {
                Some(refusal) => (refusal.phase, limit.min(AFTERTHOUGHT)),
                None => (phase, limit),
            };
            self.phase = at;
            match (self.hear(limit).await, refusal.is_some()) {
                (Ok(reply), refused) => match expect(phase, reply) {
                    // The server waits for a body that it must not get: not even a dot.
                    Ok(()) => in_step &= !(refused && phase == Phase::Data),
                    Err(cause) => {
                        in_step = keeps_in_step(&cause);
                        refusal.get_or_insert(Failure::new(phase, cause));
                        if !in_step {
                            break;
                        }
                    }
                },
                (Err(failure), false) => return Err(failure),
                (Err(_), true) => {
                    in_step = false;
                    break;
                }
            }
        }
        if self.connection.has_leftover() {
            in_step = false;
            refusal.get_or_insert(Failure::new(Phase::Data, Cause::Protocol("more replies than commands")));
        }
        match refusal {
            None => {
                self.state = State::Awaiting;
                Ok(())
            }
            Some(failure) => {
                self.state = if in_step { State::Unfinished } else { State::Broken };
                Err(failure)
            }
        }
    }

    async fn offer_singly(&mut self, mail_end: usize, rcpt_end: usize) -> Result<(), Failure> {
        let ranges = [(0, mail_end), (mail_end, rcpt_end), (rcpt_end, usize::MAX)];
        for ((phase, limit), (from, to)) in self.offer_phases().into_iter().zip(ranges) {
            self.phase = phase;
            self.say(limit, from, to).await?;
            let reply = self.hear(limit).await?;
            if let Err(cause) = expect(phase, reply) {
                if keeps_in_step(&cause) && !self.connection.has_leftover() {
                    self.state = State::Unfinished;
                }
                return Err(Failure::new(phase, cause));
            }
            if self.connection.has_leftover() {
                return Err(Failure::new(phase, Cause::Protocol("more replies than commands")));
            }
        }
        self.state = State::Awaiting;
        Ok(())
    }

    fn offer_phases(&self) -> [(Phase, Duration); 3] {
        let Timeouts { mail, rcpt, data, .. } = self.timeouts;
        [(Phase::Mail, mail), (Phase::Rcpt, rcpt), (Phase::Data, data)]
    }

    /// What to make of a connection that failed, or of a server that spoke unasked. A refusal that came before the failure
    /// is the better knowledge; a refusal is one whenever it comes, but an acceptance of what was not yet sent is none.
    async fn interrupted(&mut self, cause: Cause) -> Failure {
        let cause = match timeout(AFTERTHOUGHT, self.connection.reply()).await {
            Ok(Ok(reply)) => match Severity::of(reply.code) {
                Severity::Transient | Severity::Permanent => Cause::Reply(reply),
                Severity::Completed | Severity::Intermediate | Severity::Unknown => {
                    Cause::Protocol("a reply that nothing had asked for")
                }
            },
            Ok(Err(seen @ (Cause::Garbled(_) | Cause::Incomplete))) => seen,
            Ok(Err(_)) | Err(_) => cause,
        };
        Failure::new(self.phase, cause)
    }

    /// Writes a part of the commands.
    async fn say(&mut self, limit: Duration, from: usize, to: usize) -> Result<(), Failure> {
        let Self { connection, commands, phase, .. } = self;
        let part = commands.get(from..to.min(commands.len())).unwrap_or_default();
        match timeout(limit, connection.write(part)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(self.interrupted(cause).await),
            Err(_) => Err(Failure::new(*phase, Cause::Timeout(limit))),
        }
    }

    /// Takes the next reply.
    async fn hear(&mut self, limit: Duration) -> Result<Reply, Failure> {
        match within(limit, self.connection.reply()).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(cause)) => Err(Failure::new(self.phase, cause)),
            Err(_) => Err(Failure::new(self.phase, Cause::Timeout(limit))),
        }
    }

    /// Ends an unfinished transaction; [`Self::offer`] does it by itself. It changes nothing that is known.
    ///
    /// # Errors
    /// In [`Phase::Mail`]; the session is then of no more use.
    pub async fn reset(&mut self) -> Result<(), Failure> {
        if !matches!(self.state, State::Ready | State::Unfinished) {
            return Err(Failure::new(Phase::Mail, Cause::Protocol("the session is not ready for RSET")));
        }
        self.state = State::Broken;
        self.phase = Phase::Mail;
        if !self.connection.is_quiet() {
            return Err(self.interrupted(Cause::Closed).await);
        }
        self.commands.clear();
        self.commands.extend_from_slice(b"RSET\r\n");
        self.say(self.timeouts.mail, 0, usize::MAX).await?;
        let reply = self.hear(self.timeouts.mail).await?;
        expect(Phase::Mail, reply).map_err(|cause| Failure::new(Phase::Mail, cause))?;
        self.state = State::Ready;
        Ok(())
    }

    /// Says QUIT and waits a second at most for the answer, which changes nothing.
    pub async fn quit(mut self) {
        if self.may_go_on() {
            let _ = timeout(FAREWELL, async {
                self.connection.write(b"QUIT\r\n").await?;
                self.connection.reply().await
            })
            .await;
        }
    }

    /// Says QUIT if that takes no waiting, and closes the connection.
    pub fn leave(mut self) {
        if self.may_go_on() {
            self.connection.write_if_ready(b"QUIT\r\n");
        }
    }

    /// Whether this session may serve another message: no transaction is open on it, nothing went wrong, and the server
    /// has neither said anything unasked nor hung up. Costs nothing and waits for nothing.
    pub fn usable(&mut self) -> bool {
        if self.may_go_on() && !self.connection.is_quiet() {
            self.state = State::Broken;
        }
        self.may_go_on()
    }

    const fn may_go_on(&self) -> bool {
        matches!(self.state, State::Ready | State::Unfinished)
    }

    /// How far the present transaction has come; after a future was dropped, where it was dropped.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether this session had been used or idle before the present offer: then a failure that
    /// [is that of a stale connection](Failure::is_stale_connection) should be tried once more on a fresh session.
    #[must_use]
    pub const fn reused(&self) -> bool {
        self.pooled || self.offers > 1
    }

    /// How many messages were offered on it.
    #[must_use]
    pub const fn offers(&self) -> u32 {
        self.offers
    }

    /// How long it has been open.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    pub(super) const fn mark_pooled(&mut self) {
        self.pooled = true;
    }
}

/// Whether a reply is the one that lets a transaction go on: 2yz to MAIL and RCPT, 354 and nothing else to DATA.
fn expect(phase: Phase, reply: Reply) -> Result<(), Cause> {
    match Severity::of(reply.code) {
        Severity::Transient | Severity::Permanent => Err(Cause::Reply(reply)),
        Severity::Completed if phase != Phase::Data => Ok(()),
        Severity::Intermediate if phase == Phase::Data && reply.code == 354 => Ok(()),
        Severity::Completed | Severity::Intermediate | Severity::Unknown => {
            Err(Cause::Protocol("a reply that does not belong here"))
        }
    }
}

/// Whether the replies still stand for the commands they follow after this.
fn keeps_in_step(cause: &Cause) -> bool {
    matches!(cause, Cause::Reply(reply) if reply.code != SERVICE_CLOSING)
}

mod transmit;

#[cfg(test)]
mod tests;
