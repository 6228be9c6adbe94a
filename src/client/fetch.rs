//! Fetching something small that a message of a provider's points to: over HTTPS, from where the caller has checked that it may come.

use std::time::Duration;

use reqwest::{Url, redirect};

/// The longest answer, in octets: certificates are a few thousand.
const ANSWER_MAX_OCTETS: usize = 64 * 1024;

/// For the whole of it: somebody waits.
const PATIENCE: Duration = Duration::from_secs(5);

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error.without_url())
    }
}

/// Fetches.
#[derive(Debug, Clone)]
pub struct Fetcher {
    client: reqwest::Client,
}

/// Why nothing came.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// HTTP or TLS failed, it took too long, or the address is not an HTTPS one. The address is not told: it may hold a token.
    #[error("it cannot be fetched: {0}")]
    Http(#[source] reqwest::Error),
    /// The answer is not 200.
    #[error("the answer is {0}")]
    Status(u16),
    /// The answer is too long to be what is expected.
    #[error("the answer is longer than {ANSWER_MAX_OCTETS} octets")]
    TooLong,
    /// The address is none.
    #[error("the address is no URL")]
    Address,
}

impl Fetcher {
    /// One that follows no redirect.
    ///
    /// # Errors
    /// When HTTP cannot be set up.
    pub fn new() -> Result<Self, FetchError> {
        // An error means that somebody has chosen one for the whole process, which will do.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().redirect(redirect::Policy::none()).https_only(true).timeout(PATIENCE);
        Ok(Self { client: client.build()? })
    }

    /// What is at an address.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn get(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        let url = Url::parse(url).map_err(|_| FetchError::Address)?;
        let mut response = self.client.get(url).send().await?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(FetchError::Status(response.status().as_u16()));
        }
        let mut octets = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if octets.len() + chunk.len() > ANSWER_MAX_OCTETS {
                return Err(FetchError::TooLong);
            }
            octets.extend_from_slice(&chunk);
        }
        Ok(octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_is_fetched_over_plain_http_or_from_nowhere() {
        let fetcher = Fetcher::new().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = format!("http://{}/cert.pem", listener.local_addr().unwrap());
        assert!(matches!(fetcher.get(&here).await, Err(FetchError::Http(_))));
        assert!(matches!(fetcher.get("sns").await, Err(FetchError::Address)));
        let nobody = format!("https://127.0.0.1:{}/", listener.local_addr().unwrap().port());
        drop(listener);
        assert!(matches!(fetcher.get(&nobody).await, Err(FetchError::Http(_))));
    }
}
