//! Deciding about one notification or many: first what would become of each, then the decision, each row by itself.

use axum::extract::{Form, State};
use axum::http::HeaderMap;
use maud::{Markup, html};

use super::Console;
use super::access::{Fields, Session};
use super::page::{Failure, csrf, page, state};
use crate::domain::ids::NotificationId;
use crate::domain::operator::Role;
use crate::store::StoreError;
use crate::store::decide::{self, Decided, Decider, Resolution};

/// Notifications in one form.
const MANY_MAX: usize = 500;

#[derive(Debug, Clone, Copy)]
enum Action {
    Resolve(Resolution),
    Cancel,
}

impl Action {
    fn read(fields: &Fields) -> Result<Self, Failure> {
        Ok(match fields.get("action") {
            "sent" => Self::Resolve(Resolution::Sent),
            "not-sent" => Self::Resolve(Resolution::NotSent { give_up: false }),
            "give-up" => Self::Resolve(Resolution::NotSent { give_up: true }),
            "resend" => Self::Resolve(Resolution::Resend { duplicate: false }),
            "duplicate" => Self::Resolve(Resolution::Resend { duplicate: true }),
            "cancel" => Self::Cancel,
            _ => return Err(Failure::bad("Choose what is to be done.")),
        })
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Resolve(Resolution::Sent) => "it was accepted: it is sent",
            Self::Resolve(Resolution::NotSent { give_up: false }) => "it was not accepted: try it again",
            Self::Resolve(Resolution::NotSent { give_up: true }) => "it was not accepted: give it up",
            Self::Resolve(Resolution::Resend { duplicate: false }) => "send it once more; it may arrive twice",
            Self::Resolve(Resolution::Resend { duplicate: true }) => "send it again although it was taken: a duplicate",
            Self::Cancel => "withdraw it",
        }
    }
}

struct Asked {
    session: Session,
    fields: Fields,
    action: Action,
    reason: String,
    ids: Vec<NotificationId>,
}

async fn asked(console: &Console, headers: &HeaderMap, fields: Vec<(String, String)>) -> Result<Asked, Failure> {
    let fields = Fields(fields);
    let session = console.enter_by_form(headers, &fields).await?;
    session.may(Role::Operator)?;
    let (action, reason) = (Action::read(&fields)?, fields.reason()?);
    let ids: Result<Vec<NotificationId>, _> = fields.all("id").map(str::parse).collect();
    let ids = ids.map_err(|_| Failure::bad("A notification's id is not one."))?;
    if ids.is_empty() || ids.len() > MANY_MAX {
        return Err(Failure::bad("Select at least one notification, and at most 500."));
    }
    Ok(Asked { session, fields, action, reason, ids })
}

async fn one(conn: &mut sqlx::PgConnection, id: NotificationId, asked: &Asked) -> Result<Decided, StoreError> {
    let decider = Decider { who: &asked.session.name, reason: &asked.reason };
    match asked.action {
        Action::Resolve(resolution) => decide::resolve(conn, id, resolution, &decider).await,
        Action::Cancel => decide::cancel(conn, id, &decider).await,
    }
}

/// What would become of each: decided, looked at, and undone.
pub(super) async fn preview(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let asked = asked(&console, &headers, fields).await?;
    let mut outcomes = Vec::with_capacity(asked.ids.len());
    for id in &asked.ids {
        let mut tx = console.desk.deciding().await?;
        outcomes.push((*id, one(&mut tx, *id, &asked).await?));
        tx.rollback().await?;
    }
    let possible: Vec<_> = outcomes.iter().filter(|(_, decided)| matches!(decided, Decided::Done { .. })).collect();
    let grave = matches!(asked.action, Action::Resolve(Resolution::Resend { .. }));
    let body = html! {
        h1 { "Preview" }
        p { (possible.len()) " of " (outcomes.len()) ": " strong { (asked.action.words()) } }
        @if grave && !possible.is_empty() { p.problem { "The recipient may get it twice. This is on record as your decision." } }
        (table(&outcomes, "would become"))
        form.actions data-still method="post" action="/decide" {
            (csrf(&asked.session))
            @for (id, _) in &possible { input type="hidden" name="id" value=(id); }
            @for name in ["action", "reason", "back"] { input type="hidden" name=(name) value=(asked.fields.get(name)); }
            @if !possible.is_empty() { button class=(if grave { "grave" } else { "primary" }) { "Decide: " (asked.action.words()) } }
            a href=(back(&asked.fields)) { "Back, and change nothing" }
        }
    };
    Ok(page(&asked.session, "", "Preview", &body))
}

/// Decides, each by itself: what somebody else has decided meanwhile is told, and holds up no other.
pub(super) async fn decide(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let asked = asked(&console, &headers, fields).await?;
    let mut outcomes = Vec::with_capacity(asked.ids.len());
    for id in &asked.ids {
        let mut tx = console.desk.deciding().await?;
        let decided = one(&mut tx, *id, &asked).await?;
        tx.commit().await?;
        outcomes.push((*id, decided));
    }
    let done = outcomes.iter().filter(|(_, decided)| matches!(decided, Decided::Done { .. })).count();
    let body = html! {
        h1 data-still { "Decided" }
        p.done role="status" { (done) " of " (outcomes.len()) " decided and on record: " (asked.action.words()) }
        @if done < outcomes.len() { p.problem role="alert" { (outcomes.len() - done) " could not be decided so any more: somebody or something was faster. Nothing of them was changed." } }
        (table(&outcomes, "is now"))
        p { a href=(back(&asked.fields)) { "Back" } }
    };
    Ok(page(&asked.session, "", "Decided", &body))
}

fn back(fields: &Fields) -> &str {
    let back = fields.get("back");
    if back.starts_with('/') && !back.starts_with("//") { back } else { "/uncertain" }
}

fn table(outcomes: &[(NotificationId, Decided)], becomes: &str) -> Markup {
    html! {
        div.wide { table {
            thead { tr { th { "notification" } th { "was" } th { (becomes) } th { "why not" } } }
            tbody { @for (id, decided) in outcomes { tr {
                td.id { a.row href={ "/notifications/" (id) } { (id) } }
                @match decided {
                    Decided::Done { before, after } => { td { (state(before.as_str(), None)) } td { (state(after.as_str(), None)) } td {} }
                    Decided::Refused { state: now, why } => { td { (state(now.as_str(), None)) } td { "unchanged" } td { (why) } }
                    Decided::Unknown => { td {} td {} td { "there is no such notification" } }
                }
            } } }
        } }
    }
}
