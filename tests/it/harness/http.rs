//! An HTTP server that does to each request what its script says, and remembers what was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What to do with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Close before anything is read.
    CloseAtOnce,
    /// Read all of it, and close without a word.
    CloseAfterRequest,
    /// Read all of it, and never answer.
    Hang,
    /// A status, headers of its own (whole lines) and a body.
    Answer(u16, &'static str, String),
    /// The same, cut after this many octets.
    Cut(usize, u16, String),
    /// Exactly these octets.
    Raw(&'static str),
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .split("\r\n")
            .filter_map(|line| line.split_once(": "))
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    seen: watch::Receiver<usize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    /// Each connection takes the next reply; the last one is repeated.
    pub(crate) async fn start(script: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (count, seen) = watch::channel(0);
        let record = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            for at in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let reply = script[at.min(script.len() - 1)].clone();
                let (record, count) = (Arc::clone(&record), count.clone());
                tokio::spawn(async move {
                    serve(stream, reply, &record).await;
                    count.send_modify(|count| *count += 1);
                });
            }
        });
        Self { addr, asked, seen, task }
    }

    /// The requests that were read to their end.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until so many requests were read.
    pub(crate) async fn until_asked(&self, count: usize) {
        super::eventually("requests came", super::PATIENCE, async || {
            let asked = self.asked().len();
            if asked >= count { Ok(()) } else { Err((asked, *self.seen.borrow())) }
        })
        .await;
    }
}

async fn serve(mut stream: TcpStream, reply: Reply, record: &Mutex<Vec<Asked>>) {
    if matches!(reply, Reply::CloseAtOnce) {
        return;
    }
    let mut octets = Vec::new();
    let mut buffer = [0; 8_192];
    let asked = loop {
        let text = String::from_utf8_lossy(&octets).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let asked = Asked { head: head.to_owned(), body: body.to_owned() };
            let length = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                break asked;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => octets.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    };
    record.lock().unwrap().push(asked);
    let written = |status: u16, headers: &str, body: &str| {
        format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
    };
    match reply {
        Reply::CloseAtOnce | Reply::CloseAfterRequest => {}
        Reply::Hang => std::future::pending().await,
        Reply::Answer(status, headers, body) => {
            let _ = stream.write_all(written(status, headers, &body).as_bytes()).await;
        }
        Reply::Cut(octets, status, body) => {
            let _ = stream.write_all(&written(status, "", &body).as_bytes()[..octets]).await;
        }
        Reply::Raw(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
        }
    }
    let _ = stream.shutdown().await;
}
