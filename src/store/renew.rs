//! Renewing the leases of sends that take long.

use std::time::Duration;

use crate::domain::ids::{Fence, NotificationId};

use super::{Line, StoreError};

impl Line {
    /// Extends the leases that are still held under these fences and have not run out; returns how many.
    ///
    /// A row that a begin or a settle has locked is passed over: it is being seen to, and two statements of one worker
    /// can then never wait for each other.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn renew(&mut self, claims: &[(NotificationId, Fence)], lease: Duration) -> Result<u64, StoreError> {
        let (ids, fences): (Vec<_>, Vec<_>) = claims.iter().map(|(id, fence)| (id.0, fence.0)).unzip();
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with held as (
                select d.notification_id
                from unnest($1::uuid[], $2::bigint[]) as asked (id, fence)
                join outboxd.delivery d on d.notification_id = asked.id and d.fence = asked.fence
                -- Not a bare comparison: the index on leases is not the way to rows that are known by their ids.
                where (d.lease_until > now()) is true
                for update of d skip locked
            )
            update outboxd.delivery d
            set lease_until = now() + make_interval(secs => $3)
            from held
            where d.notification_id = held.notification_id
            "#,
            &ids,
            &fences,
            lease.as_secs_f64(),
        );
        let renewed = self.bound(query.execute(&mut conn)).await?.rows_affected();
        self.put(conn).await?;
        Ok(renewed)
    }
}
