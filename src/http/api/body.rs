//! Reading a body: bounded in octets and in time.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{Instant, timeout_at};

use super::problem::{Code, Problem};

/// All octets of a body that says it is JSON.
pub(super) async fn read(headers: &HeaderMap, body: Body, most: u64, deadline: Instant) -> Result<Vec<u8>, Problem> {
    if !is_json(headers) {
        let detail = "Send `Content-Type: application/json`, without a content coding.";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    octets(headers, body, most, deadline).await
}

/// All octets of a body.
pub(super) async fn octets(headers: &HeaderMap, body: Body, most: u64, deadline: Instant) -> Result<Vec<u8>, Problem> {
    let too_large = || Problem::new(Code::TooLarge, format!("At most {most} octets are taken; shorten it."));
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let limit = usize::try_from(most).unwrap_or(usize::MAX);
    match timeout_at(deadline, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes().into()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        // Most likely nobody is there any more to read this.
        Ok(Err(_)) => Err(Problem::new(Code::Malformed, "The body ended early; send all of it.")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, "Send the same request again, faster.")),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut given = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return false };
    let media_type = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json") && !headers.contains_key(header::CONTENT_ENCODING)
}
