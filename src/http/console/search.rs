//! Finding notifications: every filter stands in the address, so that a view can be shared; a page at a time.

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use humantime_serde::re::humantime;
use maud::{Markup, html};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, address, at, page, query, state, words};
use crate::domain::operator::Role;
use crate::domain::outcome::Outcome;
use crate::domain::state::State as Standing;
use crate::store::search::{self, Filter, Listed};
use crate::store::story;

/// Rows of a page.
const PAGE_ROWS: u32 = 50;

/// The fields that make a view, in the order of the form.
const FIELDS: [&str; 10] =
    ["q", "state", "account", "recipient", "provider", "outcome", "code", "text", "since", "until"];

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let session = console.enter(&headers, "/search").await?;
    let fields = Fields(fields);
    let mut tx = console.desk.reading().await?;
    if let Some(found) = by_name(&mut tx, fields.get("q"), fields.get("account")).await? {
        return Ok(Redirect::to(&found).into_response());
    }
    let (filter, problem) = filter(&session, &fields);
    let rows = match (&problem, fields.get("q")) {
        (None, "") => search::list(&mut tx, &filter, PAGE_ROWS).await?,
        _ => Vec::new(),
    };
    drop(tx);
    let body = html! {
        h1 { "Search" }
        (form(&fields))
        @if let Some(problem) = problem { p.problem role="alert" { (problem) } }
        @if !fields.get("q").is_empty() { p.problem role="alert" { "There is no notification, message, or operation " code { (fields.get("q")) } "; for an operation's key give the account, too." } }
        @else { (table(&session, &fields, &rows)) }
    };
    Ok(page(&session, "/search", "Search", &body).into_response())
}

/// Where the id or the key leads to, if to one thing.
async fn by_name(conn: &mut sqlx::PgConnection, q: &str, account: &str) -> Result<Option<String>, Failure> {
    if q.is_empty() || q.contains('\0') {
        return Ok(None);
    }
    if let Ok(id) = q.parse::<uuid::Uuid>() {
        if story::content(conn, crate::domain::ids::NotificationId(id)).await?.is_some() {
            return Ok(Some(format!("/notifications/{id}")));
        }
        if let Some(ids) = story::of_message(conn, id).await?
            && let Some(first) = ids.first()
        {
            return Ok(Some(format!("/notifications/{first}")));
        }
    }
    if account.is_empty() || account.contains('\0') {
        return Ok(None);
    }
    let ids = story::of_operation(conn, account, crate::domain::operation::CREATE_MESSAGE, q).await?;
    Ok(ids.and_then(|ids| ids.first().map(|id| format!("/notifications/{id}"))))
}

fn filter(session: &Session, fields: &Fields) -> (Filter, Option<&'static str>) {
    let mut problem = None;
    let mut moment = |name: &str| {
        let text = fields.some(name)?;
        let time = OffsetDateTime::parse(&text, &Rfc3339).ok().or_else(|| {
            let age = time::Duration::try_from(humantime::parse_duration(&text).ok()?).ok()?;
            OffsetDateTime::now_utc().checked_sub(age)
        });
        if time.is_none() {
            problem = Some("A time is RFC 3339, such as 2030-01-31T09:00:00Z, or an age, such as 2h.");
        }
        time
    };
    let (since, until) = (moment("since"), moment("until"));
    let mut filter = Filter {
        state: fields.some("state").and_then(|state| state.parse::<Standing>().ok()),
        account: fields.some("account"),
        provider: fields.some("provider"),
        recipient: fields.some("recipient"),
        outcome: Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == fields.get("outcome")),
        reply_code: fields.some("code").and_then(|code| code.parse().ok()),
        text: fields.some("text"),
        since,
        until,
        below: fields.some("below").and_then(|id| id.parse().ok()),
        ..Filter::default()
    };
    // Whoever may not see addresses must not find them by asking for one after the other.
    if session.role < Role::Operator && (filter.recipient.is_some() || filter.text.is_some()) {
        (filter.recipient, filter.text) = (None, None);
        problem = Some("Searching by recipient or reply needs the role operator.");
    }
    if fields.0.iter().any(|(_, value)| value.contains('\0')) {
        problem = Some("A NUL cannot be searched for.");
    }
    (filter, problem)
}

fn form(fields: &Fields) -> Markup {
    html! {
        form.filters method="get" action="/search" role="search" {
            label { "Id, or operation key" input name="q" data-search value=(fields.get("q")); }
            label { "State" select name="state" {
                option value="" { "any" }
                @for standing in Standing::ALL { option value=(standing.as_str()) selected[fields.get("state") == standing.as_str()] { (standing.as_str()) } }
            } }
            label { "Account" input name="account" value=(fields.get("account")); }
            label { "Recipient, exactly" input name="recipient" value=(fields.get("recipient")); }
            label { "Provider" input name="provider" value=(fields.get("provider")); }
            label { "Last outcome" select name="outcome" {
                option value="" { "any" }
                @for outcome in Outcome::ALL { option value=(outcome.as_str()) selected[fields.get("outcome") == outcome.as_str()] { (outcome.as_str()) } }
            } }
            label { "Reply code" input name="code" inputmode="numeric" value=(fields.get("code")); }
            label { "In the reply or the error" input name="text" value=(fields.get("text")); }
            label { "In its state since (time or age)" input name="since" placeholder="2h" value=(fields.get("since")); }
            label { "… since before" input name="until" placeholder="2030-01-31T09:00:00Z" value=(fields.get("until")); }
            button.primary { "Search" }
        }
    }
}

fn table(session: &Session, fields: &Fields, rows: &[Listed]) -> Markup {
    let last = rows.last().filter(|_| rows.len() == PAGE_ROWS as usize).map(|row| row.id.to_string());
    let older = |last: &str| {
        let mut view: Vec<(&str, &str)> = FIELDS.iter().map(|name| (*name, fields.get(name))).collect();
        view.push(("below", last));
        format!("/search?{}", query(&view))
    };
    html! {
        @if rows.is_empty() { p.card.calm { "Nothing is found." } } @else {
            div.wide { table {
                caption { "The newest first" }
                thead { tr { th { "notification" } th { "state" } th { "since" } th { "account" } th { "recipient" } th.number { "attempts" } th { "provider" } th { "last answer" } } }
                tbody { @for row in rows { tr {
                    td.id { a.row href={ "/notifications/" (row.id) } { (row.id) } }
                    td { (state(&row.state, row.reason.as_deref())) @if row.duplicate_possible { " ⧉ may arrive twice" } @if row.contradiction { " ⚠ disputed" } }
                    td { (at(row.changed_at)) } td { (row.account_id) } td { (address(session, &row.recipient)) } td.number { (row.attempts) }
                    td { (row.provider.as_deref().unwrap_or_default()) }
                    td {
                        @if let Some(code) = row.reply_code { (code) " " }
                        (words(session, row.reply_text.as_deref().or(row.error.as_deref()).unwrap_or_default()))
                    }
                } } }
            } }
            @if let Some(last) = last { p { a href=(older(&last)) rel="next" { "Older" } } }
        }
    }
}
