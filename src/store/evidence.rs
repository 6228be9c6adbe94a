//! Evidence: recorded once, then weighed with all that is known. The rare path, so one notification a transaction.

use serde_json::{Value, json};
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;

use crate::domain::evidence::{Kind, Proof, weigh};
use crate::domain::ids::NotificationId;
use crate::domain::outcome::Outcome;
use crate::domain::state::State;

use super::settle::Settlement;
use super::weighing::{Weighed, apply, known};
use super::{Line, StoreError};

/// How far the clock of a source may be behind the database's, in seconds, when an attempt is looked for by its time.
const CLOCK_SLACK_SECONDS: f64 = 300.0;

/// What became of a result that came after its lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// It had been settled by this very claim already: an earlier try took effect without its answer arriving.
    AlreadySettled,
    /// It is on record as evidence, and the notification is now in this state.
    Recorded(State),
    /// The notification is no more.
    Gone,
}

/// One piece of evidence, as it comes from its source.
#[derive(Debug, Clone)]
pub struct NewEvidence {
    /// The notification that it is about.
    pub id: NotificationId,
    /// Whose notification it must be; `None` for anybody's.
    pub account_id: Option<String>,
    /// The attempt that it is about; `None` to look for it by provider and time.
    pub attempt: Option<i32>,
    /// The provider, where the source knows it.
    pub provider: Option<String>,
    /// What kind of source.
    pub kind: Kind,
    /// What it proves.
    pub proof: Proof,
    /// Whether trying again cannot change that.
    pub for_good: bool,
    /// The source, such as `postfix mail1`.
    pub source: String,
    /// What tells this piece from all others of the source, and is the same when it comes again.
    pub reference: String,
    /// What else a person may want to know; never a message's content.
    pub detail: Value,
    /// When it happened, by the source's clock.
    pub happened_at: Option<OffsetDateTime>,
    /// Who recorded it.
    pub recorded_by: String,
}

/// What became of a piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// There is no such notification: another system's mail, or retention has removed it.
    UnknownNotification,
    /// No attempt was ever begun that it could be about.
    NoAttempt,
    /// The same evidence was there: nothing changed.
    AlreadyKnown(State),
    /// It is on record.
    New {
        /// The state before.
        before: State,
        /// The state now.
        after: State,
        /// Evidence and record disagree.
        contradiction: bool,
    },
}

impl Line {
    /// Records one piece of evidence and applies what all that is known then proves. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached; then nothing is written.
    pub async fn record_evidence(&mut self, evidence: &NewEvidence) -> Result<Recorded, StoreError> {
        let mut conn = self.take().await?;
        let recorded = self.bound(record(&mut conn, evidence)).await??;
        self.put(conn).await?;
        Ok(recorded)
    }

    /// Records a late result as evidence and applies what it proves. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn late_result(&mut self, settlement: &Settlement, worker: &str) -> Result<Late, StoreError> {
        let mut conn = self.take().await?;
        let late = self.bound(record_late(&mut conn, settlement, worker)).await??;
        self.put(conn).await?;
        Ok(late)
    }
}

async fn record(conn: &mut PgConnection, evidence: &NewEvidence) -> Weighed<Recorded> {
    let mut tx = conn.begin().await?;
    let recorded = match record_in(&mut tx, evidence).await? {
        Ok(recorded) => recorded,
        Err(unknown) => return Ok(Err(unknown)),
    };
    tx.commit().await?;
    Ok(Ok(recorded))
}

async fn record_late(conn: &mut PgConnection, settlement: &Settlement, worker: &str) -> Weighed<Late> {
    let mut tx = conn.begin().await?;
    if !lock(&mut tx, settlement.id).await? {
        return Ok(Ok(Late::Gone));
    }
    let ended_by = sqlx::query_scalar!(
        "select ended_by from outboxd.attempt where notification_id = $1 and number = $2",
        settlement.id.0,
        settlement.number,
    )
    .fetch_optional(&mut *tx)
    .await?;
    match ended_by {
        None => return Ok(Ok(Late::Gone)),
        Some(Some(by)) if by == "worker" => return Ok(Ok(Late::AlreadySettled)),
        Some(_) => {}
    }
    let verdict = &settlement.verdict;
    let evidence = NewEvidence {
        id: settlement.id,
        account_id: None,
        attempt: Some(settlement.number),
        provider: None,
        kind: Kind::LateResult,
        proof: match verdict.outcome {
            Outcome::Sent => Proof::Accepted,
            Outcome::NotSent | Outcome::Deferred | Outcome::Refused => Proof::NotAccepted,
            Outcome::Uncertain => Proof::Inconclusive,
        },
        for_good: verdict.outcome == Outcome::Refused,
        source: "worker".to_owned(),
        reference: format!("fence {}", settlement.fence),
        detail: json!({
            "outcome": verdict.outcome, "phase": verdict.phase, "reply": verdict.reply, "error": verdict.error,
        }),
        happened_at: None,
        recorded_by: worker.to_owned(),
    };
    let late = match record_in(&mut tx, &evidence).await? {
        Ok(Recorded::AlreadyKnown(state) | Recorded::New { after: state, .. }) => Late::Recorded(state),
        Ok(Recorded::UnknownNotification | Recorded::NoAttempt) => return Ok(Ok(Late::Gone)),
        Err(unknown) => return Ok(Err(unknown)),
    };
    tx.commit().await?;
    Ok(Ok(late))
}

/// Records a person's statement in the caller's transaction: that it was not accepted is said of every attempt in doubt,
/// that it was, of the last one.
pub(super) async fn statement(
    tx: &mut PgConnection,
    id: NotificationId,
    proof: Proof,
    for_good: bool,
    who: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let mut doubtful = sqlx::query_scalar!(
        "select a.number from outboxd.attempt a
         where a.notification_id = $1 and a.outcome = 'uncertain' and not exists (
            select 1 from outboxd.evidence e
            where e.notification_id = a.notification_id and e.attempt_number = a.number and e.proves <> 'inconclusive')
         order by a.number desc",
        id.0,
    )
    .fetch_all(&mut *tx)
    .await?;
    if proof == Proof::Accepted {
        doubtful.truncate(1);
    }
    for number in doubtful {
        let evidence = NewEvidence {
            id,
            account_id: None,
            attempt: Some(number),
            provider: None,
            kind: Kind::Statement,
            proof,
            for_good,
            source: "operator".to_owned(),
            reference: String::new(),
            detail: json!({ "reason": reason }),
            happened_at: None,
            recorded_by: who.to_owned(),
        };
        record_in(tx, &evidence).await??;
    }
    Ok(())
}

/// The lock orders this behind any other change to the notification; what is read after it is what holds.
pub(super) async fn lock(tx: &mut PgConnection, id: NotificationId) -> Result<bool, sqlx::Error> {
    let found = sqlx::query!("select 1 as one from outboxd.delivery where notification_id = $1 for update", id.0)
        .fetch_optional(tx)
        .await?;
    Ok(found.is_some())
}

/// Whether the notification is of the account that the evidence must be about.
async fn is_of(tx: &mut PgConnection, evidence: &NewEvidence) -> Result<bool, sqlx::Error> {
    let Some(account_id) = &evidence.account_id else { return Ok(true) };
    sqlx::query_scalar!(
        r#"select account_id = $2 as "own!" from outboxd.delivery where notification_id = $1"#,
        evidence.id.0,
        account_id,
    )
    .fetch_one(tx)
    .await
}

/// Records and applies in the caller's transaction.
async fn record_in(tx: &mut PgConnection, evidence: &NewEvidence) -> Weighed<Recorded> {
    if !lock(tx, evidence.id).await? || !is_of(tx, evidence).await? {
        return Ok(Ok(Recorded::UnknownNotification));
    }
    if evidence.attempt.is_none() {
        // The same piece again, however many attempts there have been since.
        if let Some(state) = known_already(tx, evidence).await? {
            return Ok(state
                .parse()
                .map(Recorded::AlreadyKnown)
                .map_err(|_| StoreError::Unknown { what: format!("state `{state}`") }));
        }
        // That something was not accepted lets it be sent again: which attempt is meant is never guessed.
        if evidence.proof == Proof::NotAccepted {
            return Ok(Ok(Recorded::NoAttempt));
        }
    }
    let Some(number) = attempt_of(tx, evidence).await? else { return Ok(Ok(Recorded::NoAttempt)) };
    let added = sqlx::query!(
        r#"
        insert into outboxd.evidence (notification_id, attempt_number, kind, proves, for_good, source, reference, detail,
            happened_at, recorded_by)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        on conflict on constraint evidence_once do nothing
        "#,
        evidence.id.0,
        number,
        evidence.kind.as_str(),
        evidence.proof.as_str(),
        evidence.for_good,
        evidence.source,
        evidence.reference,
        evidence.detail,
        evidence.happened_at,
        evidence.recorded_by,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    let known = match known(tx, evidence.id).await? {
        Ok(known) => known,
        Err(unknown) => return Ok(Err(unknown)),
    };
    if added == 0 {
        return Ok(Ok(Recorded::AlreadyKnown(known.state)));
    }
    let consequence = weigh(&known);
    let after = consequence.next.unwrap_or(known.state);
    apply(tx, evidence.id, known.state, after, consequence).await?;
    Ok(Ok(Recorded::New { before: known.state, after, contradiction: consequence.contradiction }))
}

/// The notification's state, where this very piece is on record about whichever attempt.
async fn known_already(tx: &mut PgConnection, evidence: &NewEvidence) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select d.state from outboxd.delivery d
        where d.notification_id = $1 and exists (
            select from outboxd.evidence e
            where e.notification_id = $1 and e.kind = $2 and e.source = $3 and e.reference = $4 and e.proves = $5)
        "#,
        evidence.id.0,
        evidence.kind.as_str(),
        evidence.source,
        evidence.reference,
        evidence.proof.as_str(),
    )
    .fetch_optional(tx)
    .await
}

/// The attempt that a piece of evidence is about: the one that it names; else, of those with its provider that have begun, the
/// last one that had begun when it happened, or the last of all.
async fn attempt_of(tx: &mut PgConnection, evidence: &NewEvidence) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        select a.number from outboxd.attempt a
        where a.notification_id = $1
          and case when $2::integer is not null then a.number = $2
                       -- What still runs may yet be accepted, and what never began cannot have been.
                       and case when $6 then a.ended_at is not null else a.begun_at is not null end
                   else a.begun_at is not null and ($3::text is null or a.provider = $3) end
        order by coalesce(a.begun_at <= $4::timestamptz + make_interval(secs => $5), false) desc, a.number desc
        limit 1
        "#,
        evidence.id.0,
        evidence.attempt,
        evidence.provider,
        evidence.happened_at,
        CLOCK_SLACK_SECONDS,
        evidence.proof == Proof::NotAccepted,
    )
    .fetch_optional(tx)
    .await
}
