//! Wake-ups make the worker quick, polling makes it sure: a listener that dies costs latency only, and behind a
//! transaction-pooling PgBouncer polling alone does.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::domain::state::State;
use outboxd::sandbox::pgbouncer::PgBouncer;
use outboxd::sandbox::proxy::{Direction, Proxy};
use outboxd::sandbox::smtp::SmtpServer;
use outboxd::store::evidence::Late;
use outboxd::store::line::Dsn;
use outboxd::store::settle::Settlement;
use sqlx::{Connection as _, PgConnection};

use crate::commands::outboxd;
use crate::crashes::{count, enqueue_many, enqueue_to, in_state, server, worker};
use crate::daemon::through;
use crate::harness::rows::{LONG, claim, plain, ready, verdict};
use crate::harness::{Config, PATIENCE, TestDb, cluster, eventually, say};

/// How often a worker here looks by itself: never, as far as a test waits.
const POLL: &str = "10m";

/// Far below [`POLL`], and far above what a wake-up takes on a busy machine.
const PROMPT: Duration = Duration::from_secs(10);

/// A worker that learns of new rows by wake-ups, or not at all.
fn woken(db: &TestDb, server: &SmtpServer) -> Config {
    Config::new(db)
        .set("worker.poll_interval", POLL)
        .set("lease.duration", POLL)
        .set("wakeup.heartbeat", "1s")
        .provider("primary", server.addr())
}

/// Several notifications, one after the other, are each sent soon. (The first may be found by a look that was due anyway.)
async fn sent_promptly(db: &TestDb) {
    for _ in 0..4 {
        let stored = Instant::now();
        let id = enqueue_to(db, "jo@example.net").await;
        in_state(db, id, "sent").await;
        assert!(stored.elapsed() < PROMPT, "{:?}", stored.elapsed());
    }
}

/// The process id of the session that listens in this test's database; `None` where none does.
async fn listening(db: &TestDb) -> Option<i32> {
    sqlx::query_scalar(
        "select pid from pg_stat_activity
         where datname = current_database() and application_name = 'outboxd' and query ilike 'listen%'",
    )
    .fetch_optional(&db.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_stored_notification_wakes_the_worker_long_before_it_would_look() {
    let (db, server) = (TestDb::new().await, server([]).await);
    let _worker = worker(&woken(&db, &server));
    eventually("it listens", PATIENCE, async || listening(&db).await).await;
    sent_promptly(&db).await;
}

#[tokio::test]
async fn a_listener_that_is_ended_is_made_anew() {
    let (db, server) = (TestDb::new().await, server([]).await);
    let _worker = worker(&woken(&db, &server));
    let first = eventually("it listens", PATIENCE, async || listening(&db).await).await;
    sqlx::query("select pg_terminate_backend($1)").bind(first).execute(&db.pool).await.unwrap();
    let ended = Instant::now();
    eventually("it listens anew", PATIENCE, async || listening(&db).await.filter(|&pid| pid != first)).await;
    assert!(ended.elapsed() < PROMPT, "{:?}", ended.elapsed());
    sent_promptly(&db).await;
}

#[tokio::test]
async fn a_listener_that_hears_nothing_any_more_is_noticed_and_made_anew() {
    let (db, server) = (TestDb::new().await, server([]).await);
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], cluster().port()))).await.unwrap();
    // Only the listener goes through the proxy: the database answers all the while.
    let mut proc = worker(&woken(&db, &server).set("database.listen_url", &through(&proxy, &db.url)));
    let first = eventually("it listens", PATIENCE, async || listening(&db).await).await;
    sent_promptly(&db).await;
    proxy.stall(Direction::Both);
    let silent = Instant::now();
    proc.line_with("wake-up connection lost").await;
    assert!(silent.elapsed() < PROMPT, "two heartbeats of a second: {:?}", silent.elapsed());
    let missed = enqueue_to(&db, "missed@example.net").await;
    proxy.resume();
    proc.line_with("listening again").await;
    // What came in between is looked for at once.
    in_state(&db, missed, "sent").await;
    eventually("it listens anew", PATIENCE, async || listening(&db).await.filter(|&pid| pid != first)).await;
    sent_promptly(&db).await;
}

#[tokio::test]
async fn without_wake_ups_polling_alone_finds_the_work() {
    let (db, server) = (TestDb::new().await, server([]).await);
    let config = Config::new(&db).set("wakeup.enabled", "false").provider("primary", server.addr());
    let mut proc = worker(&config);
    proc.line_with("working").await;
    sent_promptly(&db).await;
    assert_eq!(listening(&db).await, None);
}

/// A PgBouncer before the run's cluster, whose few sessions hold what other clients left in them; `None` where there is no
/// PgBouncer, which is said aloud.
pub(crate) async fn bouncer(test: &str, db: &TestDb) -> Option<(PgBouncer, String)> {
    if let Some(reason) = PgBouncer::unavailable() {
        say(&format!("SKIPPED {test}: {reason}"));
        return None;
    }
    let bouncer = PgBouncer::start(cluster(), 3).unwrap();
    let url = bouncer.url(db.url.rsplit_once('/').unwrap().1);
    // Each leaves a prepared statement of the name that sqlx gives to every connection's first one.
    let mut clients = Vec::new();
    for _ in 0..3 {
        let options = url.parse::<sqlx::postgres::PgConnectOptions>().unwrap().extra_float_digits(None);
        let mut client = PgConnection::connect_with(&options).await.unwrap();
        // A transaction keeps the session until all have one.
        sqlx::raw_sql("begin").execute(&mut client).await.unwrap();
        sqlx::query("select 1").execute(&mut client).await.unwrap();
        clients.push(client);
    }
    for mut client in clients {
        sqlx::raw_sql("commit").execute(&mut client).await.unwrap();
    }
    Some((bouncer, url))
}

#[tokio::test]
async fn two_workers_behind_a_transaction_pooling_pgbouncer_send_everything_once() {
    const ROWS: u32 = 400;
    let (db, server) = (TestDb::new().await, server([]).await);
    let Some((bouncer, url)) =
        bouncer("two_workers_behind_a_transaction_pooling_pgbouncer_send_everything_once", &db).await
    else {
        return;
    };
    let config = Config::new(&db)
        .set("database.url", &url)
        .set("database.transaction_pooling", "true")
        .set("wakeup.enabled", "false")
        .provider("primary", server.addr());
    enqueue_many(&db, ROWS).await;
    let (mut one, mut other) = (worker(&config), worker(&config));
    eventually("all are sent", PATIENCE * 2, async || {
        let sent = count(&db, "sent").await;
        if sent == i64::from(ROWS) { Ok(()) } else { Err((sent, bouncer.log(), one.log())) }
    })
    .await;
    assert_eq!((server.mailbox().count(), server.mailbox().duplicates().len()), (ROWS as usize, 0));
    let attempts: i64 = sqlx::query_scalar("select count(*) from outboxd.attempt").fetch_one(&db.pool).await.unwrap();
    assert_eq!(attempts, i64::from(ROWS), "each at the first attempt");
    for proc in [&mut one, &mut other] {
        proc.terminate();
        assert_eq!(proc.ended().await.code(), Some(0), "{}", proc.log());
        let log = proc.log();
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    }
}

#[tokio::test]
async fn a_late_result_is_recorded_through_a_pgbouncer_too() {
    let db = TestDb::new().await;
    let Some((_bouncer, url)) = bouncer("a_late_result_is_recorded_through_a_pgbouncer_too", &db).await else { return };
    let mut line = Dsn::new(&url, PATIENCE, PATIENCE, true).unwrap().line();
    let id = db.enqueue(&plain("acme")).await;
    let claimed = ready(&mut line, &claim(), 1).await.remove(0);
    assert_eq!(line.begin(&[(id, claimed.fence())]).await.unwrap().len(), 1);
    db.age(id, "2 hours").await;
    assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
    let result = Settlement::new(claimed, verdict(Outcome::Sent, Phase::EndOfData), Next::Sent);
    assert!(line.settle(std::slice::from_ref(&result), LONG).await.unwrap().is_empty());
    assert_eq!(line.late_result(&result, "w1").await.unwrap(), Late::Recorded(State::Sent));
    line.ping().await.unwrap();
    assert_eq!(db.story(id).await.evidence.len(), 1);
}

#[tokio::test]
async fn commands_work_through_a_pgbouncer_and_migrate_says_why_it_does_not() {
    let db = TestDb::new().await;
    let Some((_bouncer, url)) =
        bouncer("commands_work_through_a_pgbouncer_and_migrate_says_why_it_does_not", &db).await
    else {
        return;
    };
    let config = Config::new(&db)
        .set("database.url", &url)
        .set("database.transaction_pooling", "true")
        .set("wakeup.enabled", "false")
        .set("provider.primary.host", "127.0.0.1");
    let enqueue = ["enqueue", "--account", "acme", "--from", "a@example.org", "--to", "b@example.net", "--text", "x"];
    let mut ids = Vec::new();
    for _ in 0..6 {
        let ended = outboxd(&enqueue, &config, "");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ids.push(ended.stdout.trim().to_owned());
    }
    assert_eq!(count(&db, "pending").await, 6, "each is committed");
    for id in ids {
        let ended = outboxd(&["show", &id], &config, "");
        assert!(ended.code == Some(0) && ended.stdout.contains(&id), "{ended:?}");
    }
    let ended = outboxd(&["migrate"], &config, "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("transaction_pooling") && ended.stderr.contains("direct address"), "{ended:?}");
}

/// After a failover to a machine whose clock is behind, or a clock that was set right.
#[tokio::test]
async fn a_clock_that_goes_back_silences_no_wake_up() {
    let (db, server) = (TestDb::new().await, server([]).await);
    db.sql("select setval('outboxd.hint_slot', (extract(epoch from now() + interval '1 day') * 100)::bigint)")
        .await
        .unwrap();
    let _worker = worker(&woken(&db, &server));
    eventually("it listens", PATIENCE, async || listening(&db).await).await;
    sent_promptly(&db).await;
}
