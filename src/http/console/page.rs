//! What all pages have in common: the frame, the words for states, the answers to what went wrong.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{DOCTYPE, Markup, html};
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use super::access::Session;
use crate::domain::operator::{Role, masked, without_addresses};
use crate::store::StoreError;

/// The pages that the head of every page leads to.
const PAGES: [(&str, &str, &str); 6] = [
    ("/", "Overview", "o"),
    ("/uncertain", "Uncertain", "u"),
    ("/search", "Search", "s"),
    ("/replays", "Replays", "r"),
    ("/audit", "Audit", "a"),
    ("/pauses", "Pauses", "p"),
];

/// A whole page for somebody who is signed in. `here` is the path that it is under.
pub(super) fn page(session: &Session, here: &str, title: &str, body: &Markup) -> Markup {
    frame(
        title,
        &html! {
            a.skip href="#main" { "Skip to the content" }
            header {
                a.brand href="/" { "outboxd" }
                nav aria-label="Pages" {
                    @for (path, name, key) in PAGES {
                        a href=(path) aria-current=[(here == path).then_some("page")] accesskey=(key) { (name) }
                    }
                }
                span.live data-live="mark" role="status" title="Whether what is shown follows the database" { "not live" }
                form.who method="post" action="/sign-out" {
                    (csrf(session))
                    span { (session.name) " · " (session.role.name()) }
                    button { "Sign out" }
                }
            }
            main #main tabindex="-1" { (body) }
        },
    )
}

/// A page for somebody who is not.
pub(super) fn bare(title: &str, body: &Markup) -> Markup {
    frame(title, &html! { main #main { (body) } })
}

fn frame(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · outboxd" }
                link rel="icon" href="/assets/icon.svg";
                link rel="stylesheet" href="/assets/console.css";
                script src="/assets/console.js" defer {}
            }
            body { (body) }
        }
    }
}

/// The hidden field of every form.
pub(super) fn csrf(session: &Session) -> Markup {
    html! { input type="hidden" name="csrf" value=(session.csrf); }
}

/// A state as a coloured word.
pub(super) fn state(state: &str, reason: Option<&str>) -> Markup {
    html! {
        span class={ "state " (state) } { (state) }
        @if let Some(reason) = reason { " (" (reason) ")" }
    }
}

/// A time, to the second, in UTC.
pub(super) fn at(time: OffsetDateTime) -> Markup {
    let form = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    let text = time.to_offset(UtcOffset::UTC).format(form).unwrap_or_default();
    html! { time datetime=(format!("{}Z", text.replace(' ', "T"))) { (text) } }
}

/// A time, to the millisecond, in UTC.
pub(super) fn at_exactly(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]");
    time.to_offset(UtcOffset::UTC).format(form).unwrap_or_default()
}

/// An address, as this person may see it.
pub(super) fn address(session: &Session, address: &str) -> String {
    if session.role >= Role::Operator { address.to_owned() } else { masked(address) }
}

/// What a server said, as this person may see it.
pub(super) fn words(session: &Session, text: &str) -> String {
    if session.role >= Role::Operator { text.to_owned() } else { without_addresses(text) }
}

/// Why there is no page.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody is signed in; where they wanted to go.
    SignIn(String),
    /// Something is wrong with what was asked.
    Problem(StatusCode, String),
    /// The database.
    Store(StoreError),
}

impl Failure {
    pub(super) fn bad(why: &str) -> Self {
        Self::Problem(StatusCode::UNPROCESSABLE_ENTITY, why.to_owned())
    }

    pub(super) fn forbidden(why: &str) -> Self {
        Self::Problem(StatusCode::FORBIDDEN, why.to_owned())
    }

    pub(super) fn missing(what: &str) -> Self {
        Self::Problem(StatusCode::NOT_FOUND, what.to_owned())
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, title, why) = match self {
            Self::SignIn(next) => {
                let next = escaped_all(&next);
                return Redirect::to(&format!("/sign-in?next={next}")).into_response();
            }
            Self::Problem(status, why) => (status, "This cannot be done", why),
            Self::Store(error) => {
                tracing::warn!(%error, "a page could not be made");
                let why = "The database does not answer, or not as this release expects. Nothing was changed; load the page again.";
                (StatusCode::SERVICE_UNAVAILABLE, "The database does not answer", why.to_owned())
            }
        };
        let body = html! {
            div.card {
                h1 { (title) }
                p.problem role="alert" { (why) }
                p { a href="/" { "To the overview" } }
            }
        };
        (status, bare(title, &body)).into_response()
    }
}

/// Percent-encoded where it must be in a query (RFC 3986, 3.4).
fn escaped(octet: u8) -> String {
    let plain = octet.is_ascii_alphanumeric() || b"-._~/".contains(&octet);
    if plain { char::from(octet).to_string() } else { format!("%{octet:02X}") }
}

/// A text as a part of a path or a query.
pub(super) fn escaped_all(text: &str) -> String {
    text.bytes().map(escaped).collect()
}

/// A path that leads nowhere.
pub(super) async fn not_found() -> Failure {
    Failure::missing("There is no such page.")
}

/// Fields as a query; empty ones are left out.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter().filter(|(_, value)| !value.is_empty());
    pairs.map(|(name, value)| format!("{name}={}", escaped_all(value))).collect::<Vec<_>>().join("&")
}
