//! The idle sessions with one provider.
//!
//! A session comes back only by being given back, and only if it may serve another message: one that was dropped in the
//! middle of a transaction, by a cancelled future say, is closed and never seen again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::classify::Failure;
use super::session::{Endpoint, Session};

/// How many sessions are kept, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most idle sessions; more are closed when they are given back.
    pub max_idle: usize,
    /// How long a session may be idle.
    pub idle_timeout: Duration,
    /// How many messages a session may carry.
    pub max_messages: u32,
    /// How old a session may get.
    pub max_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_idle: 16,
            // Well under the five minutes for which a server waits for a command (RFC 5321, 4.5.3.2.7).
            idle_timeout: Duration::from_secs(60),
            // Providers end a session after some hundreds of messages; leaving first is cheaper than being thrown out.
            max_messages: 500,
            // So that a change of the provider's addresses is followed.
            max_age: Duration::from_secs(600),
        }
    }
}

struct Idle {
    session: Session,
    since: Instant,
}

/// The idle sessions with one endpoint, the last used first, so that those of a busy hour fall idle and are closed.
pub struct Pool {
    endpoint: Endpoint,
    limits: Limits,
    idle: Mutex<Vec<Idle>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("limits", &self.limits).field("idle", &self.idle_count()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool without sessions.
    #[must_use]
    pub const fn new(endpoint: Endpoint, limits: Limits) -> Self {
        Self { endpoint, limits, idle: Mutex::new(Vec::new()) }
    }

    /// The endpoint of its sessions.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// An idle session that is still usable, or a new one.
    ///
    /// # Errors
    /// When a new session cannot be opened.
    pub async fn take(&self) -> Result<Session, Failure> {
        if let Some(session) = self.take_idle() {
            return Ok(session);
        }
        self.open().await
    }

    /// A new session, for the one more try after a reused one proved stale.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(&self) -> Result<Session, Failure> {
        Session::open(&self.endpoint).await
    }

    fn take_idle(&self) -> Option<Session> {
        loop {
            let Idle { mut session, since } = self.idle().pop()?;
            if !session.usable() {
                continue;
            }
            if self.is_spent(&session) || since.elapsed() > self.limits.idle_timeout {
                session.leave();
                continue;
            }
            session.mark_pooled();
            return Some(session);
        }
    }

    /// Takes a session back, if it may serve another message and there is room for it.
    pub fn give_back(&self, mut session: Session) {
        if !session.usable() {
            return;
        }
        let mut idle = self.idle();
        if self.is_spent(&session) || idle.len() >= self.limits.max_idle {
            drop(idle);
            session.leave();
            return;
        }
        idle.push(Idle { session, since: Instant::now() });
    }

    /// Closes the sessions that have been idle for too long; returns how many.
    pub fn prune(&self) -> usize {
        let limit = self.limits.idle_timeout;
        let expired: Vec<Idle> = self.idle().extract_if(.., |idle| idle.since.elapsed() > limit).collect();
        let count = expired.len();
        expired.into_iter().for_each(|idle| idle.session.leave());
        count
    }

    /// Closes all idle sessions, at shutdown or when the provider is found to be down.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.idle());
        all.into_iter().for_each(|idle| idle.session.leave());
    }

    /// How many sessions are idle.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        self.idle().len()
    }

    fn is_spent(&self, session: &Session) -> bool {
        session.offers() >= self.limits.max_messages || session.age() > self.limits.max_age
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        // Nothing that holds the lock can leave the list half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
