//! Finding notifications, for people: by state, account, provider, time and what was said; a page at a time.
//!
//! Reads only. Each page is a keyset: the next one begins after the last id of this one, however many rows come between.

use serde::Serialize;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::ids::NotificationId;
use crate::domain::outcome::{Outcome, Phase};
use crate::domain::state::State;

use super::{Line, StoreError};

/// What to look for; what is `None` does not matter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Filter {
    /// The state.
    pub state: Option<State>,
    /// The account.
    pub account: Option<String>,
    /// The provider of the last attempt.
    pub provider: Option<String>,
    /// The route.
    pub route: Option<String>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The recipient's address, exactly.
    pub recipient: Option<String>,
    /// The outcome of the last attempt.
    pub outcome: Option<Outcome>,
    /// Where the last attempt ended.
    pub phase: Option<Phase>,
    /// The code of the last attempt's reply.
    pub reply_code: Option<i16>,
    /// A part of the last attempt's reply or error, in any case of letters.
    pub text: Option<String>,
    /// In this state since this time or later.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// In this state since before this time.
    #[serde(with = "time::serde::rfc3339::option")]
    pub until: Option<OffsetDateTime>,
    /// Only ids below this one: the last of the page before.
    pub below: Option<Uuid>,
}

/// A notification in a list.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the columns of outboxd.delivery and of the last attempt, explained there")]
pub struct Listed {
    pub id: Uuid,
    pub account_id: String,
    pub route: String,
    pub recipient: String,
    pub state: String,
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339::option")]
    pub doubt_since: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub doubt_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub resend_at: Option<OffsetDateTime>,
    pub duplicate_possible: bool,
    pub contradiction: bool,
    pub provider: Option<String>,
    pub phase: Option<String>,
    pub outcome: Option<String>,
    pub reply_code: Option<i16>,
    pub reply_text: Option<String>,
    pub error: Option<String>,
    /// Seconds of the recovery window that are left, by the database's clock; below nought once it is over.
    pub seconds_left: Option<f64>,
}

/// A statement over what a filter finds: what it does with it, the access path that suits, and what comes after. `$1` to `$13`
/// are the filter's.
macro_rules! filtered {
    ($query:ident!, $($row:ident,)? $head:literal, $path:literal, $tail:literal, $filter:expr $(, $more:expr)*) => {
        sqlx::$query!(
            $($row,)?
            $head
                + r#"
            from outboxd.delivery d
            join outboxd.outbox o on o.id = d.notification_id
            left join outboxd.attempt a on a.notification_id = d.notification_id and a.number = d.attempts
            where "#
                + $path
                + r#"
              and ($1::text is null or d.state = $1) and ($2::text is null or d.account_id = $2)
              and ($3::text is null or a.provider = $3) and ($4::text is null or d.route = $4)
              and ($5::text is null or d.reason = $5) and ($6::text is null or o.recipient = $6)
              and ($7::smallint is null or a.reply_code = $7)
              and ($8::text is null or position(lower($8) in lower(concat(a.reply_text, ' ', a.error))) > 0)
              and ($9::timestamptz is null or d.changed_at >= $9) and ($10::timestamptz is null or d.changed_at < $10)
              and ($11::uuid is null or d.notification_id < $11)
              and ($12::text is null or a.outcome = $12) and ($13::text is null or a.phase = $13) "#
                + $tail,
            $filter.state.map(crate::domain::state::State::as_str),
            $filter.account,
            $filter.provider,
            $filter.route,
            $filter.reason,
            $filter.recipient,
            $filter.reply_code,
            $filter.text,
            $filter.since,
            $filter.until,
            $filter.below,
            $filter.outcome.map(crate::domain::outcome::Outcome::as_str),
            $filter.phase.map(crate::domain::outcome::Phase::as_str),
            $($more,)*
        )
    };
}
pub(super) use filtered;

/// The one reading, by the access path that suits the state.
macro_rules! listed {
    ($path:literal, $order:literal, $filter:expr, $limit:expr) => {
        filtered!(
            query_as!,
            Listed,
            r#"
            select d.notification_id as id, d.account_id, d.route, o.recipient, d.state, d.reason, d.changed_at, d.attempts,
                d.doubt_since, d.doubt_until, d.resend_at, d.duplicate_possible, d.contradiction, a.provider as "provider?",
                a.phase, a.outcome, a.reply_code, a.reply_text, a.error,
                extract(epoch from d.doubt_until - now())::float8 as seconds_left"#,
            $path,
            $order,
            $filter,
            $limit
        )
    };
}

/// A page of what the filter finds, the newest id first.
///
/// # Errors
/// When the database cannot be read.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: u32) -> Result<Vec<Listed>, sqlx::Error> {
    let limit = i64::from(limit);
    match filter.state {
        Some(State::Failed) => {
            listed!("d.reason is not null", "order by d.notification_id desc limit $14", filter, limit)
                .fetch_all(conn)
                .await
        }
        Some(State::Uncertain | State::Unresolved) => {
            listed!("d.doubt_since is not null", "order by d.notification_id desc limit $14", filter, limit)
                .fetch_all(conn)
                .await
        }
        Some(State::Claimed | State::Transmitting) => {
            listed!("d.lease_until is not null", "order by d.notification_id desc limit $14", filter, limit)
                .fetch_all(conn)
                .await
        }
        Some(State::Pending) => {
            listed!("d.due_at is not null", "order by d.notification_id desc limit $14", filter, limit)
                .fetch_all(conn)
                .await
        }
        Some(State::Sent | State::Bounced | State::Cancelled) | None => {
            listed!("true", "order by d.notification_id desc limit $14", filter, limit).fetch_all(conn).await
        }
    }
}

/// What is uncertain or unresolved, the least time left first.
///
/// # Errors
/// When the database cannot be read.
pub async fn uncertain(conn: &mut PgConnection, filter: &Filter, limit: u32) -> Result<Vec<Listed>, sqlx::Error> {
    let limit = i64::from(limit);
    listed!(
        "d.doubt_since is not null and d.state in ('uncertain', 'unresolved')",
        "order by d.doubt_until, d.notification_id limit $14",
        filter,
        limit
    )
    .fetch_all(conn)
    .await
}

impl Line {
    /// The attempts with this provider, begun in this time, that nobody knows the outcome of.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn doubtful_attempts(
        &mut self,
        provider: &str,
        from: OffsetDateTime,
        to: OffsetDateTime,
    ) -> Result<Vec<(NotificationId, i32)>, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            select a.notification_id, a.number
            from outboxd.delivery d
            join outboxd.attempt a on a.notification_id = d.notification_id
            where d.doubt_since is not null and d.state in ('uncertain', 'unresolved')
              and a.outcome = 'uncertain' and a.provider = $1 and a.begun_at between $2 and $3
              and not exists (
                  select 1 from outboxd.evidence e
                  where e.notification_id = a.notification_id and e.attempt_number = a.number and e.proves <> 'inconclusive')
            order by a.notification_id, a.number
            "#,
            provider,
            from,
            to,
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(rows.into_iter().map(|row| (NotificationId(row.notification_id), row.number)).collect())
    }
}
