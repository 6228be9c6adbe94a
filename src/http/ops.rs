//! For the machine's keepers: is the process alive, may it be given work.
//!
//! Answers from what [`Health`] was told; a probe never touches the database, so that probes cannot pile up on it.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture as _};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::shutdown::Shutdown;

/// How long the database may go without answering before the process calls itself not ready: six maintenance rounds of
/// five seconds, so that one slow round does not take a worker out.
pub const ANSWER_AGE_MAX: Duration = Duration::from_secs(30);

/// What the process knows of its own health. Clones share one state; the worker writes, the router reads.
#[derive(Debug, Clone)]
pub struct Health {
    known: Arc<Mutex<Known>>,
    shutdown: Shutdown,
}

#[derive(Debug, Default)]
struct Known {
    schema_problem: Option<String>,
    schema_checked: bool,
    answered_at: Option<Instant>,
    stopped: BTreeSet<&'static str>,
}

impl Health {
    /// Alive, and not ready: nothing was checked yet.
    #[must_use]
    pub fn new(shutdown: Shutdown) -> Self {
        Self { known: Arc::default(), shutdown }
    }

    /// The database's schema is the one that this release needs.
    pub fn schema_current(&self) {
        let mut known = self.lock();
        known.schema_checked = true;
        known.schema_problem = None;
    }

    /// The schema is another one. `problem` says what to do, in one line.
    pub fn schema_wrong(&self, problem: impl Into<String>) {
        let mut known = self.lock();
        known.schema_checked = true;
        known.schema_problem = Some(problem.into());
    }

    /// The database answered a statement at `at`.
    pub fn database_answered(&self, at: Instant) {
        let mut known = self.lock();
        known.answered_at = known.answered_at.max(Some(at));
    }

    /// A supervised task ended although it should run: the process is no longer whole.
    pub fn task_stopped(&self, name: &'static str) {
        self.lock().stopped.insert(name);
    }

    /// Why the process is not alive; empty if it is.
    fn dead(&self) -> Vec<String> {
        self.lock().stopped.iter().map(|name| format!("the task \"{name}\" stopped")).collect()
    }

    /// Why the process is not ready at `now`; empty if it is.
    fn not_ready(&self, now: Instant) -> Vec<String> {
        let mut reasons = self.dead();
        let known = self.lock();
        if let Some(problem) = &known.schema_problem {
            reasons.push(problem.clone());
        } else if !known.schema_checked {
            reasons.push("the database's schema was not checked yet".to_owned());
        }
        match known.answered_at {
            None => reasons.push("the database has not answered yet".to_owned()),
            Some(at) => {
                let age = now.saturating_duration_since(at);
                if age > ANSWER_AGE_MAX {
                    reasons.push(format!("the database last answered {} s ago", age.as_secs()));
                }
            }
        }
        if self.shutdown.is_draining() {
            reasons.push("shutting down".to_owned());
        }
        reasons
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `GET /livez` and `GET /readyz`: 200, or 503 with the reasons.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|State(health): State<Health>| async move { answer(health.dead()) }))
        .route("/readyz", get(|State(health): State<Health>| async move { answer(health.not_ready(Instant::now())) }))
        .with_state(health)
}

/// Serves `router` until `until` is over; requests under way are then cut off, since a slow reader must not hold up the end
/// of the process.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(listener: TcpListener, router: Router, until: impl Future<Output = ()>) -> io::Result<()> {
    tokio::select! {
        served = axum::serve(listener, router).into_future() => served,
        () = until => Ok(()),
    }
}

#[derive(Serialize)]
struct Answer {
    ok: bool,
    reasons: Vec<String>,
}

fn answer(reasons: Vec<String>) -> Response {
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Answer { ok: reasons.is_empty(), reasons })).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    fn ready() -> (Health, Shutdown) {
        let shutdown = Shutdown::new();
        let health = Health::new(shutdown.clone());
        health.schema_current();
        health.database_answered(Instant::now());
        (health, shutdown)
    }

    /// The status code and the reasons that a real server gives.
    async fn get(health: &Health, path: &str) -> (u16, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let until = Shutdown::new();
        let over = until.clone();
        let router = router(health.clone());
        let server = tokio::spawn(async move { serve(listener, router, over.draining()).await });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: ops\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        until.drain();
        server.await.unwrap().unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let reasons = body["reasons"].as_array().unwrap().iter().map(|r| r.as_str().unwrap().to_owned()).collect();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), reasons)
    }

    #[tokio::test]
    async fn a_fresh_process_is_alive_and_not_ready_and_says_why() {
        let health = Health::new(Shutdown::new());
        assert_eq!(get(&health, "/livez").await, (200, vec![]));
        let (status, reasons) = get(&health, "/readyz").await;
        assert_eq!((status, reasons.len()), (503, 2), "{reasons:?}");
    }

    #[tokio::test]
    async fn a_current_schema_and_a_recent_answer_make_it_ready() {
        assert_eq!(get(&ready().0, "/readyz").await, (200, vec![]));
    }

    #[tokio::test]
    async fn draining_takes_it_out_of_service_but_leaves_it_alive() {
        let (health, shutdown) = ready();
        shutdown.drain();
        assert_eq!(get(&health, "/readyz").await, (503, vec!["shutting down".to_owned()]));
        assert_eq!(get(&health, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn a_stopped_task_is_named_and_the_process_no_longer_alive() {
        let (health, _) = ready();
        health.task_stopped("dispatch");
        for path in ["/livez", "/readyz"] {
            assert_eq!(get(&health, path).await, (503, vec!["the task \"dispatch\" stopped".to_owned()]));
        }
    }

    #[test]
    fn a_wrong_schema_or_a_silent_database_makes_it_not_ready_until_that_is_mended() {
        let (health, _) = ready();
        let now = Instant::now();
        health.schema_wrong("the schema is older than this release: run `outboxd migrate`");
        assert_eq!(health.not_ready(now).len(), 1);
        health.schema_current();
        let later = now + ANSWER_AGE_MAX + Duration::from_secs(1);
        assert_eq!(health.not_ready(later), ["the database last answered 31 s ago"]);
        health.database_answered(later);
        health.database_answered(now);
        assert!(health.not_ready(later).is_empty(), "an older answer takes nothing back");
    }
}
