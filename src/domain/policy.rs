//! What follows from an ended attempt: retries, blame, and the terms under which an uncertain attempt may be repeated.
//!
//! Durations only; the database adds them to its own clock.

use std::time::Duration;

use super::outcome::{Blame, Outcome, Verdict};

/// When and how often a notification that is known not to have been accepted is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The upper bound of the first delay; it doubles with every try.
    pub base: Duration,
    /// The upper bound of every delay.
    pub cap: Duration,
    /// How many tries a notification has.
    pub max_tries: u16,
    /// How long after it was first due a notification is given up (RFC 5321, 4.5.4.1).
    pub deadline: Duration,
    /// The longest delay that a server may ask for; a longer one is cut to this.
    pub stated_delay_cap: Duration,
}

/// What to do with an attempt that may have been accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUncertain {
    /// Flag it and wait for evidence.
    Hold,
    /// Send it again to the same dedup scope while the provider deduplicates (G3 (b)).
    ResendWithinWindow,
    /// Send it again although the recipient may get it twice: for content that is harmless to receive twice.
    AcceptDuplicates,
}

/// The terms of recovery of one attempt, fixed when it is claimed and recorded with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryTerms {
    /// Who deduplicates with whom: attempts in different scopes do not know of each other.
    pub dedup_scope: String,
    /// How long after *begin* evidence is awaited.
    pub window: Duration,
    /// How long after the first doubtful *begin* a resend may still *begin*; `None` where it may not be resent by itself.
    pub resend_room: Option<Duration>,
}

impl RecoveryTerms {
    /// Works out the terms: a resend must be able to end inside both windows, so the send deadline and the margin for
    /// clocks are taken off.
    #[must_use]
    pub fn new(
        on_uncertain: OnUncertain,
        dedup_scope: String,
        window: Duration,
        dedup_window: Option<Duration>,
        send_deadline: Duration,
        clock_margin: Duration,
    ) -> Self {
        let usable = match (on_uncertain, dedup_window) {
            (OnUncertain::Hold, _) | (OnUncertain::ResendWithinWindow, None) => None,
            (OnUncertain::ResendWithinWindow, Some(dedup)) => Some(window.min(dedup)),
            (OnUncertain::AcceptDuplicates, _) => Some(window),
        };
        let resend_room =
            usable.and_then(|usable| usable.checked_sub(send_deadline)).and_then(|left| left.checked_sub(clock_margin));
        Self { dedup_scope, window, resend_room }
    }
}

/// Why a notification failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailReason {
    /// The provider refused it for good.
    Refused,
    /// Its tries are used up.
    Exhausted,
    /// Its deadline passed.
    Expired,
    /// It cannot be made into a message.
    Invalid,
}

impl FailReason {
    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
            Self::Invalid => "invalid",
        }
    }
}

/// What a settled attempt asks of the database. The database turns `Retry` into *failed* or *uncertain* where its clock
/// or an earlier doubtful attempt says so, and `Fail` into *uncertain* where an earlier attempt is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The provider accepted it.
    Sent,
    /// It may have been accepted.
    Doubt {
        /// When to send it again, where its terms allow that; `None` when its tries are used up.
        resend_after: Option<Duration>,
    },
    /// Try again after `delay`.
    Retry {
        /// How long from now.
        delay: Duration,
        /// Whether the attempt uses up one of the notification's tries.
        counted: bool,
        /// Whether the notification is held in suspicion for a fault that could be the provider's.
        suspected: bool,
    },
    /// Give it up.
    Fail(FailReason),
}

/// What the worker knows about a claimed notification's past when it settles an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// Tries used up before this attempt.
    pub tries: u16,
    /// How often this notification was put back under suspicion.
    pub suspicions: u16,
}

/// How often a notification is put back for a fault that could be the provider's before it is taken for its own: each
/// time the provider is probed with one message, so a provider that refuses everything meets many different ones.
pub const MAX_SUSPICIONS: u16 = 5;

/// The delay after a provider's fault: short, since the circuit breaker holds the provider back, but not nothing, so that
/// a fault below the breaker's threshold does not spin.
pub const FAULT_DELAY: Duration = Duration::from_secs(1);

/// Decides what follows from a verdict. `jitter` draws a full-jitter delay for a try (see [`crate::retry`]), `stated` is
/// the delay that the server asked for, `provider_proven` whether the provider accepted something else lately.
#[must_use]
pub fn next(
    verdict: &Verdict,
    record: Record,
    policy: &RetryPolicy,
    stated: Option<Duration>,
    provider_proven: bool,
    jitter: impl Fn(Duration, Duration, u16) -> Duration,
) -> Next {
    let blame = match verdict.blame {
        Blame::Suspect if provider_proven || record.suspicions >= MAX_SUSPICIONS => Blame::Notification,
        Blame::Provider if verdict.phase.offered() && record.suspicions >= MAX_SUSPICIONS => Blame::Notification,
        blame => blame,
    };
    let wait = |delay: Duration| delay.max(stated.unwrap_or_default().min(policy.stated_delay_cap));
    match (verdict.outcome, blame) {
        (Outcome::Sent, _) => Next::Sent,
        (Outcome::Uncertain, _) => Next::Doubt {
            resend_after: (record.tries + 1 < policy.max_tries).then(|| jitter(policy.base, policy.cap, record.tries)),
        },
        (Outcome::NotSent | Outcome::Deferred | Outcome::Refused, Blame::Provider | Blame::Suspect) => Next::Retry {
            delay: wait(jitter(FAULT_DELAY, FAULT_DELAY, 0)),
            counted: false,
            suspected: verdict.phase.offered(),
        },
        (Outcome::Refused, Blame::Notification) => Next::Fail(FailReason::Refused),
        (Outcome::NotSent | Outcome::Deferred, Blame::Notification) => {
            if record.tries + 1 >= policy.max_tries {
                return Next::Fail(FailReason::Exhausted);
            }
            Next::Retry { delay: wait(jitter(policy.base, policy.cap, record.tries)), counted: true, suspected: false }
        }
    }
}
