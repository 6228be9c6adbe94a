//! A listening socket that can be closed and opened again on the same port.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that may wait to be accepted. With the usual 128, a burst of a few hundred on a busy machine overflows:
/// the kernel then drops the last step of some handshakes, and those clients wait for a greeting that never comes.
const BACKLOG: u32 = 4_096;

/// How long to wait after the system refused to accept, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Listener {
    addr: SocketAddr,
    open: Option<TcpListener>,
}

impl Listener {
    /// Listens on `addr`, and remembers the port if the system chose it.
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Self> {
        let open = listen(addr)?;
        Ok(Self { addr: open.local_addr()?, open: Some(open) })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on connections are refused; those that wait to be accepted are reset.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if self.open.is_none() {
            self.open = Some(listen(self.addr)?);
        }
        Ok(())
    }

    /// The next connection; never, while closed. May be dropped without losing one.
    pub(super) async fn accept(&self) -> TcpStream {
        let Some(open) = &self.open else { return std::future::pending().await };
        loop {
            match open.accept().await {
                Ok((tcp, _)) => return tcp,
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of an earlier life may linger on the port.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}
