//! Evidence: recorded once, then weighed. The rare path, so one notification a transaction.

use serde_json::json;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::domain::evidence::{Consequence, Known, Proof, judge};
use crate::domain::ids::NotificationId;
use crate::domain::outcome::Outcome;
use crate::domain::state::State;

use super::settle::Settlement;
use super::{Line, StoreError};

/// What became of a result that came after its lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// It had been settled by this very claim already: an earlier try took effect without its answer arriving.
    AlreadySettled,
    /// It is on record as evidence, and the notification is now in this state.
    Recorded(State),
}

/// One piece of evidence about one attempt.
#[derive(Debug, Clone)]
struct Evidence<'a> {
    id: NotificationId,
    number: i32,
    kind: &'a str,
    proof: Proof,
    source: &'a str,
    reference: String,
    detail: serde_json::Value,
    refused: bool,
    recorded_by: &'a str,
}

impl Line {
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

/// Records a person's statement about every attempt in doubt of a notification that the caller has locked, and applies it.
pub(super) async fn statement(
    tx: &mut PgConnection,
    id: NotificationId,
    proof: Proof,
    refused: bool,
    who: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let doubtful = sqlx::query_scalar!(
        "select a.number from outboxd.attempt a
         where a.notification_id = $1 and a.outcome = 'uncertain' and not exists (
            select 1 from outboxd.evidence e
            where e.notification_id = a.notification_id and e.attempt_number = a.number and e.proves = 'not_accepted')
         order by a.number",
        id.0,
    )
    .fetch_all(&mut *tx)
    .await?;
    for number in doubtful {
        let evidence = Evidence {
            id,
            number,
            kind: "statement",
            proof,
            source: "operator",
            reference: String::new(),
            detail: json!({ "reason": reason }),
            refused,
            recorded_by: who,
        };
        apply(tx, &evidence).await??;
    }
    Ok(())
}

type Weighed<T> = Result<Result<T, StoreError>, sqlx::Error>;

async fn record_late(conn: &mut PgConnection, settlement: &Settlement, worker: &str) -> Weighed<Late> {
    let mut tx = conn.begin().await?;
    // The lock orders this behind any other change to the notification; the look at the attempt comes after it.
    sqlx::query!("select 1 as one from outboxd.delivery where notification_id = $1 for update", settlement.id.0)
        .fetch_one(&mut *tx)
        .await?;
    let attempt = sqlx::query!(
        r#"select ended_by, fence from outboxd.attempt where notification_id = $1 and number = $2"#,
        settlement.id.0,
        settlement.number,
    )
    .fetch_one(&mut *tx)
    .await?;
    if attempt.ended_by.as_deref() == Some("worker") {
        return Ok(Ok(Late::AlreadySettled));
    }
    let verdict = &settlement.verdict;
    let proof = match verdict.outcome {
        Outcome::Sent => Proof::Accepted,
        Outcome::NotSent | Outcome::Deferred | Outcome::Refused => Proof::NotAccepted,
        Outcome::Uncertain => Proof::Inconclusive,
    };
    let evidence = Evidence {
        id: settlement.id,
        number: settlement.number,
        kind: "late_result",
        proof,
        source: "worker",
        reference: format!("fence {}", settlement.fence),
        detail: json!({
            "outcome": verdict.outcome, "phase": verdict.phase, "reply": verdict.reply, "error": verdict.error,
        }),
        refused: verdict.outcome == Outcome::Refused,
        recorded_by: worker,
    };
    let state = match apply(&mut tx, &evidence).await? {
        Ok(state) => state,
        Err(unknown) => return Ok(Err(unknown)),
    };
    tx.commit().await?;
    Ok(Ok(Late::Recorded(state)))
}

/// Adds one piece of evidence to a notification that the caller has locked, and moves it where that leads.
async fn apply(tx: &mut PgConnection, evidence: &Evidence<'_>) -> Weighed<State> {
    let added = sqlx::query!(
        r#"
        insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, reference, detail, recorded_by)
        values ($1, $2, $3, $4, $5, $6, $7, $8)
        on conflict on constraint evidence_once do nothing
        "#,
        evidence.id.0,
        evidence.number,
        evidence.kind,
        evidence.proof.as_str(),
        evidence.source,
        evidence.reference,
        evidence.detail,
        evidence.recorded_by,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    // The first attempt that is still in doubt: uncertain, and nothing proves that it was not accepted.
    let known = sqlx::query!(
        r#"
        select d.state, d.attempts, this.outcome as this_outcome, doubt.begun_at as "doubt_since?",
            not exists (
                select 1 from outboxd.attempt other
                where other.notification_id = d.notification_id and other.number <> this.number
                  and other.begun_at is not null and coalesce(other.outcome in ('uncertain', 'sent'), true)
                  and not exists (
                      select 1 from outboxd.evidence e
                      where e.notification_id = other.notification_id and e.attempt_number = other.number
                        and e.proves = 'not_accepted')
                  and not (other.dedup_scope = this.dedup_scope and this.begun_at is not null
                           and other.dedup_window is not null and this.dedup_window is not null
                           -- least() passes over a null: a resend that a person decided has no room of its own.
                           and greatest(other.begun_at, this.begun_at) - least(other.begun_at, this.begun_at)
                               <= least(other.dedup_window, this.dedup_window, other.resend_room, this.resend_room))
            ) as "one_acceptance!"
        from outboxd.delivery d
        join outboxd.attempt this on this.notification_id = d.notification_id and this.number = $2
        left join lateral (
            select a.begun_at from outboxd.attempt a
            where a.notification_id = d.notification_id and a.outcome = 'uncertain'
              and not exists (
                  select 1 from outboxd.evidence e
                  where e.notification_id = a.notification_id and e.attempt_number = a.number and e.proves = 'not_accepted')
            order by a.begun_at limit 1
        ) doubt on true
        where d.notification_id = $1
        "#,
        evidence.id.0,
        evidence.number,
    )
    .fetch_one(&mut *tx)
    .await?;
    let Ok(state) = known.state.parse::<State>() else {
        return Ok(Err(StoreError::Unknown { what: format!("state `{}`", known.state) }));
    };
    if added == 0 {
        return Ok(Ok(state));
    }
    let Consequence { next, duplicate_possible, contradiction } = judge(
        evidence.proof,
        Known {
            state,
            this_was_sent: known.this_outcome.as_deref() == Some(Outcome::Sent.as_str()),
            this_is_running: state.leased() && known.attempts == evidence.number,
            one_acceptance: known.one_acceptance,
            doubt_left: known.doubt_since.is_some(),
            refused: evidence.refused,
        },
    );
    let now = next.unwrap_or(state);
    let settled = matches!(now, State::Sent | State::Bounced | State::Failed) || known.doubt_since.is_none();
    sqlx::query!(
        r#"
        update outboxd.delivery d
        set state = $2,
            changed_at = case when $2 <> d.state then now() else d.changed_at end,
            reason = case when $2 = 'failed' then coalesce(d.reason, 'refused') end,
            due_at = case when $2 <> 'pending' then null when d.state = 'pending' then d.due_at else now() end,
            ready = case when d.state = 'pending' and $2 = 'pending' then d.ready else $2 = 'pending' end,
            worker = case when $2 in ('claimed', 'transmitting') then d.worker end,
            lease_until = case when $2 in ('claimed', 'transmitting') then d.lease_until end,
            doubt_since = case when not $3 then d.doubt_since end,
            doubt_until = case when not $3 then d.doubt_until end,
            doubt_scope = case when not $3 then d.doubt_scope end,
            resend_until = case when not $3 then d.resend_until end,
            resend_at = case when $2 = 'uncertain' then d.resend_at end,
            closes_at = case when $2 = 'uncertain' then d.closes_at end,
            duplicate_possible = d.duplicate_possible or $4,
            contradiction = d.contradiction or $5
        where d.notification_id = $1
        "#,
        evidence.id.0,
        now.as_str(),
        settled,
        duplicate_possible,
        contradiction,
    )
    .execute(&mut *tx)
    .await?;
    if state == State::Claimed && now != State::Claimed {
        sqlx::query!(
            r#"
            update outboxd.attempt a
            set ended_at = now(), ended_by = 'evidence', outcome = 'not_sent', phase = 'claim',
                error = 'evidence about an earlier attempt made it needless'
            from outboxd.delivery d
            where d.notification_id = $1 and a.notification_id = $1 and a.number = d.attempts and a.ended_at is null
            "#,
            evidence.id.0,
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(Ok(now))
}
