//! One configured provider: how it is reached, how much it may be handed now, and what its answers say about it.
//!
//! It never talks to the network and never decides what becomes of a notification.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::breaker::{Allowance, Breaker, BreakerSettings, Probe, Standing};
use super::compose::Identity;
use super::endpoint::Endpoint;
use super::open::ADDRESSES_MAX;
use super::pool::{Limits, Pool};
use super::rate::{Bucket, Rate};
use crate::domain::ids::NotificationId;
use crate::domain::outcome::{Blame, Outcome, Verdict};
use crate::domain::policy::{OnUncertain, RecoveryTerms};
use crate::domain::tally::Tally;

/// The dedup contract of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dedup {
    /// The header whose value the provider deduplicates on.
    pub header: String,
    /// Who deduplicates with whom.
    pub scope: String,
    /// How long after it accepted a message the provider still knows it.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
}

/// A validated provider section of the configuration.
#[derive(Clone)]
pub struct ProviderSettings {
    /// Its name in the configuration, in rows and in metrics.
    pub name: String,
    /// How it is reached.
    pub endpoint: Endpoint,
    /// How long a connection is kept.
    pub limits: Limits,
    /// How many messages it may be handed at once, each on a connection of its own.
    pub connections: u32,
    /// How fast it may be handed messages; `None` for as fast as it takes them.
    pub rate: Option<Rate>,
    /// From *begin* to the final answer.
    pub send_deadline: Duration,
    /// When it is left alone.
    pub breaker: BreakerSettings,
    /// What it deduplicates on, if it does.
    pub dedup: Option<Dedup>,
    /// How a notification's identity travels on its messages.
    pub identity: Identity,
    /// What to do with an attempt that may have been accepted.
    pub on_uncertain: OnUncertain,
    /// The terms that follow from all this for an attempt at this provider.
    pub recovery: RecoveryTerms,
}

impl ProviderSettings {
    /// The longest that a whole attempt can take, every phase at its limit.
    #[must_use]
    pub fn attempt_max(&self) -> Duration {
        let limit = &self.endpoint.timeouts;
        let addresses = u32::try_from(ADDRESSES_MAX).unwrap_or(u32::MAX);
        // EHLO, STARTTLS and EHLO again.
        let greeted = limit.greeting + limit.ehlo * 3;
        // AUTH LOGIN has three replies.
        let open = limit.resolve + limit.connect.saturating_mul(addresses) + limit.tls + greeted + limit.auth * 3;
        // RSET and MAIL on a reused connection that turns out to be dead, then MAIL on a fresh one.
        open + limit.mail * 3 + limit.rcpt + limit.data + self.send_deadline
    }
}

// A TLS configuration prints pages of roots.
impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("name", &self.name)
            .field("host", &self.endpoint.host)
            .field("port", &self.endpoint.port)
            .field("security", &self.endpoint.security)
            .field("auth", &self.endpoint.auth)
            .field("connections", &self.connections)
            .field("rate", &self.rate)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

/// How many messages a provider may be handed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// How many messages may be claimed for it.
    pub messages: u32,
    /// Where there is no room: when time alone makes some. `None` where only the end of a message under way will tell.
    pub next_at: Option<Instant>,
    /// Whether the breaker holds it back, wholly or but for a probe: then another provider of the route may take its place.
    /// Not set where it is merely busy.
    pub backed_off: bool,
}

/// A provider at work.
#[derive(Debug)]
pub struct Provider {
    settings: ProviderSettings,
    breaker: Mutex<Breaker>,
    tally: Mutex<Tally>,
    bucket: Option<Mutex<Bucket>>,
    slots: Arc<Semaphore>,
    pool: Pool,
}

impl Provider {
    /// A provider about which nothing is known yet.
    #[must_use]
    pub fn new(settings: ProviderSettings, now: Instant) -> Self {
        Self {
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            tally: Mutex::default(),
            bucket: settings.rate.map(|rate| Mutex::new(Bucket::new(rate, now))),
            slots: Arc::new(Semaphore::new(usize::try_from(settings.connections).unwrap_or(Semaphore::MAX_PERMITS))),
            pool: Pool::new(settings.endpoint.clone(), settings.limits.clone()),
            settings,
        }
    }

    /// How it is configured.
    #[must_use]
    pub const fn settings(&self) -> &ProviderSettings {
        &self.settings
    }

    /// Its name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// How many messages may be claimed for it now: the least of its free slots, its rate and its breaker.
    #[must_use]
    pub fn room(&self, now: Instant) -> Room {
        let (allowed, backed_off) = match lock(&self.breaker).allowance(now) {
            Allowance::None { until } => return Room { messages: 0, next_at: until, backed_off: true },
            Allowance::One => (1, true),
            Allowance::Free => (u32::MAX, false),
        };
        let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX);
        let (tokens, next_at) = match &self.bucket {
            None => (u32::MAX, None),
            Some(bucket) => {
                let bucket = lock(bucket);
                (bucket.available(now), Some(bucket.next_at(now)))
            }
        };
        let messages = allowed.min(free).min(tokens);
        // While no slot is free, the next token makes no room.
        Room { messages, next_at: next_at.filter(|_| tokens == 0 && free > 0), backed_off }
    }

    /// Waits until half of the slots are free, for `patience` at most: a claim of many is worth its statement more than
    /// one of few.
    pub async fn gather(&self, patience: Duration) {
        let half = self.settings.connections.div_ceil(2);
        // Permits that are gathered while it waits go back at once, when the wait is over in either way.
        let _ = tokio::time::timeout(patience, self.slots.acquire_many(half)).await;
    }

    /// Its idle connections.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes a slot and a token for one claimed message, and makes it the probe if one is due. `None` when there is no
    /// slot, or the breaker opened since the room was asked for: the message goes back.
    #[must_use]
    pub fn admit(self: &Arc<Self>, now: Instant) -> Option<Ticket> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let probe = {
            let mut breaker = lock(&self.breaker);
            match breaker.allowance(now) {
                Allowance::Free => None,
                Allowance::One => breaker.probe_started(now),
                Allowance::None { .. } => return None,
            }
        };
        if let Some(bucket) = &self.bucket {
            lock(bucket).take(1, now);
        }
        Some(Ticket { provider: Arc::clone(self), probe, since: now, _slot: slot })
    }

    /// Whether it accepted something lately: a refusal is then taken for the notification's own.
    #[must_use]
    pub fn proven(&self, now: Instant) -> bool {
        lock(&self.breaker).proven(now)
    }

    /// What its breaker does at `now`.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        lock(&self.breaker).standing(now)
    }

    /// What attempts came to since this was last asked.
    #[must_use]
    pub fn take_tally(&self) -> Tally {
        std::mem::take(&mut *lock(&self.tally))
    }

    /// How many messages are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        (self.settings.connections as usize).saturating_sub(self.slots.available_permits())
    }
}

/// The right to hand one message to a provider. Dropped without a verdict it frees its slot and, if it was the probe, lets
/// the next message probe.
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    provider: Arc<Provider>,
    probe: Option<Probe>,
    since: Instant,
    _slot: OwnedSemaphorePermit,
}

impl Ticket {
    /// The provider that it is for.
    #[must_use]
    pub fn provider(&self) -> &Arc<Provider> {
        &self.provider
    }

    /// Tells the provider's breaker what the attempt came to, and frees the slot. `stated` is the delay that the reply
    /// asked for, if it did.
    pub fn settle(self, notification: NotificationId, verdict: &Verdict, stated: Option<Duration>, now: Instant) {
        if !verdict.phase.offered() {
            self.give_back_token();
        }
        lock(&self.provider.tally).count(notification, verdict.outcome, now.saturating_duration_since(self.since));
        let mut breaker = lock(&self.provider.breaker);
        match (verdict.outcome, verdict.blame) {
            (Outcome::Sent, _) => breaker.accepted(now),
            // A provider that leaves the end of data unanswered makes doubt of every message it is handed.
            (Outcome::Uncertain, _) => breaker.fault(now),
            (Outcome::NotSent | Outcome::Deferred | Outcome::Refused, Blame::Provider) => breaker.fault(now),
            (Outcome::NotSent | Outcome::Deferred | Outcome::Refused, Blame::Suspect) => {
                breaker.suspect(notification, now);
            }
            // Says nothing about the provider; a probe is let go by `drop`.
            (Outcome::NotSent | Outcome::Deferred | Outcome::Refused, Blame::Notification) => {}
        }
        if let Some(delay) = stated.filter(|_| throttled(verdict)) {
            breaker.pause(now + delay.min(self.provider.settings.breaker.open_max), now);
        }
        drop(breaker);
    }

    /// Gives the ticket back: the message was not offered to the provider after all.
    pub fn unused(self) {
        self.give_back_token();
    }

    fn give_back_token(&self) {
        if let Some(bucket) = &self.provider.bucket {
            lock(bucket).give_back(1);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(probe) = self.probe {
            lock(&self.provider.breaker).probe_lost(probe, Instant::now());
        }
    }
}

/// Whether the reply asks the whole client to slow down: 421 (RFC 5321, 3.8), or a 4.7.x that is not about this one
/// notification (greylisting is).
fn throttled(verdict: &Verdict) -> bool {
    verdict.outcome != Outcome::Sent
        && verdict.reply.as_ref().is_some_and(|reply| {
            let slow_down = reply.enhanced.as_deref().is_some_and(|code| code.starts_with("4.7."));
            reply.code == 421 || (slow_down && verdict.blame != Blame::Notification)
        })
}

/// What a panic left behind is still a breaker: counts and instants, no invariant across fields that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
