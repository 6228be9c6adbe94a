//! Weighing: all that is on record about a notification, what follows from it, and the move.
//!
//! The caller has locked the notification; what it decides is `domain::evidence`'s.

use std::collections::BTreeMap;

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::domain::evidence::{Attempt, Consequence, Known, Proof, Proofs, weigh};
use crate::domain::ids::NotificationId;
use crate::domain::outcome::Outcome;
use crate::domain::state::State;

use super::evidence::lock;
use super::{Line, StoreError};

/// Rows that one round weighs again: evidence for what is being transmitted is rare.
const WEIGHED_AGAIN_MAX: i64 = 100;

/// A value that the database should not hold is the inner error.
pub(super) type Weighed<T> = Result<Result<T, StoreError>, sqlx::Error>;

impl Line {
    /// Weighs again what evidence came for while it was transmitted, once that is over. Returns how many were weighed.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn weigh_again(&mut self) -> Result<u64, StoreError> {
        let mut conn = self.take().await?;
        let waiting = self
            .bound(
                sqlx::query_scalar!(
                    "select notification_id from outboxd.delivery where weigh_again and state <> 'transmitting'
                     order by notification_id limit $1",
                    WEIGHED_AGAIN_MAX,
                )
                .fetch_all(&mut conn),
            )
            .await?;
        for id in &waiting {
            self.bound(weigh_one(&mut conn, NotificationId(*id))).await??;
        }
        self.put(conn).await?;
        Ok(waiting.len() as u64)
    }
}

async fn weigh_one(conn: &mut PgConnection, id: NotificationId) -> Weighed<()> {
    let mut tx = conn.begin().await?;
    if lock(&mut tx, id).await? {
        let known = match known(&mut tx, id).await? {
            Ok(known) => known,
            Err(unknown) => return Ok(Err(unknown)),
        };
        let consequence = weigh(&known);
        apply(&mut tx, id, known.state, consequence.next.unwrap_or(known.state), consequence).await?;
    }
    tx.commit().await?;
    Ok(Ok(()))
}

/// All that is on record about a notification that the caller has locked.
pub(super) async fn known(tx: &mut PgConnection, id: NotificationId) -> Weighed<Known> {
    let row = sqlx::query!(
        "select state, renewed_at, sent_again_after from outboxd.delivery where notification_id = $1",
        id.0
    )
    .fetch_one(&mut *tx)
    .await?;
    let unknown = |what: String| Ok(Err(StoreError::Unknown { what }));
    let sent_again_after = row.sent_again_after;
    let Ok(state) = row.state.parse::<State>() else { return unknown(format!("state `{}`", row.state)) };
    let mut proofs: BTreeMap<i32, Proofs> = BTreeMap::new();
    let evidence =
        sqlx::query!("select attempt_number, proves, for_good from outboxd.evidence where notification_id = $1", id.0)
            .fetch_all(&mut *tx)
            .await?;
    for piece in evidence {
        let Some(proof) = Proof::ALL.into_iter().find(|proof| proof.as_str() == piece.proves) else {
            return unknown(format!("proof `{}`", piece.proves));
        };
        proofs.entry(piece.attempt_number).or_default().add(proof, piece.for_good);
    }
    let rows = sqlx::query!(
        r#"
        select number, outcome, extract(epoch from begun_at)::float8 as begun_at, dedup_scope,
            -- least() passes over a null: a provider that nothing is resent to by itself has no room for it.
            case when dedup_window is not null then extract(epoch from least(dedup_window, resend_room))::float8 end as dedup_seconds,
            coalesce(claimed_at < $2, false) as "superseded!"
        from outboxd.attempt where notification_id = $1 order by number
        "#,
        id.0,
        row.renewed_at,
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut attempts = Vec::with_capacity(rows.len());
    for row in rows {
        let outcome = match row.outcome.as_deref() {
            None => None,
            Some(name) => match Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == name) {
                Some(outcome) => Some(outcome),
                None => return unknown(format!("outcome `{name}`")),
            },
        };
        attempts.push(Attempt {
            outcome,
            begun_at: row.begun_at,
            dedup_scope: row.dedup_scope,
            dedup_seconds: row.dedup_seconds,
            superseded: row.superseded,
            sent_again: sent_again_after.is_some_and(|last| row.number <= last),
            proofs: proofs.get(&row.number).copied().unwrap_or_default(),
        });
    }
    Ok(Ok(Known { state, attempts }))
}

/// Moves the notification, and ends a claim that has become needless.
pub(super) async fn apply(
    tx: &mut PgConnection,
    id: NotificationId,
    before: State,
    after: State,
    consequence: Consequence,
) -> Result<(), sqlx::Error> {
    let settled = matches!(after, State::Sent | State::Bounced | State::Failed) || !consequence.doubt_left;
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
            resend_decided = d.resend_decided and not $3 and $2 in ('pending', 'claimed', 'transmitting'),
            duplicate_possible = d.duplicate_possible or $4,
            contradiction = d.contradiction or $5,
            weigh_again = $2 = 'transmitting',
            replay_id = case when $2 in ('pending', 'claimed', 'transmitting') then d.replay_id end
        where d.notification_id = $1
        "#,
        id.0,
        after.as_str(),
        settled,
        consequence.duplicate_possible,
        consequence.contradiction,
    )
    .execute(&mut *tx)
    .await?;
    if before == State::Claimed && after != State::Claimed {
        sqlx::query!(
            r#"
            update outboxd.attempt a
            set ended_at = now(), ended_by = 'evidence', outcome = 'not_sent', phase = 'claim',
                error = 'evidence about an earlier attempt made it needless'
            from outboxd.delivery d
            where d.notification_id = $1 and a.notification_id = $1 and a.number = d.attempts and a.ended_at is null
            "#,
            id.0,
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}
