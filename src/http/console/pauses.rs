//! What is not claimed for now, and, for admins, who is signed in.

use axum::extract::{Form, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, at, csrf, page, words};
use crate::domain::operator::Role;
use crate::store::decide::{self, Decider, Pausable};
use crate::store::doctor::{self, Pause};
use crate::store::operators::{self, Listed};

/// The page.
pub(super) async fn show(State(console): State<Console>, headers: HeaderMap) -> Result<Markup, Failure> {
    let session = console.enter(&headers, "/pauses").await?;
    let mut tx = console.desk.reading().await?;
    let pauses = doctor::pauses(&mut tx).await?;
    let operators = if session.role == Role::Admin { operators::list(&mut tx).await? } else { Vec::new() };
    drop(tx);
    let body = html! {
        h1 { "Pauses" }
        p.quiet { "Nothing of what is paused is claimed; what is under way ends. A paused provider is passed over for the next one of its route." }
        @if pauses.is_empty() { p.card.calm { "Nothing is paused." } } @else { (table(&session, &pauses)) }
        @if session.role >= Role::Admin { (form(&session)) } @else { p.quiet { "Pausing needs the role admin." } }
        @if !operators.is_empty() { (people(&session, &operators)) }
    };
    Ok(page(&session, "/pauses", "Pauses", &body))
}

fn table(session: &Session, pauses: &[Pause]) -> Markup {
    html! {
        div.wide { table {
            thead { tr { th { "what" } th { "since" } th { "by" } th { "why" } th { "change" } } }
            tbody { @for pause in pauses { tr {
                td { (pause.kind) " " (pause.name) } td { (at(pause.since)) } td { (pause.paused_by) } td { (words(session, &pause.reason)) }
                td { @if session.role >= Role::Admin {
                    form.actions method="post" action="/pauses" {
                        (csrf(session))
                        input type="hidden" name="kind" value=(pause.kind);
                        input type="hidden" name="name" value=(pause.name);
                        label { "Why" input name="reason" required maxlength="2000"; }
                        button name="how" value="resume" { "Resume" }
                    }
                } }
            } } }
        } }
    }
}

fn form(session: &Session) -> Markup {
    html! {
        h2 { "Pause" }
        form.actions method="post" action="/pauses" {
            (csrf(session))
            label { "What" select name="kind" { option value="provider" { "a provider" } option value="account" { "an account" } option value="all" { "everything" } } }
            label { "Its name" input name="name"; }
            label.long { "Why (stays on record)" input name="reason" required maxlength="2000"; }
            button.primary name="how" value="pause" { "Pause" }
        }
    }
}

fn people(session: &Session, operators: &[Listed]) -> Markup {
    html! {
        h2 { "Operators" }
        div.wide { table {
            thead { tr { th { "name" } th { "role" } th { "added" } th { "access" } th.number { "sessions" } th { "change" } } }
            tbody { @for operator in operators { tr {
                td { (operator.name) } td { (operator.role) } td { (at(operator.created_at)) " by " (operator.created_by) }
                td { @if let Some(time) = operator.disabled_at { "disabled " (at(time)) } @else { "may sign in" } }
                td.number { (operator.sessions) }
                td { @if operator.sessions > 0 {
                    form method="post" action="/operators/sign-out" { (csrf(session)) input type="hidden" name="name" value=(operator.name); button { "Sign out everywhere" } }
                } }
            } } }
        } }
    }
}

/// Pauses or resumes.
pub(super) async fn change(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let fields = Fields(fields);
    let session = console.enter_by_form(&headers, &fields).await?;
    session.may(Role::Admin)?;
    let (reason, name) = (fields.reason()?, fields.get("name").to_owned());
    let what = match fields.get("kind") {
        "all" => Pausable::All,
        _ if name.is_empty() || name.len() > 200 => {
            return Err(Failure::bad("Say which provider or account."));
        }
        "provider" => Pausable::Provider(name),
        "account" => Pausable::Account(name),
        _ => return Err(Failure::bad("Choose what is to be paused.")),
    };
    let decider = Decider { who: &session.name, reason: &reason };
    let mut tx = console.desk.deciding().await?;
    if fields.get("how") == "resume" {
        decide::resume(&mut tx, &what, &decider).await?;
    } else {
        decide::pause(&mut tx, &what, &decider).await?;
    }
    tx.commit().await?;
    Ok(Redirect::to("/pauses").into_response())
}

/// Ends every session of an operator.
pub(super) async fn sign_out(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    let fields = Fields(fields);
    let session = console.enter_by_form(&headers, &fields).await?;
    session.may(Role::Admin)?;
    let name = fields.get("name");
    let mut tx = console.desk.deciding().await?;
    operators::close_all(&mut tx, name).await?;
    let decider = Decider { who: &session.name, reason: "by hand, in the console" };
    decide::about(&mut tx, "sign out", &format!("operator {name}"), &decider).await?;
    tx.commit().await?;
    Ok(Redirect::to("/pauses").into_response())
}
