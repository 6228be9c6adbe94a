//! Deciding about one notification or many: first what would become of each, then the decision, each row by itself.

use axum::extract::{Form, State};
use axum::http::HeaderMap;
use maud::{Markup, html};

use super::Console;
use super::access::{Fields, Session, ours};
use super::page::{Failure, csrf, page, state};
use crate::domain::ids::NotificationId;
use crate::domain::operator::Role;
use crate::domain::state::State as Standing;
use crate::store::StoreError;
use crate::store::decide::{self, Decided, Decider, Resolution, Stands};

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
    /// Each with how it stood when it was previewed, where it was.
    ids: Vec<(NotificationId, Option<Stands>)>,
}

/// What became of one.
enum Became {
    Decided(Decided),
    /// It is not as it was when it was previewed.
    Changed(Standing),
    /// The database did not answer about it, or somebody else has it locked.
    Unanswered,
}

/// `ID`, or `ID:STATE:FENCE` from a preview.
fn read_id(text: &str) -> Option<(NotificationId, Option<Stands>)> {
    let mut parts = text.split(':');
    let id = parts.next()?.parse().ok()?;
    let stands = match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) => None,
        (Some(state), Some(fence), None) => Some(Stands { state: state.parse().ok()?, fence: fence.parse().ok()? }),
        _ => return None,
    };
    Some((id, stands))
}

async fn asked(console: &Console, headers: &HeaderMap, fields: Vec<(String, String)>) -> Result<Asked, Failure> {
    let fields = Fields(fields);
    let session = console.enter_by_form(headers, &fields).await?;
    session.may(Role::Operator)?;
    let (action, reason) = (Action::read(&fields)?, fields.reason()?);
    let ids: Option<Vec<_>> = fields.all("id").map(read_id).collect();
    let ids = ids.ok_or_else(|| Failure::bad("A notification's id is not one."))?;
    if ids.is_empty() || ids.len() > MANY_MAX {
        return Err(Failure::bad("Select at least one notification, and at most 500."));
    }
    Ok(Asked { session, fields, action, reason, ids })
}

/// Decides about one in the transaction; how it stood, and what became of it.
async fn one(
    conn: &mut sqlx::PgConnection,
    (id, previewed): (NotificationId, Option<Stands>),
    asked: &Asked,
) -> Result<(Option<Stands>, Became), StoreError> {
    let stands = decide::stands(conn, id).await?;
    if let (Some(previewed), Some(stands)) = (previewed, stands)
        && previewed != stands
    {
        return Ok((Some(stands), Became::Changed(stands.state)));
    }
    let decider = Decider { who: &asked.session.name, reason: &asked.reason };
    let decided = match asked.action {
        Action::Resolve(resolution) => decide::resolve(conn, id, resolution, &decider).await?,
        Action::Cancel => decide::cancel(conn, id, &decider).await?,
    };
    Ok((stands, Became::Decided(decided)))
}

/// Each in a transaction of its own, which is committed or taken back: what goes wrong with one is told beside what became of the others.
async fn each(console: &Console, asked: &Asked, commits: bool) -> Vec<(NotificationId, Option<Stands>, Became)> {
    let mut outcomes = Vec::with_capacity(asked.ids.len());
    for of in &asked.ids {
        let became = async {
            let mut tx = console.desk.deciding().await?;
            let became = one(&mut tx, *of, asked).await?;
            if commits {
                tx.commit().await?;
            } else {
                tx.rollback().await?;
            }
            Ok::<_, StoreError>(became)
        };
        let (stands, became) = became.await.unwrap_or_else(|error| {
            tracing::warn!(id = %of.0, %error, "a decision was not taken, or its answer was lost");
            (None, Became::Unanswered)
        });
        outcomes.push((of.0, stands, became));
    }
    outcomes
}

/// What would become of each: decided, looked at, and undone.
pub(super) async fn preview(
    State(console): State<Console>,
    headers: HeaderMap,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Markup, Failure> {
    let asked = asked(&console, &headers, fields).await?;
    let outcomes = each(&console, &asked, false).await;
    let possible: Vec<_> = outcomes.iter().filter(|(_, _, became)| became.is_done()).collect();
    let grave = matches!(asked.action, Action::Resolve(Resolution::Resend { .. }));
    let body = html! {
        h1 { "Preview" }
        p { (possible.len()) " of " (outcomes.len()) ": " strong { (asked.action.words()) } }
        @if grave && !possible.is_empty() { p.problem { "The recipient may get it twice. This is on record as your decision." } }
        (table(&outcomes, "would become"))
        form.actions data-still method="post" action="/decide" {
            (csrf(&asked.session))
            @for (id, stands, _) in &possible { @if let Some(Stands { state, fence }) = stands {
                input type="hidden" name="id" value={ (id) ":" (state) ":" (fence) };
            } }
            @for name in ["action", "reason"] { input type="hidden" name=(name) value=(asked.fields.get(name)); }
            input type="hidden" name="back" value=(back(&asked.fields));
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
    let outcomes = each(&console, &asked, true).await;
    let done = outcomes.iter().filter(|(_, _, became)| became.is_done()).count();
    let unanswered = outcomes.iter().filter(|(_, _, became)| matches!(became, Became::Unanswered)).count();
    let faster = outcomes.len() - done - unanswered;
    let body = html! {
        h1 data-still { "Decided" }
        p.done role="status" { (done) " of " (outcomes.len()) " decided and on record: " (asked.action.words()) }
        @if faster > 0 { p.problem role="alert" { (faster) " could not be decided so any more: somebody or something was faster. Nothing of them was changed." } }
        @if unanswered > 0 { p.problem role="alert" { "Of " (unanswered) " nothing is known: the database did not answer, or somebody else had them locked. Look at each before you decide again." } }
        (table(&outcomes, "is now"))
        p { a href=(back(&asked.fields)) { "Back" } }
    };
    Ok(page(&asked.session, "", "Decided", &body))
}

fn back(fields: &Fields) -> &str {
    match ours(fields.get("back")) {
        "/" => "/uncertain",
        back => back,
    }
}

impl Became {
    const fn is_done(&self) -> bool {
        matches!(self, Self::Decided(Decided::Done { .. }))
    }
}

fn table(outcomes: &[(NotificationId, Option<Stands>, Became)], becomes: &str) -> Markup {
    html! {
        div.wide { table {
            thead { tr { th { "notification" } th { "was" } th { (becomes) } th { "why not" } } }
            tbody { @for (id, _, became) in outcomes { tr {
                td.id { a.row href={ "/notifications/" (id) } { (id) } }
                @match became {
                    Became::Decided(Decided::Done { before, after }) => { td { (state(before.as_str(), None)) } td { (state(after.as_str(), None)) } td {} }
                    Became::Decided(Decided::Refused { state: now, why }) => { td { (state(now.as_str(), None)) } td { "unchanged" } td { (why) } }
                    Became::Decided(Decided::Unknown) => { td {} td {} td { "there is no such notification" } }
                    Became::Changed(now) => { td { (state(now.as_str(), None)) } td { "unchanged" } td { "it is not as it was in the preview: look at it again" } }
                    Became::Unanswered => { td {} td { "not known" } td { "no answer, or locked: look at it again" } }
                }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_with_how_it_stood() {
        let id = "01a230e5-9f38-7878-abaa-63e052288578";
        assert_eq!(read_id(id).unwrap().1, None);
        let stands = Stands { state: Standing::Failed, fence: 7 };
        assert_eq!(read_id(&format!("{id}:failed:7")).unwrap().1, Some(stands));
        for text in [
            "",
            "7",
            &format!("{id}:failed"),
            &format!("{id}:lost:7"),
            &format!("{id}:failed:x"),
            &format!("{id}:failed:7:"),
        ] {
            assert!(read_id(text).is_none(), "{text}");
        }
    }
}
