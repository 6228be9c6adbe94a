//! Counting what attempts with one provider come to, and how long the accepted ones take.

use std::time::Duration;

use serde::Serialize;

use super::ids::NotificationId;
use super::outcome::Outcome;

/// How long an attempt may have taken to be counted in each class, in milliseconds; what took longer is in one more class.
/// Six to a decade, so that a percentile is told to within a factor of two.
pub const BOUNDS_MS: [u32; 34] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 7_000,
    10_000, 15_000, 20_000, 30_000, 50_000, 70_000, 100_000, 150_000, 200_000, 300_000, 500_000,
];

/// Counts of the attempts of some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the outcomes of an attempt")]
pub struct Tally {
    pub not_sent: u32,
    pub deferred: u32,
    pub refused: u32,
    pub uncertain: u32,
    pub sent: u32,
    /// How many of the sent ones took up to each of [`BOUNDS_MS`], and how many longer.
    pub took: Vec<u32>,
    /// The last one that was not accepted.
    pub trouble_id: Option<NotificationId>,
}

impl Default for Tally {
    fn default() -> Self {
        let took = vec![0; BOUNDS_MS.len() + 1];
        Self { not_sent: 0, deferred: 0, refused: 0, uncertain: 0, sent: 0, took, trouble_id: None }
    }
}

impl Tally {
    /// Counts one attempt.
    pub fn count(&mut self, id: NotificationId, outcome: Outcome, took: Duration) {
        match outcome {
            Outcome::NotSent => self.not_sent += 1,
            Outcome::Deferred => self.deferred += 1,
            Outcome::Refused => self.refused += 1,
            Outcome::Uncertain => self.uncertain += 1,
            Outcome::Sent => {
                self.sent += 1;
                let class = BOUNDS_MS.partition_point(|bound| Duration::from_millis(u64::from(*bound)) < took);
                if let Some(count) = self.took.get_mut(class) {
                    *count += 1;
                }
                return;
            }
        }
        self.trouble_id = Some(id);
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.not_sent + self.deferred + self.refused + self.uncertain + self.sent == 0
    }
}

/// The bound within which at least this share (0 to 1) of what was counted took; `None` where nothing was counted, or where it
/// took longer than every bound.
#[must_use]
pub fn within_ms(took: &[u64], share: f64) -> Option<u32> {
    let all: u64 = took.iter().sum();
    let mut seen = 0;
    took.iter().zip(BOUNDS_MS).find_map(|(count, bound)| {
        seen += count;
        #[expect(clippy::cast_precision_loss, reason = "counts of one day are far below 2^52")]
        let enough = all > 0 && seen as f64 >= share * all as f64;
        enough.then_some(bound)
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_attempt_is_counted_by_its_outcome_and_the_class_of_its_time() {
        let mut tally = Tally::default();
        assert!(tally.is_empty());
        let id = NotificationId(Uuid::from_u128(7));
        for (ms, class) in [(0, 0), (1, 0), (2, 1), (4, 3), (500_000, 33), (500_001, 34), (u64::from(u32::MAX), 34)] {
            let before = tally.took[class];
            tally.count(id, Outcome::Sent, Duration::from_millis(ms));
            assert_eq!(tally.took[class], before + 1, "{ms} ms");
        }
        assert_eq!((tally.sent, tally.trouble_id), (7, None));
        for outcome in [Outcome::NotSent, Outcome::Deferred, Outcome::Refused, Outcome::Uncertain] {
            tally.count(id, outcome, Duration::ZERO);
        }
        assert_eq!((tally.not_sent, tally.deferred, tally.refused, tally.uncertain), (1, 1, 1, 1));
        assert_eq!((tally.sent, tally.trouble_id), (7, Some(id)));
        assert!(!tally.is_empty());
    }

    #[test]
    fn a_percentile_is_the_bound_that_so_many_were_within() {
        let mut took = [0; BOUNDS_MS.len() + 1];
        assert_eq!(within_ms(&took, 0.5), None);
        took[0] = 99;
        took[9] = 1;
        assert_eq!(
            (within_ms(&took, 0.5), within_ms(&took, 0.99), within_ms(&took, 1.0)),
            (Some(1), Some(1), Some(50))
        );
        took[34] = 100;
        assert_eq!(within_ms(&took, 0.99), None, "longer than every bound");
    }

    #[test]
    fn the_bounds_grow() {
        assert!(BOUNDS_MS.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= 2 * pair[0]));
    }
}
