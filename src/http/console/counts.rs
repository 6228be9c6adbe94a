//! How much is where, counted beside the pages: a backlog of a million takes longer to count than a page may take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as Turn;

use super::Console;
use crate::store::StoreError;
use crate::store::doctor::{self, Facts};
use crate::store::overview::{self, Unfinished};
use crate::store::pulse::{self, Stretch};

/// Counts are not made anew more often than this, nor more than a twentieth of the time.
const EVERY: Duration = Duration::from_secs(2);
const SHARE: u32 = 20;

/// How long a page waits for counts that are just being made, where there are older ones.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the chart of a day is kept: it reads the lines of every worker of that day.
const DAY_KEPT: Duration = Duration::from_secs(15);

/// What was counted at one moment.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    pub(super) facts: Facts,
    pub(super) unfinished: Unfinished,
    /// Sent in the last minute.
    pub(super) sent: i64,
    at: Instant,
    took: Duration,
}

impl Counted {
    /// How old it is.
    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    fn is_fresh(&self) -> bool {
        self.age() < EVERY.max(self.took * SHARE)
    }

    /// Whether newer ones should have been there by now: the database does not answer.
    pub(super) fn is_stale(&self) -> bool {
        self.age() > 2 * EVERY.max(self.took * SHARE)
    }
}

/// What attempts came to, as it was read.
#[derive(Debug, Clone)]
struct Chart {
    at: Instant,
    stretches: Vec<Stretch>,
}

/// The newest counts, shared by all pages.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    last: Arc<Mutex<Option<Counted>>>,
    /// Held by whoever counts.
    turn: Arc<Turn<()>>,
    /// The chart of a day: as old as it may be, it is a sixtieth of one of its bars behind.
    day: Arc<Turn<Option<Chart>>>,
}

impl Counts {
    fn last(&self) -> Option<Counted> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Console {
    /// The counts: fresh ones, or those of a moment ago while newer ones are made. Only the first page of all waits for them.
    ///
    /// # Errors
    /// When there are none and the database does not answer.
    pub(super) async fn counted(&self) -> Result<Counted, StoreError> {
        if let Some(counted) = self.counts.last().filter(Counted::is_fresh) {
            return Ok(counted);
        }
        let console = self.clone();
        // In a task of its own: whoever stops waiting does not stop the counting.
        let counting = tokio::spawn(async move { console.count().await });
        match self.counts.last() {
            Some(older) => match tokio::time::timeout(PATIENCE, counting).await {
                Ok(Ok(Ok(counted))) => Ok(counted),
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => Ok(older),
            },
            None => counting.await.unwrap_or(Err(StoreError::Silence(Duration::ZERO))),
        }
    }

    /// What attempts came to in each of so many stretches of so many minutes.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(super) async fn chart(&self, stretches: i32, minutes: i32) -> Result<Vec<Stretch>, StoreError> {
        if minutes == 1 {
            return Ok(pulse::stretches(&mut *self.desk.reading().await?, stretches, minutes).await?);
        }
        let mut day = self.counts.day.lock().await;
        if let Some(chart) = day.as_ref().filter(|chart| chart.at.elapsed() < DAY_KEPT) {
            return Ok(chart.stretches.clone());
        }
        let stretches = pulse::stretches(&mut *self.desk.reading().await?, stretches, minutes).await?;
        *day = Some(Chart { at: Instant::now(), stretches: stretches.clone() });
        Ok(stretches)
    }

    async fn count(&self) -> Result<Counted, StoreError> {
        let _turn = self.counts.turn.lock().await;
        if let Some(counted) = self.counts.last().filter(Counted::is_fresh) {
            return Ok(counted);
        }
        let start = Instant::now();
        let mut tx = self.desk.reading().await?;
        let facts = doctor::facts(&mut tx).await?;
        let unfinished = overview::unfinished(&mut tx).await?;
        let sent = pulse::stretches(&mut tx, 1, 1).await?.iter().map(|stretch| stretch.sent).sum();
        drop(tx);
        let counted = Counted { facts, unfinished, sent, at: start, took: start.elapsed() };
        *self.counts.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(counted.clone());
        Ok(counted)
    }
}
