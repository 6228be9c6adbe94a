//! How fast a backlog drains, beside two floors measured in the same run: a bare lettre loop with TCP_NODELAY and no
//! database, and Postfix's own `smtp-source`. All three hand the same number of messages to the same `smtp-sink`.
//!
//! `cargo bench --bench drain -- [--messages N] [--rounds N] [--connections N]`. The database is durable (fsync on), the
//! worker is the real program in a process of its own, and every claim, begin, attempt and outcome is committed.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first fault and says what it measured"
)]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream};
use lettre::transport::smtp::extension::ClientId;
use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::sandbox::guardian::GuardedChild;
use outboxd::sandbox::postfix::{SmtpSink, smtp_sink, smtp_source};
use sqlx::{Connection as _, PgConnection};
use tokio::net::TcpStream;

const BODY_BYTES: usize = 2_000;

struct Plan {
    messages: u32,
    rounds: u32,
    connections: u32,
}

fn plan() -> Plan {
    let mut plan = Plan { messages: 20_000, rounds: 3, connections: 128 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let field = match arg.as_str() {
            "--messages" => &mut plan.messages,
            "--rounds" => &mut plan.rounds,
            "--connections" => &mut plan.connections,
            // Cargo's own flags.
            _ => continue,
        };
        *field = args.next().unwrap().parse().unwrap();
    }
    plan
}

fn main() {
    let plan = plan();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sink = smtp_sink(&[]).unwrap();
    let cluster = Cluster::start(&Options { durable: true, ..Options::default() }).unwrap();
    println!(
        "{} messages of {BODY_BYTES} bytes, {} rounds, one run on {} cores; messages/s",
        plan.messages,
        plan.rounds,
        std::thread::available_parallelism().unwrap()
    );
    let mut rates: [Vec<f64>; 3] = [vec![], vec![], vec![]];
    for round in 1..=plan.rounds {
        let bare = runtime.block_on(bare_loop(&plan, &sink));
        let source = source(&plan, &sink);
        let (worker, cost) = runtime.block_on(worker(&plan, &sink, &cluster));
        println!("round {round}: bare lettre loop {bare:.0}, smtp-source {source:.0}, outboxd {worker:.0}  ({cost})");
        for (rates, rate) in rates.iter_mut().zip([bare, source, worker]) {
            rates.push(rate);
        }
    }
    let [bare, source, worker] = rates.map(median);
    println!("median: bare lettre loop {bare:.0}, smtp-source {source:.0}, outboxd {worker:.0}");
    println!(
        "ratio:  outboxd / bare lettre loop = {:.2}, outboxd / smtp-source = {:.2}",
        worker / bare,
        worker / source
    );
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// 16 connections, each a message after the other, no database.
async fn bare_loop(plan: &Plan, sink: &SmtpSink) -> f64 {
    const CONNECTIONS: u32 = 16;
    let address = sink.address();
    let line = format!("{}\r\n", "x".repeat(76));
    let body = line.repeat(BODY_BYTES / line.len());
    let message = format!("From: a@example.org\r\nTo: b@example.net\r\nSubject: Your order\r\n\r\n{body}");
    let envelope =
        lettre::address::Envelope::new(Some("a@example.org".parse().unwrap()), vec!["b@example.net".parse().unwrap()])
            .unwrap();
    let started = Instant::now();
    let loops: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let (message, envelope) = (message.clone(), envelope.clone());
            let share = plan.messages / CONNECTIONS + u32::from(n < plan.messages % CONNECTIONS);
            tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let stream: Box<dyn AsyncTokioStream> = Box::new(stream);
                let hello = ClientId::Domain("bench.example".to_owned());
                let mut connection = AsyncSmtpConnection::connect_with_transport(stream, &hello).await.unwrap();
                for _ in 0..share {
                    connection.send(&envelope, message.as_bytes()).await.unwrap();
                }
            })
        })
        .collect();
    for one in loops {
        one.await.unwrap();
    }
    f64::from(plan.messages) / started.elapsed().as_secs_f64()
}

fn source(plan: &Plan, sink: &SmtpSink) -> f64 {
    let count = plan.messages.to_string();
    let size = BODY_BYTES.to_string();
    let started = Instant::now();
    let mut source = smtp_source(&["-d", "-s", "16", "-m", &count, "-l", &size], sink.address()).unwrap();
    assert!(source.wait().unwrap().success());
    f64::from(plan.messages) / started.elapsed().as_secs_f64()
}

async fn worker(plan: &Plan, sink: &SmtpSink, cluster: &Cluster) -> (f64, String) {
    let name = cluster.create_database(None).await.unwrap();
    let url = cluster.url(&name);
    let mut conn = PgConnection::connect(&url).await.unwrap();
    outboxd::store::migrate::migrate(&mut conn).await.unwrap();
    let fill = format!(
        "select count(outboxd.enqueue('acme', 'a@example.org', 'b@example.net', 'Your order', repeat(repeat('x', 76) || E'\\n', {})))
         from generate_series(1, {})",
        BODY_BYTES / 77,
        plan.messages
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&mut conn).await.unwrap();
    for upkeep in ["vacuum analyze", "checkpoint"] {
        sqlx::raw_sql(upkeep).execute(&mut conn).await.unwrap();
    }
    let wal = wal_position(&mut conn).await;

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outboxd.toml");
    let (host, port) = (sink.address().ip(), sink.address().port());
    let config = format!(
        "database.url = \"{url}\"\nmail.message_id_domain = \"bench.example\"\nops.listen = \"\"\n[worker]\nclaim_max = 500\n\
         [provider.primary]\nhost = \"{host}\"\nport = {port}\nsecurity = \"plaintext\"\nconnections = {}\n\
         messages_per_connection = 1000000\n",
        plan.connections
    );
    std::fs::File::create(&file).unwrap().write_all(config.as_bytes()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
    command.arg("worker").arg("--config").arg(&file).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    if std::env::var_os("BENCH_LOG").is_none() {
        command.stderr(Stdio::null());
    }
    let started = Instant::now();
    let child = GuardedChild::spawn(&mut command).unwrap();
    loop {
        let waiting: bool = sqlx::query_scalar(
            "select exists (select from outboxd.delivery where due_at is not null)
                 or exists (select from outboxd.delivery where lease_until is not null)",
        )
        .fetch_one(&mut conn)
        .await
        .unwrap();
        if !waiting {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let elapsed = started.elapsed();
    let cpu = cpu_seconds(child.id());
    drop(child);
    let sent: i64 = sqlx::query_scalar(
        "select count(*) from outboxd.delivery d join outboxd.attempt a using (notification_id)
            where d.state = 'sent' and a.outcome = 'sent' and a.begun_at is not null and a.number = 1",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert_eq!(sent, i64::from(plan.messages), "every message was sent, at its first attempt, and is on record");
    let wal = (wal_position(&mut conn).await - wal) / f64::from(plan.messages);
    let cost = format!("worker CPU {cpu:.1} s, WAL {wal:.0} bytes a message");
    (f64::from(plan.messages) / elapsed.as_secs_f64(), cost)
}

async fn wal_position(conn: &mut PgConnection) -> f64 {
    sqlx::query_scalar("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8").fetch_one(conn).await.unwrap()
}

/// User and system time of a process so far (proc(5), `stat`, fields 14 and 15, in hundredths of a second).
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}
