//! *Begin*: the durable word, before a message's body leaves the process, that it is about to.

use std::collections::HashSet;

use crate::domain::ids::{Fence, NotificationId};

use super::{Line, StoreError};

impl Line {
    /// Begins many at once and returns the claims that may go on. Refused, and so missing from the answer, is a claim whose
    /// fence is stale, whose lease is over, whose notification has expired, or which resends what is in doubt too late without a
    /// person's decision.
    /// Repeating it is harmless.
    ///
    /// # Errors
    /// When the database cannot be reached; whether they have begun is then unknown, and this may be called again.
    pub async fn begin(
        &mut self,
        claims: &[(NotificationId, Fence)],
    ) -> Result<HashSet<(NotificationId, Fence)>, StoreError> {
        let (ids, fences): (Vec<_>, Vec<_>) = claims.iter().map(|(id, fence)| (id.0, fence.0)).unzip();
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with begun as (
                update outboxd.delivery d
                set state = 'transmitting', changed_at = now(), lost_claims = 0
                from unnest($1::uuid[], $2::bigint[]) as asked (id, fence)
                where d.notification_id = asked.id and d.fence = asked.fence
                  and (d.state = 'transmitting'
                       or (d.state = 'claimed' and d.lease_until > now()
                           and (d.expires_at is null or d.expires_at > now())
                           and (d.doubt_since is null or d.resend_until >= now() or d.resend_decided)))
                returning d.notification_id, d.fence, d.attempts
            )
            update outboxd.attempt a
            set begun_at = coalesce(a.begun_at, now())
            from begun
            where a.notification_id = begun.notification_id and a.number = begun.attempts
            returning a.notification_id, begun.fence
            "#,
            &ids,
            &fences,
        );
        let begun = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(begun.into_iter().map(|row| (NotificationId(row.notification_id), Fence(row.fence))).collect())
    }
}
