//! Making rows ready when they come due.

use std::time::Duration;

use super::{Line, StoreError};

/// How many rows one statement makes ready: enough to keep ahead of any claim, few enough to stay short.
const PROMOTE_MAX_ROWS: i64 = 2_000;

/// What a promotion found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    /// How many rows became ready.
    pub rows: u64,
    /// How long until the next one is due, if any is waiting.
    pub next_in: Option<Duration>,
    /// The providers that are paused: asked along the way, since this is asked all the time.
    pub paused_providers: Vec<String>,
}

impl Line {
    /// Makes the rows ready whose time has come: retries, schedules, and what was given back.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn promote(&mut self) -> Result<Promoted, StoreError> {
        let mut conn = self.take().await?;
        let query = sqlx::query!(
            r#"
            with due as (
                select d.notification_id from outboxd.delivery d
                where d.due_at <= now() and not d.ready
                order by d.due_at
                limit $1
                for update skip locked
            ),
            promoted as (
                update outboxd.delivery d set ready = true
                from due
                where d.notification_id = due.notification_id
                returning 1
            )
            select (select count(*) from promoted) as "rows!",
                (select extract(epoch from min(d.due_at) - clock_timestamp())::float8 from outboxd.delivery d
                 where d.due_at > now() and not d.ready) as next_in,
                array(select p.name from outboxd.pause p where p.kind = 'provider' order by p.name) as "paused!"
            "#,
            PROMOTE_MAX_ROWS,
        );
        let row = self.bound(query.fetch_one(&mut conn)).await?;
        self.put(conn).await?;
        // Where the bound was met more may be due.
        let next_in = if row.rows == PROMOTE_MAX_ROWS { Some(0.0) } else { row.next_in };
        Ok(Promoted {
            rows: u64::try_from(row.rows).unwrap_or_default(),
            paused_providers: row.paused,
            next_in: next_in.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        })
    }
}
