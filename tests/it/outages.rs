//! The database goes away in the midst of work: what is known is written when it is back, and nothing is sent twice.

use std::time::{Duration, Instant};

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::sandbox::smtp::{Action, Rule, Stage};

use crate::crashes::{LEASE, config, count, deliveries, enqueue_many, in_state, server, worker};
use crate::harness::rows::{claim, plain, ready};
use crate::harness::{PATIENCE, TestDb, eventually};

/// A cluster that a test may stop, and whose commits survive it.
pub(crate) fn own_cluster(settings: &[(&str, &str)]) -> Cluster {
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Cluster::start(&Options { durable: true, settings, port: None }).unwrap()
}

/// Twenty messages are accepted while the database is stopped, and it stays so until `back`; then all are sent, and none
/// was handed over again.
async fn accepted_during_an_outage(lease: &str, down: Duration) -> (Cluster, TestDb, Vec<NotificationId>) {
    const ROWS: usize = 20;
    let cluster = own_cluster(&[]);
    let db = TestDb::on(&cluster).await;
    let server =
        server([Rule::at(Stage::EndOfData, Action::Proceed.after(Duration::from_secs(1))).label("slow")]).await;
    let config = config(&db, &server).set("provider_defaults.connections", "20").set("lease.duration", lease);
    let mut ids = Vec::new();
    for _ in 0..ROWS {
        ids.push(db.enqueue(&plain("acme")).await);
    }
    let mut proc = worker(&config);
    server.script().wait_fired("slow", ROWS as u64).await;
    cluster.stop_immediate().unwrap();
    let stopped = Instant::now();
    server.mailbox().wait_for_count(ROWS).await;
    proc.line_with("settling failed, trying again").await;
    eventually("the outage has lasted", PATIENCE, async || (stopped.elapsed() >= down).then_some(())).await;
    cluster.restart().unwrap();
    for id in &ids {
        let story = in_state(&db, *id, "sent").await;
        assert_eq!(story.attempts.len(), 1, "{story:#?}");
        assert_eq!(deliveries(&server.mailbox(), *id), 1);
    }
    proc.terminate();
    assert_eq!(proc.ended().await.code(), Some(0), "{}", proc.log());
    assert_eq!(server.script().times_fired("slow"), ROWS as u64, "nothing was handed over again");
    (cluster, db, ids)
}

#[tokio::test]
async fn results_that_wait_for_a_stopped_database_are_settled_when_it_is_back() {
    let (_cluster, db, ids) = accepted_during_an_outage("60s", Duration::ZERO).await;
    for id in ids {
        let story = db.story(id).await;
        assert_eq!(story.attempts[0].ended_by.as_deref(), Some("worker"), "{story:#?}");
        assert!(story.evidence.is_empty(), "it was known all the time: {story:#?}");
    }
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_makes_no_doubt_of_what_the_worker_knows() {
    let (_cluster, db, ids) = accepted_during_an_outage("2s", LEASE * 2).await;
    for id in ids {
        let story = db.story(id).await;
        assert!(story.notification.doubt_since.is_none() && !story.notification.duplicate_possible, "{story:#?}");
        // Either the result came before the sweep, or after it as evidence.
        let late = story.evidence.iter().filter(|e| e.kind == "late_result" && e.proves == "accepted").count();
        let by = if late == 1 { "lease" } else { "worker" };
        assert_eq!(story.attempts[0].ended_by.as_deref(), Some(by), "{story:#?}");
    }
}

#[tokio::test]
async fn connections_torn_away_in_the_midst_of_work_cost_time_and_nothing_else() {
    const ROWS: u32 = 600;
    let db = TestDb::new().await;
    let server = server([]).await;
    let (config, mailbox) = (config(&db, &server), server.mailbox());
    enqueue_many(&db, ROWS).await;
    let (mut one, mut other) = (worker(&config), worker(&config));
    let mut torn = 0;
    for so_far in [50, 150, 250, 350, 450] {
        mailbox.wait_for_count(so_far).await;
        let ended: i64 = sqlx::query_scalar(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and application_name = 'outboxd'",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        torn += ended;
    }
    assert!(torn >= 20, "there was something to tear: {torn}");
    eventually("all are sent", PATIENCE * 2, async || match count(&db, "sent").await {
        sent if sent == i64::from(ROWS) => Ok(()),
        sent => Err((sent, count(&db, "uncertain").await, count(&db, "failed").await)),
    })
    .await;
    assert_eq!((mailbox.count(), mailbox.duplicates().len()), (ROWS as usize, 0));
    for proc in [&mut one, &mut other] {
        proc.terminate();
        assert_eq!(proc.ended().await.code(), Some(0), "{}", proc.log());
    }
}

#[tokio::test]
async fn a_begin_outlives_a_crash_of_the_database_whatever_its_defaults_are() {
    // A commit would be lost in such a crash if the worker's sessions took these for theirs.
    let cluster = own_cluster(&[
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "10s"),
        ("default_transaction_isolation", "serializable"),
    ]);
    let db = TestDb::on(&cluster).await;
    for pooled in [false, true] {
        let mut line = db.dsn_of(pooled).line();
        let id = db.enqueue(&plain("acme")).await;
        let claimed = ready(&mut line, &claim(), 1).await.remove(0);
        assert_eq!(line.begin(&[(id, claimed.fence())]).await.unwrap().len(), 1);
        cluster.crash().unwrap();
        cluster.restart().unwrap();
        assert_eq!(db.state(id).await, "transmitting", "transaction_pooling = {pooled}");
    }
}
