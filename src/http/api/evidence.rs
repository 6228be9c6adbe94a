//! `POST /v1/evidence`: a fact about an attempt, from a program that knows it.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::problem::{Code, Problem};
use super::{Api, body};
use crate::domain::content::Invalid;
use crate::domain::evidence::{Kind, Proof};
use crate::domain::ids::NotificationId;
use crate::domain::token::Scope;
use crate::store::evidence::{NewEvidence, Recorded};

/// The largest body, in octets.
const BODY_MAX_OCTETS: u64 = 64 * 1024;

/// The longest source and reference, in octets.
const NAME_MAX_OCTETS: usize = 200;

/// The largest detail, in octets of JSON.
const DETAIL_MAX_OCTETS: usize = 8 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    notification_id: uuid::Uuid,
    attempt: Option<i32>,
    provider: Option<String>,
    proves: Proof,
    #[serde(default)]
    for_good: bool,
    source: String,
    #[serde(default)]
    reference: String,
    #[serde(default, with = "time::serde::rfc3339::option")]
    happened_at: Option<OffsetDateTime>,
    #[serde(default)]
    detail: serde_json::Map<String, Value>,
}

/// Records one piece of evidence; the same again changes nothing.
pub(super) async fn record(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let admitted = api.gate.admit(&headers, &[Scope::RecordEvidence], deadline).await?;
    let body = body::read(&headers, body, BODY_MAX_OCTETS, deadline).await?;
    let given = read(&body)?;
    let evidence = NewEvidence {
        id: NotificationId(given.notification_id),
        account_id: Some(admitted.caller.account_id.clone()),
        attempt: given.attempt,
        provider: given.provider,
        kind: Kind::ProviderEvent,
        proof: given.proves,
        for_good: given.for_good,
        source: given.source,
        reference: given.reference,
        detail: Value::Object(given.detail),
        happened_at: given.happened_at,
        recorded_by: format!("token {} of {}", admitted.caller.token, admitted.caller.account_id),
    };
    match api.asking.record(&evidence, deadline).await? {
        Recorded::UnknownNotification => {
            let detail = "This account has no notification of this id, or retention has removed it.";
            Err(Problem::new(Code::NotFound, detail))
        }
        Recorded::NoAttempt => {
            let problem = "names no attempt that can be meant: with `not_accepted` it must be named and have ended, else it must have \
                           begun; see `outboxd show`";
            Err(Problem::invalid(Invalid::new("attempt", problem)))
        }
        Recorded::AlreadyKnown(state) => {
            Ok(axum::Json(json!({ "recorded": false, "state": state, "contradiction": false })).into_response())
        }
        Recorded::New { after, contradiction, .. } => {
            let told = json!({ "recorded": true, "state": after, "contradiction": contradiction });
            Ok((StatusCode::CREATED, axum::Json(told)).into_response())
        }
    }
}

fn read(octets: &[u8]) -> Result<Given, Problem> {
    let value: Value = serde_json::from_slice(octets)
        .map_err(|error| Problem::new(Code::Malformed, format!("The body is not JSON (line {}).", error.line())))?;
    let given: Given = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        Problem::invalid(Invalid::new(field, format!("is not as docs/evidence.md says: {}", error.into_inner())))
    })?;
    let plain = |field: &'static str, text: &str, least: usize| {
        if text.len() < least || text.len() > NAME_MAX_OCTETS || text.contains('\0') {
            let problem = format!("is empty, longer than {NAME_MAX_OCTETS} octets, or has a NUL");
            return Err(Problem::invalid(Invalid::new(field, problem)));
        }
        Ok(())
    };
    plain("source", &given.source, 1)?;
    plain("reference", &given.reference, 0)?;
    given.provider.as_ref().map_or(Ok(()), |provider| plain("provider", provider, 1))?;
    let detail = Value::Object(given.detail.clone()).to_string();
    if detail.len() > DETAIL_MAX_OCTETS || detail.contains("\\u0000") {
        let problem = format!("is longer than {DETAIL_MAX_OCTETS} octets, or has a NUL");
        return Err(Problem::invalid(Invalid::new("detail", problem)));
    }
    // PostgreSQL's timestamps end there (PostgreSQL documentation, Date/Time Types); nothing happened so far away.
    if given.happened_at.is_some_and(|at| !(1970..=9999).contains(&at.year())) {
        return Err(Problem::invalid(Invalid::new("happened_at", "is not in the years from 1970 to 9999")));
    }
    if given.for_good && given.proves != Proof::NotAccepted {
        let problem = "goes with `not_accepted` alone: it says that trying again cannot change it";
        return Err(Problem::invalid(Invalid::new("for_good", problem)));
    }
    Ok(given)
}
