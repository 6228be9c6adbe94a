//! What has changed, as it changes: server-sent events (WHATWG HTML, 9.2) of a few counts. Asked for once for all who follow.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::{Mutex, Semaphore};

use super::Console;
use super::page::Failure;
use crate::store::overview;

/// How often those who follow are told.
const EVERY: Duration = Duration::from_secs(2);

/// How many may follow at once.
const FOLLOWERS_MAX: usize = 100;

/// How many tellings until it is looked again who is asking: a session that was ended follows no more.
const TELLINGS_PER_LOOK: u32 = 15;

/// What all who follow share.
#[derive(Debug, Clone)]
pub(super) struct Live {
    last: Arc<Mutex<Option<(Instant, String)>>>,
    places: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Self {
        Self { last: Arc::default(), places: Arc::new(Semaphore::new(FOLLOWERS_MAX)) }
    }
}

impl Console {
    /// The counts, no older than [`EVERY`]; `None` while the database does not answer.
    async fn counts(&self) -> Option<String> {
        let mut last = self.live.last.lock().await;
        if let Some((at, counts)) = &*last
            && at.elapsed() < EVERY
        {
            return Some(counts.clone());
        }
        let mut tx = self.desk.reading().await.ok()?;
        let unfinished = overview::unfinished(&mut tx).await.ok()?;
        let minute = overview::minutes(&mut tx, 1).await.ok()?;
        let sent: i64 = minute.iter().map(|minute| minute.sent).sum();
        let counts = serde_json::json!({
            "pending": unfinished.pending, "leased": unfinished.leased, "uncertain": unfinished.uncertain,
            "unresolved": unfinished.unresolved, "failed": unfinished.failed, "sent": sent,
        })
        .to_string();
        *last = Some((Instant::now(), counts.clone()));
        Some(counts)
    }
}

/// Tells until the page is left, the session ends or the server stops.
pub(super) async fn stream(State(console): State<Console>, headers: HeaderMap) -> Result<Response, Failure> {
    console.enter(&headers, "/").await?;
    let Ok(place) = Arc::clone(&console.live.places).try_acquire_owned() else {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    };
    let telling = stream::unfold((console, headers, place, 0u32), |(console, headers, place, told)| async move {
        if told > 0 {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = console.shutdown.draining() => return None,
            }
        }
        if told > 0 && told.is_multiple_of(TELLINGS_PER_LOOK) && console.enter(&headers, "/").await.is_err() {
            return None;
        }
        // A comment where there is nothing to tell: the page then says that it is stale.
        let event = match console.counts().await {
            Some(counts) => Event::default().data(counts),
            None => Event::default().comment("the database does not answer"),
        };
        Some((Ok::<_, Infallible>(event), (console, headers, place, told + 1)))
    });
    Ok(Sse::new(telling).into_response())
}
