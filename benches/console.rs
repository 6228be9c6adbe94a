//! How long the server takes for each page of the console, in a small table and in a large one.
//!
//! `cargo bench --bench console -- [--rows N] [--times N]` (10,000,000 and 20 by default; about 12 GB on the disk). The floor is a
//! page that reads nothing but the session. The times are of whole requests, each on a connection of its own.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first fault and says what it measured"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use outboxd::config::Console as Settings;
use outboxd::domain::operator::Role;
use outboxd::domain::token::Token;
use outboxd::http::console::{Console, sign_in};
use outboxd::http::serve::serve;
use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::shutdown::Shutdown;
use outboxd::store::line::Dsn;
use outboxd::store::operators::{self, Proof};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn main() {
    let (mut rows, mut times) = (10_000_000, 20);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rows" => rows = args.next().unwrap().parse().unwrap(),
            "--times" => times = args.next().unwrap().parse().unwrap(),
            // Cargo's own flags.
            _ => {}
        }
    }
    let cluster = Cluster::start(&Options::default()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let small = runtime.block_on(pages(&cluster, 10_000, times));
    let large = runtime.block_on(pages(&cluster, rows, times));
    println!("{times} times each, in ms; 10,000 rows: median; {rows} rows: median, longest");
    for ((page, small), (_, large)) in small.iter().zip(&large) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{page:<55} {:>7.1} {:>7.1} {:>7.1}",
            ms(small[small.len() / 2]),
            ms(large[large.len() / 2]),
            ms(*large.last().unwrap())
        );
    }
}

/// The times of each page, sorted.
async fn pages(cluster: &Cluster, rows: u32, times: usize) -> Vec<(String, Vec<Duration>)> {
    let url = cluster.url(&cluster.create_database(None).await.unwrap());
    let mut conn = PgConnection::connect(&url).await.unwrap();
    outboxd::store::migrate::migrate(&mut conn).await.unwrap();
    let start = Instant::now();
    raw_sql(AssertSqlSafe(fill(rows))).execute(&mut conn).await.unwrap();
    raw_sql("vacuum analyze").execute(&mut conn).await.unwrap();
    println!("{rows} rows stored in {:.0?}", start.elapsed());
    let token = Token::new([7; 32]);
    operators::add(&mut conn, "ada", Role::Admin, Proof::Token(&sign_in::hash(&token).unwrap()), "bench")
        .await
        .unwrap();

    let minute = Duration::from_secs(60);
    let dsn = Dsn::new(&url, minute, minute, false).unwrap();
    let settings = Settings {
        listen: None,
        connections: 4,
        session: 60 * minute,
        idle: 60 * minute,
        secure_cookie: false,
        oidc: None,
    };
    let shutdown = Shutdown::new();
    let console = Console::new(&settings, dsn, BTreeMap::new(), None, shutdown.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let until = shutdown.clone();
    let server = tokio::spawn(async move { serve(listener, console.router(), until.draining(), minute).await });

    let form = format!("name=ada&token={}", token.reveal());
    let head = format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n", form.len());
    let answer = ask(addr, "POST /sign-in", &head, &form).await;
    let cookie = answer.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let of_state = async |conn: &mut PgConnection, state: &str| -> String {
        let query = "select notification_id::text from outboxd.delivery where state = $1 limit 1";
        sqlx::query_scalar(query).bind(state).fetch_one(conn).await.unwrap()
    };
    let (doubt, sent) = (of_state(&mut conn, "uncertain").await, of_state(&mut conn, "sent").await);
    let middle: String = sqlx::query_scalar("select id::text from outboxd.outbox order by id offset $1 limit 1")
        .bind(i64::from(rows / 2))
        .fetch_one(&mut conn)
        .await
        .unwrap();
    let paths = [
        "/pauses".to_owned(),
        "/".to_owned(),
        "/?over=day".to_owned(),
        "/uncertain".to_owned(),
        "/uncertain?state=uncertain".to_owned(),
        "/uncertain?account=account+3".to_owned(),
        "/uncertain?provider=nobody".to_owned(),
        "/search".to_owned(),
        format!("/search?below={middle}"),
        "/search?state=pending".to_owned(),
        "/search?state=failed".to_owned(),
        "/search?state=bounced".to_owned(),
        "/search?state=cancelled".to_owned(),
        "/search?account=account+3".to_owned(),
        "/search?account=account+999".to_owned(),
        "/search?account=account+3&state=failed".to_owned(),
        format!("/search?account=account+3&below={middle}"),
        "/search?recipient=user5%40example.net".to_owned(),
        "/search?recipient=nobody%40example.net".to_owned(),
        "/search?provider=backup".to_owned(),
        "/search?provider=nobody".to_owned(),
        "/search?outcome=deferred".to_owned(),
        "/search?code=550".to_owned(),
        "/search?text=no+such+user".to_owned(),
        "/search?text=nothing+says+this".to_owned(),
        "/search?since=2h&until=1h".to_owned(),
        "/search?contradiction=yes".to_owned(),
        format!("/search?q={sent}"),
        format!("/notifications/{doubt}"),
        format!("/notifications/{sent}"),
        "/replays".to_owned(),
        "/audit".to_owned(),
    ];
    let mut all = Vec::new();
    for path in paths {
        let mut taken = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            let answer = ask(addr, &format!("GET {path}"), &format!("Cookie: {cookie}\r\n"), "").await;
            taken.push(start.elapsed());
            let status = answer.split(' ').nth(1).unwrap();
            assert!(status == "200" || (path.contains("q=") && status == "303"), "{path}: {answer}");
        }
        taken.sort_unstable();
        all.push((named(&path, [&doubt, &sent, &middle]), taken));
    }
    shutdown.drain();
    server.await.unwrap();
    all
}

/// The path without its ids, which are others in each table.
fn named(path: &str, ids: [&String; 3]) -> String {
    ids.iter().fold(path.to_owned(), |path, id| path.replace(id.as_str(), "ID"))
}

async fn ask(addr: SocketAddr, what: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("{what} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n{head}\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Notifications of thirty days, of 1,000 accounts (a few have most) and many recipients: most are sent, one in a hundred failed, one
/// in 200 bounced, one in 4,000 is in doubt, one in a hundred pending. And what four workers said of two providers in a day.
fn fill(rows: u32) -> String {
    format!(
        "set session_replication_role = replica;
         insert into outboxd.outbox (id, account_id, message_ref, created_at, sender, recipient, subject, body_text)
             select overlay(outboxd.least_id(at)::text placing to_char(n, 'FM000000000000') from 25)::uuid,
                 'account ' || floor(1000 * power(random(), 3))::int, 'order ' || n, at, 'a@example.org',
                 'user' || floor({rows} * 0.3 * random())::int || '@example.net', 'Your order', repeat('x', 100)
             from (select n, now() - interval '30 days' * (1 - n::float8 / {rows}) as at from generate_series(1, {rows}) n) n;
         insert into outboxd.delivery (notification_id, account_id, route, priority, size_bytes, first_due_at, state, changed_at,
                 attempts, fence, tries, reason, due_at, ready, doubt_since, doubt_until, doubt_scope, closes_at)
             select id, account_id, 'default', 5, 100, created_at, state, created_at + interval '1 second',
                 attempted, attempted, attempted, case state when 'failed' then 'refused' end,
                 case state when 'pending' then now() end, state = 'pending',
                 case when doubt then created_at end, case when doubt then until end, case when doubt then 'primary' end,
                 case state when 'uncertain' then until end
             from (
                 select o.*, case state when 'pending' then 0 else 1 end as attempted, state in ('uncertain', 'unresolved') as doubt,
                     now() + interval '1 day' * (case state when 'uncertain' then random() else -random() end) as until
                 from (
                     select id, account_id, created_at,
                         case when k % 10 = 0 and k > 0.9 * {rows} then 'pending' when k % 100 = 1 then 'failed'
                              when k % 200 = 2 then 'bounced' when k % 5000 = 3 then 'uncertain'
                              when k % 20000 = 4 then 'unresolved' else 'sent' end as state
                     from (select *, substring(id::text from 25)::bigint as k from outboxd.outbox) o
                 ) o
             ) o;
         insert into outboxd.attempt (notification_id, number, fence, worker, provider, dedup_scope, recovery_window, claimed_at,
                 begun_at, ended_at, ended_by, phase, outcome, reply_code, reply_text, counted)
             select notification_id, 1, 1, 'w', case when random() < 0.8 then 'primary' else 'backup' end, 'primary', '1 day',
                 changed_at - interval '100 ms', changed_at, changed_at, 'worker', 'end_of_data',
                 case when state in ('sent', 'bounced') then 'sent' when state = 'failed' then 'refused' else 'uncertain' end,
                 case when state in ('sent', 'bounced') then 250 when state = 'failed' then 550 end,
                 case when state in ('sent', 'bounced') then '2.0.0 Ok: queued as ' || md5(notification_id::text)
                      when state = 'failed' then '5.1.1 no such user' end, true
             from outboxd.delivery where state <> 'pending';
         insert into outboxd.tally (worker, number, provider, at, not_sent, deferred, refused, uncertain, sent, took)
             select 'worker ' || w, n, p, now() - n * interval '10 seconds', 1, 1, 1, 1, 1000, array_fill(10, array[35])
             from generate_series(1, 4) w, generate_series(1, 8640) n, unnest(array['primary', 'backup']) p;
         insert into outboxd.pulse (worker, provider, breaker, under_way, connections, trouble_id, trouble_at)
             select 'worker ' || w, p, 'closed', 10, 64,
                 (select notification_id from outboxd.delivery where reason is not null limit 1), now()
             from generate_series(1, 4) w, unnest(array['primary', 'backup']) p;
         set session_replication_role = origin"
    )
}
