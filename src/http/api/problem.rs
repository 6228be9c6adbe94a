//! What the API answers when it does not answer what was asked for: problem documents (RFC 9457) with stable codes.
//!
//! A detail speaks to the caller about their own request; it never tells of the database or of other accounts.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::domain::content::Invalid;

/// Every code; docs/api.md says what each means and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// There is no `Idempotency-Key`.
    KeyMissing,
    /// It is not one.
    KeyInvalid,
    /// An issued key older than its window.
    KeyExpired,
    /// The body is not JSON.
    Malformed,
    /// No valid token.
    Unauthenticated,
    /// A valid token without the scope.
    Forbidden,
    /// Nothing proves that the provider sent it.
    NotGenuine,
    /// No such thing on record.
    NotFound,
    /// Not this method here.
    MethodNotAllowed,
    /// The body came too slowly.
    RequestTimeout,
    /// Another request with the key is under way.
    InProgress,
    /// The operation's content was erased.
    Erased,
    /// The body is too large.
    TooLarge,
    /// The body is not said to be JSON.
    UnsupportedMediaType,
    /// A field is wrong.
    InvalidContent,
    /// The key was used for other content.
    PayloadMismatch,
    /// One account asks too much at once.
    AccountOverloaded,
    /// All accounts together do.
    Overloaded,
    /// The database cannot be reached.
    Unavailable,
    /// Nobody can say yet whether the operation is stored.
    OutcomeUnconfirmed,
    /// An invariant is broken.
    ReceiptIncomplete,
    /// A fault here.
    Internal,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::KeyExpired,
        Self::Malformed,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotGenuine,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::InProgress,
        Self::Erased,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidContent,
        Self::PayloadMismatch,
        Self::AccountOverloaded,
        Self::Overloaded,
        Self::Unavailable,
        Self::OutcomeUnconfirmed,
        Self::ReceiptIncomplete,
        Self::Internal,
    ];

    /// The status, the name that callers branch on, and a title for people.
    #[must_use]
    pub fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::KeyMissing => (StatusCode::BAD_REQUEST, "key_missing", "The Idempotency-Key is missing"),
            Self::KeyInvalid => (StatusCode::BAD_REQUEST, "key_invalid", "The Idempotency-Key is not valid"),
            Self::KeyExpired => (StatusCode::GONE, "key_expired", "The key is older than its window"),
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The body is not JSON"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "A valid token is needed"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The token does not allow this"),
            Self::NotGenuine => (StatusCode::FORBIDDEN, "not_genuine", "Nothing proves that the provider sent it"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "There is nothing here"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The method does not fit the address")
            }
            Self::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout", "The body came too slowly"),
            Self::InProgress => (StatusCode::CONFLICT, "in_progress", "Another request with this key is under way"),
            Self::Erased => (StatusCode::GONE, "erased", "The operation's content was erased"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "The body must be application/json")
            }
            Self::InvalidContent => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_content", "A field is not valid"),
            Self::PayloadMismatch => {
                (StatusCode::UNPROCESSABLE_ENTITY, "payload_mismatch", "The key was used for other content")
            }
            Self::AccountOverloaded => {
                (StatusCode::TOO_MANY_REQUESTS, "overloaded", "The account has too many requests under way")
            }
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many requests are under way"),
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The database cannot be reached, or has no room")
            }
            Self::OutcomeUnconfirmed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome_unconfirmed",
                "It is not known whether the operation was stored",
            ),
            Self::ReceiptIncomplete => {
                (StatusCode::INTERNAL_SERVER_ERROR, "receipt_incomplete", "The stored receipt has no answer")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "A fault of the server"),
        }
    }

    /// When to ask again, in seconds, where asking again is what to do. Long enough for a failing statement to end.
    fn retry_after(self) -> Option<u16> {
        match self {
            Self::InProgress | Self::AccountOverloaded | Self::Overloaded => Some(1),
            Self::Unavailable | Self::OutcomeUnconfirmed => Some(2),
            Self::KeyMissing
            | Self::KeyInvalid
            | Self::KeyExpired
            | Self::Malformed
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotGenuine
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::RequestTimeout
            | Self::Erased
            | Self::TooLarge
            | Self::UnsupportedMediaType
            | Self::InvalidContent
            | Self::PayloadMismatch
            | Self::ReceiptIncomplete
            | Self::Internal => None,
        }
    }
}

/// One answer of that kind.
#[derive(Debug, Clone)]
pub struct Problem {
    /// What it is.
    pub code: Code,
    /// What to do, for people.
    pub detail: String,
    /// The field that is wrong.
    pub invalid: Option<Invalid>,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), invalid: None }
    }

    pub(super) fn invalid(invalid: Invalid) -> Self {
        Self { code: Code::InvalidContent, detail: invalid.to_string(), invalid: Some(invalid) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, title) = self.code.parts();
        let mut document = json!({
            "type": format!("urn:outboxd:problem:{code}"),
            "title": title,
            "status": status.as_u16(),
            "code": code,
            "detail": self.detail,
        });
        if let Some(invalid) = self.invalid {
            document["errors"] = json!([{ "field": invalid.field, "detail": invalid.problem }]);
        }
        let mut response = (status, document.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.code.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"outboxd\""));
        }
        if matches!(self.code, Code::RequestTimeout | Code::TooLarge) {
            // What is left of the body is not read.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
