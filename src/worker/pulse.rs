//! Telling others, through the database, how it stands with each provider: every worker knows only its own breakers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::domain::ids::NotificationId;
use crate::domain::outcome::Outcome;
use crate::domain::tally::Tally;
use crate::mail::breaker::Standing;
use crate::mail::provider::Provider;
use crate::store::Line;
use crate::store::pulse::{Now, Report};

/// How often it is told.
const EVERY: Duration = Duration::from_secs(10);

/// How much the end of a worker waits for its last word.
pub const LAST_WORD_MAX: Duration = Duration::from_secs(2);

/// What this worker's sweeps found of others' attempts: their workers cannot count them any more.
#[derive(Debug, Clone, Default)]
pub struct Found(Arc<Mutex<BTreeMap<String, Tally>>>);

impl Found {
    /// Counts an attempt whose lease ran out after it had begun.
    pub fn uncertain(&self, provider: String, id: NotificationId) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.entry(provider).or_default().count(id, Outcome::Uncertain, Duration::ZERO);
    }

    fn take(&self) -> BTreeMap<String, Tally> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells it until `ended`, and then once more. What cannot be written is tried again the next time, unchanged: an answer that
/// was lost counts nothing twice.
pub async fn beat(
    mut line: Line,
    worker: String,
    providers: Vec<Arc<Provider>>,
    found: Found,
    ended: CancellationToken,
) {
    let mut number = 0;
    let mut untold: Option<Vec<Report>> = None;
    loop {
        let over = ended.is_cancelled();
        let reports = untold.take().unwrap_or_else(|| reports(&providers, &found));
        match line.pulse(&worker, number, &reports).await {
            Ok(()) => number += 1,
            Err(error) => {
                tracing::debug!(%error, "what providers did is told later");
                untold = Some(reports);
            }
        }
        if over {
            if let Err(error) = line.no_pulse(&worker).await {
                tracing::debug!(%error, "the last word could not be said");
            }
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = ended.cancelled() => {}
        }
    }
}

fn reports(providers: &[Arc<Provider>], found: &Found) -> Vec<Report> {
    let now = Instant::now();
    let mut reports = BTreeMap::new();
    // A provider of several routes is one provider.
    for provider in providers {
        let name = provider.name().to_owned();
        let report =
            || Report { provider: name.clone(), now: Some(standing(provider, now)), tally: provider.take_tally() };
        reports.entry(name.clone()).or_insert_with(report);
    }
    for (name, tally) in found.take() {
        let none = Report { provider: name.clone(), now: None, tally: Tally::default() };
        let report = reports.entry(name).or_insert(none);
        report.tally.uncertain += tally.uncertain;
        report.tally.trouble_id = tally.trouble_id.or(report.tally.trouble_id);
    }
    reports.into_values().collect()
}

fn standing(provider: &Provider, now: Instant) -> Now {
    let (breaker, left) = match provider.standing(now) {
        Standing::Closed => ("closed", None),
        Standing::AskedToWait(left) => ("asked_to_wait", Some(left)),
        Standing::Open(left) => ("open", Some(left)),
        Standing::Probing => ("probing", None),
    };
    Now {
        breaker,
        breaker_seconds: left.map(|left| left.as_secs_f64()),
        under_way: provider.under_way(),
        connections: provider.settings().connections,
    }
}
