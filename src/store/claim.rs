//! The claim: a short, fenced lease on notifications, and the durable record of the attempt about to be made.

use std::time::Duration;

use crate::domain::content::RawContent;
use crate::domain::ids::{Fence, NotificationId};
use crate::domain::policy::{Record, RecoveryTerms};

use super::{Line, StoreError};

/// A notification that this worker holds. Only a claim makes one, and settling consumes it.
#[derive(Debug)]
pub struct Claimed {
    pub(super) id: NotificationId,
    pub(super) fence: Fence,
    number: i32,
    record: Record,
    overdue: bool,
    size_bytes: u64,
    content: RawContent,
}

impl Claimed {
    /// The notification's id.
    #[must_use]
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// The claim's fence.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The attempt's number, from 1.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.number
    }

    /// What is known of the notification's past.
    #[must_use]
    pub fn record(&self) -> Record {
        self.record
    }

    /// Whether its deadline had passed when it was claimed.
    #[must_use]
    pub fn overdue(&self) -> bool {
        self.overdue
    }

    /// About how much memory its content takes, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What it says, not yet parsed.
    #[must_use]
    pub fn content(&self) -> &RawContent {
        &self.content
    }
}

/// What to claim, for whom, and on which terms.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Only notifications of this route (resends follow their dedup scope instead).
    pub route: String,
    /// The provider that the attempt will be made with.
    pub provider: String,
    /// The terms recorded with the attempt.
    pub terms: RecoveryTerms,
    /// How long the provider deduplicates, if it does.
    pub dedup_window: Option<Duration>,
    /// The worker's name.
    pub worker: String,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How long after it was first due a notification without an expiry of its own is given up.
    pub deadline: Duration,
}

/// Whose turn is next: accounts take turns in the order of their names, and the cursor is the last one served.
#[derive(Debug, Clone, Default)]
pub struct Turn(String);

/// Which notifications to claim.
#[derive(Debug)]
pub enum What<'a> {
    /// Those without a doubt, from this account's turn on.
    Ready(&'a mut Turn),
    /// Those whose doubt is in the claim's dedup scope: a resend never goes through another (G3).
    Resends,
}

impl Line {
    /// Claims at most `limit` notifications of at most about `max_bytes` together (but one, however large).
    ///
    /// Accounts take turns from the given turn on, and share the batch evenly; within an account the lower priority number goes
    /// first, then what was due first. Rows that another worker is claiming are passed over (`FOR UPDATE SKIP LOCKED`;
    /// PostgreSQL documentation, SELECT, "The Locking Clause"). A batch can come out smaller than `limit` where accounts
    /// have fewer rows than their share; only an empty one means that nothing is ready.
    ///
    /// # Errors
    /// When the database cannot be reached. A claim that was made all the same runs out with its lease.
    pub async fn claim(
        &mut self,
        claim: &Claim,
        what: What<'_>,
        limit: u32,
        max_bytes: u64,
    ) -> Result<Vec<Claimed>, StoreError> {
        let from = match &what {
            What::Ready(turn) => turn.0.clone(),
            What::Resends => String::new(),
        };
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with recursive turns as (
                -- Each step finds the next account that has a ready row: one index probe, however many rows it has. A paused
                -- account is stepped over, and is no hop.
                select $2::text collate "C" as account_id, 0 as lap, 0 as hops, false as live
                where not $13 and not exists (
                    select 1 from outboxd.pause p where p.kind = 'all' or (p.kind = 'provider' and p.name = $8))
                union all
                select following.account_id, following.lap, turns.hops + following.live::integer, following.live
                from turns
                cross join lateral (
                    select next.account_id, next.lap, not exists (
                        select 1 from outboxd.pause p where p.kind = 'account' and p.name = next.account_id) as live
                    from (
                    (select d.account_id, turns.lap from outboxd.delivery d
                     where d.route = $1 and d.ready and d.doubt_scope is null and d.account_id > turns.account_id
                     order by d.account_id limit 1)
                    union all
                    (select d.account_id, 1 from outboxd.delivery d
                     where d.route = $1 and d.ready and d.doubt_scope is null and turns.lap = 0
                     order by d.account_id limit 1)
                    limit 1
                    ) next
                ) following
                -- Some more accounts than rows: those whose rows are all held by others must not leave a small batch empty.
                where turns.hops < $3 + 8 and (following.lap = 0 or following.account_id <= $2)
            ),
            picked as materialized (
                select row.*, turns.hops
                from turns
                cross join lateral (
                    select d.ctid as at, d.size_bytes
                    from outboxd.delivery d
                    where d.route = $1 and d.ready and d.doubt_scope is null and d.account_id = turns.account_id
                    order by d.priority, d.due_at
                    limit (select ceil($3::float8 / greatest(count(*), 1))::bigint from turns where live)
                    for update skip locked
                ) row
                where turns.live
                limit $3
            ),
            resendable as materialized (
                select d.ctid as at, d.size_bytes, 0 as hops
                from outboxd.delivery d
                where $13 and d.ready and d.doubt_scope = $5 and not exists (
                    select 1 from outboxd.pause p
                    where p.kind = 'all' or (p.kind = 'provider' and p.name = $8)
                       or (p.kind = 'account' and p.name = d.account_id))
                order by d.due_at
                limit $3
                for update skip locked
            ),
            bounded as (
                select at, hops, sum(size_bytes) over (order by hops rows unbounded preceding) - size_bytes as before
                from (select * from picked union all select * from resendable) candidates
            ),
            claimed as (
                update outboxd.delivery d
                set state = 'claimed', changed_at = now(), due_at = null, ready = false, fence = d.fence + 1,
                    attempts = d.attempts + 1, worker = $6, lease_until = now() + make_interval(secs => $7)
                from bounded
                where d.ctid = bounded.at and bounded.before < $4
                returning d.*, bounded.hops
            ),
            recorded as (
                insert into outboxd.attempt (notification_id, number, fence, worker, provider, dedup_scope, dedup_window,
                    recovery_window, resend_room, replay_id)
                select c.notification_id, c.attempts, c.fence, $6, $8, $5, make_interval(secs => $9),
                    make_interval(secs => $10), make_interval(secs => $11), c.replay_id
                from claimed c
            )
            select c.notification_id as "notification_id!", c.account_id as "account_id!", c.fence as "fence!",
                c.attempts as "attempts!", c.tries as "tries!", c.suspicions as "suspicions!",
                c.size_bytes as "size_bytes!", c.hops as "hops!",
                coalesce(c.expires_at, coalesce(c.renewed_at, c.first_due_at) + make_interval(secs => $12)) <= now() as "overdue!",
                o.created_at, o.sender, o.sender_name, o.recipient, o.recipient_name, o.reply_to, o.subject, o.body_text,
                o.body_html, o.headers, o.attachments, o.list_unsubscribe, o.list_unsubscribe_post
            from claimed c
            join outboxd.outbox o on o.id = c.notification_id
            order by c.hops, c.priority, c.first_due_at
            "#,
            claim.route,
            from,
            i32::try_from(limit).unwrap_or(i32::MAX) as _,
            i64::try_from(max_bytes).unwrap_or(i64::MAX),
            claim.terms.dedup_scope,
            claim.worker,
            claim.lease.as_secs_f64(),
            claim.provider,
            claim.dedup_window.map(|window| window.as_secs_f64()),
            claim.terms.window.as_secs_f64(),
            claim.terms.resend_room.map(|room| room.as_secs_f64()),
            claim.deadline.as_secs_f64(),
            matches!(what, What::Resends),
        );
        let rows = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        if let (What::Ready(turn), Some(last)) = (what, rows.last()) {
            turn.0.clone_from(&last.account_id);
        }
        Ok(rows
            .into_iter()
            .map(|row| {
                let id = NotificationId(row.notification_id);
                Claimed {
                    id,
                    fence: Fence(row.fence),
                    number: row.attempts,
                    record: Record {
                        tries: u16::try_from(row.tries).unwrap_or_default(),
                        suspicions: u16::try_from(row.suspicions).unwrap_or_default(),
                    },
                    overdue: row.overdue,
                    size_bytes: u64::try_from(row.size_bytes).unwrap_or_default(),
                    content: RawContent {
                        id,
                        created_at: row.created_at,
                        sender: row.sender,
                        sender_name: row.sender_name,
                        recipient: row.recipient,
                        recipient_name: row.recipient_name,
                        reply_to: row.reply_to,
                        subject: row.subject,
                        body_text: row.body_text,
                        body_html: row.body_html,
                        headers: row.headers,
                        attachments: row.attachments,
                        list_unsubscribe: row.list_unsubscribe,
                        list_unsubscribe_post: row.list_unsubscribe_post,
                    },
                }
            })
            .collect())
    }
}
