//! Bytes in and out of one connection: lines, buffered replies, TLS and the ways in which a connection ends.
//!
//! Replies are held back until the client has nothing more to say, so that a pipelined group gets one write. It knows
//! nothing of SMTP but its line ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::body::Body;

/// The longest line that is read: an AUTH response, the longest of all (RFC 4954, 4).
const LINE_MAX_BYTES: usize = 12_288;

/// How often a server that hangs looks whether the client has left while unread bytes keep the socket readable.
const HANG_LOOK: Duration = Duration::from_millis(20);

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Closed,
}

impl Stream {
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(tcp) => Some(tcp),
            Self::Tls(tls) => Some(tls.get_ref().0),
            Self::Closed => None,
        }
    }

    fn tcp_mut(&mut self) -> Option<&mut TcpStream> {
        match self {
            Self::Plain(tcp) => Some(tcp),
            Self::Tls(tls) => Some(tls.get_mut().0),
            Self::Closed => None,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
            Self::Closed => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
            Self::Closed => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
            Self::Closed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            Self::Closed => Poll::Ready(Ok(())),
        }
    }
}

/// A line that the client sent, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Ended by CRLF, without any other CR or LF.
    Good(Vec<u8>),
    /// Ended by a bare LF or with a bare CR in it.
    BareLineEnd,
    /// Longer than any line may be.
    TooLong,
    /// The client left; `bare_cr` if it left a bare CR in a line without an end.
    Eof { bare_cr: bool },
}

/// How far a body came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The final dot came.
    Ended,
    /// As many bytes came as were asked for.
    Reached,
}

pub(super) struct Wire {
    stream: Stream,
    input: Vec<u8>,
    start: usize,
    output: Vec<u8>,
}

impl Wire {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Self { stream: Stream::Plain(tcp), input: Vec::with_capacity(8 * 1024), start: 0, output: Vec::new() }
    }

    fn buffered(&self) -> &[u8] {
        &self.input[self.start..]
    }

    pub(super) fn has_input(&self) -> bool {
        self.start < self.input.len()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    pub(super) fn discard_input(&mut self) {
        self.input.clear();
        self.start = 0;
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Writes what is queued. What could not be written stays queued, so that [`Wire::has_output`] tells it.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        self.stream.flush().await
    }

    fn make_room(&mut self) {
        self.input.drain(..self.start);
        self.start = 0;
        // A big body should not take a system call for every few kilobytes.
        self.input.reserve(8 * 1024);
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.flush().await?;
        self.make_room();
        self.stream.read_buf(&mut self.input).await
    }

    /// Whether the client has sent something that was not yet asked for; looks without waiting.
    pub(super) fn peek_input(&mut self) -> bool {
        if !self.has_input() {
            let mut space = [0_u8; 1_024];
            let mut buf = ReadBuf::new(&mut space);
            let polled = Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf);
            if matches!(polled, Poll::Ready(Ok(()))) {
                self.input.extend_from_slice(buf.filled());
            }
        }
        self.has_input()
    }

    /// Waits until the client sends something or leaves.
    pub(super) async fn wait_input(&mut self) -> io::Result<()> {
        if !self.has_input() {
            self.fill().await?;
        }
        Ok(())
    }

    /// Reads one line; writes what is queued before it waits.
    pub(super) async fn line(&mut self) -> io::Result<Line> {
        let mut searched = 0;
        loop {
            let buffered = self.buffered();
            if let Some(end) = buffered[searched..].iter().position(|&byte| byte == b'\n').map(|at| searched + at) {
                let line = &buffered[..end];
                let line = match line.strip_suffix(b"\r") {
                    Some(line) if line.len() + 2 > LINE_MAX_BYTES => Line::TooLong,
                    Some(line) if !line.contains(&b'\r') => Line::Good(line.to_vec()),
                    Some(_) | None => Line::BareLineEnd,
                };
                self.start += end + 1;
                return Ok(line);
            }
            searched = buffered.len();
            if searched > LINE_MAX_BYTES {
                return Ok(Line::TooLong);
            }
            if self.fill().await? == 0 {
                let rest = self.buffered();
                let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
                return Ok(Line::Eof { bare_cr: rest.contains(&b'\r') });
            }
        }
    }

    /// Reads into `body` until its end or until `limit` bytes of it have come in.
    ///
    /// # Errors
    /// `UnexpectedEof` if the client leaves before.
    pub(super) async fn body(&mut self, body: &mut Body, limit: Option<u64>) -> io::Result<Progress> {
        loop {
            let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(body.taken()));
            if left == 0 {
                return Ok(Progress::Reached);
            }
            if !self.has_input() && self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let buffered = &self.input[self.start..];
            let chunk = &buffered[..buffered.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let (used, ended) = body.feed(chunk);
            self.start += used;
            if ended {
                return Ok(Progress::Ended);
            }
        }
    }

    /// Turns the connection into TLS. What the client sent before the handshake must have been discarded.
    pub(super) async fn handshake(&mut self, config: Arc<ServerConfig>) -> io::Result<()> {
        self.flush().await?;
        let Stream::Plain(tcp) = std::mem::replace(&mut self.stream, Stream::Closed) else {
            return Err(io::Error::other("TLS is already in use"));
        };
        let tls = TlsAcceptor::from(config).accept(tcp).await?;
        self.stream = Stream::Tls(Box::new(tls));
        Ok(())
    }

    /// Whether the client is known to have closed its side.
    pub(super) async fn client_left(&self) -> bool {
        let Some(tcp) = self.stream.tcp() else { return true };
        // With the writable side asked for too, this answers at once instead of waiting for input.
        match tcp.ready(Interest::READABLE | Interest::WRITABLE).await {
            Ok(ready) => ready.is_read_closed(),
            Err(_) => true,
        }
    }

    /// Neither reads nor writes until the client leaves. Bytes queued before are written first.
    pub(super) async fn hang(&mut self) {
        if self.flush().await.is_err() {
            return;
        }
        let Some(tcp) = self.stream.tcp() else { return };
        while let Ok(ready) = tcp.ready(Interest::READABLE).await {
            if ready.is_read_closed() {
                return;
            }
            tokio::time::sleep(HANG_LOOK).await;
        }
    }

    /// Ends the connection as a good server does: `close_notify` under TLS, then FIN.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        let flushed = self.flush().await;
        let _ = self.stream.shutdown().await;
        self.let_go();
        flushed
    }

    /// Cuts the connection by FIN.
    pub(super) async fn cut(&mut self) -> io::Result<()> {
        let flushed = self.flush().await;
        if let Some(tcp) = self.stream.tcp_mut() {
            let _ = tcp.shutdown().await;
        }
        self.let_go();
        flushed
    }

    /// Cuts the connection by RST.
    pub(super) async fn reset(&mut self) -> io::Result<()> {
        let flushed = self.flush().await;
        if let Some(tcp) = self.stream.tcp() {
            let _ = tcp.set_zero_linger();
        }
        self.stream = Stream::Closed;
        flushed
    }

    fn let_go(&mut self) {
        if let Some(tcp) = self.stream.tcp() {
            // Linux sends RST in place of FIN when a socket is closed with unread bytes in it.
            let mut space = [0_u8; 4_096];
            while matches!(tcp.try_read(&mut space), Ok(read) if read > 0) {}
        }
        self.stream = Stream::Closed;
    }
}
