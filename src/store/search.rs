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
    /// Whether evidence and record disagree.
    pub contradiction: Option<bool>,
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

/// A statement over what a filter finds: what it does with it, the rows of `delivery d` that it looks at, and what comes after.
/// `$1` to `$13` are the filter's.
macro_rules! filtered {
    ($query:ident!, $($row:ident,)? $head:literal, $looked_at:literal, $tail:literal, $filter:expr $(, $more:expr)*) => {
        sqlx::$query!(
            $($row,)?
            $head
                + r#"
            from "#
                + $looked_at
                + r#"
            join outboxd.outbox o on o.id = d.notification_id
            left join outboxd.attempt a on a.notification_id = d.notification_id and a.number = d.attempts
            where ($1::text is null or d.state = $1) and ($2::text is null or d.account_id = $2)
              and ($3::text is null or a.provider = $3) and ($4::text is null or d.route = $4)
              and ($5::text is null or d.reason = $5) and ($6::text is null or o.recipient = $6)
              and ($7::smallint is null or a.reply_code = $7)
              and ($8::text is null or position(lower($8) in lower(concat(a.reply_text, ' ', a.error))) > 0)
              and ($9::timestamptz is null or d.changed_at >= $9) and ($10::timestamptz is null or d.changed_at < $10)
              and ($11::text is null or a.outcome = $11) and ($12::text is null or a.phase = $12)
              and ($13::boolean is null or d.contradiction = $13) "#
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
            $filter.outcome.map(crate::domain::outcome::Outcome::as_str),
            $filter.phase.map(crate::domain::outcome::Phase::as_str),
            $filter.contradiction,
            $($more,)*
        )
    };
}
pub(super) use filtered;

/// The one reading of rows for people.
macro_rules! listed {
    ($looked_at:literal, $order:literal, $filter:expr $(, $more:expr)*) => {
        filtered!(
            query_as!,
            Listed,
            r#"
            select d.notification_id as id, d.account_id, d.route, o.recipient, d.state, d.reason, d.changed_at, d.attempts,
                d.doubt_since, d.doubt_until, d.resend_at, d.duplicate_possible, d.contradiction, a.provider as "provider?",
                a.phase, a.outcome, a.reply_code, a.reply_text, a.error,
                extract(epoch from d.doubt_until - now())::float8 as seconds_left"#,
            $looked_at,
            $order,
            $filter
            $(, $more)*
        )
    };
}

/// How many rows are looked at in the first statement; each further one looks at four times as many, up to [`LOOK_MAX_ROWS`].
const LOOK_ROWS: i64 = 250;

/// How many rows one statement looks at.
const LOOK_MAX_ROWS: i64 = 5_000;

/// A page, and how far it looked where it did not look at everything.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The rows, the newest id first.
    pub rows: Vec<Listed>,
    /// The last id that it looked at, where the page is not full and there may be more below it.
    pub looked_to: Option<Uuid>,
}

/// A page of what the filter finds, the newest id first. Where what is asked for has no index of its own, rows are looked through:
/// at most about `look` of them, so that a page takes a bounded time in a table of any size.
///
/// # Errors
/// When the database cannot be read.
pub async fn list(conn: &mut PgConnection, filter: &Filter, limit: usize, look: usize) -> Result<Found, sqlx::Error> {
    let mut found = Found::default();
    let mut below = filter.below.unwrap_or(Uuid::max());
    let (mut step, mut looked) = (LOOK_ROWS, 0);
    loop {
        let ids = candidates(conn, filter, below, step).await?;
        let more = listed!(
            "unnest($14::uuid[]) looked (id) join outboxd.delivery d on d.notification_id = looked.id",
            "order by d.notification_id desc",
            filter,
            &ids
        );
        found.rows.extend(more.fetch_all(&mut *conn).await?);
        let Some(last) = ids.last().copied() else { return Ok(found) };
        if found.rows.len() >= limit {
            found.rows.truncate(limit);
            return Ok(found);
        }
        looked += ids.len();
        if ids.len() < usize::try_from(step).unwrap_or_default() {
            return Ok(found);
        }
        if looked >= look {
            found.looked_to = Some(last);
            return Ok(found);
        }
        below = last;
        step = next_step(step, look - looked);
    }
}

fn next_step(step: i64, left: usize) -> i64 {
    (step * 4).min(LOOK_MAX_ROWS).min(i64::try_from(left).unwrap_or(i64::MAX))
}

/// The next ids to look at, by the index that suits the filter, the newest first.
async fn candidates(
    conn: &mut PgConnection,
    filter: &Filter,
    below: Uuid,
    most: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    macro_rules! by {
        ($id:literal, $from:literal $(, $key:expr)?) => {
            sqlx::query_scalar!(
                "select " + $id + " from outboxd." + $from + " and " + $id + " < $1 order by " + $id + " desc limit $2",
                below,
                most
                $(, $key)?
            )
            .fetch_all(conn)
            .await
        };
    }
    if let Some(recipient) = &filter.recipient {
        return by!("o.id", r#"outbox o where o.recipient collate "C" = $3"#, recipient);
    }
    if let Some(account) = &filter.account {
        return by!("o.id", "outbox o where o.account_id = $3", account);
    }
    if filter.contradiction == Some(true) {
        return by!("d.notification_id", "delivery d where d.contradiction");
    }
    match filter.state {
        Some(State::Failed) => by!("d.notification_id", "delivery d where d.reason is not null"),
        Some(State::Uncertain | State::Unresolved) => {
            by!("d.notification_id", "delivery d where d.doubt_since is not null")
        }
        Some(State::Claimed | State::Transmitting) => {
            by!("d.notification_id", "delivery d where d.lease_until is not null")
        }
        Some(State::Pending | State::Sent | State::Bounced | State::Cancelled) | None => {
            by!("o.id", "outbox o where true")
        }
    }
}

/// A place among what is in doubt: when the recovery window of a row ends, and which row it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "told above")]
pub struct Place {
    pub until: OffsetDateTime,
    pub id: Uuid,
}

/// What is in doubt, and where a further page begins, if there may be more.
#[derive(Debug, Clone, Default)]
pub struct InDoubt {
    /// The rows, the least time left first.
    pub rows: Vec<Listed>,
    /// The last place that was looked at.
    pub looked_to: Option<Place>,
}

/// What is uncertain or unresolved, the least time left first, after a place; looks at about `look` rows, as [`list`] does.
///
/// # Errors
/// When the database cannot be read.
pub async fn uncertain(
    conn: &mut PgConnection,
    filter: &Filter,
    after: Option<Place>,
    limit: usize,
    look: usize,
) -> Result<InDoubt, sqlx::Error> {
    let mut found = InDoubt::default();
    let mut after = after.unwrap_or(Place { until: OffsetDateTime::UNIX_EPOCH, id: Uuid::nil() });
    let (mut step, mut looked) = (LOOK_ROWS, 0);
    loop {
        let places = doubts(conn, filter.state, after, step).await?;
        let ids: Vec<Uuid> = places.iter().map(|place| place.id).collect();
        let more = listed!(
            "unnest($14::uuid[]) looked (id) join outboxd.delivery d on d.notification_id = looked.id",
            "and d.state in ('uncertain', 'unresolved') order by d.doubt_until, d.notification_id",
            filter,
            &ids
        );
        found.rows.extend(more.fetch_all(&mut *conn).await?);
        let Some(last) = places.last().copied() else { return Ok(found) };
        looked += places.len();
        let ended = places.len() < usize::try_from(step).unwrap_or_default();
        if found.rows.len() > limit {
            found.rows.truncate(limit);
            let place = |row: &Listed| Some(Place { until: row.doubt_until?, id: row.id });
            found.looked_to = found.rows.last().and_then(place);
            return Ok(found);
        }
        if ended || looked >= look {
            found.looked_to = Some(last).filter(|_| !ended);
            return Ok(found);
        }
        after = last;
        step = next_step(step, look - looked);
    }
}

/// The next places to look at.
async fn doubts(
    conn: &mut PgConnection,
    state: Option<State>,
    after: Place,
    most: i64,
) -> Result<Vec<Place>, sqlx::Error> {
    macro_rules! by {
        ($until:literal) => {
            sqlx::query_as!(
                Place,
                "select d."
                    + $until
                    + r#" as "until!", d.notification_id as id from outboxd.delivery d where d."#
                    + $until
                    + " is not null and (d."
                    + $until
                    + ", d.notification_id) > ($1, $2) order by d."
                    + $until
                    + ", d.notification_id limit $3",
                after.until,
                after.id,
                most,
            )
            .fetch_all(conn)
            .await
        };
    }
    // A window that has not ended has an index of its own, without what is unresolved.
    if state == Some(State::Uncertain) { by!("closes_at") } else { by!("doubt_until") }
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
