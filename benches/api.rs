//! What a receipt and an outbox row cost: `POST /v1/messages` beside a bare insert of the same message, with and without
//! HTTP, all in one run against one durable PostgreSQL.
//!
//! `cargo bench --bench api -- [--seconds N] [--rounds N]`. The API is the real program in a process of its own; every
//! client keeps its connection and sends one request after the other.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first fault and says what it measured"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use outboxd::domain::token::{Scope, Token};
use outboxd::http::serve::serve;
use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::sandbox::guardian::GuardedChild;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const BODY_BYTES: usize = 2_000;
const CLIENTS: [usize; 3] = [1, 16, 64];
/// As many as `api.connections` is by default.
const CONNECTIONS: u32 = 16;
const INSERT: &str =
    "insert into bare_message (id, account_id, content) values (gen_random_uuid(), 'acme', $1::text::jsonb)";
const MODES: [&str; 4] =
    ["bare insert, SQL", "bare insert, HTTP", "receipt and message", "receipt, message, outbox row"];

/// One run of one mode.
#[derive(Clone, Copy)]
struct Measured {
    rate: f64,
    p50: Duration,
    p99: Duration,
}

fn main() {
    let (mut seconds, mut rounds) = (5, 3);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = args.next().unwrap().parse().unwrap(),
            "--rounds" => rounds = args.next().unwrap().parse().unwrap(),
            // Cargo's own flags.
            _ => {}
        }
    }
    let cluster = Cluster::start(&Options { durable: true, ..Options::default() }).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!(
        "messages of {BODY_BYTES} bytes, {seconds} s a run, median of {rounds} rounds, one run on {} cores",
        std::thread::available_parallelism().unwrap()
    );
    runtime.block_on(bench(&cluster, Duration::from_secs(seconds), rounds));
}

async fn bench(cluster: &Cluster, time: Duration, rounds: usize) {
    let url = cluster.url(&cluster.create_database(None).await.unwrap());
    let mut conn = PgConnection::connect(&url).await.unwrap();
    outboxd::store::migrate::migrate(&mut conn).await.unwrap();
    let token = Token::new([7; 32]);
    outboxd::store::tokens::create(&mut conn, &token, "acme", &Scope::ALL, "bench", None).await.unwrap();
    let table = "create table bare_message (id uuid primary key, account_id text not null,
                 created_at timestamptz not null default now(), content jsonb not null)";
    sqlx::raw_sql(table).execute(&mut conn).await.unwrap();
    let (_process, api) = start_api(&url);
    let bare = start_bare(&url).await;

    let text = format!("{}\n", "x".repeat(76)).repeat(BODY_BYTES / 77);
    let body = |recipients: serde_json::Value| {
        serde_json::json!({"sender": "shop@example.org", "recipients": recipients, "subject": "Your order", "body_text": text}).to_string()
    };
    let with_row: Arc<str> = body(serde_json::json!([{"address": "jo@example.net"}])).into();
    let without: Arc<str> = body(serde_json::json!([])).into();
    for clients in CLIENTS {
        let mut runs: [Vec<Measured>; 4] = Default::default();
        for round in 0..rounds {
            // Each mode begins on a quiet server, and none is always the first.
            for at in 0..MODES.len() {
                let mode = (at + round) % MODES.len();
                sqlx::raw_sql("checkpoint").execute(&mut conn).await.unwrap();
                let measured = match mode {
                    0 => measure(clients, time, |_| sql_client(url.clone(), Arc::clone(&with_row), time)).await,
                    1 => {
                        measure(clients, time, |n| http_client(bare, n, token.clone(), Arc::clone(&with_row), time))
                            .await
                    }
                    2 => {
                        measure(clients, time, |n| http_client(api, n, token.clone(), Arc::clone(&without), time)).await
                    }
                    _ => {
                        measure(clients, time, |n| http_client(api, n, token.clone(), Arc::clone(&with_row), time))
                            .await
                    }
                };
                runs[mode].push(measured);
            }
        }
        let medians = runs.map(|mut runs| {
            runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            runs[runs.len() / 2]
        });
        println!("{clients} clients:");
        for (name, measured) in MODES.iter().zip(medians) {
            println!(
                "  {name:<30} {:>7.0}/s  p50 {:>6.2} ms  p99 {:>6.2} ms  ratio to the bare insert: SQL {:.2}, HTTP {:.2}",
                measured.rate,
                measured.p50.as_secs_f64() * 1e3,
                measured.p99.as_secs_f64() * 1e3,
                measured.rate / medians[0].rate,
                measured.rate / medians[1].rate,
            );
        }
    }
    let (receipts, messages, rows): (i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from outboxd.receipt), (select count(*) from outboxd.message), (select count(*) from outboxd.delivery)",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(receipts, messages);
    println!("stored in all: {receipts} receipts and as many messages, {rows} outbox rows");
}

/// Runs the clients side by side; each gives the time of every request.
async fn measure<F>(clients: usize, time: Duration, client: impl Fn(usize) -> F) -> Measured
where
    F: Future<Output = Vec<Duration>> + Send + 'static,
{
    let running: Vec<_> = (0..clients).map(|n| tokio::spawn(client(n))).collect();
    let mut times = Vec::new();
    for one in running {
        times.extend(one.await.unwrap());
    }
    times.sort();
    #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
    let rate = times.len() as f64 / time.as_secs_f64();
    Measured { rate, p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] }
}

async fn sql_client(url: String, body: Arc<str>, time: Duration) -> Vec<Duration> {
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut times = Vec::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        let began = Instant::now();
        sqlx::query(INSERT).bind(&*body).execute(&mut conn).await.unwrap();
        times.push(began.elapsed());
    }
    times
}

async fn http_client(addr: SocketAddr, client: usize, token: Token, body: Arc<str>, time: Duration) -> Vec<Duration> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let run = uuid::Uuid::new_v4();
    let mut times = Vec::new();
    let mut buffer = vec![0; 4_096];
    let until = Instant::now() + time;
    while Instant::now() < until {
        let request = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {run}.{client}.{}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            token.reveal(),
            times.len(),
            body.len()
        );
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut filled = 0;
        // An answer is its head and at most a few hundred octets.
        loop {
            let read = stream.read(&mut buffer[filled..]).await.unwrap();
            assert!(read > 0, "the server hung up");
            filled += read;
            if whole(&buffer[..filled]) {
                break;
            }
        }
        times.push(began.elapsed());
        assert!(buffer.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&buffer[..filled]));
    }
    times
}

/// Whether an answer is there to its end.
fn whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    length.unwrap_or(0usize) <= body.len()
}

/// The real API; it says where it listens.
fn start_api(url: &str) -> (GuardedChild, SocketAddr) {
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(config, "[database]\nurl = {url:?}\n[api]\nlisten = \"127.0.0.1:0\"\n[ops]\nlisten = \"\"\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
    command.args(["api", "--config"]).arg(config.path()).stderr(Stdio::piped());
    let mut process = GuardedChild::spawn(&mut command).unwrap();
    let mut lines = BufReader::new(process.child().stderr.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().unwrap().contains("api.listen")).unwrap().unwrap();
    let addr = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    // Read on, so that it never waits to be read.
    std::thread::spawn(move || lines.for_each(drop));
    (process, addr)
}

/// The same server, whose one route inserts the body and knows no receipt.
async fn start_bare(url: &str) -> SocketAddr {
    async fn insert(State(pool): State<PgPool>, body: String) -> StatusCode {
        sqlx::query(INSERT).bind(body).execute(&pool).await.unwrap();
        StatusCode::CREATED
    }
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/messages", post(insert)).with_state(pool);
    tokio::spawn(serve(listener, router, std::future::pending(), Duration::ZERO));
    addr
}
