//! One notification: how it stands, what happened, what it says, and what may be decided.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use maud::{Markup, html};
use uuid::Uuid;

use super::Console;
use super::access::Session;
use super::page::{Failure, address, at, at_exactly, csrf, page, state, words, words_about};
use crate::domain::ids::NotificationId;
use crate::domain::operator::Role;
use crate::store::story::{Attempt, Story, story};

/// The page.
pub(super) async fn show(
    State(console): State<Console>,
    headers: HeaderMap,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Markup, Failure> {
    let missing = || {
        Failure::missing(
            "There is no such notification; its transaction may not have committed, or retention has removed it.",
        )
    };
    let Path(id) = id.map_err(|_| missing())?;
    let session = console.enter(&headers, &format!("/notifications/{id}")).await?;
    let mut tx = console.desk.reading().await?;
    let story = story(&mut tx, NotificationId(id)).await?.ok_or_else(missing)?;
    drop(tx);
    let body = html! {
        h1 { "Notification " code { (id) } }
        (facts(&session, &story))
        h2 { "What happened" }
        (bars(&story.attempts))
        ol.timeline { @for event in story.timeline() {
            li class=(event.kind.name()) { time datetime=(at_exactly(event.at)) { (at_exactly(event.at)) } " " (words_about(&session, &event.words, &story.notification.recipient)) }
        } }
        @if !story.evidence.is_empty() { (evidence(&session, &story)) }
        h2 { "The message as sent" }
        (message(&session, id))
        h2 { "Decide" }
        (decide(&session, &story))
    };
    Ok(page(&session, "/search", "Notification", &body))
}

fn facts(session: &Session, story: &Story) -> Markup {
    let n = &story.notification;
    html! {
        @if n.duplicate_possible { p.problem { "The recipient may get it twice." } }
        @if n.contradiction { p.problem { "Evidence and record disagree: look at both below. The record was not overwritten." } }
        dl.facts {
            dt { "State" } dd { (state(&n.state, n.reason.as_deref())) " since " (at(n.changed_at)) }
            dt { "What next" } dd { (n.what_next()) }
            dt { "Account" } dd { (n.account_id) }
            dt { "To" } dd { (address(session, &n.recipient)) }
            dt { "From" } dd { (n.sender) }
            @if session.role >= Role::Operator { dt { "Subject" } dd { (n.subject) } }
            dt { "Route" } dd { (n.route) ", priority " (n.priority) }
            @if let Some(operation) = &story.operation {
                dt { "Operation" } dd { (operation.operation) " " code { (words(session, &operation.request_key)) } ", message " code { (operation.message_id) } ", " (operation.notifications) " notifications" }
            }
            @if let Some(key) = &n.dedup_key { dt { "Dedup key" } dd { code { (words(session, key)) } } }
            @if let Some(expires) = n.expires_at { dt { "Expires" } dd { (at(expires)) } }
        }
    }
}

/// Each attempt as a bar: grey until *begin*, coloured from there to its end.
fn bars(attempts: &[Attempt]) -> Markup {
    const WIDTH: f64 = 560.0;
    let milliseconds = |attempt: &Attempt| {
        let end = attempt.ended_at.unwrap_or(attempt.claimed_at);
        let until = |time: time::OffsetDateTime| (time - attempt.claimed_at).as_seconds_f64().max(0.0) * 1_000.0;
        (attempt.begun_at.map(until), until(end))
    };
    let longest = attempts.iter().map(|attempt| milliseconds(attempt).1).fold(1.0, f64::max);
    html! {
        @if !attempts.is_empty() {
            svg.chart viewBox={ "0 0 720 " (attempts.len() * 22 + 6) } role="img" aria-label={ (attempts.len()) " attempts, from claim to answer; coloured from begin on" } {
                @for (row, attempt) in attempts.iter().enumerate() {
                    @let (begun, end) = milliseconds(attempt);
                    @let scaled = |ms: f64| (ms / longest * WIDTH).max(1.0);
                    g {
                        title { "attempt " (attempt.number) " with " (attempt.provider) ": " (attempt.outcome.as_deref().unwrap_or("running")) " after " (format!("{end:.0}")) " ms" }
                        rect.before x="0" y=(row * 22 + 4) width=(format!("{:.1}", scaled(begun.unwrap_or(end)))) height="14" {}
                        @if let Some(begun) = begun { rect.begun x=(format!("{:.1}", scaled(begun))) y=(row * 22 + 4) width=(format!("{:.1}", scaled(end - begun))) height="14" {} }
                        text x=(format!("{:.1}", scaled(end) + 8.0)) y=(row * 22 + 15) { (attempt.number) ": " (attempt.outcome.as_deref().unwrap_or("running")) ", " (format!("{end:.0}")) " ms" }
                    }
                }
            }
        }
    }
}

fn evidence(session: &Session, story: &Story) -> Markup {
    html! {
        h2 { "Evidence" }
        div.wide { table {
            thead { tr { th { "attempt" } th { "proves" } th { "kind" } th { "source" } th { "reference" } th { "happened" } th { "came" } th { "recorded by" } th { "detail" } } }
            tbody { @for piece in &story.evidence { tr {
                td { (piece.attempt_number) } td { (piece.proves) } td { (piece.kind) } td { (words(session, &piece.source)) } td { (words(session, &piece.reference)) }
                td { @if let Some(time) = piece.happened_at { (at(time)) } } td { (at(piece.received_at)) } td { (words(session, &piece.recorded_by)) }
                td { @if session.role >= Role::Operator { code { (piece.detail) } } @else { span.quiet { "needs the role operator" } } }
            } } }
        } }
    }
}

fn message(session: &Session, id: Uuid) -> Markup {
    html! {
        @if session.role < Role::Operator { p.quiet { "Content needs the role operator." } } @else {
            // Its own policy forbids it everything; remote pictures stay away.
            iframe src={ "/notifications/" (id) "/html" } sandbox="" title="The message, without scripts, forms and remote content" loading="lazy" {}
            p { a href={ "/notifications/" (id) "/source" } { "The bytes as they went out" } }
        }
    }
}

fn decide(session: &Session, story: &Story) -> Markup {
    let n = &story.notification;
    let in_doubt = n.doubt_since.is_some();
    let waits = matches!(n.state.as_str(), "pending" | "failed" | "uncertain" | "unresolved");
    let taken = matches!(n.state.as_str(), "sent" | "bounced");
    html! {
        @if session.role < Role::Operator { p.quiet { "Deciding needs the role operator." } }
        @else if matches!(n.state.as_str(), "claimed" | "transmitting") { p.quiet { "A worker has it right now; look again when its lease is over." } }
        @else if n.state == "cancelled" { p.quiet { "It is withdrawn for good." } }
        @else {
            form method="post" action="/decide/preview" {
                (csrf(session))
                input type="hidden" name="id" value=(n.id);
                input type="hidden" name="back" value={ "/notifications/" (n.id) };
                div.actions {
                    label { "What is known" select name="action" required {
                        option value="" { "choose…" }
                        @if in_doubt {
                            option value="sent" { "It was accepted: it is sent" }
                            option value="not-sent" { "It was not accepted: try it again" }
                            option value="give-up" { "It was not accepted: give it up" }
                        }
                        @if matches!(n.state.as_str(), "failed" | "uncertain" | "unresolved") { option value="resend" { @if in_doubt { "Nobody knows: send it once more, it may arrive twice" } @else { "Try it again" } } }
                        @if taken { option value="duplicate" { "Send it again although it was taken: a duplicate" } }
                        @if waits { option value="cancel" { "Withdraw it" } }
                    } }
                    label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; }
                    button.primary { "Preview" }
                }
            }
        }
    }
}
