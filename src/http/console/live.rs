//! What has changed, as it changes: server-sent events (WHATWG HTML, 9.2) of a few counts. Asked for once for all who follow.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::Semaphore;

use super::Console;
use super::page::Failure;

/// How often those who follow are told.
const EVERY: Duration = Duration::from_secs(2);

/// How many may follow at once.
const FOLLOWERS_MAX: usize = 100;

/// How many tellings until it is looked again who is asking: a session that was ended follows no more.
const TELLINGS_PER_LOOK: u32 = 15;

/// The places of those who follow.
#[derive(Debug, Clone)]
pub(super) struct Live(Arc<Semaphore>);

impl Default for Live {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(FOLLOWERS_MAX)))
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
    console.enter(&headers, "/").await?;
    let Ok(place) = Arc::clone(&console.live.0).try_acquire_owned() else {
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
        let event = match console.told().await {
            Some(counts) => Event::default().data(counts),
            None => Event::default().comment("the database does not answer"),
        };
        Some((Ok::<_, Infallible>(event), (console, headers, place, told + 1)))
    });
    Ok(Sse::new(telling).into_response())
}
