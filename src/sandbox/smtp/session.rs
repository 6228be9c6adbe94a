//! One connection: the order of commands (RFC 5321, 4.1.4), and the script asked before each legal one is answered.
//!
//! An illegal command is recorded as a violation and refused without asking the script.

mod opening;
mod transaction;

use std::io;
use std::sync::Arc;

use rand::rngs::StdRng;
use tokio::net::TcpStream;

use super::action::{Action, Stage};
use super::auth::Auth;
use super::body::Permitted;
use super::mailbox::{Identity, Recipient};
use super::script::Moment;
use super::syntax::{Command, Grammar, Refusal, parse};
use super::wire::{Line, Wire};
use super::{Shared, Tls};
use transaction::Transaction;

/// The name in the greeting; reserved, so that it is nobody's (RFC 2606).
const HOST: &str = "sandbox.test";

/// The connection is over, for whatever reason.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

type Step<T = ()> = Result<T, Over>;

/// What was written in place of a reply.
enum Said {
    /// Nothing: the normal reply is due.
    Normal,
    /// Something that starts with this byte.
    Raw(Option<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hello {
    Awaited,
    Helo,
    Ehlo,
}

struct Session<'a> {
    wire: Wire,
    shared: &'a Shared,
    number: u64,
    draws: StdRng,
    hello: Hello,
    secure: bool,
    authenticated: bool,
    /// The greeting was a refusal: only QUIT is served (RFC 5321, 3.1).
    refused: bool,
    transaction: Option<Transaction>,
    transactions: u64,
    /// The last MAIL was refused: what a client pipelined after it is no violation.
    mail_refused: bool,
    /// The last accepted message, until its answer is known to be written.
    unanswered: Option<usize>,
    /// The answer to it is being made.
    answering: bool,
}

pub(super) async fn serve(tcp: TcpStream, number: u64, shared: Arc<Shared>) {
    let _ = tcp.set_nodelay(true);
    let mut session = Session {
        wire: Wire::new(tcp),
        shared: &shared,
        number,
        draws: shared.script.draws(number),
        hello: Hello::Awaited,
        secure: false,
        authenticated: false,
        refused: false,
        transaction: None,
        transactions: 0,
        mail_refused: false,
        unanswered: None,
        answering: false,
    };
    let Err(Over) = session.run().await;
}

impl Drop for Session<'_> {
    /// Not at the end of `serve`, which is not reached when the server is stopped.
    fn drop(&mut self) {
        if let Some(index) = self.unanswered.filter(|_| self.answering || self.wire.has_output()) {
            self.shared.mailbox.mark_answer_lost(index);
        }
    }
}

impl Session<'_> {
    async fn run(&mut self) -> Step<std::convert::Infallible> {
        if let Tls::Implicit(config) = &self.shared.tls {
            self.handshake(Arc::clone(config)).await?;
        }
        match self.consult(Stage::Connect, "", &[]).await? {
            Said::Normal => {
                if self.wire.peek_input() {
                    self.violation("the client spoke before the greeting (RFC 5321, 3.1)");
                }
                self.wire.queue(format!("220 {HOST} ESMTP\r\n").as_bytes());
            }
            Said::Raw(first) => self.refused = first != Some(b'2'),
        }
        loop {
            let line = self.line().await?;
            self.command(&line).await?;
        }
    }

    /// The next line; a line that breaks the rules is answered here.
    async fn line(&mut self) -> Step<Vec<u8>> {
        loop {
            if self.wire.has_output() && self.wire.has_input() && !self.pipelining() {
                self.violation("pipelined although PIPELINING is not offered (RFC 2920)");
            }
            match self.wire.line().await? {
                Line::Good(line) => return Ok(line),
                Line::BareLineEnd => {
                    self.violation("bare LF or CR in a command (RFC 5321, 2.3.8)");
                    self.reply(500, "5.5.2", "bare LF or CR");
                }
                Line::TooLong => {
                    self.violation("a command line is too long (RFC 5321, 4.5.3.1.4)");
                    self.reply(500, "5.5.2", "line too long");
                    self.wire.close().await?;
                    return Err(Over);
                }
                Line::Eof { bare_cr } => {
                    if bare_cr {
                        self.violation("bare LF or CR in a command (RFC 5321, 2.3.8)");
                    }
                    return Err(Over);
                }
            }
        }
    }

    fn pipelining(&self) -> bool {
        self.shared.extensions.pipelining && self.hello == Hello::Ehlo
    }

    fn starttls_offered(&self) -> bool {
        matches!(self.shared.tls, Tls::StartTls(_)) && !self.secure
    }

    /// AUTH is offered in clear only by a server that has no TLS at all.
    fn auth_offered(&self) -> Option<&Auth> {
        self.shared.auth.as_ref().filter(|_| !self.starttls_offered())
    }

    fn grammar(&self) -> Grammar {
        let extensions = &self.shared.extensions;
        let in_utf8 = self.transaction.as_ref().is_some_and(|transaction| transaction.permitted.eight_bit_header);
        match self.hello {
            Hello::Awaited | Hello::Helo => Grammar::default(),
            Hello::Ehlo => Grammar {
                size: extensions.size,
                eight_bit_mime: extensions.eight_bit_mime,
                smtputf8: extensions.smtputf8,
                dsn: extensions.dsn,
                auth: self.shared.auth.is_some(),
                in_utf8,
            },
        }
    }

    fn violation(&self, what: &str) {
        self.shared.record_violation(self.number, what);
    }

    fn reply(&mut self, code: u16, enhanced: &str, text: &str) {
        let line = if self.shared.extensions.enhanced_status_codes && self.hello == Hello::Ehlo && !enhanced.is_empty()
        {
            format!("{code} {enhanced} {text}\r\n")
        } else {
            format!("{code} {text}\r\n")
        };
        self.wire.queue(line.as_bytes());
    }

    fn refuse(&mut self, refusal: &Refusal) {
        if refusal.violation {
            self.violation(&format!("{} {}", refusal.code, refusal.text));
        }
        self.reply(refusal.code, refusal.enhanced, refusal.text);
    }

    fn out_of_order(&mut self, text: &'static str) {
        self.refuse(&Refusal { code: 503, enhanced: "5.5.1", text, violation: true });
    }

    async fn consult(&mut self, stage: Stage, sender: &str, recipients: &[Recipient]) -> Step<Said> {
        let action = self.choose(stage, sender, recipients, None);
        self.act(action).await
    }

    fn choose(
        &mut self,
        stage: Stage,
        sender: &str,
        recipients: &[Recipient],
        message: Option<(&Identity, &[u8])>,
    ) -> Action {
        let moment = Moment {
            stage,
            connection: self.number,
            transaction: self.transactions,
            sender,
            recipients,
            notification: message.map(|(identity, _)| identity.notification.as_str()),
            message: message.map(|(_, bytes)| bytes),
        };
        self.shared.script.choose(&moment, &mut self.draws)
    }

    async fn act(&mut self, action: Action) -> Step<Said> {
        let mut next = action;
        loop {
            match next {
                Action::Proceed => return Ok(Said::Normal),
                Action::Reply(bytes) => {
                    self.wire.queue(&bytes);
                    return Ok(Said::Raw(bytes.first().copied()));
                }
                Action::Delay(delay, then) => {
                    self.wire.flush().await?;
                    tokio::time::sleep(delay).await;
                    next = *then;
                }
                Action::AfterBytes(_, then) | Action::AcceptThen(then) => next = *then,
                Action::ReplyThenClose(bytes) => {
                    self.wire.queue(&bytes);
                    self.wire.close().await?;
                    return Err(Over);
                }
                Action::Close => {
                    self.wire.cut().await?;
                    return Err(Over);
                }
                Action::Reset => {
                    self.wire.reset().await?;
                    return Err(Over);
                }
                Action::Hang => {
                    self.wire.flush().await?;
                    self.wire.hang().await;
                    return Err(Over);
                }
            }
        }
    }

    /// Asks the script and writes `code text` unless it says otherwise; tells whether the command took effect.
    async fn answer(&mut self, stage: Stage, code: u16, enhanced: &str, text: &str) -> Step<bool> {
        match self.consult(stage, "", &[]).await? {
            Said::Normal => {
                self.reply(code, enhanced, text);
                Ok((200..400).contains(&code))
            }
            Said::Raw(first) => Ok(matches!(first, Some(b'2' | b'3'))),
        }
    }

    async fn command(&mut self, line: &[u8]) -> Step {
        let command = match parse(line, self.grammar()) {
            Ok(command) => command,
            Err(refusal) => {
                self.refuse(&refusal);
                return Ok(());
            }
        };
        if command.ends_group() && self.wire.has_input() && self.pipelining() {
            self.violation("more was sent after a command that must end a group (RFC 2920, 3.1)");
        }
        if self.refused && command != Command::Quit {
            self.out_of_order("the greeting was a refusal");
            return Ok(());
        }
        match command {
            Command::Ehlo => self.ehlo(Hello::Ehlo).await,
            Command::Helo => self.ehlo(Hello::Helo).await,
            Command::StartTls => self.starttls().await,
            Command::Auth { mechanism, initial } => self.auth(&mechanism, initial).await,
            Command::Mail { sender, params, utf8, eight_bit } => {
                let permitted = Permitted { eight_bit_body: eight_bit, eight_bit_header: utf8 };
                self.mail(sender, params, permitted).await
            }
            Command::Rcpt { recipient, params } => self.rcpt(Recipient { address: recipient, params }).await,
            Command::Data => self.data().await,
            Command::Rset => {
                self.transaction = None;
                self.mail_refused = false;
                self.answer(Stage::Rset, 250, "2.0.0", "Ok").await.map(drop)
            }
            Command::Quit => {
                self.answer(Stage::Quit, 221, "2.0.0", "Bye").await?;
                self.wire.close().await?;
                Err(Over)
            }
            Command::Noop => self.answer(Stage::Other, 250, "2.0.0", "Ok").await.map(drop),
            Command::Vrfy => self.answer(Stage::Other, 252, "2.0.0", "send mail and see").await.map(drop),
            Command::Help => self.answer(Stage::Other, 214, "2.0.0", "RFC 5321").await.map(drop),
            Command::Unknown => {
                self.violation("500 unknown command");
                self.answer(Stage::Other, 500, "5.5.1", "unknown command").await.map(drop)
            }
        }
    }
}
