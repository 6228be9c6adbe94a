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

/// How often where the provider has accepted something else lately. Not never: the first refusals of a provider that begins
/// to refuse everything look the same, and what follows in the next second tells them apart.
pub const MAX_SUSPICIONS_IF_PROVEN: u16 = 1;

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
    let suspicions_max = if provider_proven { MAX_SUSPICIONS_IF_PROVEN } else { MAX_SUSPICIONS };
    let blame = match verdict.blame {
        Blame::Suspect if record.suspicions >= suspicions_max => Blame::Notification,
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
            // Without jitter where one more look decides: others' refusals must have had the time to come in.
            delay: wait(if provider_proven { FAULT_DELAY } else { jitter(FAULT_DELAY, FAULT_DELAY, 0) }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Phase;

    const POLICY: RetryPolicy = RetryPolicy {
        base: Duration::from_secs(30),
        cap: Duration::from_secs(3_600),
        max_tries: 3,
        deadline: Duration::from_secs(345_600),
        stated_delay_cap: Duration::from_secs(7_200),
    };

    fn verdict(outcome: Outcome, blame: Blame) -> Verdict {
        Verdict { outcome, phase: Phase::Rcpt, blame, reply: None, error: None }
    }

    fn after(verdict: &Verdict, record: Record, proven: bool) -> Next {
        next(verdict, record, &POLICY, None, proven, |base, _, _| base)
    }

    #[test]
    fn a_suspect_is_put_back_five_times_by_an_unknown_provider_and_once_by_a_proven_one() {
        for outcome in [Outcome::NotSent, Outcome::Deferred, Outcome::Refused] {
            for (proven, max) in [(false, MAX_SUSPICIONS), (true, MAX_SUSPICIONS_IF_PROVEN)] {
                for suspicions in 0..8 {
                    let next = after(&verdict(outcome, Blame::Suspect), Record { tries: 0, suspicions }, proven);
                    let put_back = matches!(next, Next::Retry { counted: false, suspected: true, .. });
                    assert_eq!(put_back, suspicions < max, "{outcome} {proven} {suspicions}: {next:?}");
                }
            }
        }
    }

    #[test]
    fn a_second_look_at_a_proven_provider_comes_no_sooner_than_the_fault_delay() {
        let none = |_, _, _| Duration::ZERO;
        let suspect = verdict(Outcome::Refused, Blame::Suspect);
        let next = next(&suspect, Record::default(), &POLICY, None, true, none);
        assert_eq!(next, Next::Retry { delay: FAULT_DELAY, counted: false, suspected: true });
    }

    #[test]
    fn tries_are_used_up_by_the_notifications_own_faults_alone() {
        for (outcome, last) in [(Outcome::NotSent, FailReason::Exhausted), (Outcome::Deferred, FailReason::Exhausted)] {
            let own = verdict(outcome, Blame::Notification);
            let first = after(&own, Record { tries: 1, suspicions: 0 }, true);
            assert!(matches!(first, Next::Retry { counted: true, suspected: false, .. }), "{first:?}");
            assert_eq!(after(&own, Record { tries: 2, suspicions: 0 }, true), Next::Fail(last));
            let fault = Verdict { phase: Phase::Connect, ..verdict(outcome, Blame::Provider) };
            let free = after(&fault, Record { tries: 2, suspicions: 9 }, true);
            assert!(matches!(free, Next::Retry { counted: false, suspected: false, .. }), "{free:?}");
        }
    }

    #[test]
    fn a_stated_delay_lengthens_a_delay_up_to_its_cap_and_never_shortens_it() {
        for (stated, delay) in [(1, 30), (120, 120), (1_000_000, 7_200)] {
            let own = verdict(Outcome::Deferred, Blame::Notification);
            let stated = Some(Duration::from_secs(stated));
            let next = next(&own, Record::default(), &POLICY, stated, true, |base, _, _| base);
            assert_eq!(next, Next::Retry { delay: Duration::from_secs(delay), counted: true, suspected: false });
        }
    }

    #[test]
    fn doubt_is_resent_only_while_a_try_is_left() {
        let doubt = verdict(Outcome::Uncertain, Blame::Suspect);
        let with = |tries| after(&doubt, Record { tries, suspicions: 0 }, false);
        assert_eq!(with(1), Next::Doubt { resend_after: Some(POLICY.base) });
        assert_eq!(with(2), Next::Doubt { resend_after: None });
    }
}
