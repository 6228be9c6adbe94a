//! A strict SMTP server (RFC 5321) that can be told to misbehave in every way, and that keeps what it accepted.
//!
//! It listens on the loopback interface and delivers to nobody. What a client did wrong is recorded and refused; what
//! the server does wrong is written in its [`Script`]. It must never forgive a client in silence.

mod action;
mod auth;
mod body;
mod chaos;
mod mailbox;
mod script;
mod session;
mod syntax;
#[cfg(test)]
mod tests;
mod tls;
mod wire;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::rustls::ServerConfig;

use super::listener::Listener;

pub use action::{Action, Stage};
pub use auth::{Auth, Mechanism};
pub use chaos::Rates;
pub use mailbox::{Dedup, Mailbox, Param, Received, Recipient};
pub use script::{Moment, Rule, Script, ScriptHandle};
pub use tls::{SelfSigned, self_signed};

/// How many violations are kept: the first ones tell the story.
const VIOLATIONS_MAX: usize = 1_000;

/// The extensions that EHLO offers, besides STARTTLS and AUTH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extensions {
    /// PIPELINING (RFC 2920).
    pub pipelining: bool,
    /// 8BITMIME (RFC 6152).
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// SIZE with this limit in bytes, enforced too; 0 for no limit (RFC 1870).
    pub size: Option<u64>,
    /// ENHANCEDSTATUSCODES (RFC 2034).
    pub enhanced_status_codes: bool,
    /// DSN (RFC 3461): its parameters are accepted and kept.
    pub dsn: bool,
}

impl Extensions {
    /// EHLO that offers nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            pipelining: false,
            eight_bit_mime: false,
            smtputf8: false,
            size: None,
            enhanced_status_codes: false,
            dsn: false,
        }
    }
}

impl Default for Extensions {
    /// Everything, with a limit of 10 MiB.
    fn default() -> Self {
        Self {
            pipelining: true,
            eight_bit_mime: true,
            smtputf8: true,
            size: Some(10 * 1_024 * 1_024),
            enhanced_status_codes: true,
            dsn: true,
        }
    }
}

/// How the server uses TLS.
#[derive(Clone, Default)]
pub enum Tls {
    /// Not at all.
    #[default]
    None,
    /// From the first byte (RFC 8314).
    Implicit(Arc<ServerConfig>),
    /// By STARTTLS, offered until it is used (RFC 3207). AUTH is offered only afterwards.
    StartTls(Arc<ServerConfig>),
}

/// What a server is like. The default listens on a free port of 127.0.0.1, offers every extension and behaves.
#[derive(Clone)]
pub struct Options {
    /// Where to listen.
    pub bind: SocketAddr,
    /// What EHLO offers.
    pub extensions: Extensions,
    /// TLS.
    pub tls: Tls,
    /// The account that MAIL needs; without one, AUTH is not offered.
    pub auth: Option<Auth>,
    /// Whether repeated ids are recognised.
    pub dedup: Option<Dedup>,
    /// What to do wrong.
    pub script: Script,
    /// Whether messages are kept whole, or only their ids, envelopes and hashes: for large runs.
    pub keep_bodies: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            extensions: Extensions::default(),
            tls: Tls::None,
            auth: None,
            dedup: None,
            script: Script::default(),
            keep_bodies: true,
        }
    }
}

/// How many connections there are and were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Open now.
    pub now: u64,
    /// Accepted since the start.
    pub total: u64,
    /// The most that were open at one time.
    pub peak: u64,
}

struct Shared {
    extensions: Extensions,
    tls: Tls,
    auth: Option<Auth>,
    script: ScriptHandle,
    mailbox: Mailbox,
    violations: Mutex<Vec<String>>,
    connections: watch::Sender<Connections>,
}

impl Shared {
    fn record_violation(&self, connection: u64, what: &str) {
        let mut violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if violations.len() < VIOLATIONS_MAX {
            violations.push(format!("connection {connection}: {what}"));
        }
    }
}

/// Counts a connection for as long as it lives, however it ends.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> (Self, u64) {
        let mut number = 0;
        shared.connections.send_modify(|connections| {
            connections.now += 1;
            connections.total += 1;
            connections.peak = connections.peak.max(connections.now);
            number = connections.total;
        });
        (Self(Arc::clone(shared)), number)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.send_modify(|connections| connections.now -= 1);
    }
}

enum Order {
    Pause(oneshot::Sender<()>),
    Resume(oneshot::Sender<io::Result<()>>),
    Cut(oneshot::Sender<()>),
}

/// A running server. Dropping it stops it and cuts its connections.
pub struct SmtpServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

impl SmtpServer {
    /// Starts a server; when this returns, it listens.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(options: Options) -> io::Result<Self> {
        let listener = Listener::bind(options.bind)?;
        let addr = listener.addr();
        let shared = Arc::new(Shared {
            extensions: options.extensions,
            tls: options.tls,
            auth: options.auth,
            script: ScriptHandle::new(options.script),
            mailbox: Mailbox::new(options.dedup, options.keep_bodies),
            violations: Mutex::default(),
            connections: watch::Sender::default(),
        });
        let (orders, received) = mpsc::channel(1);
        let task = tokio::spawn(listen(listener, Arc::clone(&shared), received));
        Ok(Self { addr, shared, orders, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it accepted.
    #[must_use]
    pub fn mailbox(&self) -> Mailbox {
        self.shared.mailbox.clone()
    }

    /// What it does wrong.
    #[must_use]
    pub fn script(&self) -> ScriptHandle {
        self.shared.script.clone()
    }

    /// How many connections there are and were.
    #[must_use]
    pub fn connections(&self) -> Connections {
        *self.shared.connections.borrow()
    }

    /// Waits until the count of connections fulfils `condition`.
    pub async fn wait_for_connections(&self, condition: impl FnMut(&Connections) -> bool) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.shared.connections.subscribe().wait_for(condition).await;
    }

    /// What clients did against the protocol, in order; at most the first thousand.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.shared.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses new connections from when this returns. Open ones go on.
    pub async fn pause(&self) {
        let (done, wait) = oneshot::channel();
        if self.orders.send(Order::Pause(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Accepts connections again, on the same port.
    ///
    /// # Errors
    /// If the port cannot be listened on any more.
    pub async fn resume(&self) -> io::Result<()> {
        let (done, wait) = oneshot::channel();
        let stopped = || io::Error::other("the server has stopped");
        self.orders.send(Order::Resume(done)).await.map_err(|_| stopped())?;
        wait.await.map_err(|_| stopped())?
    }

    /// Ends every open connection at once, as a killed process does.
    pub async fn cut_connections(&self) {
        let (done, wait) = oneshot::channel();
        if self.orders.send(Order::Cut(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Refuses new connections and ends the open ones; when this returns, all is closed.
    pub async fn stop(self) {
        self.pause().await;
        self.cut_connections().await;
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        // Its connections are in a set that the task owns, so they end with it.
        self.task.abort();
    }
}

async fn listen(mut listener: Listener, shared: Arc<Shared>, mut orders: mpsc::Receiver<Order>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(Order::Pause(done)) => {
                    listener.close();
                    let _ = done.send(());
                }
                Some(Order::Resume(done)) => {
                    let _ = done.send(listener.reopen());
                }
                Some(Order::Cut(done)) => {
                    connections.shutdown().await;
                    let _ = done.send(());
                }
            },
            tcp = listener.accept() => {
                let (open, number) = Open::new(&shared);
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    let _open = open;
                    session::serve(tcp, number, shared).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
