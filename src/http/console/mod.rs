//! The operators' console: pages made on the server, which say what is known, what is not, and what may safely be done.
//!
//! Nothing is decided here: a decision is a call of `store::decide` or `store::replay`, as the command line makes it. No page asks
//! another host for anything.

mod access;
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
pub mod sign_in;
mod uncertain;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use tokio::sync::Semaphore;

use crate::client::oidc::Oidc;
use crate::config;
use crate::mail::compose::Identity;
use crate::shutdown::Shutdown;
use crate::store::desk::Desk;
use crate::store::line::Dsn;
use page::Failure;

/// What a page may do: nothing but show itself and this server's own style, script and messages.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The longest form: 500 ids and what goes with each take some 50,000 octets.
const FORM_MAX_OCTETS: usize = 256 * 1024;

/// How long a form may take to come.
const FORM_TIME: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Console {
    desk: Desk,
    dsn: Dsn,
    settings: Arc<config::Console>,
    /// How each provider's messages carry their identity: to show what went out.
    identities: Arc<BTreeMap<String, Identity>>,
    limiter: sign_in::Limiter,
    live: live::Live,
    counts: counts::Counts,
    oidc: Option<Oidc>,
    with_provider: Arc<Semaphore>,
    looking_further: Arc<Semaphore>,
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
            limiter: sign_in::Limiter::default(),
            live: live::Live::default(),
            counts: counts::Counts::default(),
            oidc,
            with_provider: Arc::new(Semaphore::new(oidc::AT_ONCE_MAX)),
            looking_further: Arc::new(Semaphore::new(1)),
            shutdown,
        }
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/", get(overview::show))
            .route("/sign-in", get(sign_in::form).post(sign_in::sign_in))
            .route("/sign-in/oidc", get(oidc::begin))
            .route("/sign-in/oidc/return", get(oidc::back))
            .route("/sign-out", post(sign_in::sign_out))
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
            .route("/operators/sign-out", post(pauses::sign_out))
            .route("/live", get(live::stream))
            .route("/assets/{name}", get(assets::get))
            .fallback(page::not_found)
            .layer(from_fn(bounded))
            .layer(map_response(guarded))
            .with_state(self)
    }
}

/// Takes a request's body whole, bounded in octets and in time, before anything else is done; and lets no NUL in, which PostgreSQL has no
/// text for.
async fn bounded(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let problem = |status, why: &str| Failure::Problem(status, why.to_owned()).into_response();
    let body = match tokio::time::timeout(FORM_TIME, Limited::new(body, FORM_MAX_OCTETS).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return problem(StatusCode::PAYLOAD_TOO_LARGE, "The form is too long. Select fewer rows.");
        }
        // Most likely nobody is there any more to read this.
        Ok(Err(_)) => return problem(StatusCode::BAD_REQUEST, "The form ended early. Send it again."),
        Err(_) => return problem(StatusCode::REQUEST_TIMEOUT, "The form took too long to come. Send it again."),
    };
    let holds_nul = |octets: &[u8]| octets.contains(&0) || octets.windows(3).any(|three| three == b"%00");
    if parts.uri.path_and_query().is_some_and(|path| holds_nul(path.as_str().as_bytes())) || holds_nul(&body) {
        return problem(StatusCode::UNPROCESSABLE_ENTITY, "A NUL is in no text here. Remove it.");
    }
    next.run(Request::from_parts(parts, body.into())).await
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
