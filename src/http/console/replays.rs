//! Replays: planned, looked at by class, run from here at a rate, paused, cancelled, and followed to their end.

use axum::extract::rejection::PathRejection;
use axum::extract::{Form, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use uuid::Uuid;

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, address, at, csrf, page, state, words, words_about};
use crate::domain::operator::Role;
use crate::store::decide::Decider;
use crate::store::replay::{self as store, Changed, Replay, Report, Sample};
use crate::store::search::Filter;

/// Replays on one page.
const PAGE_ROWS: u32 = 50;

/// The rates that can be asked for here.
const RATES: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

fn id_of(id: Result<Path<Uuid>, PathRejection>) -> Result<Uuid, Failure> {
    id.map(|Path(id)| id).map_err(|_| Failure::missing("There is no such replay."))
}

/// All of them, and the form for a new one.
pub(super) async fn list(State(console): State<Console>, headers: HeaderMap) -> Result<Markup, Failure> {
    let session = console.enter(&headers, "/replays").await?;
    let mut tx = console.desk.reading().await?;
    let replays = store::list(&mut tx, PAGE_ROWS).await?;
    drop(tx);
    let body = html! {
        h1 { "Replays" }
        @if session.role >= Role::Operator { (form(&session)) }
        @if replays.is_empty() { p.card.calm { "Nothing was ever replayed." } } @else { (table(&session, &replays)) }
    };
    Ok(page(&session, "/replays", "Replays", &body))
}

fn table(session: &Session, replays: &[Replay]) -> Markup {
    html! {
        div.wide { table {
            caption { "The newest first" }
            thead { tr { th { "replay" } th { "state" } th { "planned" } th { "by" } th.number { "done" } th.number { "of" } th { "reason" } } }
            tbody { @for replay in replays { tr {
                td.id { a.row href={ "/replays/" (replay.id) } { (replay.id) } }
                td { (replay.state) } td { (at(replay.created_at)) } td { (replay.created_by) }
                td.number { (replay.done) } td.number { (replay.planned) } td { (words(session, &replay.reason)) }
            } } }
        } }
    }
}

fn form(session: &Session) -> Markup {
    html! {
        details.card {
            summary { "Plan a replay of what failed, is uncertain or unresolved" }
            p.hint { "A plan changes nothing. It tells how many notifications would be sent again, by how safe that is." }
            form method="post" action="/replays" {
                (csrf(session))
                div.filters {
                    label { "Provider of the last attempt" input name="provider"; }
                    label { "Account" input name="account"; }
                    label { "Failed because" select name="failed" {
                        option value="" { "of anything" }
                        @for reason in ["refused", "exhausted", "expired", "invalid"] { option value=(reason) { (reason) } }
                    } }
                    label { "Reply code" input name="code" inputmode="numeric"; }
                    label { "In the reply or the error" input name="text"; }
                    label.check { input type="checkbox" name="risky" value="yes"; "also what may arrive twice" }
                }
                div.actions { label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; } button.primary { "Plan" } }
            }
        }
    }
}

/// Plans one.
pub(super) async fn plan(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let fields = Fields(fields);
    let session = console.enter_by_form(&headers, &fields).await?;
    session.may(Role::Operator)?;
    let reason = fields.reason()?;
    let code = fields
        .some("code")
        .map(|code| code.parse().map_err(|_| Failure::bad("A reply code is a number of three digits.")));
    let filter = Filter {
        account: fields.some("account"),
        provider: fields.some("provider"),
        reason: fields.some("failed"),
        text: fields.some("text"),
        reply_code: code.transpose()?,
        ..Filter::default()
    };
    let decider = Decider { who: &session.name, reason: &reason };
    let mut tx = console.desk.deciding().await?;
    let id = store::plan(&mut tx, &filter, fields.get("risky") == "yes", &decider).await?;
    tx.commit().await?;
    Ok(Redirect::to(&format!("/replays/{id}")).into_response())
}

/// One of them.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Markup, Failure> {
    let id = id_of(id)?;
    let session = console.enter(&headers, &format!("/replays/{id}")).await?;
    let mut conn = console.desk.reading().await?;
    let report =
        store::report_within(&mut conn, id).await?.ok_or_else(|| Failure::missing("There is no such replay."))?;
    let samples = store::samples(&mut conn, id).await?;
    let running = report.replay.state == "running" && store::is_locked(&mut conn, id).await?;
    drop(conn);
    let body = html! {
        h1 { "Replay " code { (id) } }
        (facts(&session, &report, running))
        (classes(&report))
        @if !samples.is_empty() { (table_of(&session, &samples)) }
        @if session.role >= Role::Operator { (actions(&session, &report, running)) }
    };
    Ok(page(&session, "/replays", "Replay", &body))
}

fn facts(session: &Session, report: &Report, running: bool) -> Markup {
    let replay = &report.replay;
    let counted = |counts: &std::collections::BTreeMap<String, i64>| {
        counts.iter().map(|(name, rows)| format!("{rows} {}", name.replace('_', " "))).collect::<Vec<_>>().join(", ")
    };
    let settled = report.states.values().sum::<i64>() - report.moving();
    html! {
        dl.facts {
            dt { "State" } dd { strong { (replay.state) } @if replay.state == "running" && !running { ": no process is running it, run it on below" } }
            dt { "Planned" } dd { (at(replay.created_at)) " by " (replay.created_by) ": " (words(session, &replay.reason)) }
            @if let (Some(started), Some(rate)) = (replay.started_at, replay.rate_per_second) { dt { "Started" } dd { (at(started)) ", " (rate) " a second" } }
            @if let Some(ended) = replay.ended_at { dt { "Ended" } dd { (at(ended)) } }
            dt { "Of the plan" } dd { (counted(&report.items)) }
            @if !report.states.is_empty() { dt { "The replayed are now" } dd { (counted(&report.states)) } }
            @if !report.attempts.is_empty() { dt { "Attempts made for it" } dd { (counted(&report.attempts)) } }
        }
        label { "Made pending" progress max=(replay.planned.max(1)) value=(replay.done) { (replay.done) " of " (replay.planned) } }
        @if !report.states.is_empty() { label { "Sent, or ended otherwise" progress max=(replay.planned.max(1)) value=(settled) { (settled) } } }
    }
}

fn classes(report: &Report) -> Markup {
    let meaning = |class: &str, why: Option<&str>| match (class, why) {
        ("safe", _) => "known not to have been accepted",
        ("within_window", _) => "may have been accepted; the provider still deduplicates it",
        ("risky", _) => "may have been accepted; nobody deduplicates it",
        (_, Some("expired")) => "its own expiry has passed",
        (_, Some("erased")) => "its content was erased",
        _ => "not as things stand",
    };
    html! {
        h2 { "The plan" }
        div.wide { table {
            thead { tr { th { "class" } th.number { "notifications" } th { "what happens" } th { "because" } } }
            tbody { @for class in &report.classes { tr {
                td { (class.class.replace('_', " ")) } td.number { (class.rows) }
                td { @if class.class == "not_possible" || (class.class == "risky" && !report.replay.risky_included) { "left out" } @else { "sent again" } }
                td { (meaning(&class.class, class.why.as_deref())) }
            } } }
        } }
    }
}

fn table_of(session: &Session, samples: &[Sample]) -> Markup {
    html! {
        h2 { "For example" }
        div.wide { table {
            thead { tr { th { "class" } th { "notification" } th { "state" } th { "account" } th { "recipient" } th { "provider" } th { "last answer" } } }
            tbody { @for sample in samples { tr {
                td { (sample.class.replace('_', " ")) }
                td.id { a.row href={ "/notifications/" (sample.notification_id) } { (sample.notification_id) } }
                td { (state(&sample.state, None)) } td { (sample.account_id) } td { (address(session, &sample.recipient)) }
                td { (sample.provider.as_deref().unwrap_or_default()) } td { (words_about(session, sample.last_answer.as_deref().unwrap_or_default(), &sample.recipient)) }
            } } }
        } }
    }
}

fn actions(session: &Session, report: &Report, running: bool) -> Markup {
    let id = report.replay.id;
    let open = report.items.get("open").copied().unwrap_or_default();
    let runs = matches!(report.replay.state.as_str(), "planned" | "paused" | "running") && !running && open > 0;
    let stops = matches!(report.replay.state.as_str(), "planned" | "paused" | "running");
    html! {
        @if runs || stops { h2 { "Decide" } }
        @if runs {
            form.actions method="post" action={ "/replays/" (id) "/run" } {
                (csrf(session))
                label { "Notifications a second" input name="rate" value="50" inputmode="decimal" required; }
                label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; }
                button.primary { "Run: " (open) " to be sent again" }
            }
        }
        @if stops {
            form.actions method="post" action={ "/replays/" (id) "/stop" } {
                (csrf(session))
                label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; }
                @if report.replay.state == "running" { button name="how" value="pause" { "Pause" } }
                button.grave name="how" value="cancel" { "Cancel for good" }
            }
        }
    }
}

/// Runs one, in this process: it goes on when the page is left, and is paused when the process stops.
pub(super) async fn run(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let (id, fields) = (id_of(id)?, Fields(fields));
    let session = console.enter_by_form(&headers, &fields).await?;
    session.may(Role::Operator)?;
    let reason = fields.reason()?;
    let rate = fields.get("rate").parse::<f64>().ok().filter(|rate| RATES.contains(rate));
    let Some(rate) = rate else { return Err(Failure::bad("The rate is a number from 0.1 to 10,000.")) };
    let mut tx = console.desk.reading().await?;
    let state = store::state(&mut tx, id).await?;
    let locked = store::is_locked(&mut tx, id).await?;
    drop(tx);
    match state.as_deref() {
        None => return Err(Failure::missing("There is no such replay.")),
        Some("planned" | "paused" | "running") if !locked => {}
        Some("running") => return Err(Failure::bad("Another process is running it.")),
        Some(state) => return Err(Failure::bad(&format!("It is {state}, and cannot be run."))),
    }
    tokio::spawn(async move {
        let decider = Decider { who: &session.name, reason: &reason };
        match crate::replay::run(&console.dsn, id, rate, &decider, &console.shutdown, |_| {}).await {
            Ok(ended) => tracing::info!(replay = %id, ?ended, "a replay that the console ran has ended"),
            Err(error) => tracing::warn!(replay = %id, %error, "a replay stopped; it can be run on"),
        }
    });
    Ok(Redirect::to(&format!("/replays/{id}")).into_response())
}

/// Pauses or cancels one.
pub(super) async fn stop(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let (id, fields) = (id_of(id)?, Fields(fields));
    let session = console.enter_by_form(&headers, &fields).await?;
    session.may(Role::Operator)?;
    let reason = fields.reason()?;
    let mut tx = console.desk.deciding().await?;
    let decider = Decider { who: &session.name, reason: &reason };
    let changed = store::stop(&mut tx, id, fields.get("how") == "cancel", &decider).await?;
    tx.commit().await?;
    match changed {
        Changed::Done => Ok(Redirect::to(&format!("/replays/{id}")).into_response()),
        Changed::Unknown => Err(Failure::missing("There is no such replay.")),
        Changed::Refused(state) => {
            Err(Failure::bad(&format!("It is {state}: somebody was faster. Nothing was changed.")))
        }
    }
}
