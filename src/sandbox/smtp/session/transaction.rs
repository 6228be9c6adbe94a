//! One message: MAIL, RCPT, DATA, the body and its end, and the pause after it.

use super::super::action::{Action, Stage};
use super::super::body::{Body, Permitted};
use super::super::mailbox::{Offer, Param, Recipient};
use super::super::syntax::Refusal;
use super::super::wire::Progress;
use super::{Hello, Over, Said, Session, Step};

/// RFC 5321, 4.5.3.1.8 asks for room for 100 recipients; ten times that is a bound and no obstacle.
const RECIPIENTS_MAX: usize = 1_000;

/// What is kept of a message when the server names no SIZE: 64 MiB, so that a runaway sender cannot fill the memory.
const MESSAGE_MAX_BYTES: u64 = 64 * 1_024 * 1_024;

pub(super) struct Transaction {
    sender: String,
    params: Vec<Param>,
    recipients: Vec<Recipient>,
    refused_recipients: bool,
    pub(super) permitted: Permitted,
}

impl Session<'_> {
    pub(super) async fn mail(&mut self, sender: String, params: Vec<Param>, permitted: Permitted) -> Step {
        if self.hello == Hello::Awaited {
            self.out_of_order("MAIL before EHLO");
            return Ok(());
        }
        if self.transaction.is_some() {
            self.out_of_order("MAIL inside a transaction");
            return Ok(());
        }
        self.mail_refused = true;
        if self.shared.auth.is_some() && !self.authenticated {
            self.refuse(&Refusal {
                code: 530,
                enhanced: "5.7.0",
                text: "authentication is required",
                violation: false,
            });
            return Ok(());
        }
        self.transactions += 1;
        match self.consult(Stage::Mail, &sender, &[]).await? {
            Said::Normal => self.reply(250, "2.1.0", "Ok"),
            Said::Raw(Some(b'2')) => {}
            Said::Raw(_) => return Ok(()),
        }
        self.mail_refused = false;
        let recipients = Vec::new();
        self.transaction = Some(Transaction { sender, params, recipients, refused_recipients: false, permitted });
        Ok(())
    }

    /// Whether a command that needs a transaction may be the innocent rest of a pipelined group whose MAIL was refused.
    fn excused(&self) -> bool {
        self.mail_refused && self.pipelining()
    }

    pub(super) async fn rcpt(&mut self, recipient: Recipient) -> Step {
        let Some(mut transaction) = self.transaction.take() else {
            let violation = !self.excused();
            self.refuse(&Refusal { code: 503, enhanced: "5.5.1", text: "RCPT without MAIL", violation });
            return Ok(());
        };
        let asked = std::slice::from_ref(&recipient);
        let accepted = if transaction.recipients.len() >= RECIPIENTS_MAX {
            self.reply(452, "4.5.3", "too many recipients");
            false
        } else {
            match self.consult(Stage::Rcpt, &transaction.sender, asked).await? {
                Said::Normal => {
                    self.reply(250, "2.1.5", "Ok");
                    true
                }
                Said::Raw(first) => first == Some(b'2'),
            }
        };
        if accepted {
            transaction.recipients.push(recipient);
        } else {
            transaction.refused_recipients = true;
        }
        self.transaction = Some(transaction);
        Ok(())
    }

    pub(super) async fn data(&mut self) -> Step {
        let Some(transaction) = self.transaction.take() else {
            let violation = !self.excused();
            self.refuse(&Refusal { code: 503, enhanced: "5.5.1", text: "DATA without MAIL", violation });
            return Ok(());
        };
        if transaction.recipients.is_empty() {
            // RFC 2920, 3.1: a pipelining client cannot know yet that no recipient was accepted.
            let violation = !(transaction.refused_recipients && self.pipelining());
            self.refuse(&Refusal { code: 554, enhanced: "5.5.1", text: "no valid recipients", violation });
            self.transaction = Some(transaction);
            return Ok(());
        }
        match self.consult(Stage::Data, &transaction.sender, &transaction.recipients).await? {
            Said::Normal => self.reply(354, "", "end with <CR><LF>.<CR><LF>"),
            Said::Raw(Some(b'3')) => {}
            Said::Raw(_) => {
                self.transaction = Some(transaction);
                return Ok(());
            }
        }
        let max = self.shared.extensions.size.filter(|&size| size > 0).unwrap_or(MESSAGE_MAX_BYTES);
        let mut body = Body::new(max, transaction.permitted);
        self.body(&mut body, &transaction).await?;
        self.end_of_data(body, transaction).await?;
        self.idle().await
    }

    async fn body(&mut self, body: &mut Body, transaction: &Transaction) -> Step {
        let action = self.choose(Stage::Body, &transaction.sender, &transaction.recipients, None);
        if action != Action::Proceed {
            let (bytes, action) = match action {
                Action::AfterBytes(bytes, action) => (bytes, *action),
                action => (0, action),
            };
            self.wire.flush().await?;
            if self.wire.body(body, Some(bytes)).await? == Progress::Ended {
                return Ok(());
            }
            self.act(action).await?;
            self.wire.flush().await?;
        }
        self.wire.body(body, None).await?;
        Ok(())
    }

    async fn end_of_data(&mut self, body: Body, transaction: Transaction) -> Step {
        self.unanswered = None;
        if let Some((code, enhanced, text)) = self.fault_of(&body) {
            self.reply(code, enhanced, &text);
            return Ok(());
        }
        let bytes = body.into_bytes();
        let identity = self.shared.mailbox.identity(&bytes);
        let Transaction { sender, params, recipients, .. } = transaction;
        let mut action = self.choose(Stage::EndOfData, &sender, &recipients, Some((&identity, &bytes)));
        while let Action::Delay(delay, then) = action {
            self.wire.flush().await?;
            tokio::time::sleep(delay).await;
            action = *then;
        }
        let action = match action {
            Action::Proceed => Action::Proceed,
            Action::AcceptThen(then) => *then,
            thrown_away @ (Action::Reply(_)
            | Action::ReplyThenClose(_)
            | Action::Close
            | Action::Reset
            | Action::Hang
            | Action::Delay(..)
            | Action::AfterBytes(..)) => return self.act(thrown_away).await.map(drop),
        };
        let (answer_lost, connection) = (!action.answers(), self.number);
        let offer = Offer { sender, params, recipients, bytes, identity, connection, answer_lost };
        let kept = self.shared.mailbox.accept(offer);
        let late = matches!(action, Action::Delay(..));
        self.unanswered = kept.index.filter(|_| !answer_lost);
        self.answering = true;
        let acted = self.act(action).await;
        // Left true, it tells `drop` that the answer is lost.
        self.answering = late && self.wire.client_left().await;
        match acted? {
            Said::Normal => self.reply(250, "2.0.0", &format!("Ok: queued as {}", kept.queue_id)),
            Said::Raw(_) => {}
        }
        Ok(())
    }

    /// Why a body cannot be accepted, whatever the script says. Flaws are recorded.
    fn fault_of(&self, body: &Body) -> Option<(u16, &'static str, String)> {
        for flaw in body.flaws() {
            self.violation(flaw.as_str());
        }
        if let Some(flaw) = body.flaws().first() {
            return Some((554, "5.6.0", flaw.as_str().to_owned()));
        }
        body.too_big().then(|| (552, "5.3.4", "message size exceeds the limit".to_owned()))
    }

    async fn idle(&mut self) -> Step {
        let mut action = self.choose(Stage::Idle, "", &[], None);
        if action == Action::Proceed {
            return Ok(());
        }
        self.wire.flush().await?;
        while let Action::Delay(delay, then) = action {
            if let Ok(spoke) = tokio::time::timeout(delay, self.wire.wait_input()).await {
                return spoke.map_err(Over::from);
            }
            action = *then;
        }
        // What is said here is said unasked, at once, and is no answer to anything.
        self.act(action).await?;
        self.wire.flush().await?;
        Ok(())
    }
}
