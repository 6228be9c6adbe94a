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
        Self { pool }
    }

    /// A transaction in which everything read is of one moment.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn reading(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.pool.begin_with("begin isolation level repeatable read read only").await
    }

    /// A transaction to decide something in.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn deciding(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        self.pool.begin().await
    }
}
