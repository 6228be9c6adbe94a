//! Asking the database within a request's time: what a failure there means to the caller.
//!
//! The one rule that matters: once a statement was sent and not acknowledged, nothing but an answer under the same key
//! makes the outcome known. Until then it is neither a success nor a failure.

use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::problem::{Code, Problem};
use crate::domain::fingerprint::Fingerprint;
use crate::domain::operation::Operation;
use crate::domain::submission::Submission;
use crate::domain::token::Token;
use crate::retry::full_jitter;
use crate::store::StoreError;
use crate::store::accept::{AcceptError, Receipt};
use crate::store::evidence::{NewEvidence, Recorded};
use crate::store::lines::{Lines, Loan};
use crate::store::operations::{Known, Message};
use crate::store::tokens::Caller;

/// The bounds of the delay between two tries: a server that restarts takes a second or more.
const DELAY_BASE: Duration = Duration::from_millis(20);
const DELAY_CAP: Duration = Duration::from_millis(500);

/// Tries while nothing is in doubt. The second is for a connection that went stale; the caller makes the others.
const TRIES_WITHOUT_DOUBT: u16 = 3;

/// Readings of one thing: the second is for a connection that went stale.
const READS_MAX: u16 = 2;

/// Asks the database, each time on a line of its own.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    lines: Lines,
}

impl Asking {
    pub(super) fn new(lines: Lines) -> Self {
        Self { lines }
    }

    async fn line(&self, deadline: Instant) -> Result<Loan, Problem> {
        timeout_at(deadline, self.lines.lend())
            .await
            .map_err(|_| Problem::new(Code::Overloaded, "Send the same request again after Retry-After."))
    }

    /// Who shows this token.
    pub(super) async fn caller(&self, token: &Token, deadline: Instant) -> Result<Option<Caller>, Problem> {
        let (mut line, mut tries) = (self.line(deadline).await?, 0);
        loop {
            if let Some(caller) = heard(timeout_at(deadline, line.caller(token)).await, &mut tries)? {
                return Ok(caller);
            }
        }
    }

    /// What is on record about an operation.
    pub(super) async fn known(&self, operation: &Operation, deadline: Instant) -> Result<Option<Known>, Problem> {
        let (mut line, mut tries) = (self.line(deadline).await?, 0);
        loop {
            if let Some(known) = heard(timeout_at(deadline, line.operation(operation)).await, &mut tries)? {
                return Ok(known);
            }
        }
    }

    /// A message of an account's.
    pub(super) async fn message(
        &self,
        account_id: &str,
        id: Uuid,
        deadline: Instant,
    ) -> Result<Option<Message>, Problem> {
        let (mut line, mut tries) = (self.line(deadline).await?, 0);
        loop {
            if let Some(message) = heard(timeout_at(deadline, line.message(account_id, id)).await, &mut tries)? {
                return Ok(message);
            }
        }
    }

    /// Records evidence. It may be asked twice: the same evidence again changes nothing.
    pub(super) async fn record(&self, evidence: &NewEvidence, deadline: Instant) -> Result<Recorded, Problem> {
        let (mut line, mut tries) = (self.line(deadline).await?, 0);
        loop {
            if let Some(recorded) = heard(timeout_at(deadline, line.record_evidence(evidence)).await, &mut tries)? {
                return Ok(recorded);
            }
        }
    }

    /// A fresh UUIDv7 by the database's clock.
    pub(super) async fn fresh_id(&self, deadline: Instant) -> Result<Uuid, Problem> {
        let (mut line, mut tries) = (self.line(deadline).await?, 0);
        loop {
            if let Some(id) = heard(timeout_at(deadline, line.fresh_id()).await, &mut tries)? {
                return Ok(id);
            }
        }
    }

    /// Stores the operation or finds its receipt, and says so only when it is committed.
    ///
    /// A commit that is not acknowledged is asked for again under the same key, on a new connection: that waits for a
    /// transaction which is still running, then finds its receipt or stores the operation in its stead.
    pub(super) async fn accept(
        &self,
        operation: &Operation,
        fingerprint: &Fingerprint,
        submission: &Submission,
        deadline: Instant,
    ) -> Result<Receipt, Problem> {
        let mut line = self.line(deadline).await?;
        let mut doubt = false;
        for tries in 1u16.. {
            let asked = timeout_at(deadline, line.accept(operation, fingerprint, submission)).await;
            let error = match asked {
                Ok(Ok(receipt)) => return Ok(receipt),
                Ok(Err(error)) => error,
                // Cut off at an unknown point, perhaps after sending.
                Err(_) => return Err(unconfirmed()),
            };
            let passing = match error {
                // Each of these is an answer about the key itself, whatever became of an earlier try: the reservation comes
                // first, and would have found its receipt.
                AcceptError::PayloadMismatch => return Err(mismatch()),
                AcceptError::Erased => return Err(erased()),
                AcceptError::Invalid(invalid) => return Err(Problem::invalid(invalid)),
                AcceptError::Incomplete(what) => {
                    tracing::error!(what, operation = operation.operation, "a receipt has no answer");
                    let detail = "Tell whoever runs this server. Sending the same request again is safe.";
                    return Err(Problem::new(Code::ReceiptIncomplete, detail));
                }
                AcceptError::Refused(error) if !doubt => return Err(fault(&error)),
                AcceptError::InProgress if !doubt => {
                    let detail = "Send the same request again after Retry-After: it gives the other one's answer.";
                    return Err(Problem::new(Code::InProgress, detail));
                }
                AcceptError::Refused(error) => error.to_string(),
                AcceptError::InProgress => "an unacknowledged transaction is still under way".to_owned(),
                AcceptError::Unacknowledged(error) => {
                    doubt = true;
                    error.to_string()
                }
                AcceptError::Unreachable(error) if tries >= TRIES_WITHOUT_DOUBT && !doubt => {
                    tracing::warn!(%error, "the database cannot be reached");
                    return Err(unavailable());
                }
                AcceptError::Undone(error) if tries >= TRIES_WITHOUT_DOUBT && !doubt => {
                    tracing::warn!(%error, "the database undid an operation");
                    if error.is_shortage() {
                        return Err(unavailable());
                    }
                    return Err(Problem::new(Code::Overloaded, "Send the same request again after Retry-After."));
                }
                AcceptError::Unreachable(error) | AcceptError::Undone(error) => error.to_string(),
            };
            let delay = full_jitter(DELAY_BASE, DELAY_CAP, tries);
            if Instant::now() + delay >= deadline {
                tracing::warn!(error = passing, tries, doubt, "an operation was not settled in its time");
                break;
            }
            tokio::time::sleep(delay).await;
        }
        Err(if doubt { unconfirmed() } else { unavailable() })
    }
}

/// What a reader got: an answer, or `None` to ask once more on a new connection, since an idle one may have died unnoticed.
fn heard<T>(answer: Result<Result<T, StoreError>, Elapsed>, tries: &mut u16) -> Result<Option<T>, Problem> {
    *tries += 1;
    match answer {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(error)) if error.is_permanent() => Err(fault(&error)),
        Ok(Err(_)) if *tries < READS_MAX => Ok(None),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the database does not answer a reader");
            Err(unavailable())
        }
        Err(_) => Err(unavailable()),
    }
}

pub(super) fn mismatch() -> Problem {
    let detail = "This key names an operation with other content, which stays as it is. New content needs a new key; a retry \
                  must send the content of the first request.";
    Problem::new(Code::PayloadMismatch, detail)
}

pub(super) fn erased() -> Problem {
    Problem::new(Code::Erased, "The operation was stored, and its content was erased since. The key stays taken.")
}

fn unconfirmed() -> Problem {
    let detail = "It may be stored or not. Send the same request with the same key again after Retry-After: only that tells. A \
                  new key could store it twice.";
    Problem::new(Code::OutcomeUnconfirmed, detail)
}

fn unavailable() -> Problem {
    let detail = "This request stored nothing. Send the same again after Retry-After.";
    Problem::new(Code::Unavailable, detail)
}

fn fault(error: &StoreError) -> Problem {
    tracing::error!(%error, "the database refuses a statement");
    Problem::new(Code::Internal, "Tell whoever runs this server. Sending the same request again is safe.")
}
