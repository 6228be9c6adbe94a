//! Signing in and out, who may do what, and that a form was sent from a page of ours.
//!
//! A session is random, lives in the database as a hash, and is asked for at every request: what is ended is ended at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _, phc::PasswordHash};
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::html;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::Console;
use super::page::{self, Failure, query};
use crate::domain::operator::Role;
use crate::domain::token::Token;
use crate::store::operators::{self, SignedIn};

/// Failed sign-ins by one name before it has to wait.
const FAILURES_MAX: u32 = 5;

/// How long it then waits.
const WAIT: Duration = Duration::from_secs(60);

/// Names whose failures are remembered.
const NAMES_MAX: usize = 10_000;

/// Tokens that are checked at once: each takes memory and time on purpose.
const CHECKS_MAX: usize = 2;

/// A hash that no token has, so that an unknown name takes as long as a wrong token.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5$c0fNmZkvmfMmDT1nJjQvH0vUuOC0vQkYcbkmSBcrZBE";

/// The hash under which an operator's token is stored (RFC 9106, in the PHC string format).
///
/// # Errors
/// When the system has no random numbers.
pub fn hash(token: &Token) -> anyhow::Result<String> {
    let hash = Argon2::default()
        .hash_password(token.reveal().as_bytes())
        .map_err(|error| anyhow::anyhow!("the token cannot be hashed: {error}"))?;
    Ok(hash.to_string())
}

fn is_right(token: &str, hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(token.as_bytes(), &hash).is_ok())
}

/// Who is asking.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) name: String,
    pub(super) role: Role,
    /// Goes with every form.
    pub(super) csrf: String,
}

impl Session {
    pub(super) fn may(&self, role: Role) -> Result<(), Failure> {
        if self.role >= role {
            return Ok(());
        }
        Err(Failure::forbidden(&format!("This needs the role {role}; yours is {}.", self.role)))
    }
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

impl Console {
    fn cookie_name(&self) -> &'static str {
        // With the prefix, browsers take it from this host alone, over TLS alone (RFC 6265bis, 4.1.3.2).
        if self.settings.secure_cookie { "__Host-outboxd" } else { "outboxd" }
    }

    fn cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.settings.secure_cookie { "; Secure" } else { "" };
        let name = self.cookie_name();
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
    }

    fn id(&self, headers: &HeaderMap) -> Option<String> {
        self.cookie_of(headers, self.cookie_name())
    }

    pub(super) fn cookie_of(&self, headers: &HeaderMap, name: &str) -> Option<String> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(given, _)| *given == name).map(|(_, value)| value.to_owned())
    }

    /// Opens a session; the cookie that holds it.
    pub(super) async fn open_session(
        &self,
        conn: &mut sqlx::PgConnection,
        operator: Uuid,
    ) -> Result<HeaderValue, Failure> {
        let mut random = [0; 32];
        let none = || Failure::bad("The system has no random numbers.");
        SystemRandom::new().fill(&mut random).map_err(|_| none())?;
        let id = URL_SAFE_NO_PAD.encode(random);
        operators::open_session(conn, &hashed(&id), operator, self.settings.session).await?;
        HeaderValue::try_from(self.cookie(&id, self.settings.session.as_secs())).map_err(|_| none())
    }

    /// Who is signed in; nobody is led to the sign-in.
    pub(super) async fn enter(&self, headers: &HeaderMap, here: &str) -> Result<Session, Failure> {
        let Some(id) = self.id(headers) else { return Err(Failure::SignIn(here.to_owned())) };
        let mut tx = self.desk.deciding().await?;
        let who = operators::session(&mut tx, &hashed(&id), self.settings.idle).await?;
        tx.commit().await?;
        let Some(SignedIn { name, role }) = who else { return Err(Failure::SignIn(here.to_owned())) };
        Ok(Session { name, role, csrf: csrf(&id) })
    }

    /// Who sent a form, from a page of ours.
    pub(super) async fn enter_by_form(&self, headers: &HeaderMap, fields: &Fields) -> Result<Session, Failure> {
        let session = self.enter(headers, "/").await?;
        // Browsers say whence a request comes (Fetch Metadata); the token proves it where they do not.
        let elsewhere = headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
        if elsewhere || fields.get("csrf") != session.csrf {
            return Err(Failure::forbidden(
                "The form is not from a page of this console, or of an earlier session. Load the page again.",
            ));
        }
        Ok(session)
    }
}

fn hashed(id: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, id.as_bytes()).as_ref());
    hash
}

/// What goes with every form of a session: nobody makes it who does not know the session, and it does not tell it.
fn csrf(id: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, format!("csrf {id}").as_bytes()))
}

/// The fields of a form, or of an address.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(pub(super) Vec<(String, String)>);

impl Fields {
    /// The field's value without white space around it; empty where it is not there.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.trim()).unwrap_or_default()
    }

    /// The same, `None` where it is empty.
    pub(super) fn some(&self, name: &str) -> Option<String> {
        Some(self.get(name)).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// All values of a field.
    pub(super) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A reason, which every decision needs.
    pub(super) fn reason(&self) -> Result<String, Failure> {
        let reason = self.get("reason");
        if reason.is_empty() || reason.len() > 2_000 || reason.contains('\0') {
            return Err(Failure::bad("Say why, in up to 2,000 octets: it stays on record."));
        }
        Ok(reason.to_owned())
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
    if headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(Failure::forbidden("The form is not from a page of this console."));
    }
    let (name, token) = (fields.get("name").to_owned(), fields.get("token").to_owned());
    let refused = |why: &str, status| Ok(page_of(&console, &fields, why, status));
    if console.limiter.waits(&name, Instant::now()) {
        return refused("Too many wrong tokens. Wait a minute.", StatusCode::TOO_MANY_REQUESTS);
    }
    let mut tx = console.desk.deciding().await?;
    let known = if name.is_empty() || name.contains('\0') { None } else { operators::known(&mut tx, &name).await? };
    let hash = known.as_ref().map_or(NOBODY.to_owned(), |known| known.token_hash.clone());
    let right = {
        let Ok(_check) = console.limiter.checks.acquire().await else { return Err(Failure::bad("Try again.")) };
        tokio::task::spawn_blocking(move || is_right(&token, &hash)).await.unwrap_or_default()
    };
    let Some(known) = known.filter(|_| right) else {
        console.limiter.failed(&name, Instant::now());
        tracing::warn!("a sign-in to the console was refused");
        return refused("The name or the token is not right.", StatusCode::FORBIDDEN);
    };
    console.limiter.succeeded(&name);
    let cookie = console.open_session(&mut tx, known.id).await?;
    tx.commit().await?;
    let mut response = Redirect::to(ours(fields.get("next"))).into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// The path that somebody wanted to see, if it is of this console; else the first page.
pub(super) fn ours(next: &str) -> &str {
    let is_ours =
        next.starts_with('/') && !next.starts_with("//") && !next.contains('\\') && !next.contains(char::is_control);
    if is_ours { next } else { "/" }
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
        let hash = hash(&token).unwrap();
        assert!(hash.starts_with("$argon2id$") && !hash.contains(token.reveal()));
        assert!(is_right(token.reveal(), &hash) && !is_right(other.reveal(), &hash));
        assert!(!is_right("", NOBODY) && !is_right("nobody", NOBODY) && !is_right("x", "no hash"));
        assert!(PasswordHash::new(NOBODY).is_ok(), "it takes as long as a real one");
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
