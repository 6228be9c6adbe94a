//! The server as a raw client sees it: bytes out, bytes in, and how the connection ends.

mod faults;
mod protocol;
mod secure;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// An upper bound for what should happen at once, so that a broken server fails a test and does not hang it.
const PATIENCE: Duration = Duration::from_secs(20);

const MESSAGE: &str =
    "From: a@example.com\r\nX-Notification-ID: n-1\r\nMessage-ID: <n-1@example.com>\r\n\r\nhello there\r\n.\r\n";

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it should have happened by now")
}

/// How a connection ended, as its client sees it.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
    /// TLS ended by FIN without `close_notify`.
    Truncated,
}

struct Client<S> {
    stream: S,
    input: Vec<u8>,
}

impl Client<TcpStream> {
    /// Connects without reading the greeting.
    async fn raw(server: &SmtpServer) -> Self {
        let stream = TcpStream::connect(server.addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, input: Vec::new() }
    }

    /// Connects and says EHLO.
    async fn hello(server: &SmtpServer) -> Self {
        let mut client = Self::raw(server).await;
        assert!(client.reply().await.starts_with("220 "));
        assert!(client.ask("EHLO client.test").await.starts_with("250"));
        client
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// One reply with all its lines.
    async fn reply(&mut self) -> String {
        let mut reply = String::new();
        loop {
            while !self.input.contains(&b'\n') {
                let count = soon(self.stream.read_buf(&mut self.input)).await.unwrap();
                assert!(count > 0, "the server closed after {:?}", String::from_utf8_lossy(&self.input));
            }
            let end = self.input.iter().position(|&byte| byte == b'\n').unwrap() + 1;
            let line = String::from_utf8(self.input.drain(..end).collect()).unwrap();
            assert!(line.ends_with("\r\n"), "{line:?}");
            reply.push_str(&line);
            if line.as_bytes().get(3) != Some(&b'-') {
                return reply;
            }
        }
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n")).await;
        self.reply().await
    }

    async fn code(&mut self, line: &str) -> u16 {
        self.ask(line).await[..3].parse().unwrap()
    }

    /// Everything up to the end of the connection, and how it ended.
    async fn rest(&mut self) -> (Vec<u8>, End) {
        let end = loop {
            match soon(self.stream.read_buf(&mut self.input)).await {
                Ok(0) => break End::Fin,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break End::Rst,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break End::Truncated,
                Err(error) => panic!("{error}"),
            }
        };
        (std::mem::take(&mut self.input), end)
    }

    async fn start_mail(&mut self) {
        assert_eq!(self.code("MAIL FROM:<a@example.com>").await, 250);
        assert_eq!(self.code("RCPT TO:<b@example.com>").await, 250);
        assert_eq!(self.code("DATA").await, 354);
    }

    /// A whole message; returns the answer to the end of data.
    async fn deliver(&mut self) -> String {
        self.start_mail().await;
        self.send(MESSAGE).await;
        self.reply().await
    }
}

async fn server(rules: impl IntoIterator<Item = Rule>) -> SmtpServer {
    SmtpServer::start(Options { script: Script::new(rules), ..Options::default() }).await.unwrap()
}
