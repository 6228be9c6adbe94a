//! The facts at the end, from all three sides: what the shop was told, what the database holds, what the servers took.
//!
//! Gathered when nothing runs any more. It only reads; what the facts prove is `proof`'s to say.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use sqlx::postgres::PgPool;

use super::super::smtp::SmtpServer;
use super::intent::NEWSLETTER;
use super::shop::Ledger;
use crate::domain::state::State;

/// One notification, as the database has it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The shop's key of its message.
    pub(super) message: String,
    pub(super) route: String,
    /// `None` if it has none, which cannot be.
    pub(super) state: Option<State>,
    /// Why it failed.
    pub(super) reason: Option<String>,
    /// The recipient may get it twice, it says.
    pub(super) duplicate_possible: bool,
    /// Whether any attempt has begun.
    pub(super) begun: bool,
    /// How its first attempt that may have been accepted ended.
    pub(super) doubt: Option<String>,
}

impl Row {
    /// Whether it is said that it may have been accepted.
    pub(super) fn flagged(&self) -> bool {
        matches!(self.state, Some(State::Uncertain | State::Unresolved))
    }
}

/// What one server took responsibility for.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    /// The provider's name.
    pub(super) provider: String,
    /// The route that leads to it.
    pub(super) route: String,
    /// How often each id was delivered.
    pub(super) deliveries: BTreeMap<String, u64>,
    /// The ids that were accepted and whose answer was lost.
    pub(super) answer_lost: BTreeSet<String>,
    /// The ids that came with bytes that differ.
    pub(super) altered: BTreeSet<String>,
    /// Repeats that were recognised and not delivered.
    pub(super) deduplicated: u64,
    /// What clients did against the protocol.
    pub(super) violations: Vec<String>,
}

impl Taken {
    fn by(server: &SmtpServer, provider: &str, route: &str) -> Self {
        let mailbox = server.mailbox();
        let answer_lost = mailbox.messages().into_iter().filter(|one| one.answer_lost).map(|one| one.notification);
        Self {
            provider: provider.to_owned(),
            route: route.to_owned(),
            deliveries: mailbox.ids().into_iter().map(|id| (id.clone(), mailbox.deliveries(&id))).collect(),
            answer_lost: answer_lost.collect(),
            altered: mailbox.altered(),
            deduplicated: mailbox.deduplicated(),
            violations: server.violations(),
        }
    }
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// The shop's side.
    pub(super) ledger: Ledger,
    /// The messages in the shop's table, with the number of notifications that each is to have.
    pub(super) messages: BTreeMap<String, usize>,
    /// The notifications, by id.
    pub(super) rows: BTreeMap<String, Row>,
    /// The servers' side.
    pub(super) taken: Vec<Taken>,
    /// Attempts whose lease was lost before *begin*, and which began all the same.
    pub(super) begun_without_lease: BTreeSet<String>,
    /// How many attempts there were.
    pub(super) attempts: usize,
    /// The median seconds from writing to the first attempt on the bulk route: the backlog's, and the other accounts'.
    pub(super) waits: Option<(f64, f64)>,
}

impl Facts {
    /// Gathers them.
    pub(super) async fn gather(pool: &PgPool, ledger: Ledger, dedup: &SmtpServer, plain: &SmtpServer) -> Result<Self> {
        let messages: Vec<(String, i32)> =
            sqlx::query_as("select key, notifications from shop.message").fetch_all(pool).await?;
        let begun_without_lease: Vec<String> = sqlx::query_scalar(
            "select notification_id::text from outboxd.attempt
             where ended_by = 'lease' and phase = 'claim' and begun_at is not null",
        )
        .fetch_all(pool)
        .await?;
        let attempts: i64 = sqlx::query_scalar("select count(*) from outboxd.attempt").fetch_one(pool).await?;
        let (backlog, others): (Option<f64>, Option<f64>) = sqlx::query_as(
            "select percentile_cont(0.5) within group (order by waited) filter (where account_id = $1),
                 percentile_cont(0.5) within group (order by waited) filter (where account_id <> $1)
             from (select o.account_id, extract(epoch from min(a.claimed_at) - o.created_at)::float8 as waited
                   from outboxd.outbox o
                   join outboxd.delivery d on d.notification_id = o.id and d.route = 'bulk'
                   join outboxd.attempt a on a.notification_id = o.id
                   group by o.id) first",
        )
        .bind(NEWSLETTER)
        .fetch_one(pool)
        .await?;
        Ok(Self {
            ledger,
            messages: messages
                .into_iter()
                .map(|(key, count)| (key, usize::try_from(count).unwrap_or_default()))
                .collect(),
            rows: rows(pool).await?,
            taken: vec![Taken::by(dedup, "dedup", "default"), Taken::by(plain, "plain", "bulk")],
            begun_without_lease: begun_without_lease.into_iter().collect(),
            attempts: usize::try_from(attempts)?,
            waits: backlog.zip(others),
        })
    }

    /// The ids of the rows that fulfil `condition`.
    pub(super) fn ids(&self, condition: impl Fn(&Row) -> bool) -> BTreeSet<String> {
        self.rows.iter().filter(|(_, row)| condition(row)).map(|(id, _)| id.clone()).collect()
    }

    /// The ids of the rows in this state.
    pub(super) fn in_state(&self, state: State) -> BTreeSet<String> {
        self.ids(|row| row.state == Some(state))
    }

    /// How often this id was delivered, by whomever.
    pub(super) fn deliveries(&self, id: &str) -> u64 {
        self.taken.iter().filter_map(|taken| taken.deliveries.get(id)).sum()
    }

    /// The ids that any server accepted.
    pub(super) fn accepted(&self) -> BTreeSet<String> {
        self.taken.iter().flat_map(|taken| taken.deliveries.keys().cloned()).collect()
    }
}

type Columns =
    (String, Option<String>, Option<String>, Option<String>, Option<String>, Option<bool>, bool, Option<String>);

async fn rows(pool: &PgPool) -> Result<BTreeMap<String, Row>> {
    let rows: Vec<Columns> = sqlx::query_as(
        "select o.id::text, o.message_ref, d.route, d.state, d.reason, d.duplicate_possible,
             exists (select 1 from outboxd.attempt a where a.notification_id = o.id and a.begun_at is not null),
             (select a.phase || ': ' || coalesce(a.error, '')
              from outboxd.attempt a
              where a.notification_id = o.id and a.outcome = 'uncertain' order by a.number limit 1)
         from outboxd.outbox o
         left join outboxd.delivery d on d.notification_id = o.id",
    )
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|(id, message, route, state, reason, duplicate_possible, begun, doubt)| {
            let state = state.map(|state| state.parse()).transpose().context("the database holds an unknown state")?;
            let row = Row {
                message: message.unwrap_or_default(),
                route: route.unwrap_or_default(),
                state,
                reason,
                duplicate_possible: duplicate_possible.unwrap_or_default(),
                begun,
                doubt,
            };
            Ok((id, row))
        })
        .collect()
}
