//! The real message API as a caller sees it: the program, a token, and requests as bytes on a socket.
//!
//! Each call has a connection of its own, which a test may also hold, cut or abandon.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};

use outboxd::domain::token::{Scope, Token};
use outboxd::store::tokens;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::{Config, Proc, TestDb};

/// A running `outboxd api`, and a token for the account `acme`.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) proc: Proc,
    pub(crate) addr: SocketAddr,
    pub(crate) token: Token,
}

/// What a call was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// A request in the making.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// The settings of an API in tests: any port, no health endpoint, no console, no provider.
pub(crate) fn api_config(db: &TestDb) -> Config {
    Config::bare(db).set("api.listen", "127.0.0.1:0").set("ops.listen", "").set("console.listen", "")
}

/// A body like any other.
pub(crate) fn message() -> Value {
    json!({
        "sender": "shop@example.org", "recipients": [{"address": "jo@example.net"}],
        "subject": "Your order", "body_text": "It is on its way.",
    })
}

impl Api {
    /// Starts it on this database.
    pub(crate) async fn start(db: &TestDb) -> Self {
        Self::with(db, &api_config(db)).await
    }

    /// Starts it on this configuration.
    pub(crate) async fn with(db: &TestDb, config: &Config) -> Self {
        let token = db.token("acme", &Scope::ALL).await.1;
        Self::as_holder_of(token, config).await
    }

    /// Starts it on this configuration; calls show this token.
    pub(crate) async fn as_holder_of(token: Token, config: &Config) -> Self {
        Self::running("api", token, config).await
    }

    /// Starts the command that serves it, `api` or `run`.
    pub(crate) async fn running(command: &str, token: Token, config: &Config) -> Self {
        let mut proc = Proc::start(&[command], &config.text());
        let line = proc.line_with("key=\"api.listen\"").await;
        let addr = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        Self { proc, addr, token }
    }

    /// A call that shows this token.
    pub(crate) fn call(&self, line: &str) -> Call {
        Call::new(line).header("Authorization", &format!("Bearer {}", self.token.reveal()))
    }

    /// `POST /v1/messages` under this key.
    pub(crate) fn post(&self, key: &str, body: &Value) -> Call {
        self.call("POST /v1/messages").header("Idempotency-Key", &format!("\"{key}\"")).json(body)
    }

    /// Makes a call.
    pub(crate) async fn ask(&self, call: &Call) -> Answer {
        call.ask(self.addr).await.expect("an answer")
    }
}

impl Call {
    /// A method and a path.
    pub(crate) fn new(line: &str) -> Self {
        Self { line: line.to_owned(), headers: Vec::new(), body: String::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(given, _)| !given.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").body(&body.to_string())
    }

    pub(crate) fn body(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    /// The bytes of the request.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n", self.line);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n{}", self.body.len(), self.body));
        text.into_bytes()
    }

    /// Sends it on a connection of its own and reads the answer; `None` where the connection ended without a whole one.
    pub(crate) async fn ask(&self, addr: SocketAddr) -> Option<Answer> {
        let mut stream = TcpStream::connect(addr).await.ok()?;
        stream.write_all(&self.bytes()).await.ok()?;
        Answer::read(&mut stream).await
    }
}

impl Answer {
    /// Reads an answer to its end.
    pub(crate) async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        // A reset after the answer does not undo it.
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut answer = Self { status, headers, body: body.to_owned() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = dechunked(body)?;
            return Some(answer);
        }
        let whole = answer.header("content-length").is_none_or(|length| length.parse() == Ok(body.len()));
        whole.then_some(answer)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The code of a problem, which must be a whole one.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        let code = problem["code"].as_str().unwrap();
        assert_eq!(problem["type"], format!("urn:outboxd:problem:{code}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        code.to_owned()
    }

    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }
}

/// What came in chunks (RFC 9112, 7.1), if the last of them came.
fn dechunked(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(after.get(..size)?);
        rest = after.get(size..)?.strip_prefix("\r\n")?;
    }
}

impl TestDb {
    /// A token for this account: its id and itself. No two are the same in a run.
    pub(crate) async fn token(&self, account: &str, scopes: &[Scope]) -> (Uuid, Token) {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let token = Token::new([NEXT.fetch_add(1, Ordering::Relaxed); 32]);
        let mut conn = self.pool.acquire().await.unwrap();
        (tokens::create(&mut conn, &token, account, scopes, "test", None).await.unwrap(), token)
    }

    /// Receipts, messages and notifications of all accounts.
    pub(crate) async fn stored(&self) -> (i64, i64, i64) {
        sqlx::query_as(
            "select (select count(*) from outboxd.receipt), (select count(*) from outboxd.message),
                (select count(*) from outboxd.delivery d join outboxd.outbox o on o.id = d.notification_id)",
        )
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }
}

impl TestDb {
    /// Waits until a backend of this database waits for a lock.
    pub(crate) async fn until_something_waits_for_a_lock(&self) {
        self.until_waiting_for_locks(1).await;
    }

    /// Waits until this many backends of this database wait for locks.
    pub(crate) async fn until_waiting_for_locks(&self, backends: i64) {
        super::eventually("backends wait for locks", super::PATIENCE, async || {
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&self.pool)
            .await
            .unwrap();
            if waiting >= backends { Ok(()) } else { Err(waiting) }
        })
        .await;
    }
}
