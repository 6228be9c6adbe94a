//! `POST /v1/messages` and `GET /v1/messages/{id}`.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;
use uuid::Uuid;

use super::Api;
use super::asking::{erased, mismatch};
use super::body;
use super::problem::{Code, Problem};
use crate::domain::fingerprint::Fingerprint;
use crate::domain::issued_key::Origin;
use crate::domain::operation::{CREATE_MESSAGE, Operation, RequestKey};
use crate::domain::submission::{BodyProblem, Submission};
use crate::domain::token::Scope;
use crate::store::accept::Receipt;
use crate::store::operations::{Message, Notification};
use crate::store::tokens::Caller;

/// The header of the request key (draft-ietf-httpapi-idempotency-key-header-07, 2).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Says that the answer is that of an earlier request.
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Stores a message, or answers as when it was stored.
pub(super) async fn create(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let admitted = api.gate.admit(&headers, &[Scope::CreateMessages], deadline).await?;
    let operation = Operation {
        account_id: admitted.caller.account_id.clone(),
        operation: CREATE_MESSAGE.to_owned(),
        request_key: request_key(&headers)?,
    };
    api.check_age(&admitted.caller, &operation)?;
    let body = body::read(&headers, body, api.body_max_bytes, deadline).await?;
    let submission = Submission::read(&body).map_err(|problem| match problem {
        BodyProblem::Malformed { .. } => Problem::new(Code::Malformed, format!("The body {problem}.")),
        BodyProblem::Shape(invalid) => Problem::invalid(invalid),
    })?;
    drop(body);
    // A task of its own: a caller who leaves does not stop it half way.
    let settling = tokio::spawn(async move {
        let receipt = api.settle(&operation, &submission, deadline).await;
        drop(admitted);
        receipt
    });
    match settling.await {
        Ok(receipt) => receipt.map(answer),
        Err(error) => {
            tracing::error!(%error, "accepting a message failed");
            // Where it failed is not known, nor therefore what was stored.
            let detail = "It may be stored or not. Send the same request with the same key again: only that tells.";
            Err(Problem::new(Code::OutcomeUnconfirmed, detail))
        }
    }
}

impl Api {
    /// Refuses an issued key that is forged or too old, and any other where only issued ones are taken.
    fn check_age(&self, caller: &Caller, operation: &Operation) -> Result<(), Problem> {
        let Some(issued) = &self.issued_keys else { return Ok(()) };
        match issued.mint.origin(&caller.account_id, &operation.request_key) {
            Origin::Caller if !issued.required => Ok(()),
            Origin::Caller => {
                Err(Problem::new(Code::KeyInvalid, "Only issued keys are taken here: get one by POST /v1/keys."))
            }
            Origin::Forged => {
                let detail = "It was not issued to this account by this server: get one by POST /v1/keys.";
                Err(Problem::new(Code::KeyInvalid, detail))
            }
            Origin::Issued(at) if caller.now >= at + issued.window => {
                let detail = "Whether the operation was stored is not known any more to a retry. Look it up, and ask a person \
                              before you send it under a new key.";
                Err(Problem::new(Code::KeyExpired, detail))
            }
            Origin::Issued(_) => Ok(()),
        }
    }

    async fn settle(
        &self,
        operation: &Operation,
        submission: &Submission,
        deadline: Instant,
    ) -> Result<Receipt, Problem> {
        let fingerprint = Fingerprint::of(submission);
        let Err(invalid) = submission.check(|route| self.routes.is_empty() || self.routes.contains(route)) else {
            return self.asking.accept(operation, &fingerprint, submission, deadline).await;
        };
        // A rule may have changed since this very content was accepted: its receipt still holds.
        let known = self.asking.known(operation, deadline).await?;
        let Some(known) = known else { return Err(Problem::invalid(invalid)) };
        match (known.payload_hash, known.status, known.body) {
            (None, _, _) => Err(erased()),
            (Some(hash), _, _) if hash != fingerprint.as_bytes() => Err(mismatch()),
            (Some(_), Some(status), Some(body)) => Ok(Receipt { is_new: false, status, body }),
            (Some(_), _, _) => Err(Problem::invalid(invalid)),
        }
    }
}

fn request_key(headers: &HeaderMap) -> Result<RequestKey, Problem> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (given.next(), given.next()) {
        (None, _) => {
            let detail = "Send `Idempotency-Key: \"…\"`, made once for this intent, before the first attempt.";
            Err(Problem::new(Code::KeyMissing, detail))
        }
        (Some(_), Some(_)) => Err(Problem::new(Code::KeyInvalid, "It is there twice; send it once.")),
        (Some(value), None) => RequestKey::from_header(value.as_bytes())
            .map_err(|problem| Problem::new(Code::KeyInvalid, format!("It {problem}."))),
    }
}

fn answer(receipt: Receipt) -> Response {
    let status = StatusCode::from_u16(receipt.status).unwrap_or(StatusCode::CREATED);
    let message_id = serde_json::from_str::<serde_json::Value>(&receipt.body).ok().and_then(|body| {
        body["message_id"].as_str().and_then(|id| HeaderValue::try_from(format!("/v1/messages/{id}")).ok())
    });
    let mut response = (status, receipt.body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(location) = message_id {
        headers.insert(header::LOCATION, location);
    }
    if !receipt.is_new {
        headers.insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// A message with what has become of its notifications.
pub(super) async fn look_up(
    State(api): State<Api>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let admitted = api.gate.admit(&headers, &[Scope::CreateMessages, Scope::LookUp], deadline).await?;
    let not_found =
        || Problem::new(Code::NotFound, "This account has no message of this id, or retention has removed it.");
    let Path(id) = id.map_err(|_| not_found())?;
    let account_id = &admitted.caller.account_id;
    let message = api.asking.message(account_id, id, deadline).await?;
    Ok(axum::Json(told(message.ok_or_else(not_found)?)).into_response())
}

fn told(message: Message) -> serde_json::Value {
    let at = |time: time::OffsetDateTime| time.format(&Rfc3339).ok();
    let notification = |notification: Notification| match notification.standing {
        None => json!({ "id": notification.id, "state": "removed" }),
        Some(standing) => json!({
            "id": notification.id,
            "state": standing.state,
            "reason": standing.reason,
            "changed_at": at(standing.changed_at),
            "recipient": standing.recipient,
            "attempts": standing.attempts,
            "duplicate_possible": standing.duplicate_possible,
        }),
    };
    json!({
        "id": message.id,
        "operation": message.operation,
        "request_key": message.request_key,
        "created_at": at(message.created_at),
        "erased_at": message.erased_at.and_then(at),
        "content": message.content,
        "notifications": message.notifications.into_iter().map(notification).collect::<Vec<_>>(),
    })
}
