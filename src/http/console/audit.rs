//! Who decided what, when and why; also as CSV and JSON.

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use maud::{Markup, html};
use serde_json::Value;

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, at, page, query, state, words};
use crate::domain::operator::Role;
use crate::store::audit::{self as store, Decision, Filter};

/// Decisions on one page, and in one piece of an export.
const PAGE_ROWS: u32 = 100;
const EXPORT_ROWS: u32 = 1_000;

fn filter(fields: &Fields) -> Result<Filter, Failure> {
    let id = |name| {
        let text: Option<String> = fields.some(name);
        text.map(|text| text.parse().map_err(|_| Failure::bad("A notification's id is not one."))).transpose()
    };
    let below = fields.some("below").map(|number| number.parse().map_err(|_| Failure::bad("A number is not one.")));
    Ok(Filter {
        who: fields.some("who"),
        action: fields.some("action"),
        notification: id("about")?,
        below: below.transpose()?,
        ..Filter::default()
    })
}

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let fields = Fields(fields);
    let session = console.enter(&headers, "/audit").await?;
    let filter = filter(&fields)?;
    let mut tx = console.desk.reading().await?;
    let found = store::decisions(&mut tx, &filter, PAGE_ROWS).await?;
    drop(tx);
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
        @if found.is_empty() { p.card.calm { "Nobody has decided anything." } } @else { (table(&session, &found)) }
        @if let Some(last) = last { p { a rel="next" href={ "/audit?" (query(&view)) "&below=" (last) } { "Older" } } }
        @if session.role >= Role::Operator {
            p { "Export: " a href={ "/audit.csv?" (query(&view)) } { "CSV" } ", " a href={ "/audit.json?" (query(&view)) } { "JSON" } }
        }
    };
    Ok(page(&session, "/audit", "Audit", &body))
}

fn table(session: &Session, found: &[Decision]) -> Markup {
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
                    @else { (words(session, decision.subject.as_deref().unwrap_or_default())) }
                }
                td { (state(&standing(&decision.before), None)) } td { (state(&standing(&decision.after), None)) } td { (words(session, &decision.reason)) }
            } } }
        } }
    }
}

/// All of it in pieces, each read when the one before has been taken: as much as there is, in little memory.
async fn export(
    console: Console,
    headers: HeaderMap,
    fields: Vec<(String, String)>,
    (kind, name): (&'static str, &'static str),
    piece: fn(&[Decision], bool, bool) -> String,
) -> Result<Response, Failure> {
    console.enter(&headers, "/audit").await?.may(Role::Operator)?;
    let filter = filter(&Fields(fields))?;
    let pieces = stream::unfold((console, filter, Some(true)), move |(console, mut filter, first)| async move {
        let first = first?;
        let read = async {
            let mut tx = console.desk.reading().await?;
            store::decisions(&mut tx, &filter, EXPORT_ROWS).await
        };
        // An export that breaks off is seen to: the connection ends before the last piece.
        let found = match read.await {
            Ok(found) => found,
            Err(error) => return Some((Err(error), (console, filter, None))),
        };
        let last = found.len() < EXPORT_ROWS as usize;
        filter.below = found.last().map(|decision| decision.id).or(filter.below);
        Some((Ok(piece(&found, first, last)), (console, filter, (!last).then_some(false))))
    });
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, disposition)];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// The same for a spreadsheet.
pub(super) async fn csv(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let piece = |found: &[Decision], first: bool, _| {
        let heading = if first { store::csv_heading() } else { String::new() };
        heading + &store::csv_rows(found)
    };
    export(console, headers, fields, ("text/csv; charset=utf-8", "audit.csv"), piece).await
}

/// The same for a program.
pub(super) async fn json(
    State(console): State<Console>,
    headers: HeaderMap,
    Query(fields): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let piece = |found: &[Decision], first: bool, last: bool| {
        let rows: Vec<String> = found.iter().filter_map(|decision| serde_json::to_string(decision).ok()).collect();
        let between = if first {
            "["
        } else if rows.is_empty() {
            ""
        } else {
            ","
        };
        format!("{between}{}{}", rows.join(","), if last { "]" } else { "" })
    };
    export(console, headers, fields, ("application/json", "audit.json"), piece).await
}
