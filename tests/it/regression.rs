//! One test for each fault that was found in use and mended.

use std::net::SocketAddr;
use std::time::Duration;

use outboxd::sandbox::smtp::{Action, Options, Rule, SmtpServer, Stage};
use outboxd::store::enqueue::NewNotification;

use crate::harness::rows::{claim, plain, ready};
use crate::harness::scene::Scene;
use crate::harness::{Config, PATIENCE, Proc, TestDb, Worker, eventually};

/// Half of all quiet drains said "results not written at shutdown" although nothing was under way.
#[tokio::test]
async fn a_drain_with_nothing_under_way_is_clean_and_says_so() {
    /// Enough that a fault of every second drain is missed once in sixty-four runs.
    const WORKERS: usize = 6;
    let db = TestDb::new().await;
    let config = format!(
        r#"
        database.url = "{}"
        mail.message_id_domain = "ids.outbox.test"
        ops.listen = ""
        provider.primary = {{ host = "127.0.0.1", security = "plaintext" }}
        "#,
        db.url
    );
    let mut workers: Vec<Proc> = (0..WORKERS).map(|_| Proc::start(&["worker"], &config)).collect();
    for worker in &mut workers {
        worker.line_with("working").await;
        worker.terminate();
        let ended = worker.ended().await;
        let log = worker.log();
        assert!(ended.success() && log.contains("drained") && !log.contains("ERROR"), "{log}");
    }
}

/// Nothing closed a connection that lay idle but the next message, so that it stayed open for ever after the last one.
#[tokio::test]
async fn a_connection_that_lies_idle_is_closed_in_time_without_a_further_message() {
    let scene = Scene::new().await.set("provider.primary.idle_timeout", "200ms");
    let worker = scene.worker();
    let id = scene.enqueue().await;
    scene.until(id, "sent").await;
    eventually("the connection is closed", PATIENCE, async || {
        let connections = scene.server.connections();
        if connections.now == 0 { Ok(()) } else { Err(connections) }
    })
    .await;
    assert_eq!(scene.server.violations(), Vec::<String>::new(), "with QUIT");
    worker.drain().await;
}

/// Every claim that the database refused used up as much of the provider's rate as it could have claimed.
#[tokio::test]
async fn a_claim_that_fails_uses_up_nothing_of_the_rate() {
    let scene = Scene::new().await.set("provider.primary.rate_per_second", "0.001").set("provider.primary.burst", "1");
    scene.db.sql("alter table outboxd.attempt rename to missing").await.unwrap();
    let id = scene.enqueue().await;
    let mut worker = Proc::start(&["worker"], &scene.config.text());
    worker.line_with("cannot claim").await;
    scene.db.sql("alter table outboxd.missing rename to attempt").await.unwrap();
    scene.until(id, "sent").await;
}

/// Large messages to a provider that hung took all of the memory for content, and the other routes claimed nothing.
#[tokio::test]
async fn large_messages_to_a_provider_that_hangs_hold_up_no_other_route() {
    let hung = SmtpServer::start(Options::default()).await.unwrap();
    hung.script().push(Rule::at(Stage::Connect, Action::Hang));
    let mut scene = Scene::new().await.set("route.bulk", "bulk").set("worker.in_flight_bytes", "100000");
    scene.config = scene.config.provider("bulk", hung.addr());
    let worker = scene.worker();
    let large =
        NewNotification { body_text: Some("x".repeat(150_000)), route: Some("bulk".to_owned()), ..plain("acme") };
    let large = scene.db.enqueue(&large).await;
    scene.until(large, "claimed").await;
    let id = scene.enqueue().await;
    scene.until(id, "sent").await;
    drop(worker);
}

/// Rows that came due together were made ready 2,000 at each look, however far apart the looks were.
#[tokio::test]
async fn as_many_rows_as_come_due_together_are_made_ready_together() {
    let db = TestDb::new().await;
    stored(&db, 4_500).await;
    db.sql("insert into outboxd.pause (kind, name, paused_by, reason) values ('all', '', 'a test', 'no claims')")
        .await
        .unwrap();
    db.sql("update outboxd.delivery set ready = false").await.unwrap();
    let worker = idle_worker(&db);
    eventually("all are ready", PATIENCE, async || count(&db, "not ready").await).await;
    worker.drain().await;
}

/// What a crash of a large worker left behind was swept 1,000 rows at each round.
#[tokio::test]
async fn as_many_leases_as_are_lost_together_are_swept_together() {
    let db = TestDb::new().await;
    stored(&db, 2_500).await;
    assert_eq!(ready(&mut db.line(), &claim(), 2_500).await.len(), 2_500);
    db.sql("insert into outboxd.pause (kind, name, paused_by, reason) values ('all', '', 'a test', 'no claims')")
        .await
        .unwrap();
    db.sql("update outboxd.delivery set lease_until = now() - interval '1 s'").await.unwrap();
    let worker = idle_worker(&db);
    eventually("no lease is left", PATIENCE, async || count(&db, "lease_until is not null").await).await;
    worker.drain().await;
}

/// The send deadline was counted from the answer to *begin*, which can be late; the windows that it is taken off count from
/// *begin* itself, so that a resend could end outside of them.
#[tokio::test]
async fn the_time_that_begin_takes_comes_off_the_send_deadline() {
    let scene = Scene::new()
        .await
        .set("provider.primary.send_deadline", "3s")
        .set("provider.primary.timeouts.end_of_data", "3s")
        .rule(Rule::at(Stage::Data, Action::Proceed.after(Duration::from_millis(500))))
        .rule(Rule::at(Stage::EndOfData, Action::Hang));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    scene.until(id, "claimed").await;
    let mut held = scene.db.pool.begin().await.unwrap();
    sqlx::query("select from outboxd.delivery where notification_id = $1 for update")
        .bind(id.0)
        .execute(&mut *held)
        .await
        .unwrap();
    eventually("begin has waited for the row for two seconds", PATIENCE, async || {
        let waiting: bool = sqlx::query_scalar(
            "select exists (select from pg_stat_activity where datname = current_database()
                and wait_event_type = 'Lock' and now() - query_start > interval '2 s')",
        )
        .fetch_one(&scene.db.pool)
        .await
        .unwrap();
        waiting.then_some(())
    })
    .await;
    held.rollback().await.unwrap();
    let story = scene.until(id, "uncertain").await;
    let attempt = &story.attempts[0];
    let took = attempt.ended_at.unwrap() - attempt.begun_at.unwrap();
    assert!(took < Duration::from_millis(4_500), "3 s from begin, and what the machine takes: {took}");
    worker.drain().await;
}

/// Whoever held the lock of one row, as a person with `psql` can, held up every begin and every result of the worker, and in
/// the end results that were known were given up.
#[tokio::test]
async fn a_row_that_somebody_has_locked_holds_up_no_other() {
    for stage in [Stage::Data, Stage::EndOfData] {
        let slow = Action::Proceed.after(Duration::from_secs(1));
        let scene = Scene::new()
            .await
            .set("database.lock_timeout", "200ms")
            .rule(Rule::at(stage, slow).recipient("slow").once());
        let worker = scene.worker();
        let id = scene.enqueue_to("slow@example.net").await;
        scene.until(id, if stage == Stage::Data { "claimed" } else { "transmitting" }).await;
        let mut held = scene.db.pool.begin().await.unwrap();
        sqlx::query("select from outboxd.delivery where notification_id = $1 for update")
            .bind(id.0)
            .execute(&mut *held)
            .await
            .unwrap();
        eventually("somebody waits for the row", PATIENCE, async || {
            let waiting: bool = sqlx::query_scalar(
                "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
            )
            .fetch_one(&scene.db.pool)
            .await
            .unwrap();
            waiting.then_some(())
        })
        .await;
        let other = scene.enqueue_to("quick@example.net").await;
        scene.until(other, "sent").await;
        held.rollback().await.unwrap();
        scene.until(id, "sent").await;
        scene.assert_deliveries(id, 1);
        worker.drain().await;
    }
}

async fn stored(db: &TestDb, rows: u32) {
    let enqueue = "select outboxd.enqueue('a', 'a@example.org', 'b@example.org', 's', 'x') from generate_series(1, ";
    db.sql(&format!("{enqueue}{rows})")).await.unwrap();
}

/// A worker that claims nothing and looks once in an hour.
fn idle_worker(db: &TestDb) -> Worker {
    let config = Config::new(db)
        .set("worker.poll_interval", "1h")
        .set("maintenance.every", "1h")
        .set("lease.duration", "1h")
        .provider("primary", SocketAddr::from(([127, 0, 0, 1], 9)));
    Worker::start(&config)
}

/// `Ok` where no row is so.
async fn count(db: &TestDb, condition: &str) -> Result<(), i64> {
    let query = format!("select count(*) from outboxd.delivery where {condition}");
    let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(&db.pool).await.unwrap();
    if rows == 0 { Ok(()) } else { Err(rows) }
}
