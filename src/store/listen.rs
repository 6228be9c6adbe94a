//! Listening for the hint that there is work. A hint costs only latency when it is lost: polling is the guarantee.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};

use super::StoreError;
use super::line::Dsn;

/// The channel that `outboxd.hint()` notifies.
const CHANNEL: &str = "outboxd";

/// A session that hears hints.
#[derive(Debug)]
pub struct Listener {
    inner: PgListener,
    // The listener's own one-connection pool: a heartbeat is sent through another session, so that hearing it proves
    // the whole way.
    name: String,
}

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// There may be work.
    Hint,
    /// This listener's own heartbeat came round.
    Heartbeat,
    /// Something meant for another listener.
    Other,
    /// The connection was lost and made anew; hints in between are lost.
    Reconnected,
}

impl Listener {
    /// Connects and listens. `name` tells this listener's heartbeats from others'.
    ///
    /// # Errors
    /// When the database cannot be reached within `limit`.
    pub async fn open(dsn: &Dsn, name: String, limit: Duration) -> Result<Self, StoreError> {
        let open = async {
            let pool = PgPoolOptions::new().max_connections(1).connect_with(dsn.options().clone()).await?;
            let mut inner = PgListener::connect_with(&pool).await?;
            inner.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(inner)
        };
        let inner = tokio::time::timeout(limit, open).await.map_err(|_| StoreError::Silence(limit))??;
        Ok(Self { inner, name })
    }

    /// Waits for the next thing heard.
    ///
    /// # Errors
    /// When the connection is lost and cannot be made anew.
    pub async fn hear(&mut self) -> Result<Heard, StoreError> {
        Ok(match self.inner.try_recv().await? {
            None => Heard::Reconnected,
            Some(notification) => match notification.payload() {
                "" => Heard::Hint,
                payload if payload == self.name => Heard::Heartbeat,
                _ => Heard::Other,
            },
        })
    }

    /// Sends this listener's heartbeat through another session.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn beat(name: &str, through: &mut super::Line) -> Result<(), StoreError> {
        let mut conn: PgConnection = through.take().await?;
        let query = sqlx::query!("select pg_notify($1, $2)", CHANNEL, name);
        through.bound(query.execute(&mut conn)).await?;
        through.put(conn).await
    }
}
