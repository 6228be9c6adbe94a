//! A token bucket: how many messages a provider may be handed now.
//!
//! Kept as one instant (the generic cell rate algorithm), so that there is no fraction to round and nothing to tick. It
//! never reads a clock: "now" is handed in.

use std::time::{Duration, Instant};

/// How fast a provider may be handed messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Messages a second in the long run; more than nought.
    pub per_second: f64,
    /// How many may go at once after a quiet time; at least one.
    pub burst: u32,
}

/// A bucket of [`Rate::burst`] tokens that fills at [`Rate::per_second`]. It starts full.
#[derive(Debug)]
pub struct Bucket {
    interval: Duration,
    burst: u32,
    /// When the bucket will be full again; in the past if it is full.
    full_at: Instant,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: Rate, now: Instant) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / rate.per_second).unwrap_or(Duration::MAX);
        Self { interval: interval.clamp(Duration::from_nanos(1), INTERVAL_MAX), burst: rate.burst.max(1), full_at: now }
    }

    /// How many messages may go now.
    #[must_use]
    pub fn available(&self, now: Instant) -> u32 {
        let missing = self.full_at.saturating_duration_since(now);
        let missing = missing.as_nanos().div_ceil(self.interval.as_nanos());
        self.burst.saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }

    /// Takes `n` tokens. More than are there may be taken: the debt is waited off before the next one.
    pub fn take(&mut self, n: u32, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval.saturating_mul(n).min(DEBT_MAX);
    }

    /// Puts `n` tokens back that were taken for messages the provider was never offered.
    pub fn give_back(&mut self, n: u32) {
        self.full_at = self.full_at.checked_sub(self.interval.saturating_mul(n)).unwrap_or(self.full_at);
    }

    /// When at least one token is there; `now` if one is already.
    #[must_use]
    pub fn next_at(&self, now: Instant) -> Instant {
        let missing = self.full_at.saturating_duration_since(now);
        now + missing.saturating_sub(self.interval.saturating_mul(self.burst - 1))
    }
}

/// The slowest rate, one message a day: anything slower is a mistake, and sums of instants stay far from overflow.
const INTERVAL_MAX: Duration = Duration::from_secs(86_400);

/// The most that one `take` can put off the next message: 30 days, so that sums of instants stay far from overflow.
const DEBT_MAX: Duration = Duration::from_secs(30 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_second: f64, burst: u32) -> (Bucket, Instant) {
        let now = Instant::now();
        (Bucket::new(Rate { per_second, burst }, now), now)
    }

    #[test]
    fn a_new_bucket_holds_its_burst_and_no_more_however_long_it_waits() {
        let (bucket, now) = bucket(10.0, 3);
        assert_eq!(bucket.available(now), 3);
        assert_eq!(bucket.available(now + Duration::from_secs(3600)), 3);
        assert_eq!(bucket.next_at(now), now);
    }

    #[test]
    fn an_emptied_bucket_has_a_token_exactly_when_it_says() {
        for per_second in [0.001, 0.3, 1.0, 3.0, 7.0, 1000.0] {
            let (mut bucket, now) = bucket(per_second, 4);
            bucket.take(4, now);
            assert_eq!(bucket.available(now), 0);
            let next = bucket.next_at(now);
            assert!(next > now);
            assert_eq!(bucket.available(next), 1, "{per_second} a second");
            assert_eq!(bucket.available(next - Duration::from_nanos(1)), 0, "{per_second} a second");
        }
    }

    #[test]
    fn in_the_long_run_the_rate_is_kept() {
        let (mut bucket, start) = bucket(7.0, 5);
        let (mut now, mut taken) = (start, 0);
        while now < start + Duration::from_secs(100) {
            let n = bucket.available(now);
            bucket.take(n, now);
            taken += n;
            now = bucket.next_at(now).max(now + Duration::from_millis(13));
        }
        assert!((700..=706).contains(&taken), "{taken} in 100 s");
    }

    #[test]
    fn a_debt_is_waited_off_and_a_token_given_back_counts_again() {
        let (mut bucket, now) = bucket(1.0, 2);
        bucket.take(5, now);
        assert_eq!(bucket.next_at(now), now + Duration::from_secs(4));
        bucket.give_back(4);
        assert_eq!(bucket.available(now), 1);
        bucket.give_back(9);
        assert_eq!(bucket.available(now), 2, "never above the burst");
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let (mut bucket, now) = bucket(1e-12, u32::MAX);
        bucket.take(u32::MAX, now);
        bucket.take(u32::MAX, now);
        assert!(bucket.next_at(now) >= now);
        let (bucket, now) = bucket_of_nan();
        assert_eq!(bucket.available(now), 1);
    }

    fn bucket_of_nan() -> (Bucket, Instant) {
        bucket(f64::NAN, 0)
    }
}
