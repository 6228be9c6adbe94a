//! The producer: an application with a table of its own, which writes its messages and their notifications in one
//! transaction, while its connections die and its commits go unanswered.
//!
//! It keeps a ledger of what it was told, which is its side of the proof. It never looks into outboxd's tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::intent::{Fate, Intent, Part};
use crate::domain::ids::NotificationId;
use crate::retry::Patience;
use crate::store::enqueue::enqueue;

/// How many write at once in each part.
const WRITERS: usize = 4;

/// How long the steady trade takes, at least: so that everything else happens meanwhile.
const SPREAD: Duration = Duration::from_secs(14);

/// How long one message is tried: a database that is killed is back within a few seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the shop was told.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    /// The messages whose commit was acknowledged, with the ids of their notifications.
    pub(super) committed: BTreeMap<String, Vec<NotificationId>>,
    /// The messages that it rolled back or gave up before it sent the commit.
    pub(super) absent: BTreeSet<String>,
    /// How often each kind of trouble was met.
    pub(super) troubles: BTreeMap<&'static str, usize>,
}

impl Ledger {
    fn trouble(&mut self, what: &'static str) {
        *self.troubles.entry(what).or_default() += 1;
    }
}

/// The shop.
#[derive(Debug)]
pub(super) struct Shop {
    options: PgConnectOptions,
    plan: Vec<Intent>,
    opened: watch::Sender<BTreeSet<Part>>,
    done: AtomicUsize,
    ledger: Mutex<Ledger>,
}

impl Shop {
    /// Opens the shop: makes its table.
    pub(super) async fn open(url: &str, plan: Vec<Intent>) -> Result<Arc<Self>> {
        let options = url.parse::<PgConnectOptions>()?.application_name("shop").disable_statement_logging();
        let mut conn = options.connect().await.context("the shop cannot reach its database")?;
        sqlx::raw_sql(
            "create schema shop;
             create table shop.message (
                 key text primary key, account text not null, notifications integer not null,
                 written_at timestamptz not null default now())",
        )
        .execute(&mut conn)
        .await?;
        conn.close().await?;
        let opened = watch::Sender::new([Part::Steady].into());
        Ok(Arc::new(Self { options, plan, opened, done: AtomicUsize::new(0), ledger: Mutex::default() }))
    }

    /// How many messages there are to write.
    pub(super) fn total(&self) -> usize {
        self.plan.len()
    }

    /// How many are dealt with.
    pub(super) fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// What it was told so far.
    pub(super) fn ledger(&self) -> Ledger {
        self.with_ledger(|ledger| ledger.clone())
    }

    /// Begins a part of the trade.
    pub(super) fn begin(&self, part: Part) {
        self.opened.send_if_modified(|opened| opened.insert(part));
    }

    /// Writes everything, each part once it has begun.
    pub(super) async fn trade(self: Arc<Self>) -> Result<()> {
        let mut writers = JoinSet::new();
        let started = Instant::now();
        for part in [Part::Steady, Part::Newsletter, Part::Sale] {
            let taken = Arc::new(AtomicUsize::new(0));
            for _ in 0..WRITERS {
                writers.spawn(Arc::clone(&self).write_part(part, Arc::clone(&taken), started));
            }
        }
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Writes what of a part nobody else has taken.
    async fn write_part(self: Arc<Self>, part: Part, taken: Arc<AtomicUsize>, started: Instant) -> Result<()> {
        let intents: Vec<&Intent> = self.plan.iter().filter(|intent| intent.part == part).collect();
        let pause = if part == Part::Steady { SPREAD } else { Duration::ZERO } / u32::try_from(intents.len().max(1))?;
        // The sender lives in `self`, so this cannot fail.
        let _ = self.opened.subscribe().wait_for(|opened| opened.contains(&part)).await;
        let mut conn = None;
        loop {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            let Some(intent) = intents.get(number) else { return Ok(()) };
            tokio::time::sleep_until((started + pause * u32::try_from(number)?).into()).await;
            self.write(&mut conn, intent).await?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes one message, whatever it takes: every try has the same keys, so that an unknown commit may be repeated.
    async fn write(&self, conn: &mut Option<PgConnection>, intent: &Intent) -> Result<()> {
        let mut patience = Patience::new(Duration::from_millis(50), Duration::from_secs(1), PATIENCE);
        let mut fate = intent.fate;
        let mut unknown = false;
        loop {
            match self.attempt(conn, intent, fate).await {
                Ok(End::Absent) => {
                    self.with_ledger(|ledger| ledger.absent.insert(intent.key.clone()));
                    return Ok(());
                }
                Ok(End::Committed { ids, was_there }) => {
                    self.with_ledger(|ledger| {
                        if unknown {
                            ledger.trouble(if was_there {
                                "unknown commits that had stored"
                            } else {
                                "unknown commits that had not"
                            });
                        }
                        ledger.committed.insert(intent.key.clone(), ids);
                    });
                    return Ok(());
                }
                Ok(End::Unknown) => {
                    *conn = None;
                    unknown = true;
                    fate = Fate::Commit;
                }
                Ok(End::Again) => fate = Fate::Commit,
                Err(error) => {
                    *conn = None;
                    unknown = true;
                    let Some(delay) = patience.next_delay() else {
                        return Err(error).with_context(|| format!("message {} cannot be written", intent.key));
                    };
                    self.with_ledger(|ledger| ledger.trouble("transactions broken by the database"));
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// One try.
    async fn attempt(&self, conn: &mut Option<PgConnection>, intent: &Intent, fate: Fate) -> Result<End, sqlx::Error> {
        if conn.is_none() {
            *conn = Some(self.options.connect().await?);
        }
        let Some(open) = conn.as_mut() else { return Ok(End::Again) };
        sqlx::raw_sql("begin").execute(&mut *open).await?;
        let new = sqlx::query(
            "insert into shop.message (key, account, notifications) values ($1, $2, $3) on conflict (key) do nothing",
        )
        .bind(&intent.key)
        .bind(intent.account)
        .bind(i32::try_from(intent.notifications()).unwrap_or(i32::MAX))
        .execute(&mut *open)
        .await?
        .rows_affected();
        let mut ids = Vec::new();
        for notification in intent.enqueues() {
            let id = enqueue(&mut *open, &notification).await;
            ids.push(id.map_err(|error| sqlx::Error::Protocol(format!("enqueue: {error}")))?);
        }
        match fate {
            Fate::Commit => {
                sqlx::raw_sql("commit").execute(&mut *open).await?;
                Ok(End::Committed { ids, was_there: new == 0 })
            }
            Fate::RollBack => {
                sqlx::raw_sql("rollback").execute(&mut *open).await?;
                self.with_ledger(|ledger| ledger.trouble("rolled back"));
                Ok(End::Absent)
            }
            Fate::Crash | Fate::CrashAndRetry => {
                hang_up(conn).await;
                self.with_ledger(|ledger| ledger.trouble("connections crashed before the commit"));
                Ok(if fate == Fate::Crash { End::Absent } else { End::Again })
            }
            Fate::LoseCommit => {
                // The first poll hands the commit to the kernel; the answer is not waited for.
                let commit = sqlx::raw_sql("commit").execute(&mut *open);
                let answered = tokio::time::timeout(Duration::ZERO, commit).await;
                hang_up(conn).await;
                if let Ok(Ok(_)) = answered {
                    return Ok(End::Committed { ids, was_there: new == 0 });
                }
                self.with_ledger(|ledger| ledger.trouble("commits whose answer was lost"));
                Ok(End::Unknown)
            }
        }
    }

    fn with_ledger<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the shop knows after one try.
enum End {
    /// It is stored: the commit was acknowledged.
    Committed { ids: Vec<NotificationId>, was_there: bool },
    /// It is not stored: no commit was sent.
    Absent,
    /// As `Absent`, and to be tried again.
    Again,
    /// The commit went unanswered.
    Unknown,
}

/// Ends the connection without a word, as a crash does.
async fn hang_up(conn: &mut Option<PgConnection>) {
    if let Some(conn) = conn.take() {
        // A connection that fails while it is thrown away is thrown away.
        let _ = conn.close_hard().await;
    }
}
