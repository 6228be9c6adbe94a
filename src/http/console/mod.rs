//! The operators' console: pages made on the server, which say what is known, what is not, and what may safely be done.
//!
//! Nothing is decided here: a decision is a call of `store::decide` or `store::replay`, as the command line makes it. No page asks
//! another host for anything.

pub mod access;
mod assets;
mod audit;
mod counts;
mod decide;
mod live;
mod message;
mod notification;
mod oidc;
mod overview;
mod page;
mod pauses;
mod replays;
mod search;
mod uncertain;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{get, post};

use tokio::sync::Semaphore;

use crate::client::oidc::Oidc;
use crate::config;
use crate::mail::compose::Identity;
use crate::shutdown::Shutdown;
use crate::store::desk::Desk;
use crate::store::line::Dsn;

/// What a page may do: nothing but show itself and this server's own style, script and messages.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Console {
    desk: Desk,
    dsn: Dsn,
    settings: Arc<config::Console>,
    /// How each provider's messages carry their identity: to show what went out.
    identities: Arc<BTreeMap<String, Identity>>,
    limiter: access::Limiter,
    live: live::Live,
    counts: counts::Counts,
    oidc: Option<Oidc>,
    with_provider: Arc<Semaphore>,
    shutdown: Shutdown,
}

impl Console {
    /// A console on the database that `dsn` leads to.
    #[must_use]
    pub fn new(
        settings: &config::Console,
        dsn: Dsn,
        identities: BTreeMap<String, Identity>,
        oidc: Option<Oidc>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            desk: Desk::new(&dsn, settings.connections.into()),
            dsn,
            settings: Arc::new(settings.clone()),
            identities: Arc::new(identities),
            limiter: access::Limiter::default(),
            live: live::Live::default(),
            counts: counts::Counts::default(),
            oidc,
            with_provider: Arc::new(Semaphore::new(oidc::AT_ONCE_MAX)),
            shutdown,
        }
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/", get(overview::show))
            .route("/sign-in", get(access::form).post(access::sign_in))
            .route("/sign-in/oidc", get(oidc::begin))
            .route("/sign-in/oidc/return", get(oidc::back))
            .route("/sign-out", post(access::sign_out))
            .route("/uncertain", get(uncertain::show))
            .route("/decide/preview", post(decide::preview))
            .route("/decide", post(decide::decide))
            .route("/search", get(search::show))
            .route("/notifications/{id}", get(notification::show))
            .route("/notifications/{id}/html", get(message::html))
            .route("/notifications/{id}/source", get(message::source))
            .route("/replays", get(replays::list).post(replays::plan))
            .route("/replays/{id}", get(replays::show))
            .route("/replays/{id}/run", post(replays::run))
            .route("/replays/{id}/stop", post(replays::stop))
            .route("/audit", get(audit::show))
            .route("/audit.csv", get(audit::csv))
            .route("/audit.json", get(audit::json))
            .route("/pauses", get(pauses::show).post(pauses::change))
            .route("/operators/{name}/sign-out", post(pauses::sign_out))
            .route("/live", get(live::stream))
            .route("/assets/{name}", get(assets::get))
            .fallback(page::not_found)
            .layer(map_response(guarded))
            .with_state(self)
    }
}

/// Every answer's headers.
async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
