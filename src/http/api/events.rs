//! `POST /v1/events/{name}`: what a provider says happened. It has no token: the provider's own signature proves it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::problem::{Code, Problem};
use super::{Api, body};
use crate::client::fetch::Fetcher;
use crate::config::EventSource;
use crate::domain::evidence::Kind;
use crate::evidence::events::ses::PublicKey;
use crate::evidence::events::{Event, Heard, Refused, Source};
use crate::store::evidence::{NewEvidence, Recorded};

/// Requests under way at once. They show no token, so what they may hold is bounded apart from everything else.
const UNDER_WAY_MAX: usize = 16;

/// What is kept of a server's own words, in characters.
const WORDS_MAX_CHARS: usize = 500;

/// Keys of certificates that are remembered: Amazon has one a region, and changes it once a year.
const KEYS_MAX: usize = 16;

/// The sources of events, and what is remembered of them.
#[derive(Debug, Clone)]
pub(super) struct Events {
    sources: Arc<BTreeMap<String, EventSource>>,
    keys: Arc<Mutex<BTreeMap<String, PublicKey>>>,
    places: Arc<Semaphore>,
    /// Held while something is fetched: one at a time, since anybody can ask for it.
    fetching: Arc<Semaphore>,
}

impl Events {
    pub(super) fn new(sources: BTreeMap<String, EventSource>) -> Self {
        Self {
            sources: Arc::new(sources),
            keys: Arc::default(),
            places: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            fetching: Arc::new(Semaphore::new(1)),
        }
    }

    /// The key that a request says it is signed with, from Amazon.
    async fn key(&self, source: &Source, body: &[u8]) -> Result<Option<PublicKey>, Problem> {
        let Source::Ses(ses) = source else { return Ok(None) };
        let Some(url) = ses.certificate_url(body).map_err(refused)? else { return Ok(None) };
        let known = self.keys.lock().unwrap_or_else(PoisonError::into_inner).get(&url).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let pem = self.fetch(&url).await?;
        let key = PublicKey::of_certificate(&pem, OffsetDateTime::now_utc()).ok_or_else(|| {
            Problem::new(Code::NotGenuine, "The certificate that signs is none, or is not valid today.")
        })?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS_MAX {
            keys.clear();
        }
        keys.insert(url, key.clone());
        Ok(Some(key))
    }

    async fn fetch(&self, url: &str) -> Result<Vec<u8>, Problem> {
        let _one = self.fetching.try_acquire().map_err(|_| busy())?;
        let fetched = match Fetcher::new() {
            Ok(fetcher) => fetcher.get(url).await,
            Err(error) => Err(error),
        };
        fetched.map_err(|error| {
            tracing::warn!(%error, "an address of Amazon SNS cannot be reached: allow it, or set certificate_file");
            Problem::new(
                Code::Unavailable,
                "An address of Amazon SNS cannot be reached. Send the same again after Retry-After.",
            )
        })
    }
}

fn busy() -> Problem {
    Problem::new(Code::Overloaded, "Send the same request again after Retry-After.")
}

/// Takes note of events.
pub(super) async fn take(
    State(api): State<Api>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let _place = api.events.places.try_acquire().map_err(|_| busy())?;
    let unknown = || Problem::new(Code::NotFound, "No events of this name are taken: see [events.NAME].");
    let Path(name) = name.map_err(|_| unknown())?;
    let EventSource { provider, source } = api.events.sources.get(&name).ok_or_else(unknown)?;
    // SNS says text/plain.
    let body = body::octets(&headers, body, source.body_max_octets(), deadline).await?;
    let key = api.events.key(source, &body).await?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let heard = source.read(&header, &body, OffsetDateTime::now_utc(), key.as_ref()).map_err(|why| {
        tracing::warn!(events = name, %why, "events were refused");
        refused(why)
    })?;
    let events = match heard {
        Heard::Events(events) => events,
        Heard::Confirm(url) => {
            api.events.fetch(&url).await?;
            tracing::info!(events = name, "the subscription is confirmed");
            Vec::new()
        }
    };
    let (mut recorded, mut known, mut unknown, mut without_id) = (0u32, 0u32, 0u32, 0u32);
    let count = events.len();
    for event in events {
        let Some(evidence) = evidence(event, &name, provider) else {
            without_id += 1;
            continue;
        };
        match api.asking.record(&evidence, deadline).await? {
            Recorded::New { .. } => recorded += 1,
            Recorded::AlreadyKnown(_) => known += 1,
            Recorded::UnknownNotification | Recorded::NoAttempt => unknown += 1,
        }
    }
    let told = json!({
        "events": count, "recorded": recorded, "known": known, "unknown": unknown, "without_id": without_id,
    });
    Ok(axum::Json(told).into_response())
}

fn evidence(event: Event, name: &str, provider: &str) -> Option<NewEvidence> {
    let plain = |text: &str| text.replace('\0', "?").chars().take(WORDS_MAX_CHARS).collect::<String>();
    Some(NewEvidence {
        id: event.id?,
        account_id: None,
        attempt: None,
        provider: Some(provider.to_owned()),
        kind: Kind::ProviderEvent,
        proof: event.proof,
        for_good: false,
        source: format!("events {name}"),
        reference: plain(&event.reference),
        detail: json!({ "event": plain(&event.name), "words": plain(&event.words) }),
        happened_at: event.happened_at,
        recorded_by: format!("events {name}"),
    })
}

fn refused(why: Refused) -> Problem {
    let code = match why {
        Refused::Forged(_) => Code::NotGenuine,
        Refused::Malformed(_) => Code::Malformed,
    };
    Problem::new(code, format!("Nothing was taken: {why}."))
}
