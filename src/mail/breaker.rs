//! The circuit breaker of one provider: an outage costs the provider its turn, not the notifications their tries.
//!
//! In memory and pure: "now" is handed in, nothing waits here. It judges the provider only; what becomes of a notification
//! is decided in [`crate::domain::policy`].

use std::time::{Duration, Instant};

use crate::domain::ids::NotificationId;
use crate::retry::full_jitter;

/// When the breaker opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// How many faults in a row, without an acceptance between, open it; at least one.
    pub threshold: u32,
    /// The shortest time that it stays open.
    pub open_min: Duration,
    /// The longest time that it stays open, and the longest pause that a provider can ask for.
    pub open_max: Duration,
}

/// How many messages the provider may be handed now, as far as the breaker is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// As many as there is other room for.
    Free,
    /// Exactly one, to see whether the provider is back.
    One,
    /// None before `until`; `None` where only the end of the running probe will tell.
    None {
        /// When to ask again.
        until: Option<Instant>,
    },
}

/// What the breaker does, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Messages flow.
    Closed,
    /// The provider asked to be left alone for so long.
    AskedToWait(Duration),
    /// Nothing for so long, then one message as a probe.
    Open(Duration),
    /// One message is under way, to see whether the provider is back.
    Probing,
}

/// The name of one probe, so that a probe that was overtaken cannot speak for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    Probing(Probe),
}

/// How recent an acceptance must be to prove the provider: 10 minutes, the longest that an answer to the end of data may
/// take (RFC 5321, 4.5.3.2.6), so that an answer still due cannot be the newer proof.
const PROOF_AGE_MAX: Duration = Duration::from_secs(600);

/// So many different notifications refused in a row, none accepted between, and the provider is no longer proven: one may be
/// chance, two a coincidence.
const SUSPICION_STREAK: usize = 3;

/// How many different suspects are remembered: more than any threshold needs to open the breaker; bounds the memory.
const SUSPECTS_MAX: usize = 64;

/// The breaker.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
    faults: u32,
    /// How often it opened since the last acceptance.
    openings: u16,
    /// The different notifications refused for a reason that could be the provider's, since the last acceptance.
    suspects: Vec<NotificationId>,
    accepted_at: Option<Instant>,
    paused_until: Option<Instant>,
    probes: u64,
}

impl Breaker {
    /// A closed breaker that knows nothing.
    #[must_use]
    pub const fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: State::Closed,
            faults: 0,
            openings: 0,
            suspects: Vec::new(),
            accepted_at: None,
            paused_until: None,
            probes: 0,
        }
    }

    /// How many messages the provider may be handed now.
    #[must_use]
    pub fn allowance(&self, now: Instant) -> Allowance {
        if let Some(until) = self.paused_until.filter(|&until| until > now) {
            return Allowance::None { until: Some(until) };
        }
        match self.state {
            State::Closed => Allowance::Free,
            State::Open { until } if until > now => Allowance::None { until: Some(until) },
            State::Open { .. } => Allowance::One,
            State::Probing(_) => Allowance::None { until: None },
        }
    }

    /// Makes the next message the probe, if one is due. Whoever holds the probe must end it by a verdict or by
    /// [`Self::probe_lost`].
    pub fn probe_started(&mut self, now: Instant) -> Option<Probe> {
        if self.allowance(now) != Allowance::One {
            return None;
        }
        self.probes += 1;
        let probe = Probe(self.probes);
        self.state = State::Probing(probe);
        Some(probe)
    }

    /// The probe ended and proved nothing (its task died, or the fault was the notification's own): the next one may go at
    /// once.
    pub fn probe_lost(&mut self, probe: Probe, now: Instant) {
        if self.state == State::Probing(probe) {
            self.state = State::Open { until: now };
        }
    }

    /// The provider accepted a message: all is forgiven.
    pub fn accepted(&mut self, now: Instant) {
        self.state = State::Closed;
        self.faults = 0;
        self.openings = 0;
        self.suspects.clear();
        self.accepted_at = Some(now);
    }

    /// A fault of the provider's own.
    pub fn fault(&mut self, now: Instant) {
        self.faults = self.faults.saturating_add(1);
        match self.state {
            State::Closed if self.faults >= self.settings.threshold => self.open(now),
            State::Probing(_) => self.open(now),
            // Messages that were under way when it opened say nothing new.
            State::Closed | State::Open { .. } => {}
        }
    }

    /// A refusal that could be the provider's. The same notification refused again says nothing new about the provider,
    /// but as a probe it shows that the provider is not proven to be back.
    pub fn suspect(&mut self, notification: NotificationId, now: Instant) {
        let news = !self.suspects.contains(&notification);
        if news && self.suspects.len() < SUSPECTS_MAX {
            self.suspects.push(notification);
        }
        if news || matches!(self.state, State::Probing(_)) {
            self.fault(now);
        }
    }

    /// Whether the provider accepted something lately and has not refused several different notifications since.
    #[must_use]
    pub fn proven(&self, now: Instant) -> bool {
        self.accepted_at.is_some_and(|at| now.saturating_duration_since(at) <= PROOF_AGE_MAX)
            && self.suspects.len() < SUSPICION_STREAK
    }

    /// The provider asked to be left alone (421 or 4.7.x with a delay): nothing before `until`, cut to
    /// [`BreakerSettings::open_max`] from now. A shorter pause never shortens a longer one.
    pub fn pause(&mut self, until: Instant, now: Instant) {
        let until = until.min(now + self.settings.open_max);
        self.paused_until = Some(self.paused_until.map_or(until, |already| already.max(until)));
    }

    /// What it does at `now`.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        if let Some(until) = self.paused_until.filter(|&until| until > now) {
            return Standing::AskedToWait(until - now);
        }
        match self.state {
            State::Closed => Standing::Closed,
            State::Open { until } => Standing::Open(until.saturating_duration_since(now)),
            State::Probing(_) => Standing::Probing,
        }
    }

    fn open(&mut self, now: Instant) {
        let BreakerSettings { open_min, open_max, .. } = self.settings;
        let spread = full_jitter(open_min, open_max.saturating_sub(open_min), self.openings);
        self.openings = self.openings.saturating_add(1);
        self.state = State::Open { until: now + (open_min + spread).min(open_max) };
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SETTINGS: BreakerSettings =
        BreakerSettings { threshold: 3, open_min: Duration::from_secs(5), open_max: Duration::from_secs(300) };

    fn breaker() -> (Breaker, Instant) {
        (Breaker::new(SETTINGS), Instant::now())
    }

    fn opened() -> (Breaker, Instant) {
        let (mut breaker, now) = breaker();
        (0..3).for_each(|_| breaker.fault(now));
        (breaker, now)
    }

    fn opening_end(breaker: &Breaker, now: Instant) -> Instant {
        match breaker.allowance(now) {
            Allowance::None { until: Some(until) } => until,
            other => panic!("not open: {other:?}"),
        }
    }

    #[test]
    fn faults_below_the_threshold_or_broken_by_an_acceptance_leave_it_closed() {
        let (mut breaker, now) = breaker();
        for _ in 0..5 {
            breaker.fault(now);
            breaker.fault(now);
            breaker.accepted(now);
        }
        assert_eq!(breaker.allowance(now), Allowance::Free);
    }

    #[test]
    fn the_threshold_opens_it_for_at_least_the_shortest_and_at_most_the_longest_time() {
        for _ in 0..200 {
            let (breaker, now) = opened();
            let until = opening_end(&breaker, now);
            assert!(until >= now + SETTINGS.open_min && until <= now + SETTINGS.open_max);
        }
    }

    #[test]
    fn faults_of_messages_under_way_do_not_prolong_the_opening() {
        let (mut breaker, now) = opened();
        let until = opening_end(&breaker, now);
        (0..50).for_each(|_| breaker.fault(now + Duration::from_secs(1)));
        assert_eq!(opening_end(&breaker, now), until);
    }

    #[test]
    fn when_the_time_is_over_exactly_one_message_probes() {
        let (mut breaker, now) = opened();
        let later = opening_end(&breaker, now);
        assert_eq!(breaker.probe_started(now), None, "not before the time");
        assert_eq!(breaker.allowance(later), Allowance::One);
        assert!(breaker.probe_started(later).is_some());
        assert_eq!(breaker.allowance(later), Allowance::None { until: None });
        assert_eq!(breaker.probe_started(later + Duration::from_secs(3600)), None);
    }

    #[test]
    fn it_tells_what_it_does() {
        let (mut breaker, now) = opened();
        let until = opening_end(&breaker, now);
        assert_eq!(breaker.standing(now), Standing::Open(until - now));
        assert_eq!(breaker.standing(until), Standing::Open(Duration::ZERO), "the next message probes");
        assert!(breaker.probe_started(until).is_some());
        assert_eq!(breaker.standing(until), Standing::Probing);
        breaker.accepted(until);
        assert_eq!(breaker.standing(until), Standing::Closed);
        breaker.pause(until + Duration::from_secs(9), until);
        assert_eq!(breaker.standing(until), Standing::AskedToWait(Duration::from_secs(9)));
    }

    #[test]
    fn a_closed_breaker_starts_no_probe() {
        let (mut breaker, now) = breaker();
        assert_eq!(breaker.probe_started(now), None);
    }

    #[test]
    fn an_accepted_probe_closes_it_and_a_faulty_one_opens_it_again() {
        let (mut breaker, now) = opened();
        let later = opening_end(&breaker, now);
        breaker.probe_started(later);
        breaker.fault(later);
        let again = opening_end(&breaker, later);
        assert!(again >= later + SETTINGS.open_min);
        breaker.probe_started(again);
        breaker.accepted(again);
        assert_eq!(breaker.allowance(again), Allowance::Free);
        breaker.fault(again);
        assert_eq!(breaker.allowance(again), Allowance::Free, "the count of faults began anew");
    }

    #[test]
    fn openings_grow_while_probes_fail_and_start_small_after_a_success() {
        let longest = |openings: u16| {
            (0..300)
                .map(|_| {
                    let (mut breaker, now) = breaker();
                    breaker.openings = openings;
                    (0..3).for_each(|_| breaker.fault(now));
                    opening_end(&breaker, now) - now
                })
                .max()
                .unwrap()
        };
        assert!(longest(0) <= SETTINGS.open_min * 2);
        assert!(longest(4) > SETTINGS.open_min * 4);
        assert!(longest(40) > SETTINGS.open_max / 2);
        let (mut breaker, now) = opened();
        breaker.openings = 40;
        breaker.accepted(now);
        (0..3).for_each(|_| breaker.fault(now));
        assert!(opening_end(&breaker, now) <= now + SETTINGS.open_min * 2);
    }

    #[test]
    fn a_lost_probe_makes_room_for_the_next_and_cannot_speak_for_it() {
        let (mut breaker, now) = opened();
        let later = opening_end(&breaker, now);
        let first = breaker.probe_started(later).unwrap();
        breaker.probe_lost(first, later);
        assert_eq!(breaker.allowance(later), Allowance::One);
        let _second = breaker.probe_started(later).unwrap();
        breaker.probe_lost(first, later);
        assert_eq!(breaker.allowance(later), Allowance::None { until: None });
    }

    #[test]
    fn a_late_acceptance_closes_an_open_breaker() {
        let (mut breaker, now) = opened();
        breaker.accepted(now);
        assert_eq!(breaker.allowance(now), Allowance::Free);
    }

    #[test]
    fn one_notification_refused_again_and_again_does_not_open_it_but_different_ones_do() {
        let (mut breaker, now) = breaker();
        let one = NotificationId(Uuid::from_u128(1));
        (0..10).for_each(|_| breaker.suspect(one, now));
        assert_eq!(breaker.allowance(now), Allowance::Free);
        (2..4).for_each(|n| breaker.suspect(NotificationId(Uuid::from_u128(n)), now));
        assert!(opening_end(&breaker, now) > now);
    }

    #[test]
    fn a_suspect_probe_opens_it_again() {
        let (mut breaker, now) = breaker();
        (1..4).for_each(|n| breaker.suspect(NotificationId(Uuid::from_u128(n)), now));
        let later = opening_end(&breaker, now);
        breaker.probe_started(later);
        breaker.suspect(NotificationId(Uuid::from_u128(1)), later);
        assert!(opening_end(&breaker, later) > later);
    }

    #[test]
    fn a_provider_is_proven_by_a_recent_acceptance_and_no_streak_of_suspicion() {
        let (mut breaker, now) = breaker();
        assert!(!breaker.proven(now), "nothing accepted yet");
        breaker.accepted(now);
        assert!(breaker.proven(now + PROOF_AGE_MAX));
        assert!(!breaker.proven(now + PROOF_AGE_MAX + Duration::from_secs(1)));
        (1..3).for_each(|n| breaker.suspect(NotificationId(Uuid::from_u128(n)), now));
        assert!(breaker.proven(now));
        breaker.suspect(NotificationId(Uuid::from_u128(3)), now);
        assert!(!breaker.proven(now));
    }

    #[test]
    fn a_pause_holds_everything_back_is_cut_to_the_longest_opening_and_is_never_shortened() {
        let (mut breaker, now) = breaker();
        breaker.pause(now + Duration::from_secs(120), now);
        breaker.pause(now + Duration::from_secs(1), now);
        assert_eq!(opening_end(&breaker, now), now + Duration::from_secs(120));
        assert_eq!(breaker.allowance(now + Duration::from_secs(120)), Allowance::Free);
        breaker.pause(now + Duration::from_secs(86_400), now);
        assert_eq!(opening_end(&breaker, now), now + SETTINGS.open_max);
    }
}
