//! A TCP proxy that breaks on command: the network between a process and its database or its SMTP server.
//!
//! It forwards bytes and never looks into them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::listener::Listener;

/// Bytes that one direction of a connection holds at most: a loopback segment.
const CHUNK_BYTES: usize = 64 * 1_024;

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connected to the proxy.
    ToTarget,
    /// From the target.
    ToClient,
    /// Both ways.
    Both,
}

/// How connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// By FIN to both sides.
    Close,
    /// By RST to both sides.
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stalled {
    to_target: bool,
    to_client: bool,
}

enum Order {
    Refuse(oneshot::Sender<()>),
    Accept(oneshot::Sender<io::Result<()>>),
    Cut(Cut, oneshot::Sender<()>),
}

/// A running proxy. Dropping it stops it and closes its connections.
pub struct Proxy {
    addr: SocketAddr,
    orders: mpsc::Sender<Order>,
    stalled: watch::Sender<Stalled>,
    connections: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards every connection to `target`.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let addr = listener.addr();
        let (orders, received) = mpsc::channel(1);
        let stalled = watch::Sender::default();
        let connections = watch::Sender::default();
        let work = Work { target, stalled: stalled.clone(), connections: connections.clone() };
        let task = tokio::spawn(work.run(listener, received));
        Ok(Self { addr, orders, stalled, connections, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits until the number of open connections fulfils `condition`.
    pub async fn wait_for_connections(&self, mut condition: impl FnMut(usize) -> bool) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.connections.subscribe().wait_for(|&count| condition(count)).await;
    }

    /// Ends all open connections; when this returns, they are closed. New ones are accepted as before.
    pub async fn cut(&self, how: Cut) {
        let (done, wait) = oneshot::channel();
        if self.orders.send(Order::Cut(how, done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Lets nothing through in this direction, neither bytes nor the end of a connection, on open connections and new
    /// ones, without closing any: what a dropped route looks like to whoever waits for an answer. TCP itself goes on
    /// acknowledging, so keep-alive probes do not notice. A chunk on its way out may still pass.
    pub fn stall(&self, direction: Direction) {
        self.stalled.send_modify(|stalled| {
            stalled.to_target |= matches!(direction, Direction::ToTarget | Direction::Both);
            stalled.to_client |= matches!(direction, Direction::ToClient | Direction::Both);
        });
    }

    /// Lets everything through again, first what was held back.
    pub fn resume(&self) {
        self.stalled.send_replace(Stalled::default());
    }

    /// Refuses new connections from when this returns. Open ones go on.
    pub async fn refuse(&self) {
        let (done, wait) = oneshot::channel();
        if self.orders.send(Order::Refuse(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Accepts connections again, on the same port.
    ///
    /// # Errors
    /// If the port cannot be listened on any more.
    pub async fn accept(&self) -> io::Result<()> {
        let (done, wait) = oneshot::channel();
        let stopped = || io::Error::other("the proxy has stopped");
        self.orders.send(Order::Accept(done)).await.map_err(|_| stopped())?;
        wait.await.map_err(|_| stopped())?
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its connections are in a set that the task owns, so they end with it.
        self.task.abort();
    }
}

struct Work {
    target: SocketAddr,
    stalled: watch::Sender<Stalled>,
    connections: watch::Sender<usize>,
}

impl Work {
    async fn run(self, mut listener: Listener, mut orders: mpsc::Receiver<Order>) {
        let mut links = JoinSet::new();
        let mut cuts = watch::Sender::new(None);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(Order::Refuse(done)) => {
                        listener.close();
                        let _ = done.send(());
                    }
                    Some(Order::Accept(done)) => {
                        let _ = done.send(listener.reopen());
                    }
                    Some(Order::Cut(how, done)) => {
                        // Later connections get a sender of their own, so that this cut is not theirs.
                        let _ = std::mem::replace(&mut cuts, watch::Sender::new(None)).send(Some(how));
                        while links.join_next().await.is_some() {}
                        let _ = done.send(());
                    }
                },
                client = listener.accept() => {
                    let count = Count::new(&self.connections);
                    links.spawn(link(client, self.target, self.stalled.subscribe(), cuts.subscribe(), count));
                }
                Some(_) = links.join_next() => {}
            }
        }
    }
}

/// Counts a connection for as long as it lives, however it ends.
struct Count(watch::Sender<usize>);

impl Count {
    fn new(connections: &watch::Sender<usize>) -> Self {
        connections.send_modify(|count| *count += 1);
        Self(connections.clone())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

async fn link(
    mut client: TcpStream,
    target: SocketAddr,
    stalled: watch::Receiver<Stalled>,
    mut cut: watch::Receiver<Option<Cut>>,
    _count: Count,
) {
    let connected = tokio::select! {
        _ = cut.wait_for(Option::is_some) => return,
        connected = TcpStream::connect(target) => connected,
    };
    let Ok(mut server) = connected else {
        // Reset at once: as near to "connection refused" as a proxy that has accepted can come.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // Borrowed halves: owned ones send FIN when they are dropped, and a reset would come too late.
    let (mut client_read, mut client_write) = client.split();
    let (mut server_read, mut server_write) = server.split();
    let forwarded = async {
        tokio::try_join!(
            pump(&mut client_read, &mut server_write, stalled.clone(), |stalled| stalled.to_target),
            pump(&mut server_read, &mut client_write, stalled.clone(), |stalled| stalled.to_client),
        )
    };
    let how = tokio::select! {
        how = cut.wait_for(Option::is_some) => how.ok().and_then(|how| *how).unwrap_or(Cut::Close),
        forwarded = forwarded => match forwarded {
            Ok(_) => Cut::Close,
            Err(_) => Cut::Reset,
        },
    };
    for mut side in [client, server] {
        match how {
            Cut::Reset => drop(side.set_zero_linger()),
            Cut::Close => {
                let _ = side.shutdown().await;
                // Linux sends RST in place of FIN when a socket is closed with unread bytes in it.
                let mut space = [0_u8; 4_096];
                while matches!(side.try_read(&mut space), Ok(count) if count > 0) {}
            }
        }
    }
}

async fn pump(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    mut stalled: watch::Receiver<Stalled>,
    is_stalled: impl Fn(&Stalled) -> bool,
) -> io::Result<()> {
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).await;
        // Asked after reading: what arrives during a stall is held, and so is an end or an error.
        if stalled.wait_for(|stalled| !is_stalled(stalled)).await.is_err() {
            return Ok(());
        }
        let count = count?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    /// An upper bound for what should happen at once, so that a broken proxy fails a test and does not hang it.
    const PATIENCE: Duration = Duration::from_secs(20);

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(PATIENCE, future).await.expect("it should have happened by now")
    }

    /// A client and its server, joined by a proxy.
    async fn pair() -> (Proxy, TcpListener, TcpStream, TcpStream) {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(target.local_addr().unwrap()).await.unwrap();
        let client = TcpStream::connect(proxy.addr()).await.unwrap();
        let (server, _) = soon(target.accept()).await.unwrap();
        (proxy, target, client, server)
    }

    async fn passes(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) {
        from.write_all(text).await.unwrap();
        let mut got = vec![0; text.len()];
        soon(to.read_exact(&mut got)).await.unwrap();
        assert_eq!(got, text);
    }

    #[tokio::test]
    async fn bytes_and_ends_pass_both_ways() {
        let (proxy, _target, mut client, mut server) = pair().await;
        passes(&mut client, &mut server, b"ping").await;
        passes(&mut server, &mut client, b"pong").await;
        client.shutdown().await.unwrap();
        assert_eq!(soon(server.read(&mut [0; 8])).await.unwrap(), 0, "the end of the client's side");
        passes(&mut server, &mut client, b"still open this way").await;
        drop(server);
        assert_eq!(soon(client.read(&mut [0; 8])).await.unwrap(), 0);
        soon(proxy.wait_for_connections(|count| count == 0)).await;
    }

    #[tokio::test]
    async fn a_reset_reaches_both_sides_as_a_reset_and_a_close_as_an_end() {
        for (how, expected) in [(Cut::Reset, Err(io::ErrorKind::ConnectionReset)), (Cut::Close, Ok(0))] {
            let (proxy, target, mut client, mut server) = pair().await;
            passes(&mut client, &mut server, b"ping").await;
            soon(proxy.cut(how)).await;
            assert_eq!(proxy.connections(), 0);
            let seen = (soon(client.read(&mut [0; 8])).await, soon(server.read(&mut [0; 8])).await);
            assert_eq!(seen.0.map_err(|error| error.kind()), expected, "{how:?} at the client");
            assert_eq!(seen.1.map_err(|error| error.kind()), expected, "{how:?} at the server");

            let mut again = TcpStream::connect(proxy.addr()).await.unwrap();
            let (mut server, _) = soon(target.accept()).await.unwrap();
            passes(&mut again, &mut server, b"a new connection works").await;
        }
    }

    #[tokio::test]
    async fn a_reset_by_one_side_reaches_the_other() {
        let (_proxy, _target, mut client, mut server) = pair().await;
        passes(&mut client, &mut server, b"ping").await;
        server.set_zero_linger().unwrap();
        drop(server);
        let seen = soon(client.read(&mut [0; 8])).await.map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test]
    async fn a_stall_holds_one_direction_and_resuming_loses_nothing() {
        let (proxy, _target, mut client, mut server) = pair().await;
        proxy.stall(Direction::ToClient);
        server.write_all(b"held").await.unwrap();
        // The other direction works, and the round trip gives the held bytes time to leak.
        for _ in 0..20 {
            passes(&mut client, &mut server, b"ping").await;
        }
        let leaked = client.try_read(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(leaked, Err(io::ErrorKind::WouldBlock));
        proxy.resume();
        let mut got = [0; 4];
        soon(client.read_exact(&mut got)).await.unwrap();
        assert_eq!(&got, b"held");
    }

    #[tokio::test]
    async fn a_stall_hides_even_the_end_of_the_other_side() {
        let (proxy, _target, mut client, server) = pair().await;
        proxy.stall(Direction::Both);
        drop(server);
        let hidden = tokio::time::timeout(Duration::from_millis(100), client.read(&mut [0; 8])).await;
        assert!(hidden.is_err(), "the client saw {hidden:?}");
        assert_eq!(proxy.connections(), 1);
        proxy.resume();
        assert_eq!(soon(client.read(&mut [0; 8])).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn new_connections_are_refused_on_command_while_open_ones_go_on() {
        let (proxy, _target, mut client, mut server) = pair().await;
        proxy.refuse().await;
        let refused = TcpStream::connect(proxy.addr()).await.map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
        passes(&mut client, &mut server, b"ping").await;
        proxy.accept().await.unwrap();
        assert!(TcpStream::connect(proxy.addr()).await.is_ok());
    }

    #[tokio::test]
    async fn a_stalled_connection_can_be_cut() {
        let (proxy, _target, mut client, _server) = pair().await;
        proxy.stall(Direction::Both);
        client.write_all(b"into the void").await.unwrap();
        soon(proxy.cut(Cut::Reset)).await;
        let seen = soon(client.read(&mut [0; 8])).await.map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test]
    async fn a_dead_target_closes_the_client() {
        let (proxy, target, client, server) = pair().await;
        drop((target, client, server));
        let mut late = TcpStream::connect(proxy.addr()).await.unwrap();
        assert!(!matches!(soon(late.read(&mut [0; 8])).await, Ok(count) if count > 0));
        soon(proxy.wait_for_connections(|count| count == 0)).await;
    }
}
