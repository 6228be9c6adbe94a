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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;
    use crate::mail::session::{Envelope, Security, Timeouts};

    /// A server that greets, refuses every sender, and tells on which connection QUIT was said.
    struct Relay {
        port: u16,
        connections: Arc<AtomicUsize>,
        farewells: mpsc::UnboundedReceiver<usize>,
    }

    impl Relay {
        async fn start(hangs_up: bool) -> Self {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connections = Arc::new(AtomicUsize::new(0));
            let (said, farewells) = mpsc::unbounded_channel();
            let count = connections.clone();
            tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                    let said = said.clone();
                    tokio::spawn(async move {
                        let mut stream = BufReader::new(stream);
                        stream.write_all(b"220 t\r\n").await.unwrap();
                        let mut line = String::new();
                        while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
                            let answer: &[u8] = match line.trim_end() {
                                "QUIT" => return said.send(number).unwrap_or(()),
                                mail if mail.starts_with("MAIL") => b"450 no\r\n",
                                _ => b"250 t\r\n",
                            };
                            stream.write_all(answer).await.unwrap();
                            if hangs_up {
                                return;
                            }
                            line.clear();
                        }
                    });
                }
            });
            Self { port, connections, farewells }
        }

        fn pool(&self, limits: Limits) -> Pool {
            let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
            let endpoint = Endpoint {
                host: "127.0.0.1".to_owned(),
                port: self.port,
                security: Security::Plaintext,
                tls: Arc::new(tls),
                server_name: "localhost".try_into().unwrap(),
                auth: None,
                hello: "client.example".to_owned(),
                timeouts: Timeouts::default(),
            };
            Pool::new(endpoint, limits)
        }

        fn connections(&self) -> usize {
            self.connections.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn the_session_used_last_is_taken_first() {
        let mut relay = Relay::start(false).await;
        let pool = relay.pool(Limits::default());
        let (first, second) = (pool.take().await.unwrap(), pool.take().await.unwrap());
        assert!(!first.reused());
        pool.give_back(first);
        pool.give_back(second);
        let again = pool.take().await.unwrap();
        assert!(again.reused());
        again.leave();
        assert_eq!(relay.farewells.recv().await, Some(2));
        assert_eq!((pool.idle_count(), relay.connections()), (1, 2));
        pool.clear();
        assert_eq!(relay.farewells.recv().await, Some(1));
    }

    #[tokio::test]
    async fn more_idle_sessions_than_the_limit_are_closed() {
        let mut relay = Relay::start(false).await;
        let pool = relay.pool(Limits { max_idle: 1, ..Limits::default() });
        let (first, second) = (pool.take().await.unwrap(), pool.take().await.unwrap());
        pool.give_back(first);
        pool.give_back(second);
        assert_eq!(relay.farewells.recv().await, Some(2));
        assert_eq!(pool.idle_count(), 1);
    }

    #[tokio::test]
    async fn a_session_that_was_idle_too_long_is_closed() {
        let mut relay = Relay::start(false).await;
        let pool = relay.pool(Limits { idle_timeout: Duration::ZERO, ..Limits::default() });
        pool.give_back(pool.take().await.unwrap());
        assert!(!pool.take().await.unwrap().reused());
        assert_eq!(relay.farewells.recv().await, Some(1));
        pool.give_back(pool.open().await.unwrap());
        assert_eq!((pool.prune(), pool.idle_count()), (1, 0));
        assert_eq!(relay.farewells.recv().await, Some(3));
    }

    #[tokio::test]
    async fn a_session_that_is_old_or_has_carried_enough_is_closed() {
        let envelope = Envelope { sender: "s@d".to_owned(), recipient: "r@d".to_owned(), smtputf8: false };
        for limits in
            [Limits { max_age: Duration::ZERO, ..Limits::default() }, Limits { max_messages: 2, ..Limits::default() }]
        {
            let mut relay = Relay::start(false).await;
            let pool = relay.pool(limits.clone());
            let mut session = pool.take().await.unwrap();
            session.offer(&envelope, 1).await.unwrap_err();
            if limits.max_age > Duration::ZERO {
                pool.give_back(session);
                session = pool.take().await.unwrap();
                assert!(session.reused());
                session.offer(&envelope, 1).await.unwrap_err();
            }
            pool.give_back(session);
            assert_eq!((relay.farewells.recv().await, pool.idle_count()), (Some(1), 0));
        }
    }

    #[tokio::test]
    async fn a_session_that_the_server_closed_is_replaced() {
        let relay = Relay::start(true).await;
        let pool = relay.pool(Limits::default());
        pool.give_back(pool.take().await.unwrap());
        while relay.connections() < 2 {
            pool.give_back(pool.take().await.unwrap());
            tokio::task::yield_now().await;
        }
    }
}
