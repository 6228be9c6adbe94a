//! Delays between tries: the one place that names the `backoff` crate.
//!
//! `backoff` is unmaintained (RUSTSEC-2025-0012, acknowledged in `deny.toml`), so nothing else may use it.

use std::time::Duration;

use backoff::ExponentialBackoffBuilder;
use backoff::backoff::Backoff as _;

/// A delay drawn evenly from nought to `min(cap, base * 2^tries)`: full jitter.
#[must_use]
pub fn full_jitter(base: Duration, cap: Duration, tries: u16) -> Duration {
    // Past 2^20 every base of a millisecond or more is beyond any cap in use.
    let bound = base.saturating_mul(1 << tries.min(20)).min(cap);
    // The crate draws from `interval * (1 - factor) ..= interval * (1 + factor)`: half the bound and a factor of one.
    ExponentialBackoffBuilder::new()
        .with_initial_interval(bound / 2)
        .with_randomization_factor(1.0)
        .with_max_elapsed_time(None)
        .build()
        .next_backoff()
        .unwrap_or(bound)
        .min(bound)
}

/// The delays of one bounded, patient run of tries: full jitter between tries, and an end.
#[derive(Debug)]
pub struct Patience {
    base: Duration,
    cap: Duration,
    tries: u16,
    until: std::time::Instant,
}

impl Patience {
    /// Delays from `base` up to `cap` until `total` has passed from now.
    #[must_use]
    pub fn new(base: Duration, cap: Duration, total: Duration) -> Self {
        Self { base, cap, tries: 0, until: std::time::Instant::now() + total }
    }

    /// How long to wait before the next try; `None` when patience is at its end.
    pub fn next_delay(&mut self) -> Option<Duration> {
        let left = self.until.checked_duration_since(std::time::Instant::now())?;
        let delay = full_jitter(self.base, self.cap, self.tries).min(left);
        self.tries = self.tries.saturating_add(1);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_jitter_stays_within_its_bound_and_uses_all_of_it() {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(60));
        for tries in 0..12 {
            let bound = base.saturating_mul(1 << tries).min(cap);
            let draws: Vec<_> = (0..2_000).map(|_| full_jitter(base, cap, tries)).collect();
            assert!(draws.iter().all(|&delay| delay <= bound), "over {bound:?}");
            assert!(draws.iter().any(|&delay| delay < bound / 10), "never near nought");
            assert!(draws.iter().any(|&delay| delay > bound.mul_f64(0.9)), "never near {bound:?}");
        }
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::new(Duration::from_millis(1), Duration::from_millis(1), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert!(patience.next_delay().is_none());
    }
}
