//! The daemon: it drains, it ends at once when told twice, it waits for its database, it says how it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use outboxd::sandbox::cluster::Cluster;
use outboxd::sandbox::guardian::free_port;
use outboxd::sandbox::proxy::{Direction, Proxy};
use outboxd::sandbox::smtp::{Action, Rule, Stage};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::crashes::{config, count, deliveries, enqueue_many, enqueue_to, in_state, server, worker};
use crate::harness::{Config, PATIENCE, TestDb, cluster, eventually};
use crate::outages::own_cluster;

/// Far below every limit that a hanging worker would wait for here, and far above what a busy machine takes to end one.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A database's address by way of a proxy.
pub(crate) fn through(proxy: &Proxy, url: &str) -> String {
    let (_, name) = url.rsplit_once('/').unwrap();
    format!("postgres://postgres@{}/{name}", proxy.addr())
}

#[tokio::test]
async fn sigterm_lets_running_sends_finish_and_leaves_the_rest_to_the_next_worker() {
    let db = TestDb::new().await;
    let slow = Rule::at(Stage::EndOfData, Action::Proceed.after(Duration::from_secs(1))).times(4).label("slow");
    let server = server([slow]).await;
    let config = config(&db, &server).set("provider_defaults.connections", "4");
    enqueue_many(&db, 12).await;
    let mut draining = worker(&config);
    server.script().wait_fired("slow", 4).await;
    draining.terminate();
    assert_eq!(draining.ended().await.code(), Some(0), "{}", draining.log());
    assert!(draining.log().contains("drained"), "{}", draining.log());
    assert_eq!(server.mailbox().count(), 4, "nothing new was begun");
    assert_eq!((count(&db, "sent").await, count(&db, "pending").await), (4, 8));

    let mut next = worker(&config);
    eventually("the next one sends the rest", PATIENCE, async || {
        let sent = count(&db, "sent").await;
        if sent == 12 { Ok(()) } else { Err(sent) }
    })
    .await;
    assert!(server.mailbox().duplicates().is_empty());
    next.terminate();
    assert_eq!(next.ended().await.code(), Some(0));
}

#[tokio::test]
async fn at_the_end_of_the_grace_period_what_has_not_begun_is_given_back_and_what_has_is_in_doubt() {
    let db = TestDb::new().await;
    let server = server([
        Rule::at(Stage::Rcpt, Action::Hang).recipient("rcpt").once().label("at rcpt"),
        Rule::at(Stage::Data, Action::Hang).recipient("data").once().label("at data"),
        Rule::at(Stage::EndOfData, Action::Hang.after_accepting()).recipient("dot").label("after the dot"),
    ])
    .await;
    let mut ids = Vec::new();
    for recipient in ["rcpt@example.net", "data@example.net", "dot@example.net"] {
        ids.push(enqueue_to(&db, recipient).await);
    }
    let config = config(&db, &server).set("worker.grace", "300ms");
    let mut draining = worker(&config);
    for stage in ["at rcpt", "at data", "after the dot"] {
        server.script().wait_fired(stage, 1).await;
    }
    draining.terminate();
    assert_eq!(draining.ended().await.code(), Some(0), "{}", draining.log());
    for id in &ids[..2] {
        let story = db.story(*id).await;
        assert_eq!((story.notification.state.as_str(), story.notification.tries), ("pending", 0), "{story:#?}");
        let [attempt] = &story.attempts[..] else { panic!("{story:#?}") };
        assert_eq!((attempt.outcome.as_deref(), attempt.ended_by.as_deref()), (Some("not_sent"), Some("worker")));
        assert!(!attempt.counted && attempt.begun_at.is_none(), "{story:#?}");
    }
    let story = db.story(ids[2]).await;
    assert_eq!(story.notification.state, "uncertain", "{story:#?}");
    assert_eq!(story.attempts[0].phase.as_deref(), Some("end_of_data"), "{story:#?}");

    let _next = worker(&config);
    for id in &ids[..2] {
        in_state(&db, *id, "sent").await;
    }
    assert_eq!(count(&db, "uncertain").await, 1);
    for id in ids {
        assert_eq!(deliveries(&server.mailbox(), id), 1);
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_the_leases_tell_the_rest() {
    let db = TestDb::new().await;
    let server = server([
        Rule::at(Stage::Rcpt, Action::Hang).recipient("rcpt").once().label("at rcpt"),
        Rule::at(Stage::EndOfData, Action::Hang.after_accepting()).recipient("dot").label("after the dot"),
    ])
    .await;
    let (before, after) = (enqueue_to(&db, "rcpt@example.net").await, enqueue_to(&db, "dot@example.net").await);
    let config = config(&db, &server).set("worker.grace", "10m");
    let mut told_twice = worker(&config);
    server.script().wait_fired("at rcpt", 1).await;
    server.script().wait_fired("after the dot", 1).await;
    told_twice.terminate();
    told_twice.line_with("draining").await;
    told_twice.terminate();
    assert_eq!(told_twice.ended().await.code(), Some(1), "{}", told_twice.log());
    assert!(told_twice.log().contains("aborted"), "{}", told_twice.log());

    let _next = worker(&config);
    in_state(&db, before, "sent").await;
    in_state(&db, after, "uncertain").await;
    assert_eq!((deliveries(&server.mailbox(), before), deliveries(&server.mailbox(), after)), (1, 1));
}

#[tokio::test]
async fn signals_are_heard_while_the_database_is_silent() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], cluster().port()))).await.unwrap();
    // Statements are waited for longer than this test is patient.
    let config = Config::new(&db)
        .set("database.url", &through(&proxy, &db.url))
        .set("lease.duration", "10m")
        .set("database.statement_timeout", "5m")
        .provider("primary", server.addr());
    let mut working = worker(&config);
    in_state(&db, enqueue_to(&db, "jo@example.net").await, "sent").await;
    proxy.stall(Direction::Both);
    let stalled = Instant::now();
    let many_polls = Duration::from_secs(1);
    eventually("a claim hangs", PATIENCE, async || (stalled.elapsed() > many_polls).then_some(())).await;
    working.terminate();
    working.line_with("draining").await;
    let told = Instant::now();
    working.terminate();
    working.ended().await;
    assert!(told.elapsed() < AT_ONCE, "the second signal at work: {:?}", told.elapsed());

    let open = proxy.connections();
    let mut starting = worker(&config);
    proxy.wait_for_connections(|connections| connections > open).await;
    let told = Instant::now();
    starting.terminate();
    assert_eq!(starting.ended().await.code(), Some(0), "{}", starting.log());
    assert!(told.elapsed() < AT_ONCE, "the first signal at the start: {:?}", told.elapsed());
}

#[tokio::test]
async fn a_worker_on_a_database_without_its_schema_ends_and_says_what_to_do() {
    let server = server([]).await;
    let url = cluster().url(&cluster().create_database(None).await.unwrap());
    let config = Config::new(&TestDb::new().await).set("database.url", &url).provider("primary", server.addr());
    let mut proc = worker(&config);
    assert_eq!(proc.ended().await.code(), Some(1));
    assert!(proc.log().contains("run `outboxd migrate`"), "{}", proc.log());
}

/// The status and the reasons that a health endpoint gives; `None` where nobody listens.
async fn health(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: ops\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Waits until `/readyz` gives this status for this reason, and sees that the process calls itself alive all the while.
async fn ready_is(address: &str, status: u16, reason: &str) {
    // The database may be silent for half a minute before the process is called not ready.
    eventually(&format!("/readyz is {status} {reason:?}"), PATIENCE * 3, async || {
        let seen = health(address, "/readyz").await;
        match &seen {
            Some((code, body)) if *code == status && body.contains(reason) => Ok(()),
            Some(_) | None => Err(seen),
        }
    })
    .await;
    assert_eq!(health(address, "/livez").await.map(|(code, _)| code), Some(200));
}

#[tokio::test]
async fn it_waits_for_its_database_and_says_in_every_phase_how_it_is() {
    let cluster: Cluster = own_cluster(&[]);
    let db = TestDb::on(&cluster).await;
    let server = server([Rule::at(Stage::EndOfData, Action::Hang).recipient("hang").label("hangs")]).await;
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let config = config(&db, &server).set("ops.listen", &address).set("worker.grace", "10m");
    cluster.stop_immediate().unwrap();

    let mut proc = worker(&config);
    ready_is(&address, 503, "the database has not answered yet").await;
    proc.line_with("waiting for the database").await;
    cluster.restart().unwrap();
    ready_is(&address, 200, "").await;
    in_state(&db, enqueue_to(&db, "jo@example.net").await, "sent").await;

    cluster.stop_immediate().unwrap();
    ready_is(&address, 503, "the database last answered").await;
    cluster.restart().unwrap();
    ready_is(&address, 200, "").await;
    in_state(&db, enqueue_to(&db, "jo@example.net").await, "sent").await;

    enqueue_to(&db, "hang@example.net").await;
    server.script().wait_fired("hangs", 1).await;
    proc.terminate();
    ready_is(&address, 503, "shutting down").await;
    proc.terminate();
    proc.ended().await;
    assert_eq!(health(&address, "/livez").await, None, "nobody listens any more");
}
