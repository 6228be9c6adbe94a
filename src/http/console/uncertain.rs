//! What is in doubt: the least time left first, why, what the provider's dedup allows, and what may safely be done, for several at once.

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use maud::{Markup, html};
use time::format_description::well_known::Rfc3339;

use super::Console;
use super::access::{Fields, Session};
use super::overview::duration;
use super::page::{Failure, address, csrf, moment, page, query, state, words_about};
use crate::domain::operator::Role;
use crate::domain::state::State as Standing;
use crate::store::search::{self, Filter, Listed, Place};

/// Rows of a page: as many as a person decides about at once.
const PAGE_ROWS: usize = 200;

/// Rows that it looks through for them.
const LOOK: usize = 1_000;

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let session = console.enter(&headers, "/uncertain").await?;
    let fields = Fields(fields);
    let filter = Filter {
        state: fields.some("state").and_then(|state| state.parse::<Standing>().ok()),
        account: fields.some("account"),
        provider: fields.some("provider"),
        ..Filter::default()
    };
    let mut tx = console.desk.reading().await?;
    let place = place(&fields)?;
    let found = search::uncertain(&mut tx, &filter, place, PAGE_ROWS, LOOK).await?;
    drop(tx);
    let body = html! {
        h1 { "Uncertain" }
        p.quiet { "Each of these may or may not have been accepted by its provider. Evidence settles them; what nothing has settled when its time is over waits for a person." }
        form.filters method="get" action="/uncertain" role="search" {
            label { "State" select name="state" {
                @for (value, name) in [("", "uncertain and unresolved"), ("uncertain", "uncertain"), ("unresolved", "unresolved")] {
                    option value=(value) selected[fields.get("state") == value] { (name) }
                }
            } }
            label { "Account" input name="account" value=(fields.get("account")); }
            label { "Provider" input name="provider" value=(fields.get("provider")); }
            button { "Show" }
        }
        @if !found.rows.is_empty() { (table(&session, &found.rows)) }
        @else if found.looked_to.is_some() || place.is_some() { p.card.calm { "Nothing among these." } }
        @else { p.card.calm { "Nothing is in doubt." } }
        @if let Some(Place { until, id }) = found.looked_to {
            @let until = until.format(&Rfc3339).unwrap_or_default();
            @let id = id.to_string();
            p { a rel="next" href={ "/uncertain?" (query(&[("state", fields.get("state")), ("account", fields.get("account")),
                ("provider", fields.get("provider")), ("until", &until), ("after", &id)])) } { "More time left" } }
        }
    };
    Ok(page(&session, "/uncertain", "Uncertain", &body))
}

/// Behind which row the page begins.
fn place(fields: &Fields) -> Result<Option<Place>, Failure> {
    if fields.get("until").is_empty() {
        return Ok(None);
    }
    let until = moment(fields.get("until")).map_err(Failure::bad)?;
    let id = fields.get("after").parse().map_err(|_| Failure::bad("The place to go on from is none."))?;
    Ok(Some(Place { until, id }))
}

fn table(session: &Session, rows: &[Listed]) -> Markup {
    let decides = session.role >= Role::Operator;
    html! {
        form method="post" action="/decide/preview" {
            (csrf(session))
            input type="hidden" name="back" value="/uncertain";
            div.wide { table {
                caption { (rows.len()) " shown, the least time left first" }
                thead { tr {
                    @if decides { th { input type="checkbox" data-all aria-label="Select all"; } }
                    th { "notification" } th { "state" } th { "time left" } th { "account" } th { "recipient" } th { "provider" } th { "why" } th { "what may happen" }
                } }
                tbody { @for row in rows { tr {
                    @if decides { td { input type="checkbox" name="id" value=(row.id) aria-label={ "Select " (row.id) }; } }
                    td.id { a.row href={ "/notifications/" (row.id) } { (row.id) } }
                    td { (state(&row.state, None)) }
                    td { (time_left(row.seconds_left)) }
                    td { (row.account_id) } td { (address(session, &row.recipient)) } td { (row.provider.as_deref().unwrap_or_default()) }
                    td { (row.phase.as_deref().unwrap_or_default()) ": " (words_about(session, row.error.as_deref().or(row.reply_text.as_deref()).unwrap_or_default(), &row.recipient)) }
                    td { (plan(row)) }
                } } }
            } }
            @if decides { (actions()) }
        }
    }
}

fn time_left(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) if seconds > 0.0 => duration(seconds),
        _ => "over".to_owned(),
    }
}

/// What the provider's contract and the configuration allow.
fn plan(row: &Listed) -> String {
    match (&row.resend_at, row.state.as_str()) {
        (Some(at), _) => format!("resent {} where the provider still deduplicates it", super::page::at_exactly(*at)),
        (None, "unresolved") => "nothing by itself: settle it, or send it once more".to_owned(),
        (None, _) => "held: nobody deduplicates a second copy by itself".to_owned(),
    }
}

/// What may be decided, from the safest on.
pub(super) fn actions() -> Markup {
    html! {
        div.actions {
            label { "What is known" select name="action" required {
                option value="" { "choose…" }
                option value="sent" { "It was accepted: it is sent" }
                option value="not-sent" { "It was not accepted: try it again" }
                option value="give-up" { "It was not accepted: give it up" }
                option value="resend" { "Nobody knows: send it once more, it may arrive twice" }
                option value="cancel" { "Withdraw it" }
            } }
            label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; }
            button.primary { "Preview" }
        }
    }
}
