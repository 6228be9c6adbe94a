//! Signing in by a token, and out.
//!
//! Whoever guesses is refused at once and has to wait after a few; whoever has the right token is kept waiting by nobody's guesses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _, phc::PasswordHash};
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use tokio::sync::Semaphore;

use super::Console;
use super::access::{Fields, hashed, is_from_elsewhere, ours};
use super::page::{self, Failure, query};
use crate::domain::token::Token;
use crate::store::decide::{self, Decider};
use crate::store::operators::{self, TokenHash};

/// Failed sign-ins by one name before it has to wait.
const FAILURES_MAX: u32 = 5;

/// How long it then waits.
const WAIT: Duration = Duration::from_secs(60);

/// Names whose failures are remembered.
const NAMES_MAX: usize = 10_000;
/// Tokens that are checked at once: each takes memory and time on purpose.
const CHECKS_MAX: usize = 2;

/// How long a sign-in waits for its turn to be checked.
const CHECK_PATIENCE: Duration = Duration::from_secs(2);

/// The longest name (`outboxd operator add` takes no longer one).
const NAME_MAX_OCTETS: usize = 200;

/// What is stored of an operator's token (RFC 9106, in the PHC string format).
///
/// # Errors
/// When the system has no random numbers.
pub fn hash(token: &Token) -> anyhow::Result<TokenHash> {
    let hash = Argon2::default()
        .hash_password(token.reveal().as_bytes())
        .map_err(|error| anyhow::anyhow!("the token cannot be hashed: {error}"))?;
    Ok(TokenHash { hash: hash.to_string(), check: check(token.reveal()) })
}

/// The first octets of a token's SHA-256.
fn check(token: &str) -> [u8; 4] {
    let [a, b, c, d, ..] = hashed(token);
    [a, b, c, d]
}

fn is_right(token: &str, hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(token.as_bytes(), &hash).is_ok())
}
/// How often each name has failed.
#[derive(Debug, Clone)]
pub(super) struct Limiter {
    failures: Arc<Mutex<HashMap<String, (u32, Instant)>>>,
    checks: Arc<Semaphore>,
}

impl Default for Limiter {
    fn default() -> Self {
        Self { failures: Arc::default(), checks: Arc::new(Semaphore::new(CHECKS_MAX)) }
    }
}

impl Limiter {
    /// Whether a name has to wait at `now`.
    fn waits(&self, name: &str, now: Instant) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(name).is_some_and(|(count, last)| *count >= FAILURES_MAX && now < *last + WAIT)
    }

    fn failed(&self, name: &str, now: Instant) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= NAMES_MAX {
            failures.retain(|_, (_, last)| now < *last + WAIT);
        }
        if failures.len() >= NAMES_MAX {
            return;
        }
        let (count, last) = failures.entry(name.to_owned()).or_insert((0, now));
        // Each further one waits anew, and a quiet time forgets.
        if now >= *last + WAIT {
            *count = 0;
        }
        *count += 1;
        *last = now;
    }

    fn succeeded(&self, name: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}
/// The sign-in page.
pub(super) async fn form(State(console): State<Console>, Query(fields): Query<Vec<(String, String)>>) -> Response {
    page_of(&console, &Fields(fields), "", StatusCode::OK)
}

fn page_of(console: &Console, fields: &Fields, problem: &str, status: StatusCode) -> Response {
    let body = html! {
        form.card.narrow method="post" action="/sign-in" {
            h1 { "Sign in" }
            @if !problem.is_empty() { p.problem role="alert" { (problem) } }
            input type="hidden" name="next" value=(fields.get("next"));
            label { "Name" input name="name" autocomplete="username" required autofocus value=(fields.get("name")); }
            label { "Token" input name="token" type="password" autocomplete="current-password" required; }
            button.primary { "Sign in" }
            @if console.oidc.is_some() {
                p { a href={ "/sign-in/oidc?" (query(&[("next", fields.get("next"))])) } { "Sign in at the identity provider" } }
            }
            p.hint { code { "outboxd operator add NAME --role operator" } " makes a token." }
        }
    };
    (status, page::bare("Sign in", &body)).into_response()
}

/// Checks name and token, and opens a session.
pub(super) async fn sign_in(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let fields = Fields(fields);
    if is_from_elsewhere(&headers) {
        return Err(Failure::forbidden("The form is not from a page of this console."));
    }
    let (name, token) = (fields.get("name").to_owned(), fields.get("token").to_owned());
    let refused = |why: &str, status| Ok(page_of(&console, &fields, why, status));
    let known = if name.is_empty() || name.len() > NAME_MAX_OCTETS {
        None
    } else {
        let mut tx = console.desk.reading().await?;
        operators::known(&mut tx, &name).await?
    };
    // Whoever guesses fails here, at once and whether or not there is such a name; and only they have to wait. A stranger who tries a
    // name again and again does not keep its owner out.
    let given = check(&token);
    let checked = known.as_ref().and_then(|known| known.token_check.as_deref());
    let may_be_right = known.is_some() && checked.is_none_or(|check| check == given);
    if (!may_be_right || checked.is_none()) && console.limiter.waits(&name, Instant::now()) {
        return refused("Too many wrong tokens. Wait a minute.", StatusCode::TOO_MANY_REQUESTS);
    }
    let right = match &known {
        Some(known) if may_be_right => {
            // No connection is held meanwhile.
            let Ok(Ok(_turn)) = tokio::time::timeout(CHECK_PATIENCE, console.limiter.checks.acquire()).await else {
                return refused("Many are signing in just now. Try again.", StatusCode::TOO_MANY_REQUESTS);
            };
            let hash = known.token_hash.clone();
            tokio::task::spawn_blocking(move || is_right(&token, &hash)).await.unwrap_or_default()
        }
        _ => false,
    };
    let Some(known) = known.filter(|_| right) else {
        if name.len() <= NAME_MAX_OCTETS {
            console.limiter.failed(&name, Instant::now());
        }
        tracing::warn!("a sign-in to the console was refused");
        return refused("The name or the token is not right.", StatusCode::FORBIDDEN);
    };
    console.limiter.succeeded(&name);
    let mut tx = console.desk.deciding().await?;
    if let Some(earlier) = console.id(&headers) {
        operators::close_session(&mut tx, &hashed(&earlier)).await?;
    }
    let cookie = console.open_session(&mut tx, known.id).await?;
    let decider = Decider { who: &name, reason: "with a token" };
    decide::about(&mut tx, "sign in", "the console", &decider).await?;
    tx.commit().await?;
    let mut response = Redirect::to(ours(fields.get("next"))).into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}
/// Ends the session.
pub(super) async fn sign_out(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    console.enter_by_form(&headers, &Fields(fields)).await?;
    if let Some(id) = console.id(&headers) {
        let mut tx = console.desk.deciding().await?;
        operators::close_session(&mut tx, &hashed(&id)).await?;
        tx.commit().await?;
    }
    let mut response = Redirect::to("/sign-in").into_response();
    if let Ok(cookie) = HeaderValue::try_from(console.cookie("", 0)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_right_by_its_hash_and_no_other_is() {
        let (token, other) = (Token::new([7; 32]), Token::new([8; 32]));
        let TokenHash { hash, check: stored } = hash(&token).unwrap();
        assert!(hash.starts_with("$argon2id$") && !hash.contains(token.reveal()));
        assert!(is_right(token.reveal(), &hash) && !is_right(other.reveal(), &hash));
        assert!(!is_right("", &hash) && !is_right("x", "no hash") && !is_right("-", "-"));
        assert!(stored == check(token.reveal()) && stored != check(other.reveal()));
    }

    #[test]
    fn a_name_waits_after_five_failures_and_no_other_does() {
        let (limiter, start) = (Limiter::default(), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert!(!limiter.waits("ada", start));
            limiter.failed("ada", start);
        }
        assert!(limiter.waits("ada", start) && !limiter.waits("bob", start));
        assert!(!limiter.waits("ada", start + WAIT));
        limiter.failed("ada", start + WAIT);
        assert!(!limiter.waits("ada", start + WAIT), "a quiet time forgets");
        limiter.succeeded("ada");
        assert!(!limiter.waits("ada", start));
    }
}
