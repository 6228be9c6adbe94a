//! Finding notifications: every filter stands in the address, so that a view can be shared; a page at a time.

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use time::OffsetDateTime;

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, address, at, moment, page, query, state, words_about};
use crate::domain::operator::Role;
use crate::domain::outcome::Outcome;
use crate::domain::state::State as Standing;
use crate::store::search::{self, Filter, Found};
use crate::store::story;

/// Rows of a page.
const PAGE_ROWS: usize = 50;

/// Rows that a page looks through where no index finds them; and how many somebody asks for who wants to look further.
const LOOK: usize = 2_500;
const LOOK_FURTHER: usize = 200_000;

/// The fields that make a view, in the order of the form.
const FIELDS: [&str; 11] =
    ["q", "state", "account", "recipient", "provider", "outcome", "code", "text", "since", "until", "contradiction"];

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let session = console.enter(&headers, "/search").await?;
    let fields = Fields(fields);
    let mut tx = console.desk.reading().await?;
    // A key may hold an address: whoever may not see those looks for ids.
    let account = if session.role >= Role::Operator { fields.get("account") } else { "" };
    if let Some(found) = by_name(&mut tx, fields.get("q"), account).await? {
        return Ok(Redirect::to(&found).into_response());
    }
    let further = fields.get("look") == "further";
    // One at a time looks far: others' pages need the connections, too.
    let turn = if further { console.looking_further.try_acquire().ok() } else { None };
    let found = match filter(&session, &fields) {
        Ok(_) if further && turn.is_none() => Err("Somebody is looking further just now. Try again.".to_owned()),
        Ok(_) if !fields.get("q").is_empty() => Ok(Found::default()),
        Ok(filter) => Ok(search::list(&mut tx, &filter, PAGE_ROWS, if further { LOOK_FURTHER } else { LOOK }).await?),
        Err(problem) => Err(problem),
    };
    drop(tx);
    let body = html! {
        h1 { "Search" }
        (form(&fields))
        @if !fields.get("q").is_empty() { p.problem role="alert" { "There is no notification, message, or operation " code { (fields.get("q")) } "; for an operation's key give the account, too." } }
        @else { @match &found {
            Ok(found) => (table(&session, &fields, found)),
            Err(problem) => p.problem role="alert" { (problem) },
        } }
    };
    Ok(page(&session, "/search", "Search", &body).into_response())
}

/// Where the id or the key leads to, if to one thing.
async fn by_name(conn: &mut sqlx::PgConnection, q: &str, account: &str) -> Result<Option<String>, Failure> {
    if q.is_empty() {
        return Ok(None);
    }
    if let Ok(id) = q.parse::<uuid::Uuid>() {
        if story::exists(conn, crate::domain::ids::NotificationId(id)).await? {
            return Ok(Some(format!("/notifications/{id}")));
        }
        if let Some(ids) = story::of_message(conn, id).await?
            && let Some(first) = ids.first()
        {
            return Ok(Some(format!("/notifications/{first}")));
        }
    }
    if account.is_empty() {
        return Ok(None);
    }
    let ids = story::of_operation(conn, account, crate::domain::operation::CREATE_MESSAGE, q).await?;
    Ok(ids.and_then(|ids| ids.first().map(|id| format!("/notifications/{id}"))))
}

fn filter(session: &Session, fields: &Fields) -> Result<Filter, String> {
    /// What a field holds, if anything; a word that is none of those that can be is told, not left out.
    fn read<T>(fields: &Fields, name: &str, read: impl Fn(&str) -> Option<T>, what: &str) -> Result<Option<T>, String> {
        let Some(text) = fields.some(name) else { return Ok(None) };
        read(&text).map(Some).ok_or_else(|| format!("{text:?} is not {what}."))
    }
    let time = |name| fields.some(name).map(|text| moment(&text).map_err(str::to_owned)).transpose();
    // Whoever may not see addresses must not find them by asking for one after the other.
    if session.role < Role::Operator && ["recipient", "text"].iter().any(|name| fields.some(name).is_some()) {
        return Err("Searching by recipient or reply needs the role operator.".to_owned());
    }
    let until = time("until")?;
    let below = read(fields, "below", |text| text.parse().ok(), "an id")?;
    Ok(Filter {
        state: read(fields, "state", |text| text.parse::<Standing>().ok(), "a state")?,
        account: fields.some("account"),
        provider: fields.some("provider"),
        recipient: fields.some("recipient"),
        outcome: read(
            fields,
            "outcome",
            |text| Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == text),
            "an outcome",
        )?,
        reply_code: read(fields, "code", |text| text.parse().ok(), "a reply code, such as 550")?,
        text: fields.some("text"),
        since: time("since")?,
        until,
        contradiction: Some(true).filter(|_| fields.get("contradiction") == "yes"),
        below: below.or(until.and_then(stored_before)),
        ..Filter::default()
    })
}

/// The least id of what was stored a millisecond or more after `time` (RFC 9562, 5.7): what is older than that in its state was stored
/// before.
fn stored_before(time: OffsetDateTime) -> Option<uuid::Uuid> {
    let milliseconds = u128::try_from(time.unix_timestamp_nanos() / 1_000_000 + 1).ok()?;
    (milliseconds < 1 << 48).then(|| uuid::Uuid::from_u128(milliseconds << 80))
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

fn table(session: &Session, fields: &Fields, found: &Found) -> Markup {
    let rows = &found.rows;
    let last = rows.last().filter(|_| rows.len() == PAGE_ROWS).map(|row| row.id.to_string());
    let older = |last: &str, look: &str| {
        let mut view: Vec<(&str, &str)> = FIELDS.iter().map(|name| (*name, fields.get(name))).collect();
        view.extend([("below", last), ("look", look)]);
        format!("/search?{}", query(&view))
    };
    html! {
        @if rows.is_empty() { p.card.calm { @if found.looked_to.is_some() { "Nothing is found yet." } @else { "Nothing is found." } } } @else {
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
                        (words_about(session, row.reply_text.as_deref().or(row.error.as_deref()).unwrap_or_default(), &row.recipient))
                    }
                } } }
            } }
            @if let Some(last) = last { p { a href=(older(&last, "")) rel="next" { "Older" } } }
        }
        @if let Some(looked_to) = found.looked_to {
            p role="status" {
                "Looked back to what was stored at " (stored_at(looked_to)) ". "
                a href=(older(&looked_to.to_string(), "further")) rel="next" { "Look further" }
                span.quiet { " through " (LOOK_FURTHER) " more, which takes a second or two. An account, a recipient or a state makes it quick." }
            }
        }
    }
}

/// When what has this id was stored: ids begin with their time (RFC 9562, 5.7).
fn stored_at(id: uuid::Uuid) -> Markup {
    let milliseconds = i128::try_from(id.as_u128() >> 80).unwrap_or_default();
    OffsetDateTime::from_unix_timestamp_nanos(milliseconds * 1_000_000).map(at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_id_tells_when_it_was_stored_and_a_time_which_ids_are_older() {
        let time = datetime!(2030-01-31 09:00:00.25 UTC);
        let least = stored_before(time).unwrap();
        let id = |milliseconds: u128| Uuid::from_u128((milliseconds << 80) | 0x7000_8000_0000_0000_0001);
        let at = u128::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
        assert!(id(at) < least && id(at + 1) > least);
        assert_eq!(stored_at(id(at)).into_string(), super::at(time).into_string());
        assert_eq!(stored_before(datetime!(1960-01-01 0:00 UTC)), None);
        assert!(stored_before(datetime!(9999-01-01 0:00 UTC)).is_some());
    }
}
