//! One attempt, from a claim to a settlement: a straight pipeline with one closed set of outcomes.
//!
//! compose, connect, offer, *begin*, transmit. Whatever ends it, the verdict says what is known, and the settlement is
//! handed over outside every scope that can be cancelled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::domain::content::Content;
use crate::domain::outcome::{Blame, Outcome, Phase, Verdict};
use crate::domain::policy::{FailReason, Next, RetryPolicy, next};
use crate::mail::classify::{Cause, Failure, accepted, classify, stated_delay};
use crate::mail::compose::{Composed, compose};
use crate::mail::limit::within;
use crate::mail::provider::{Provider, Ticket};
use crate::mail::session::{Envelope, Session};
use crate::retry::full_jitter;
use crate::store::claim::Claimed;
use crate::store::settle::Settlement;

use super::begin::{Beginner, Begun};
use super::held::Held;
use super::settle::Settler;

/// What every attempt of this worker shares.
#[derive(Debug)]
pub struct Context {
    /// Where begins are asked for.
    pub beginner: Beginner,
    /// Where results go.
    pub settler: Settler,
    /// What this worker holds.
    pub held: Held,
    /// How failures are retried.
    pub retry: RetryPolicy,
    /// Set when the grace period is over: what has not begun is given back, what has is cut off.
    pub cut: CancellationToken,
}

/// Why what had not begun was given back at the end of the grace period.
const SHUTDOWN: &str = "given back at shutdown";

/// How an attempt ended.
enum End {
    /// It came to this.
    Verdict(Verdict),
    /// The notification cannot be made into a message.
    Invalid(String),
    /// Its deadline had passed.
    Overdue,
    /// It had no try left: evidence puts back what was not accepted, and knows no budget.
    Exhausted,
    /// It was given back: nothing that could be accepted had left, and nobody is at fault.
    GivenBack(Phase, &'static str),
}

/// Makes one attempt and hands its result over.
pub async fn deliver(context: Arc<Context>, ticket: Ticket, claimed: Claimed) {
    let started = Instant::now();
    let provider = Arc::clone(ticket.provider());
    let end = attempt(&context, &provider, &claimed).await;
    let (verdict, next) = match end {
        End::Verdict(verdict) => {
            let now = Instant::now();
            let stated = verdict.reply.as_ref().and_then(stated_delay);
            let next = next(&verdict, claimed.record(), &context.retry, stated, provider.proven(now), full_jitter);
            ticket.settle(claimed.id(), &verdict, stated, now);
            (verdict, next)
        }
        End::Invalid(problem) => {
            ticket.unused();
            (not_sent(Phase::Compose, problem), Next::Fail(FailReason::Invalid))
        }
        End::Overdue => {
            ticket.unused();
            (not_sent(Phase::Claim, "its deadline had passed".to_owned()), Next::Fail(FailReason::Expired))
        }
        End::Exhausted => {
            ticket.unused();
            (not_sent(Phase::Claim, "it had no try left".to_owned()), Next::Fail(FailReason::Exhausted))
        }
        End::GivenBack(phase, why) => {
            ticket.unused();
            let again = Next::Retry { delay: Duration::ZERO, counted: false, suspected: false };
            (not_sent(phase, why.to_owned()), again)
        }
    };
    log(&claimed, &provider, &verdict, started.elapsed());
    context.settler.settle(Settlement::new(claimed, verdict, next)).await;
}

async fn attempt(context: &Context, provider: &Provider, claimed: &Claimed) -> End {
    if claimed.overdue() {
        return End::Overdue;
    }
    if claimed.record().tries >= context.retry.max_tries {
        return End::Exhausted;
    }
    let identity = &provider.settings().identity;
    let composed = match Content::parse(claimed.content().clone()).and_then(|content| compose(&content, identity)) {
        Ok(composed) => composed,
        Err(invalid) => return End::Invalid(invalid.to_string()),
    };
    let envelope = Envelope {
        sender: composed.sender.clone(),
        recipient: composed.recipient.clone(),
        smtputf8: composed.smtputf8,
    };
    let mut session = tokio::select! {
        biased;
        () = context.cut.cancelled() => return End::GivenBack(Phase::Connect, SHUTDOWN),
        opened = provider.pool().take() => match opened {
            Ok(session) => session,
            Err(failure) => return End::Verdict(classify(failure)),
        },
    };
    let sent = tokio::select! {
        biased;
        () = context.cut.cancelled() => None,
        sent = transact(context, provider, &mut session, claimed, &envelope, &composed) => Some(sent),
    };
    match sent {
        Some(Ok(verdict)) => {
            provider.pool().give_back(session);
            End::Verdict(verdict)
        }
        Some(Err(Broken::Failure(failure))) => {
            provider.pool().give_back(session);
            End::Verdict(classify(failure))
        }
        // After 354 the only way not to send is to hang up: without an end of data nothing is accepted.
        Some(Err(Broken::NotBegun(why))) => End::GivenBack(Phase::Begin, why),
        None if session.phase() == Phase::EndOfData => End::Verdict(Verdict {
            outcome: Outcome::Uncertain,
            phase: Phase::EndOfData,
            blame: Blame::Provider,
            reply: None,
            error: Some("cut off at shutdown while the answer was awaited".to_owned()),
        }),
        None => End::GivenBack(session.phase(), SHUTDOWN),
    }
}

/// Why a transaction did not end in acceptance.
enum Broken {
    Failure(Failure),
    NotBegun(&'static str),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

async fn transact(
    context: &Context,
    provider: &Provider,
    session: &mut Session,
    claimed: &Claimed,
    envelope: &Envelope,
    composed: &Composed,
) -> Result<Verdict, Broken> {
    let size = composed.bytes.len();
    if let Err(failure) = session.offer(envelope, size).await {
        if !(session.reused() && failure.is_stale_connection()) {
            return Err(failure.into());
        }
        // The server had ended an idle connection: that says nothing about the provider or the notification.
        *session = provider.pool().open().await?;
        session.offer(envelope, size).await?;
    }
    let asked = Instant::now();
    match context.beginner.begin(claimed.id(), claimed.fence()).await {
        Begun::Yes => {}
        Begun::Refused => {
            return Err(Broken::NotBegun("begin refused: the claim is no longer good, or its row is locked"));
        }
        Begun::Unknown => return Err(Broken::NotBegun("begin could not be recorded")),
    }
    // The windows in which a resend must end count from begin, not from when its answer came.
    let deadline = provider.settings().send_deadline;
    let Some(left) = deadline.checked_sub(asked.elapsed()) else {
        return Err(Broken::NotBegun("begin took all of the time for sending"));
    };
    match within(left, session.transmit(&composed.bytes)).await {
        Ok(reply) => Ok(accepted(reply?)),
        Err(_) => Err(Failure { phase: session.phase(), cause: Cause::Timeout(deadline) }.into()),
    }
}

fn not_sent(phase: Phase, error: String) -> Verdict {
    Verdict { outcome: Outcome::NotSent, phase, blame: Blame::Notification, reply: None, error: Some(error) }
}

fn log(claimed: &Claimed, provider: &Provider, verdict: &Verdict, took: Duration) {
    let code = verdict.reply.as_ref().map(|reply| reply.code);
    let (id, attempt, fence) = (claimed.id(), claimed.number(), claimed.fence());
    let (provider, phase, outcome) = (provider.name(), verdict.phase, verdict.outcome);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    match verdict.outcome {
        Outcome::Sent => tracing::debug!(%id, attempt, %fence, provider, %outcome, took_ms, "attempt ended"),
        Outcome::NotSent | Outcome::Deferred | Outcome::Refused | Outcome::Uncertain => {
            let error = verdict.error.as_deref();
            tracing::info!(%id, attempt, %fence, provider, %phase, %outcome, code, error, took_ms, "attempt ended");
        }
    }
}
