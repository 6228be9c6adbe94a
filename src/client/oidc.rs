//! Who somebody is, as an identity provider says: OpenID Connect Core 1.0, the authorization code flow (3.1), with PKCE (RFC 7636).
//!
//! It proves an identity and grants nothing: what somebody may do stands in outboxd's own table of operators.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use openidconnect::core::{CoreAuthenticationFlow, CoreGenderClaim, CoreIdTokenVerifier, CoreProviderMetadata};
use openidconnect::{
    AccessTokenHash, AsyncHttpClient, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EmptyAdditionalClaims,
    IdTokenClaims, IssuerUrl, Nonce, OAuth2TokenResponse as _, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope,
    TokenResponse as _, core::CoreClient, http,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

/// The longest answer, in octets: metadata and key sets are some thousands.
const ANSWER_MAX_OCTETS: usize = 256 * 1024;

/// For each request: somebody waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long what the provider says of itself is taken for true. Its keys among it: one that it has just begun to sign with makes
/// this ask anew, if it has not just been asked.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const ASKED_LATELY: Duration = Duration::from_secs(10);

/// What of somebody's claims says who they are to outboxd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The address, if the provider says that it has verified it.
    Email,
    /// The name that they have chosen at the provider, where nobody can choose another's.
    PreferredUsername,
    /// The provider's own identifier.
    Subject,
}

impl Claim {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Email, Self::PreferredUsername, Self::Subject];

    /// Its name (OpenID Connect Core 1.0, 5.1).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::PreferredUsername => "preferred_username",
            Self::Subject => "sub",
        }
    }
}

/// How an identity provider is used.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its issuer identifier, an HTTPS URL.
    pub issuer: String,
    /// As what outboxd is registered there.
    pub client_id: String,
    /// With what it proves to be that; `None` for a public client.
    pub client_secret: Option<SecretString>,
    /// Where browsers are sent back to: `…/sign-in/oidc/return` of the console, as the outside reaches it.
    pub redirect_url: String,
    /// What says who somebody is.
    pub claim: Claim,
}

/// What a browser keeps between leaving and coming back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Flow {
    state: String,
    nonce: String,
    verifier: String,
}

/// Why nobody is known.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// A setting is not what it must be.
    #[error("{0}")]
    Setting(String),
    /// The provider does not answer, or not as it should.
    #[error("the identity provider: {0}")]
    Provider(String),
    /// What came back does not belong to what was asked, or proves nothing.
    #[error("{0}")]
    Unproven(String),
}

/// An identity provider.
#[derive(Debug, Clone)]
pub struct Oidc {
    settings: Arc<Settings>,
    http: Http,
    known: Arc<Mutex<Option<(Instant, CoreProviderMetadata)>>>,
}

impl Oidc {
    /// Nothing is asked of it yet.
    ///
    /// # Errors
    /// When HTTP cannot be set up.
    pub fn new(settings: Settings) -> Result<Self, OidcError> {
        // An error means that somebody has chosen one for the whole process, which will do.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        // Following redirects would let a provider point at hosts that only outboxd reaches.
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(PATIENCE);
        let http = http.build().map_err(|error| OidcError::Setting(error.to_string()))?;
        Ok(Self { settings: Arc::new(settings), http: Http(http), known: Arc::default() })
    }

    /// Where to send a browser, and what it must bring back.
    ///
    /// # Errors
    /// When the provider does not say where.
    pub async fn begin(&self) -> Result<(String, Flow), OidcError> {
        let metadata = self.metadata(KNOWN_FOR).await?;
        let client = CoreClient::from_provider_metadata(metadata, ClientId::new(self.settings.client_id.clone()), None)
            .set_redirect_uri(self.redirect_url()?);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let scopes: &[&str] = match self.settings.claim {
            Claim::Email => &["email"],
            Claim::PreferredUsername => &["profile"],
            Claim::Subject => &[],
        };
        let (url, state, nonce) = client
            .authorize_url(CoreAuthenticationFlow::AuthorizationCode, CsrfToken::new_random, Nonce::new_random)
            .add_scopes(scopes.iter().map(|scope| Scope::new((*scope).to_owned())))
            .set_pkce_challenge(challenge)
            .url();
        let flow =
            Flow { state: state.secret().clone(), nonce: nonce.secret().clone(), verifier: verifier.secret().clone() };
        Ok((url.to_string(), flow))
    }

    /// Who came back with this code.
    ///
    /// # Errors
    /// When what came back does not belong to the flow, or the provider does not confirm it.
    pub async fn finish(&self, flow: Flow, state: &str, code: &str) -> Result<String, OidcError> {
        if state != flow.state {
            return Err(OidcError::Unproven("the answer does not belong to this browser's sign-in".to_owned()));
        }
        let metadata = self.metadata(KNOWN_FOR).await?;
        let secret = self.settings.client_secret.as_ref();
        let secret = secret.map(|secret| ClientSecret::new(secret.expose_secret().to_owned()));
        let id = ClientId::new(self.settings.client_id.clone());
        let client = CoreClient::from_provider_metadata(metadata, id.clone(), secret.clone())
            .set_redirect_uri(self.redirect_url()?);
        let token = client
            .exchange_code(AuthorizationCode::new(code.to_owned()))
            .map_err(|error| OidcError::Provider(error.to_string()))?
            .set_pkce_verifier(PkceCodeVerifier::new(flow.verifier))
            .request_async(&self.http)
            .await
            .map_err(|error| OidcError::Unproven(format!("the code was not taken: {error}")))?;
        let none = || OidcError::Unproven("the provider gave no ID token".to_owned());
        let id_token = token.id_token().ok_or_else(none)?;
        let nonce = Nonce::new(flow.nonce);
        let proven = |verifier: &CoreIdTokenVerifier<'_>| {
            let claims = id_token.claims(verifier, &nonce).map_err(|error| error.to_string())?;
            if let Some(expected) = claims.access_token_hash() {
                let algorithm = id_token.signing_alg().map_err(|error| error.to_string())?;
                let key = id_token.signing_key(verifier).map_err(|error| error.to_string())?;
                let actual = AccessTokenHash::from_token(token.access_token(), algorithm, key);
                if actual.map_err(|error| error.to_string())? != *expected {
                    return Err("the access token is another one".to_owned());
                }
            }
            self.identity(claims)
        };
        let first = proven(&client.id_token_verifier());
        let proven = match first {
            Ok(identity) => Ok(identity),
            // Perhaps it signs with a new key.
            Err(_) => {
                let metadata = self.metadata(ASKED_LATELY).await?;
                let client = CoreClient::from_provider_metadata(metadata, id, secret);
                proven(&client.id_token_verifier())
            }
        };
        proven.map_err(OidcError::Unproven)
    }

    fn identity(&self, claims: &IdTokenClaims<EmptyAdditionalClaims, CoreGenderClaim>) -> Result<String, String> {
        let missing = || format!("the ID token has no claim `{}`", self.settings.claim.as_str());
        match self.settings.claim {
            Claim::Subject => Ok(claims.subject().to_string()),
            Claim::PreferredUsername => claims.preferred_username().map(|name| name.to_string()).ok_or_else(missing),
            Claim::Email => {
                let email = claims.email().ok_or_else(missing)?;
                if claims.email_verified() != Some(true) {
                    return Err("the provider does not say that it has verified the address".to_owned());
                }
                Ok(email.to_string())
            }
        }
    }

    fn redirect_url(&self) -> Result<RedirectUrl, OidcError> {
        RedirectUrl::new(self.settings.redirect_url.clone()).map_err(|error| OidcError::Setting(error.to_string()))
    }

    /// What the provider says of itself (OpenID Connect Discovery 1.0, 4), with its keys; no older than `age`.
    async fn metadata(&self, age: Duration) -> Result<CoreProviderMetadata, OidcError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, metadata)) = known.filter(|(at, _)| at.elapsed() < age) {
            return Ok(metadata);
        }
        let issuer = IssuerUrl::new(self.settings.issuer.clone());
        let issuer = issuer.map_err(|error| OidcError::Setting(format!("console.oidc.issuer: {error}")))?;
        let metadata = CoreProviderMetadata::discover_async(issuer, &self.http).await;
        let metadata = metadata.map_err(|error| OidcError::Provider(told(&error)))?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), metadata.clone()));
        Ok(metadata)
    }
}

/// Sends requests, over TLS or to this machine.
#[derive(Debug, Clone)]
struct Http(reqwest::Client);

impl Http {
    async fn ask(&self, request: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, HttpError> {
        if !is_usable(&request.uri().to_string()) {
            return Err(HttpError::Plain);
        }
        let mut response = self.0.execute(request.try_into()?).await?;
        let mut answer = http::Response::new(Vec::new());
        *answer.status_mut() = response.status();
        *answer.headers_mut() = response.headers().clone();
        while let Some(chunk) = response.chunk().await? {
            if answer.body().len() + chunk.len() > ANSWER_MAX_OCTETS {
                return Err(HttpError::TooLong);
            }
            answer.body_mut().extend_from_slice(&chunk);
        }
        Ok(answer)
    }
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Vec<u8>>, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: http::Request<Vec<u8>>) -> Self::Future {
        Box::pin(self.ask(request))
    }
}

/// Why a request had no answer.
#[derive(Debug, thiserror::Error)]
enum HttpError {
    #[error("{0}")]
    Http(#[source] reqwest::Error),
    #[error("the answer is longer than {ANSWER_MAX_OCTETS} octets")]
    TooLong,
    #[error("it must be reached over https")]
    Plain,
}

impl From<reqwest::Error> for HttpError {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error.without_url())
    }
}

/// Whether this is a URL that may be used: over TLS, or of this machine.
#[must_use]
pub fn is_usable(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    url.host_str().is_some_and(|host| url.scheme() == "https" || (url.scheme() == "http" && is_this_machine(host)))
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// An error with what it comes from.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_spoken_to_without_tls() {
        for url in [
            "https://id.example.com",
            "https://id.example.com:8443/x",
            "http://127.0.0.1:1/",
            "http://[::1]:1",
            "http://localhost",
        ] {
            assert!(is_usable(url), "{url}");
        }
        for url in [
            "http://id.example.com",
            "http://127.0.0.1.example.com",
            "ftp://localhost",
            "id.example.com",
            "",
            "https://",
        ] {
            assert!(!is_usable(url), "{url}");
        }
    }
}
