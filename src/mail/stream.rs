//! One connection, in clear or under TLS, with the one buffer that replies are read from.
//!
//! It never waits by itself: every caller sets the time limit. It never mixes bytes from before and after a handshake.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::classify::Cause;
use super::reply::ReplyBuffer;
use crate::domain::outcome::Reply;

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, parts),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }
}

/// What one step of writing came to.
pub(super) enum Step {
    /// This many bytes were taken: on a plain stream by the kernel, under TLS perhaps only by the TLS layer.
    Wrote(usize),
    /// The server said something, and this step wrote nothing.
    Spoke,
    /// The server closed its side, and this step wrote nothing.
    Closed,
    /// Writing, or reading beside it, failed, and this step wrote nothing.
    Failed(io::Error),
}

pub(super) struct Connection {
    stream: Stream,
    replies: ReplyBuffer,
}

impl Connection {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self { stream: Stream::Plain(stream), replies: ReplyBuffer::new() }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// Negotiates TLS. What the server said in clear before the handshake must not be taken for what it says after it
    /// (the STARTTLS response injection), so leftover bytes end the connection.
    pub(super) async fn start_tls(self, config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Cause> {
        if !self.replies.is_empty() {
            return Err(Cause::Protocol("bytes in clear before the TLS handshake"));
        }
        match self.stream {
            Stream::Tls(_) => Err(Cause::Protocol("TLS inside TLS")),
            Stream::Plain(stream) => {
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                Ok(Self { stream: Stream::Tls(Box::new(stream)), replies: ReplyBuffer::new() })
            }
        }
    }

    /// Reads once into the buffer; ready with nought at the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(self.replies.space());
        ready!(self.stream.poll_read(cx, &mut space))?;
        let count = space.filled().len();
        self.replies.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Whether the server has said nothing that was not asked for and has not hung up, as far as is known by now.
    ///
    /// What arrives a moment later is caught by the order of replies: only a 354 lets the body go.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.replies.is_empty() && self.poll_fill(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Whether bytes were received that no reply was taken from.
    pub(super) fn has_leftover(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The next reply; `each_line` is given the text of each of its lines.
    pub(super) async fn reply_lines(&mut self, mut each_line: impl FnMut(&[u8])) -> Result<Reply, Cause> {
        loop {
            if let Some(reply) = self.replies.take(&mut each_line).map_err(Cause::Garbled)? {
                return Ok(reply);
            }
            match poll_fn(|cx| self.poll_fill(cx)).await {
                Ok(0) => {}
                // A TLS stream that ends without close_notify: closed, by whomever.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Ok(_) => continue,
                Err(error) => return Err(error.into()),
            }
            return Err(if self.replies.is_empty() { Cause::Closed } else { Cause::Incomplete });
        }
    }

    /// The next reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, Cause> {
        self.reply_lines(|_| ()).await
    }

    /// Writes all of `bytes` and hands them to the kernel.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = poll_fn(|cx| self.stream.poll_write(cx, &[IoSlice::new(rest)])).await?;
            if count == 0 {
                return Err(Cause::Closed);
            }
            rest = rest.get(count..).unwrap_or_default();
        }
        Ok(poll_fn(|cx| self.stream.poll_flush(cx)).await?)
    }

    /// Writes some of `first` and then of `second` in one call, unless the server spoke or hung up before.
    pub(super) async fn step(&mut self, first: &[u8], second: &[u8]) -> Step {
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        poll_fn(|cx| {
            if let Some(noticed) = self.poll_notice(cx) {
                return Poll::Ready(noticed);
            }
            Poll::Ready(match ready!(self.stream.poll_write(cx, &parts)) {
                Ok(0) => Step::Failed(io::ErrorKind::WriteZero.into()),
                Ok(count) => Step::Wrote(count),
                Err(error) => Step::Failed(error),
            })
        })
        .await
    }

    /// Hands everything written so far to the kernel, unless the server speaks or hangs up before.
    pub(super) async fn flush(&mut self) -> Step {
        poll_fn(|cx| {
            if let Some(noticed) = self.poll_notice(cx) {
                return Poll::Ready(noticed);
            }
            Poll::Ready(match ready!(self.stream.poll_flush(cx)) {
                Ok(()) => Step::Wrote(0),
                Err(error) => Step::Failed(error),
            })
        })
        .await
    }

    fn poll_notice(&mut self, cx: &mut Context<'_>) -> Option<Step> {
        if !self.replies.is_empty() {
            return Some(Step::Spoke);
        }
        match self.poll_fill(cx) {
            Poll::Pending => None,
            Poll::Ready(Ok(0)) => Some(Step::Closed),
            Poll::Ready(Ok(_)) => Some(Step::Spoke),
            Poll::Ready(Err(error)) => Some(Step::Failed(error)),
        }
    }

    /// Says `bytes` if that takes no waiting, for a connection that is given up in any case.
    pub(super) fn write_if_ready(&mut self, bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = self.stream.poll_write(&mut cx, &[IoSlice::new(bytes)]);
        let _ = self.stream.poll_flush(&mut cx);
    }
}
