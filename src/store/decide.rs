//! What a person decides about one notification, and what is paused: each with its decision on record, in one transaction.
//!
//! A decision never contradicts the state machine; where it may not be taken, nothing is written and the reason is told.

use serde_json::Value;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use crate::domain::evidence::Proof;
use crate::domain::ids::NotificationId;
use crate::domain::state::State;

use super::{StoreError, evidence};

/// Who decides, and why.
#[derive(Debug, Clone)]
pub struct Decider<'a> {
    /// The operator.
    pub who: &'a str,
    /// In their own words.
    pub reason: &'a str,
}

/// What became of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// There is no such notification.
    Unknown,
    /// It may not be decided so in this state; nothing was written.
    Refused {
        /// The state it is in.
        state: State,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// It is on record and in force.
    Done {
        /// The state before.
        before: State,
        /// The state now.
        after: State,
    },
}

/// How a person settles what is uncertain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// It was accepted.
    Sent,
    /// It was not accepted: it is tried again, or given up.
    NotSent {
        /// Not to be tried again.
        give_up: bool,
    },
    /// It may or may not have been accepted; it is sent once more (G3 (c)).
    Resend {
        /// Also where it is known to have been accepted: a spelled-out duplicate.
        duplicate: bool,
    },
}

/// What can be paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pausable {
    /// Everything.
    All,
    /// One provider.
    Provider(String),
    /// One account.
    Account(String),
}

impl Pausable {
    fn key(&self) -> (&'static str, &str) {
        match self {
            Self::All => ("all", ""),
            Self::Provider(name) => ("provider", name),
            Self::Account(name) => ("account", name),
        }
    }
}

/// The columns that a decision looks at, of a row that is now locked.
struct Row {
    state: State,
    in_doubt: bool,
    expired: bool,
    erased: bool,
    contradiction: bool,
    snapshot: Value,
}

/// Settles an uncertain notification with a person's statement, or sends it once more.
///
/// # Errors
/// When the database fails; then nothing is written.
pub async fn resolve(
    conn: &mut PgConnection,
    id: NotificationId,
    resolution: Resolution,
    decider: &Decider<'_>,
) -> Result<Decided, StoreError> {
    let mut tx = conn.begin().await?;
    let Some(row) = lock(&mut tx, id).await? else { return Ok(Decided::Unknown) };
    let refused = |why| Ok(Decided::Refused { state: row.state, why });
    let action = match (resolution, row.state) {
        (_, State::Claimed | State::Transmitting) => {
            return refused("a worker has it right now; look again when its lease is over");
        }
        (Resolution::Sent | Resolution::NotSent { .. }, _) if !row.in_doubt => {
            return refused("none of its attempts is in doubt, so there is nothing to settle");
        }
        (Resolution::Sent, _) => "resolve sent",
        (Resolution::NotSent { give_up: false }, _) => "resolve not sent",
        (Resolution::NotSent { give_up: true }, _) => "resolve not sent, give up",
        (Resolution::Resend { .. }, State::Pending | State::Cancelled) => {
            return refused("only what failed, is uncertain or unresolved can be sent once more");
        }
        (Resolution::Resend { .. }, _) if row.erased => return refused("its content was erased"),
        (Resolution::Resend { .. }, _) if row.expired => return refused("it has expired: it may not be sent any more"),
        (Resolution::Resend { duplicate: false }, State::Sent | State::Bounced) => {
            return refused("a provider took it: sending it again is a duplicate, which --duplicate must spell out");
        }
        (Resolution::Resend { .. }, _) => "resend",
    };
    match resolution {
        Resolution::Sent => {
            evidence::statement(&mut tx, id, Proof::Accepted, false, decider.who, decider.reason).await?;
        }
        Resolution::NotSent { give_up } => {
            evidence::statement(&mut tx, id, Proof::NotAccepted, give_up, decider.who, decider.reason).await?;
        }
        Resolution::Resend { .. } => {
            // It may wait, and begin outside every window: whoever decides it is told now.
            let known_to_be_out =
                matches!(row.state, State::Sent | State::Bounced) || (row.state == State::Failed && row.contradiction);
            let twice = known_to_be_out || row.in_doubt;
            sqlx::query!(
                r#"
                update outboxd.delivery
                set state = 'pending', changed_at = now(), reason = null, due_at = now(), ready = true, renewed_at = now(),
                    tries = 0, suspicions = 0, lost_claims = 0, resend_at = null, resend_until = null, closes_at = null,
                    resend_decided = doubt_since is not null, replay_id = null, duplicate_possible = duplicate_possible or $2,
                    sent_again_after = case when $3 then attempts else sent_again_after end,
                    proven_attempt = case when $3 then null else proven_attempt end
                where notification_id = $1
                "#,
                id.0,
                twice,
                known_to_be_out,
            )
            .execute(&mut *tx)
            .await?;
        }
    }
    finish(tx, id, row, action, decider).await
}

/// Withdraws a notification for ever.
///
/// # Errors
/// When the database fails; then nothing is written.
pub async fn cancel(conn: &mut PgConnection, id: NotificationId, decider: &Decider<'_>) -> Result<Decided, StoreError> {
    let mut tx = conn.begin().await?;
    let Some(row) = lock(&mut tx, id).await? else { return Ok(Decided::Unknown) };
    if !row.state.may_become(State::Cancelled) {
        let why = match row.state {
            State::Claimed | State::Transmitting => "a worker has it right now; look again when its lease is over",
            State::Sent | State::Bounced => "a provider took it already",
            State::Cancelled => "it is cancelled already",
            State::Pending | State::Uncertain | State::Unresolved | State::Failed => "it cannot be cancelled",
        };
        return Ok(Decided::Refused { state: row.state, why });
    }
    sqlx::query!(
        "update outboxd.delivery
         set state = 'cancelled', changed_at = now(), reason = null, due_at = null, ready = false, resend_at = null,
             closes_at = null, resend_decided = false, replay_id = null
         where notification_id = $1",
        id.0,
    )
    .execute(&mut *tx)
    .await?;
    finish(tx, id, row, "cancel", decider).await
}

/// Pauses claims; `false` if that was paused before, which then stays as it is.
///
/// # Errors
/// When the database fails; then nothing is written.
pub async fn pause(conn: &mut PgConnection, what: &Pausable, decider: &Decider<'_>) -> Result<bool, sqlx::Error> {
    let (kind, name) = what.key();
    let mut tx = conn.begin().await?;
    let paused = sqlx::query!(
        "insert into outboxd.pause (kind, name, paused_by, reason) values ($1, $2, $3, $4) on conflict do nothing",
        kind,
        name,
        decider.who,
        decider.reason,
    )
    .execute(&mut *tx)
    .await?
    .rows_affected()
        > 0;
    if paused {
        about(&mut tx, "pause", &format!("{kind} {name}"), decider).await?;
    }
    tx.commit().await?;
    Ok(paused)
}

/// Ends a pause; `false` if there was none.
///
/// # Errors
/// When the database fails; then nothing is written.
pub async fn resume(conn: &mut PgConnection, what: &Pausable, decider: &Decider<'_>) -> Result<bool, sqlx::Error> {
    let (kind, name) = what.key();
    let mut tx = conn.begin().await?;
    let resumed = sqlx::query!("delete from outboxd.pause where kind = $1 and name = $2", kind, name)
        .execute(&mut *tx)
        .await?
        .rows_affected()
        > 0;
    if resumed {
        about(&mut tx, "resume", &format!("{kind} {name}"), decider).await?;
        // What waited is ready: one look by every worker is enough.
        sqlx::query!("select pg_notify('outboxd', '')").execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(resumed)
}

/// How a notification stands: what a decision that was previewed is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stands {
    /// Its state.
    pub state: State,
    /// The fence of its last claim.
    pub fence: i64,
}

/// How it stands, and goes on to until the transaction ends; `None` if there is none.
///
/// # Errors
/// When the database fails, or somebody else has it locked for too long.
pub async fn stands(tx: &mut PgConnection, id: NotificationId) -> Result<Option<Stands>, StoreError> {
    let row = sqlx::query!("select state, fence from outboxd.delivery where notification_id = $1 for update", id.0)
        .fetch_optional(tx)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let state = row.state.parse().map_err(|_| StoreError::Unknown { what: format!("state `{}`", row.state) })?;
    Ok(Some(Stands { state, fence: row.fence }))
}

/// Locks the row, so that the decision is about what it says.
async fn lock(tx: &mut PgConnection, id: NotificationId) -> Result<Option<Row>, StoreError> {
    let row = sqlx::query!(
        r#"
        select d.state, d.doubt_since is not null as "in_doubt!",
            coalesce(d.expires_at <= now(), false) as "expired!", o.erased_at is not null as "erased!", d.contradiction,
            jsonb_build_object('state', d.state, 'reason', d.reason, 'doubt_since', d.doubt_since, 'attempts', d.attempts,
                'tries', d.tries, 'duplicate_possible', d.duplicate_possible) as "snapshot!"
        from outboxd.delivery d
        join outboxd.outbox o on o.id = d.notification_id
        where d.notification_id = $1
        for update of d
        "#,
        id.0,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let state = row.state.parse().map_err(|_| StoreError::Unknown { what: format!("state `{}`", row.state) })?;
    Ok(Some(Row {
        state,
        in_doubt: row.in_doubt,
        expired: row.expired,
        erased: row.erased,
        contradiction: row.contradiction,
        snapshot: row.snapshot,
    }))
}

/// Puts the decision on record beside what it did.
async fn finish(
    mut tx: sqlx::Transaction<'_, sqlx::Postgres>,
    id: NotificationId,
    before: Row,
    action: &str,
    decider: &Decider<'_>,
) -> Result<Decided, StoreError> {
    let Some(after) = lock(&mut tx, id).await? else { return Ok(Decided::Unknown) };
    sqlx::query!(
        "insert into outboxd.decision (decided_by, action, reason, notification_id, before, after)
         values ($1, $2, $3, $4, $5, $6)",
        decider.who,
        action,
        decider.reason,
        id.0,
        before.snapshot,
        after.snapshot,
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Decided::Done { before: before.state, after: after.state })
}

/// Puts on record what somebody did to something that is no notification.
///
/// # Errors
/// When the database fails.
pub async fn about(
    tx: &mut PgConnection,
    action: &str,
    subject: &str,
    decider: &Decider<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into outboxd.decision (decided_by, action, reason, subject) values ($1, $2, $3, $4)",
        decider.who,
        action,
        decider.reason,
        subject.trim_end(),
    )
    .execute(tx)
    .await?;
    Ok(())
}
