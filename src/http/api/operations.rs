//! `GET /v1/operations/{operation}/{key}`: what is known about an operation. `POST /v1/keys`: a key for a new one.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::Api;
use super::problem::{Code, Problem};
use crate::domain::issued_key::Origin;
use crate::domain::operation::{CREATE_MESSAGE, Operation, RequestKey};
use crate::domain::token::Scope;

/// What is on record about an operation.
pub(super) async fn look_up(
    State(api): State<Api>,
    headers: HeaderMap,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let unknown = || {
        let detail = "Nothing is on record: it was never stored, is still under way, was rolled back, or retention has removed its \
                      receipt.";
        Problem::new(Code::NotFound, detail)
    };
    let path = path.map_err(|_| unknown());
    let own = matches!(&path, Ok(Path((operation, _))) if operation == CREATE_MESSAGE);
    let scopes: &[Scope] = if own { &[Scope::CreateMessages, Scope::LookUp] } else { &[Scope::LookUp] };
    let admitted = api.gate.admit(&headers, scopes, deadline).await?;
    let Path((operation, key)) = path?;
    let request_key = RequestKey::new(key).map_err(|_| unknown())?;
    if operation.contains('\0') {
        return Err(unknown());
    }
    let operation = Operation { account_id: admitted.caller.account_id.clone(), operation, request_key };
    let known = api.asking.known(&operation, deadline).await?;
    let known = known.ok_or_else(unknown)?;
    let at = |time: OffsetDateTime| time.format(&Rfc3339).ok();
    let hex = |octets: Vec<u8>| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    // An API of somebody else's may have stored something other than JSON.
    let body = known.body.map(|body| serde_json::from_str(&body).unwrap_or(Value::String(body)));
    let told = json!({
        "operation": operation.operation,
        "request_key": operation.request_key.as_str(),
        "state": if known.erased_at.is_some() { "erased" } else { "stored" },
        "created_at": at(known.created_at),
        "retained_until": at(known.created_at + api.receipts_retained),
        "erased_at": known.erased_at.and_then(at),
        "fingerprint": known.payload_hash.map(hex),
        "response": { "status": known.status, "body": body },
    });
    Ok(axum::Json(told).into_response())
}

/// Issues a key that tells its age.
pub(super) async fn issue_key(State(api): State<Api>, headers: HeaderMap) -> Result<Response, Problem> {
    let deadline = Instant::now() + api.request_timeout;
    let admitted = api.gate.admit(&headers, &[Scope::CreateMessages], deadline).await?;
    let Some(issued) = &api.issued_keys else {
        let detail = "This server issues no keys (api.issued_keys): make one of your own, such as a UUID.";
        return Err(Problem::new(Code::NotFound, detail));
    };
    let account_id = &admitted.caller.account_id;
    let id = api.asking.fresh_id(deadline).await?;
    let key = issued.mint.issue(account_id, id);
    let Some((key, Origin::Issued(at))) = key.map(|key| (key.clone(), issued.mint.origin(account_id, &key))) else {
        tracing::error!("the database's id for a request key is no UUIDv7");
        return Err(Problem::new(Code::Internal, "Tell whoever runs this server."));
    };
    let told = json!({ "key": key.as_str(), "expires_at": (at + issued.window).format(&Rfc3339).ok() });
    Ok((StatusCode::CREATED, axum::Json(told)).into_response())
}
