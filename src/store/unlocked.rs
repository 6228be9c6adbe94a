//! Which rows nobody else has locked: for a batch that waited for one of its rows in vain, so that the others go on.

use std::collections::HashSet;

use crate::domain::ids::NotificationId;

use super::{Line, StoreError};

impl Line {
    /// Those of the notifications of which no other transaction has locked the state or the last attempt right now. Changes
    /// nothing and waits for no row.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn unlocked(
        &mut self,
        ids: impl Iterator<Item = NotificationId>,
    ) -> Result<HashSet<NotificationId>, StoreError> {
        let ids: Vec<_> = ids.map(|id| id.0).collect();
        let mut conn = self.take().await?;
        let query = sqlx::query_scalar!(
            "select d.notification_id
             from unnest($1::uuid[]) as asked (id)
             join outboxd.delivery d on d.notification_id = asked.id
             join outboxd.attempt a on a.notification_id = asked.id and a.number = d.attempts
             for update of d, a skip locked",
            &ids,
        );
        let unlocked = self.bound(query.fetch_all(&mut conn)).await?;
        self.put(conn).await?;
        Ok(unlocked.into_iter().map(NotificationId).collect())
    }
}
