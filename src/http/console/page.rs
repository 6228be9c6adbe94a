//! What all pages have in common: the frame, the words for states, the answers to what went wrong.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use humantime_serde::re::humantime;
use maud::{DOCTYPE, Markup, html};
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use super::access::Session;
use crate::domain::operator::{Role, masked, without_addresses, without_recipient};
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

/// The same about one recipient, who may be named without the domain.
pub(super) fn words_about(session: &Session, text: &str, recipient: &str) -> String {
    if session.role >= Role::Operator { text.to_owned() } else { without_recipient(text, recipient) }
}

/// A time as people write it: RFC 3339, or how long ago it was.
pub(super) fn moment(text: &str) -> Result<OffsetDateTime, &'static str> {
    const HOW: &str = "A time is RFC 3339, such as 2030-01-31T09:00:00Z, or an age, such as 2h.";
    const FAR: &str = "A time is from the years 1970 to 9999.";
    let time = match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(time) => time.checked_to_offset(UtcOffset::UTC).ok_or(FAR)?,
        Err(_) => {
            let age = humantime::parse_duration(text).map_err(|_| HOW)?;
            let age = time::Duration::try_from(age).map_err(|_| FAR)?;
            OffsetDateTime::now_utc().checked_sub(age).ok_or(FAR)?
        }
    };
    if (1970..=9999).contains(&time.year()) { Ok(time) } else { Err(FAR) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_people_write_it_and_no_farther_than_it_can_be_stored() {
        assert_eq!(moment("2030-01-31T10:00:00+01:00").unwrap().unix_timestamp(), 1_896_080_400);
        let ago = OffsetDateTime::now_utc() - moment("2h").unwrap();
        assert!((7_199..7_300).contains(&ago.whole_seconds()), "{ago}");
        let far = [
            "9999-12-31T23:59:59-23:59",
            "0000-01-01T00:00:00+23:59",
            "1969-12-31T23:59:59Z",
            "9000years",
            "60years",
            "999999999999y",
        ];
        for text in far {
            assert!(moment(text).is_err(), "{text}");
        }
        for text in ["", "yesterday", "2030-01-31", "-2h"] {
            assert!(moment(text).unwrap_err().contains("RFC 3339"), "{text}");
        }
    }
}
