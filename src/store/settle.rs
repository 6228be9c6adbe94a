//! Settling: what an attempt came to, and the state that follows, in one statement for many.

use std::collections::HashSet;
use std::time::Duration;

use crate::domain::ids::{Fence, NotificationId};
use crate::domain::outcome::{Phase, Verdict};
use crate::domain::policy::{FailReason, Next};

use super::claim::Claimed;
use super::{Line, StoreError};

/// The result of one attempt, ready to be written. Made from the claim itself, so that no attempt is settled twice.
#[derive(Debug, Clone)]
pub struct Settlement {
    pub(super) id: NotificationId,
    pub(super) fence: Fence,
    pub(super) number: i32,
    pub(super) verdict: Verdict,
    pub(super) next: Next,
}

impl Settlement {
    /// Ends a claim with a verdict and what is to follow from it.
    #[must_use]
    pub fn new(claimed: Claimed, verdict: Verdict, next: Next) -> Self {
        Self { id: claimed.id(), fence: claimed.fence(), number: claimed.number(), verdict, next }
    }

    /// The notification's id.
    #[must_use]
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// The fence that it is settled under.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

/// A [`Next`] as the statement's columns.
struct Columns {
    next: &'static str,
    reason: Option<&'static str>,
    delay: Option<Duration>,
    counted: bool,
    suspected: bool,
}

impl From<Next> for Columns {
    fn from(next: Next) -> Self {
        let plain = |next| Self { next, reason: None, delay: None, counted: true, suspected: false };
        match next {
            Next::Sent => plain("sent"),
            Next::Doubt { resend_after } => Self { delay: resend_after, ..plain("doubt") },
            Next::Retry { delay, counted, suspected } => {
                Self { delay: Some(delay), counted, suspected, ..plain("retry") }
            }
            Next::Fail(reason) => {
                // What expired or could not be composed was given up without a try.
                let counted = match reason {
                    FailReason::Refused | FailReason::Exhausted => true,
                    FailReason::Expired | FailReason::Invalid => false,
                };
                Self { reason: Some(reason.as_str()), counted, ..plain("fail") }
            }
        }
    }
}

impl Line {
    /// Settles many at once and returns the claims that were settled. Missing from the answer is a claim that is no longer
    /// held: its result is late, and is evidence ([`super::evidence`]).
    ///
    /// The statement decides by the database's clock whether a retry or a resend still fits before the deadline or the
    /// windows, and never lets *failed* hide an earlier attempt that may have been accepted. Where evidence has proved an
    /// earlier attempt's acceptance meanwhile, it is sent.
    ///
    /// # Errors
    /// When the database cannot be reached; whether they are settled is then unknown, and this may be called again.
    pub async fn settle(
        &mut self,
        settlements: &[Settlement],
        deadline: Duration,
    ) -> Result<HashSet<(NotificationId, Fence)>, StoreError> {
        let columns: Vec<Columns> = settlements.iter().map(|settlement| settlement.next.into()).collect();
        let verdicts = || settlements.iter().map(|settlement| &settlement.verdict);
        let replies = || verdicts().map(|verdict| verdict.reply.as_ref());
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with asked as (
                select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::float8[], $6::bool[], $7::bool[],
                        $8::text[], $9::text[], $10::smallint[], $11::text[], $12::text[], $13::text[], $15::integer[])
                    as asked (id, fence, next, reason, delay, counted, suspected, outcome, phase, code, enhanced, reply, error,
                        number)
            ),
            ended as (
                select asked.*, a.begun_at, a.dedup_scope, a.dedup_window, a.recovery_window, a.resend_room,
                    now() + make_interval(secs => asked.delay) as again_at
                from asked
                join outboxd.attempt a on a.notification_id = asked.id and a.number = asked.number
            ),
            settled as (
                update outboxd.delivery d
                set (state, changed_at, reason, due_at, ready, worker, lease_until, tries, suspicions, lost_claims,
                     doubt_since, doubt_until, doubt_scope, resend_until, resend_at, closes_at, duplicate_possible, resend_decided, replay_id) = (
                    select v.state, now(),
                        case when v.state = 'failed' then coalesce(ended.reason, 'expired') end,
                        case when v.state = 'pending' then ended.again_at end,
                        v.state = 'pending' and ended.delay = 0,
                        null::text, null::timestamptz,
                        d.tries + ended.counted::integer, d.suspicions + ended.suspected::integer, 0,
                        v.doubt_since, v.doubt_until, v.doubt_scope, v.resend_until,
                        case when v.state = 'uncertain' and ended.next = 'doubt' and ended.again_at <= v.resend_until
                                  and not v.overdue
                             then ended.again_at end,
                        case when v.state = 'uncertain' then v.doubt_until end,
                        d.duplicate_possible
                            or (d.doubt_since is not null and ended.outcome in ('sent', 'uncertain')
                                and (ended.dedup_window is null or ended.begun_at > d.doubt_since + ended.dedup_window)),
                        -- A decision is for one sending: it is used up by whatever may have been one.
                        d.resend_decided and v.state = 'pending',
                        case when v.state = 'pending' then d.replay_id end
                    from (
                        select w.*,
                            case
                                when w.next = 'sent' then 'sent'
                                when w.next = 'doubt' then 'uncertain'
                                when w.next = 'retry' and not w.overdue
                                     and (w.doubt_since is null or ended.again_at <= w.resend_until or d.resend_decided) then 'pending'
                                when w.doubt_since is not null then 'uncertain'
                                else 'failed'
                            end as state
                        from (
                            select n.next,
                                case when n.next <> 'sent' then
                                    coalesce(d.doubt_since, case when n.next = 'doubt' then ended.begun_at end)
                                end as doubt_since,
                                case when n.next <> 'sent' then
                                    coalesce(d.doubt_until, case when n.next = 'doubt' then ended.begun_at + ended.recovery_window end)
                                end as doubt_until,
                                case when n.next <> 'sent' then
                                    coalesce(d.doubt_scope, case when n.next = 'doubt' then ended.dedup_scope end)
                                end as doubt_scope,
                                case when n.next <> 'sent' then
                                    case when d.doubt_since is not null then d.resend_until
                                         when n.next = 'doubt' then ended.begun_at + ended.resend_room end
                                end as resend_until,
                                coalesce(ended.again_at, now())
                                    >= coalesce(d.expires_at, coalesce(d.renewed_at, d.first_due_at) + make_interval(secs => $14)) as overdue
                            from (
                                -- Proof that came while this attempt was running: of an earlier one, and whatever this one
                                -- came to, nothing is left to send; of this one, and its own answer is not missed.
                                select case
                                    when d.proven_attempt < ended.number then 'sent'
                                    when ended.next = 'doubt' and d.proven_attempt = ended.number then 'sent'
                                    else ended.next end as next
                            ) n
                        ) w
                    ) v
                )
                from ended
                where d.notification_id = ended.id and d.fence = ended.fence and d.state in ('claimed', 'transmitting')
                returning ended.*
            ),
            recorded as (
                update outboxd.attempt a
                set ended_at = now(), ended_by = 'worker', outcome = settled.outcome, phase = settled.phase,
                    reply_code = settled.code, enhanced_code = settled.enhanced, reply_text = settled.reply,
                    error = settled.error, counted = settled.counted
                from settled
                where a.notification_id = settled.id and a.number = settled.number
            )
            select id as "id!", fence as "fence!" from settled
            "#,
            &settlements.iter().map(|settlement| settlement.id.0).collect::<Vec<_>>(),
            &settlements.iter().map(|settlement| settlement.fence.0).collect::<Vec<_>>(),
            &columns.iter().map(|columns| columns.next).collect::<Vec<_>>() as _,
            &columns.iter().map(|columns| columns.reason).collect::<Vec<_>>() as _,
            &columns.iter().map(|columns| columns.delay.map(|delay| delay.as_secs_f64())).collect::<Vec<_>>() as _,
            // What was given up right after the claim had no try.
            &columns
                .iter()
                .zip(verdicts())
                .map(|(columns, verdict)| columns.counted && verdict.phase != Phase::Claim)
                .collect::<Vec<_>>(),
            &columns.iter().map(|columns| columns.suspected).collect::<Vec<_>>(),
            &verdicts().map(|verdict| verdict.outcome.as_str()).collect::<Vec<_>>() as _,
            &verdicts().map(|verdict| verdict.phase.as_str()).collect::<Vec<_>>() as _,
            &replies().map(|reply| reply.and_then(|reply| i16::try_from(reply.code).ok())).collect::<Vec<_>>() as _,
            &replies().map(|reply| reply.and_then(|reply| reply.enhanced.as_deref())).collect::<Vec<_>>() as _,
            &replies().map(|reply| reply.map(|reply| reply.text.as_str())).collect::<Vec<_>>() as _,
            &verdicts().map(|verdict| verdict.error.as_deref()).collect::<Vec<_>>() as _,
            deadline.as_secs_f64(),
            &settlements.iter().map(|settlement| settlement.number).collect::<Vec<_>>(),
        );
        let settled = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(settled.into_iter().map(|row| (NotificationId(row.id), Fence(row.fence))).collect())
    }
}

/// The reason that a failed notification gives, for a caller that reads it back.
impl TryFrom<&str> for FailReason {
    type Error = StoreError;

    fn try_from(text: &str) -> Result<Self, StoreError> {
        [Self::Refused, Self::Exhausted, Self::Expired, Self::Invalid]
            .into_iter()
            .find(|reason| reason.as_str() == text)
            .ok_or_else(|| StoreError::Unknown { what: format!("reason `{text}`") })
    }
}
