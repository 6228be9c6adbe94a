//! One PostgreSQL connection of the worker's own: opened when needed, bounded in time, dropped after any failure.
//!
//! A task that must not starve (begin, settle, renew, claim) has its own line, so no pool can make it wait for another.

use std::future::Future;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};

/// How much longer than the server's own statement timeout the client waits, for a server that is gone without a word.
const SILENCE_MARGIN: Duration = Duration::from_secs(5);

/// Every statement here looks rows up by an index, some hundreds at a time. Tables grow from nothing to millions of rows
/// between two ANALYZEs, and stale statistics must not turn a look-up into a scan: only nested loops over indexes are on
/// offer. Planning anew each time took a fifth of the database's work, so plans are kept, but not for long.
const PLANNER: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("random_page_cost", "1.1"),
    ("jit", "off"),
];

/// How long plans are kept: a plan made when a table was empty is wrong by no more rows than come in this time.
const PLANS_KEPT: Duration = Duration::from_secs(1);

/// Why a statement did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused or could not be reached.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// No answer within the time; whether the statement took effect is unknown, and it may be repeated.
    #[error("no answer from the database within {0:?}")]
    Silence(Duration),
    /// A stored value is not one that this release knows.
    #[error("the database holds {what}, which this release does not know; is it older than the schema?")]
    Unknown {
        /// The value and where it stands.
        what: String,
    },
}

impl StoreError {
    /// Whether the statement itself is at fault (data or a constraint: SQLSTATE classes 22, 23, 42 and outboxd's own; or
    /// the row that it is about is no more), so that repeating it cannot help.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| ["22", "23", "42", "OB"].iter().any(|class| code.starts_with(class)))
            }
            Self::Database(sqlx::Error::RowNotFound) | Self::Unknown { .. } => true,
            Self::Database(_) | Self::Silence(_) => false,
        }
    }

    /// Whether the server lacks something to work with, such as room on its disk (SQLSTATE classes 53 and 58).
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let code = |error: &dyn sqlx::error::DatabaseError| {
            error.code().is_some_and(|code| code.starts_with("53") || code.starts_with("58"))
        };
        matches!(self, Self::Database(sqlx::Error::Database(error)) if code(&**error))
    }

    /// Whether the statement waited for a lock in vain (SQLSTATE 55P03).
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Database(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03"))
    }
}

/// How lines reach the database.
#[derive(Debug, Clone)]
pub struct Dsn {
    options: PgConnectOptions,
    statement_timeout: Duration,
    lock_timeout: Duration,
    transaction_pooling: bool,
}

impl Dsn {
    /// Parses a `postgres://` URL.
    ///
    /// With `transaction_pooling` (PgBouncer's transaction mode) every statement runs in a transaction of its own and
    /// no session state is relied on.
    ///
    /// # Errors
    /// When the URL is not one.
    pub fn new(
        url: &str,
        statement_timeout: Duration,
        lock_timeout: Duration,
        transaction_pooling: bool,
    ) -> Result<Self, sqlx::Error> {
        let mut options: PgConnectOptions = url.parse::<PgConnectOptions>()?.application_name("outboxd");
        if transaction_pooling {
            // PgBouncer refuses start-up parameters that it does not know.
            options = options.statement_cache_capacity(0).extra_float_digits(None);
        } else {
            options = options.options([
                ("statement_timeout", milliseconds(statement_timeout)),
                ("lock_timeout", milliseconds(lock_timeout)),
                // A worker that is paused inside a transaction must not keep its rows from everybody else.
                ("idle_in_transaction_session_timeout", milliseconds(statement_timeout)),
                // A begin that a crash of the server could undo would let a message be sent twice, and the statements are
                // written for this isolation level: neither is left to what the database or the role has for a default.
                ("synchronous_commit", "on".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
            ]);
            options = options.options(PLANNER);
        }
        // Statements carry recipients' data: they are never logged.
        let options = options.disable_statement_logging();
        Ok(Self { options, statement_timeout, lock_timeout, transaction_pooling })
    }

    /// The plain connection options, for the listener.
    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Whether a session belongs to nobody for longer than a transaction.
    #[must_use]
    pub fn transaction_pooling(&self) -> bool {
        self.transaction_pooling
    }

    /// A connection of its own for a one-off command. With `transaction_pooling` it stands in a transaction, which keeps it
    /// on one server session: the caller commits what it writes.
    ///
    /// # Errors
    /// When the database cannot be reached or does not answer in time.
    pub async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut conn = bounded(self.limit(), PgConnection::connect_with(&self.options)).await?;
        self.open_transaction(&mut conn).await?;
        Ok(conn)
    }

    /// Opens the transaction that a pooler needs; nothing without one.
    async fn open_transaction(&self, conn: &mut PgConnection) -> Result<(), StoreError> {
        if self.transaction_pooling {
            let opening = sqlx::raw_sql(sqlx::AssertSqlSafe(self.opening_statement()));
            bounded(self.limit(), opening.execute(conn)).await?;
        }
        Ok(())
    }

    /// A line that opens when it is first used.
    #[must_use]
    pub fn line(&self) -> Line {
        Line { dsn: self.clone(), idle: None, planned: Instant::now() }
    }

    fn limit(&self) -> Duration {
        self.statement_timeout + SILENCE_MARGIN
    }

    fn opening_statement(&self) -> String {
        // Named statements that another client left on this server connection would clash with ours. A PgBouncer that keeps
        // account of named statements (from 1.21 on) sees that they are gone and makes its clients' anew.
        format!("begin isolation level read committed; deallocate all; {}", self.settings_of_transaction())
    }

    /// What holds for a transaction on a session that is not our own.
    pub(super) fn settings_of_transaction(&self) -> String {
        format!(
            "set local synchronous_commit = on; set local statement_timeout = {0}; \
             set local idle_in_transaction_session_timeout = {0}; set local lock_timeout = {1}{2}",
            self.statement_timeout.as_millis(),
            self.lock_timeout.as_millis(),
            PLANNER.map(|(name, value)| format!("; set local {name} = {value}")).concat()
        )
    }
}

fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A connection of one task's own.
#[derive(Debug)]
pub struct Line {
    dsn: Dsn,
    idle: Option<PgConnection>,
    planned: Instant,
}

impl Line {
    /// Takes the connection out, opening it first where there is none. A caller that is cancelled drops it: a
    /// connection whose answer was not read is never used again.
    pub(super) async fn take(&mut self) -> Result<PgConnection, StoreError> {
        let limit = self.dsn.limit();
        let mut conn = match self.idle.take() {
            Some(conn) => conn,
            None => bounded(limit, PgConnection::connect_with(&self.dsn.options)).await?,
        };
        self.dsn.open_transaction(&mut conn).await?;
        // Behind a pooler nothing is prepared, and so nothing is kept.
        if !self.dsn.transaction_pooling && self.planned.elapsed() > PLANS_KEPT {
            bounded(limit, sqlx::raw_sql("discard plans").execute(&mut conn)).await?;
            self.planned = Instant::now();
        }
        Ok(conn)
    }

    /// Awaits a statement within the limit.
    pub(super) async fn bound<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> Result<T, StoreError> {
        bounded(self.dsn.limit(), work).await
    }

    /// Puts the connection back after a success, committing where statements run in transactions.
    pub(super) async fn put(&mut self, mut conn: PgConnection) -> Result<(), StoreError> {
        if self.dsn.transaction_pooling {
            bounded(self.dsn.limit(), sqlx::raw_sql("commit").execute(&mut conn)).await?;
        }
        self.idle = Some(conn);
        Ok(())
    }

    /// Puts the connection back after PostgreSQL refused a statement with an ERROR: it has undone that statement's
    /// transaction, and the session goes on. In a pooler's transaction nothing more would be taken.
    pub(super) fn put_refused(&mut self, conn: PgConnection) {
        self.idle = (!self.dsn.transaction_pooling).then_some(conn);
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&mut self) -> Result<(), StoreError> {
        let mut conn = self.take().await?;
        self.bound(conn.ping()).await?;
        self.put(conn).await
    }
}

async fn bounded<T>(limit: Duration, work: impl Future<Output = sqlx::Result<T>>) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StoreError::Silence(limit)),
    }
}
