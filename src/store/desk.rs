//! Connections for people's questions and decisions: a bounded pool, a transaction each time.
//!
//! The worker has none of these: nobody who looks can make it wait.

use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Postgres, Transaction};

use super::line::Dsn;

/// How long a page waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Hands out transactions.
#[derive(Debug, Clone)]
pub struct Desk {
    pool: PgPool,
    /// What a transaction begins with where sessions are not our own.
    opening: Option<String>,
}

impl Desk {
    /// At most `most` connections, each opened when it is first needed.
    #[must_use]
    pub fn new(dsn: &Dsn, most: u32) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(most)
            .acquire_timeout(PATIENCE)
            .acquire_slow_threshold(PATIENCE)
            .connect_lazy_with(dsn.options().clone());
        Self { pool, opening: dsn.transaction_pooling().then(|| dsn.settings_of_transaction()) }
    }

    /// A transaction in which everything read is of one moment.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn reading(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.opened(self.pool.begin_with("begin isolation level repeatable read read only").await?).await
    }

    /// A transaction to decide something in.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn deciding(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.opened(self.pool.begin_with("begin isolation level read committed").await?).await
    }

    async fn opened(
        &self,
        mut tx: Transaction<'static, Postgres>,
    ) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        if let Some(opening) = &self.opening {
            sqlx::raw_sql(sqlx::AssertSqlSafe(opening.clone())).execute(&mut *tx).await?;
        }
        Ok(tx)
    }
}
