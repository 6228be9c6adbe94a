//! Who decided what, when and why; also as CSV and JSON.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde_json::Value;

use super::Console;
use super::access::Fields;
use super::page::{Failure, at, page, query, state};
use crate::domain::operator::Role;
use crate::store::audit::{self as store, Decision, Filter};

/// Decisions on one page, and in one export.
const PAGE_ROWS: u32 = 100;
const EXPORT_ROWS: u32 = 10_000;

fn filter(fields: &Fields) -> Filter {
    Filter {
        who: fields.some("who"),
        action: fields.some("action"),
        notification: fields.some("about").and_then(|id| id.parse().ok()),
        below: fields.some("below").and_then(|number| number.parse().ok()),
        ..Filter::default()
    }
}

async fn read(
    console: &Console,
    headers: &HeaderMap,
    fields: &Fields,
    rows: u32,
) -> Result<(super::access::Session, Vec<Decision>), Failure> {
    let session = console.enter(headers, "/audit").await?;
    if fields.0.iter().any(|(_, value)| value.contains('\0')) {
        return Err(Failure::bad("A NUL cannot be searched for."));
    }
    let mut tx = console.desk.reading().await?;
    let found = store::decisions(&mut tx, &filter(fields), rows).await?;
    Ok((session, found))
}

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let fields = Fields(fields);
    let (session, found) = read(&console, &headers, &fields, PAGE_ROWS).await?;
    let view = [("who", fields.get("who")), ("action", fields.get("action")), ("about", fields.get("about"))];
    let last = found.last().filter(|_| found.len() == PAGE_ROWS as usize).map(|decision| decision.id.to_string());
    let body = html! {
        h1 { "Audit" }
        form.filters method="get" action="/audit" role="search" {
            label { "Who" input name="who" value=(fields.get("who")); }
            label { "What begins with" input name="action" placeholder="resolve, cancel, pause, replay …" value=(fields.get("action")); }
            label { "About the notification" input name="about" value=(fields.get("about")); }
            button { "Show" }
        }
        @if found.is_empty() { p.card.calm { "Nobody has decided anything." } } @else { (table(&found)) }
        @if let Some(last) = last { p { a rel="next" href={ "/audit?" (query(&view)) "&below=" (last) } { "Older" } } }
        @if session.role >= Role::Operator {
            p { "Export: " a href={ "/audit.csv?" (query(&view)) } { "CSV" } ", " a href={ "/audit.json?" (query(&view)) } { "JSON" } }
        }
    };
    Ok(page(&session, "/audit", "Audit", &body))
}

fn table(found: &[Decision]) -> Markup {
    let standing = |snapshot: &Option<Value>| {
        snapshot.as_ref().and_then(|snapshot| snapshot["state"].as_str()).unwrap_or_default().to_owned()
    };
    html! {
        div.wide { table {
            caption { "The newest first. Nothing here can be changed or removed." }
            thead { tr { th { "when" } th { "who" } th { "what" } th { "about" } th { "before" } th { "after" } th { "why" } } }
            tbody { @for decision in found { tr {
                td { (at(decision.decided_at)) } td { (decision.decided_by) } td { (decision.action) }
                td.id {
                    @if let Some(id) = decision.notification_id { a.row href={ "/notifications/" (id) } { (id) } }
                    @else if let Some(id) = decision.replay_id { a.row href={ "/replays/" (id) } { "replay " (id) } }
                    @else { (decision.subject.as_deref().unwrap_or_default()) }
                }
                td { (state(&standing(&decision.before), None)) } td { (state(&standing(&decision.after), None)) } td { (decision.reason) }
            } } }
        } }
    }
}

/// The same for a spreadsheet.
pub(super) async fn csv(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let (session, found) = read(&console, &headers, &Fields(fields), EXPORT_ROWS).await?;
    session.may(Role::Operator)?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"audit.csv\""),
    ];
    Ok((headers, store::csv(&found)).into_response())
}

/// The same for a program.
pub(super) async fn json(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let (session, found) = read(&console, &headers, &Fields(fields), EXPORT_ROWS).await?;
    session.may(Role::Operator)?;
    Ok(([(header::CONTENT_DISPOSITION, "attachment; filename=\"audit.json\"")], axum::Json(found)).into_response())
}
