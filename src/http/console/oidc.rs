//! Signing in at an identity provider: there, and back again.
//!
//! What belongs to one sign-in waits in the browser's own cookie, so that it ends at whichever process it comes back to.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::html;
use serde::{Deserialize, Serialize};

use super::Console;
use super::access::{Fields, ours};
use super::page::{self, Failure};
use crate::client::oidc::{Flow, Oidc, OidcError};
use crate::store::decide::{self, Decider};
use crate::store::operators;

/// How long somebody may take at the provider, in seconds.
const FLOW_SECONDS: u64 = 600;

/// Sign-ins that are with the provider at once.
pub(super) const AT_ONCE_MAX: usize = 32;

/// What the browser keeps.
#[derive(Serialize, Deserialize)]
struct Kept {
    flow: Flow,
    next: String,
}

impl Console {
    fn flow_cookie(&self, value: &str, seconds: u64) -> Result<HeaderValue, Failure> {
        let secure = if self.settings.secure_cookie { "; Secure" } else { "" };
        // Lax: it must come along when the provider sends the browser back.
        let name = self.flow_cookie_name();
        HeaderValue::try_from(format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"))
            .map_err(|_| Failure::bad("The page to come back to cannot be kept."))
    }

    fn flow_cookie_name(&self) -> &'static str {
        if self.settings.secure_cookie { "__Host-outboxd-flow" } else { "outboxd-flow" }
    }

    fn provider(&self) -> Result<&Oidc, Failure> {
        self.oidc.as_ref().ok_or_else(|| Failure::missing("No identity provider is configured (console.oidc)."))
    }
}

/// Sends the browser to the provider.
pub(super) async fn begin(
    State(console): State<Console>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let provider = console.provider()?;
    let Ok(_place) = console.with_provider.try_acquire() else { return Err(busy()) };
    let (url, flow) = provider.begin().await.map_err(failed)?;
    let kept = Kept { flow, next: ours(Fields(fields).get("next")).to_owned() };
    let kept = serde_json::to_vec(&kept).map_err(|_| Failure::bad("The sign-in cannot be kept."))?;
    let mut response = Redirect::to(&url).into_response();
    let cookie = console.flow_cookie(&URL_SAFE_NO_PAD.encode(kept), FLOW_SECONDS)?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Takes the browser back, and opens a session if the provider confirms an operator.
pub(super) async fn back(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let fields = Fields(fields);
    let provider = console.provider()?;
    let kept = console.cookie_of(&headers, console.flow_cookie_name());
    let kept = kept.and_then(|kept| URL_SAFE_NO_PAD.decode(kept).ok());
    let kept: Option<Kept> = kept.and_then(|kept| serde_json::from_slice(&kept).ok());
    let Some(Kept { flow, next }) = kept else {
        return Err(refused("The sign-in took longer than ten minutes, or began in another browser. Begin again."));
    };
    if !fields.get("error").is_empty() {
        return Err(refused("The identity provider did not sign you in. Begin again, or ask who runs it."));
    }
    let Ok(_place) = console.with_provider.try_acquire() else { return Err(busy()) };
    let identity = provider.finish(flow, fields.get("state"), fields.get("code")).await.map_err(failed)?;
    let mut tx = console.desk.deciding().await?;
    let known = if identity.contains('\0') { None } else { operators::identified(&mut tx, &identity).await? };
    let Some((operator, name)) = known else {
        tracing::warn!("somebody whom the identity provider knows is no operator of the console");
        return Err(refused(
            "The identity provider knows you, and outboxd does not. An operator is added with: outboxd operator add NAME --role ROLE --identity …",
        ));
    };
    let session = console.open_session(&mut tx, operator).await?;
    let decider = Decider { who: &name, reason: "at the identity provider" };
    decide::about(&mut tx, "sign in", "the console", &decider).await?;
    tx.commit().await?;
    // A page that leads on by itself: a redirect would still be the provider's doing, and a strict cookie not come along.
    let next = ours(&next);
    let body = html! {
        meta http-equiv="refresh" content={ "0;url=" (next) };
        p.card { "You are signed in. " a href=(next) { "Go on" } }
    };
    let mut response = page::bare("Signed in", &body).into_response();
    response.headers_mut().append(header::SET_COOKIE, session);
    response.headers_mut().append(header::SET_COOKIE, console.flow_cookie("", 0)?);
    Ok(response)
}

fn refused(why: &str) -> Failure {
    Failure::Problem(StatusCode::FORBIDDEN, why.to_owned())
}

fn busy() -> Failure {
    Failure::Problem(StatusCode::TOO_MANY_REQUESTS, "Many are signing in just now. Try again.".to_owned())
}

fn failed(error: OidcError) -> Failure {
    tracing::warn!(%error, "a sign-in at the identity provider failed");
    match error {
        OidcError::Unproven(_) => {
            refused("The identity provider's answer does not prove who you are. Begin again; the log says why.")
        }
        OidcError::Setting(_) | OidcError::Provider(_) => Failure::Problem(
            StatusCode::BAD_GATEWAY,
            "The identity provider cannot be used just now; the log says why. A token still signs you in.".to_owned(),
        ),
    }
}
