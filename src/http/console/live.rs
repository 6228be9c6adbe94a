//! What has changed, as it changes: server-sent events (WHATWG HTML, 9.2) of a few counts. Asked for once for all who follow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::Console;
use super::page::Failure;

/// How often those who follow are told.
const EVERY: Duration = Duration::from_secs(2);

/// How many may follow at once.
const FOLLOWERS_MAX: usize = 100;

/// How many of these one person may have: pages in as many tabs.
const FOLLOWERS_EACH_MAX: usize = 10;

/// How often each person follows, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Live(Arc<Mutex<BTreeMap<String, usize>>>);

/// A place of somebody who follows, until it is dropped.
struct Place {
    live: Live,
    name: String,
}

impl Live {
    fn place(&self, name: &str) -> Option<Place> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.values().sum::<usize>() >= FOLLOWERS_MAX {
            return None;
        }
        let theirs = places.entry(name.to_owned()).or_default();
        if *theirs >= FOLLOWERS_EACH_MAX {
            return None;
        }
        *theirs += 1;
        Some(Place { live: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.live.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = places.get(&self.name).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            places.remove(&self.name);
        } else {
            places.insert(self.name.clone(), left);
        }
    }
}

impl Console {
    /// The counts; `None` while the database does not answer.
    async fn told(&self) -> Option<String> {
        let counted = self.counted().await.ok().filter(|counted| !counted.is_stale())?;
        let unfinished = counted.unfinished;
        let counts = serde_json::json!({
            "pending": unfinished.pending, "leased": unfinished.leased, "uncertain": unfinished.uncertain,
            "unresolved": unfinished.unresolved, "failed": unfinished.failed, "sent": counted.sent,
        });
        Some(counts.to_string())
    }
}

/// Tells until the page is left, the session ends or the server stops.
pub(super) async fn stream(State(console): State<Console>, headers: HeaderMap) -> Result<Response, Failure> {
    let session = console.glance(&headers).await?;
    let Some(place) = console.live.place(&session.name) else {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    };
    let telling = stream::unfold((console, headers, place, 0u32), |(console, headers, place, told)| async move {
        if told > 0 {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = console.shutdown.draining() => return None,
            }
        }
        // A session that was ended follows no more.
        if told > 0 && console.glance(&headers).await.is_err() {
            return None;
        }
        // A comment where there is nothing to tell: the page then says that it is stale.
        let event = match console.told().await {
            Some(counts) => Event::default().data(counts),
            None => Event::default().comment("the database does not answer"),
        };
        Some((Ok::<_, Infallible>(event), (console, headers, place, told + 1)))
    });
    Ok(Sse::new(telling).into_response())
}
