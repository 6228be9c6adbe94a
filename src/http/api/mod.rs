//! The message API, for producers: docs/api.md is its contract, `openapi.json` the same for machines.
//!
//! A handler admits, reads, validates, and only then asks the database to store; the answer to a store goes out after its
//! commit is acknowledged.

mod asking;
mod body;
mod events;
mod evidence;
mod gate;
mod messages;
mod operations;
pub mod problem;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::config;
use crate::config::{EventSource, IssuedKeys};
use crate::store::lines::Lines;
use asking::Asking;
use events::Events;
use gate::Gate;
use problem::{Code, Problem};

/// The API's description for machines (OpenAPI 3.1).
pub const OPENAPI: &str = include_str!("openapi.json");

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    gate: Gate,
    asking: Asking,
    routes: Arc<BTreeSet<String>>,
    events: Events,
    issued_keys: Option<IssuedKeys>,
    body_max_bytes: u64,
    request_timeout: Duration,
    receipts_retained: Duration,
}

impl Api {
    /// An API that stores through `lines`. `routes` are those that a message may name; empty for any.
    /// `events` are the providers' that it takes.
    #[must_use]
    pub fn new(
        settings: &config::Api,
        lines: Lines,
        routes: impl IntoIterator<Item = String>,
        events: BTreeMap<String, EventSource>,
        receipts_retained: Duration,
    ) -> Self {
        let asking = Asking::new(lines);
        Self {
            gate: Gate::new(asking.clone(), settings.in_flight, settings.account_in_flight),
            asking,
            routes: Arc::new(routes.into_iter().collect()),
            events: Events::new(events),
            issued_keys: settings.issued_keys.clone(),
            body_max_bytes: settings.body_max_bytes,
            request_timeout: settings.request_timeout,
            receipts_retained,
        }
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/messages", post(messages::create))
            .route("/v1/messages/{id}", get(messages::look_up))
            .route("/v1/operations/{operation}/{key}", get(operations::look_up))
            .route("/v1/keys", post(operations::issue_key))
            .route("/v1/evidence", post(evidence::record))
            .route("/v1/events/{name}", post(events::take))
            .route("/v1/openapi.json", get(openapi))
            .fallback(async || Problem::new(Code::NotFound, "There is no such address: see /v1/openapi.json."))
            .method_not_allowed_fallback(async || {
                Problem::new(Code::MethodNotAllowed, "Use a method of the Allow header: see /v1/openapi.json.")
            })
            // Answers are one account's own and of this moment.
            .layer(map_response(async |mut response: Response| {
                response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
                response
            }))
            .with_state(self)
    }
}

async fn openapi() -> Response {
    let mut response = OPENAPI.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
