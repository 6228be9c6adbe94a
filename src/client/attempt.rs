//! One attempt over HTTP: what was heard, and nothing concluded from it.
//!
//! Every attempt has a connection of its own, follows no redirect and is never repeated by the library, so that what one
//! attempt proves is exactly what was heard of it.

use std::time::{Duration, SystemTime};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url, redirect, retry};
use secrecy::{ExposeSecret as _, SecretString};

use super::verdict::Heard;
use super::{ClientError, Draft};

/// The longest answer that is read, in octets: receipts and problems are a few hundred.
const ANSWER_MAX_OCTETS: usize = 1024 * 1024;

/// The longest wait that a server's `Retry-After` can ask for: beyond it, a person is faster.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone)]
pub(super) struct Http {
    client: reqwest::Client,
    allow_plaintext: bool,
}

impl Http {
    pub(super) fn new(token: &SecretString, connect: Duration, allow_plaintext: bool) -> Result<Self, ClientError> {
        // An error means that somebody has chosen one for the whole process, which will do.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let mut bearer =
            HeaderValue::try_from(format!("Bearer {}", token.expose_secret())).map_err(|_| ClientError::Token)?;
        bearer.set_sensitive(true);
        let client = reqwest::Client::builder()
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .pool_max_idle_per_host(0)
            .connect_timeout(connect)
            .build()?;
        Ok(Self { client, allow_plaintext })
    }

    /// Sends the draft once, within `time`.
    pub(super) async fn send(&self, draft: &Draft, time: Duration) -> Heard {
        let url = match self.usable(draft.url()) {
            Ok(url) => url,
            Err(why) => return Heard::Unusable(why.to_owned()),
        };
        let request = self
            .client
            .post(url)
            .header("Idempotency-Key", draft.key().to_header())
            .header(CONTENT_TYPE, "application/json")
            .body(draft.body().to_owned());
        let asked = async {
            let response = request.send().await.map_err(|error| {
                // Connecting comes before the first octet of the request.
                let lost = if error.is_connect() { Heard::NotSent } else { Heard::Lost };
                lost(describe(&error))
            })?;
            read(response).await
        };
        match tokio::time::timeout(time, asked).await {
            Ok(Ok(heard) | Err(heard)) => heard,
            Err(_) => Heard::Lost(format!("no answer in {time:?}")),
        }
    }

    fn usable(&self, url: &str) -> Result<Url, &'static str> {
        let url =
            Url::parse(url).map_err(|_| "the URL is none; give one such as https://api.example.org/v1/messages")?;
        let here = match url.host_str() {
            Some("localhost") => true,
            Some(host) => {
                host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            None => false,
        };
        match url.scheme() {
            "https" => Ok(url),
            "http" if here || self.allow_plaintext => Ok(url),
            "http" => Err("plain http would show the token and the message on the way; use https, or allow it by name"),
            _ => Err("the URL is neither https nor http"),
        }
    }
}

async fn read(mut response: Response) -> Result<Heard, Heard> {
    let status = response.status().as_u16();
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let replayed = header("idempotency-replayed") == Some("true");
    let retry_after = header(RETRY_AFTER.as_str()).map_or(Duration::ZERO, |text| delay(text, SystemTime::now()));
    let mut octets = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Heard::Lost(describe(&error)))? {
        if octets.len() + chunk.len() > ANSWER_MAX_OCTETS {
            return Err(Heard::Lost("the answer is too long to be one of this API".to_owned()));
        }
        octets.extend_from_slice(&chunk);
    }
    let body = String::from_utf8_lossy(&octets).into_owned();
    let problem: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
    Ok(Heard::Answer { status, code: text("code"), detail: text("detail"), retry_after, body, replayed })
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date. What is neither asks for nothing.
fn delay(text: &str, now: SystemTime) -> Duration {
    let asked = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok().and_then(|at| at.duration_since(now).ok()).unwrap_or_default(),
    };
    asked.min(RETRY_AFTER_MAX)
}

/// The error with its causes; it holds the URL, never a header or the body.
fn describe(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("7", 7),
            (" 7 ", 7),
            ("Sun, 06 Nov 1994 08:49:47 GMT", 10),
            ("Sun, 06 Nov 1994 08:49:27 GMT", 0),
            ("soon", 0),
            ("-1", 0),
            ("99999999999999999999", 0),
            ("4000000000", 86_400),
        ] {
            assert_eq!(delay(text, now), Duration::from_secs(seconds), "{text}");
        }
    }

    #[test]
    fn plain_http_goes_to_this_machine_only_unless_it_is_allowed() {
        let http = |allow| Http::new(&"obx_x".into(), Duration::from_secs(1), allow).unwrap();
        for url in ["http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]/x", "https://api.example.org/x"] {
            assert!(http(false).usable(url).is_ok(), "{url}");
        }
        assert!(http(false).usable("http://api.example.org/x").is_err());
        assert!(http(false).usable("http://127.0.0.1.example.org/x").is_err());
        assert!(http(true).usable("http://api.example.org/x").is_ok());
        for url in ["", "ftp://x/y", "/v1/messages", "file:///etc/passwd"] {
            assert!(http(true).usable(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_token_shows_in_no_debug_output() {
        let http = Http::new(&"obx_hush".into(), Duration::from_secs(1), false).unwrap();
        assert!(!format!("{http:?}").contains("hush"));
    }
}
