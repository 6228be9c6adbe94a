//! The worker in situations that a single send never comes into: a provider with every slot taken, a stop signal.

use std::time::Duration;

use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::sandbox::smtp::{Action, Dedup, Options, Rule, Script, SmtpServer, Stage};
use outboxd::store::settle::Settlement;

use crate::harness::rows::{LONG, claim, plain, verdict};
use crate::harness::{Config, PATIENCE, Proc, TestDb, Worker, eventually};

#[tokio::test]
async fn what_is_in_doubt_is_resent_although_a_backlog_takes_every_slot() {
    const DOUBTS: i64 = 20;
    const BACKLOG: i64 = 200;
    let db = TestDb::new().await;
    let mut line = db.line();
    for _ in 0..DOUBTS {
        let claimed = db.claimed(&mut line, &claim()).await;
        line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap();
        let doubt = Next::Doubt { resend_after: Some(Duration::ZERO) };
        let result = Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), doubt);
        line.settle(&[result], 96 * LONG).await.unwrap();
    }
    line.release_resends(96 * LONG).await.unwrap();
    for _ in 0..BACKLOG {
        db.enqueue(&plain("acme")).await;
    }
    let slow = Rule::at(Stage::EndOfData, Action::Proceed.after(Duration::from_millis(10)));
    let dedup = Dedup { header: "X-Notification-ID".to_owned(), window: 24 * LONG };
    let options = Options { script: Script::new([slow]), dedup: Some(dedup), ..Options::default() };
    let server = SmtpServer::start(options).await.unwrap();
    let config = Config::new(&db)
        .provider("primary", server.addr())
        .set("provider.primary.connections", "1")
        .set("provider.primary.on_uncertain", "resend-within-window")
        .set("provider.primary.dedup.header", "X-Notification-ID")
        .set("provider.primary.dedup.window", "24h");
    let worker = Worker::start(&config);
    let backlog = eventually("all that is in doubt is resent", PATIENCE, async || {
        let (doubts, backlog): (i64, i64) = sqlx::query_as(
            "select count(*) filter (where attempts > 1 and state = 'sent'), count(*) filter (where attempts <= 1 and state <> 'sent')
             from outboxd.delivery",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        if doubts == DOUBTS { Ok(backlog) } else { Err((doubts, backlog)) }
    })
    .await;
    assert!(backlog > BACKLOG / 4, "of {BACKLOG} others {backlog} are left");
    worker.drain().await;
}

#[tokio::test]
async fn an_answer_that_came_while_the_process_was_stopped_is_read_when_it_goes_on() {
    let db = TestDb::new().await;
    let slow = Rule::at(Stage::EndOfData, Action::Proceed.after(Duration::from_millis(200))).label("asked");
    let server = SmtpServer::start(Options { script: Script::new([slow]), ..Options::default() }).await.unwrap();
    let config = Config::new(&db)
        .provider("primary", server.addr())
        .set("provider.primary.send_deadline", "500ms")
        .set("provider.primary.timeouts.end_of_data", "500ms");
    let worker = Proc::start(&["worker"], &config.text());
    let id = db.enqueue(&plain("acme")).await;
    server.script().wait_fired("asked", 1).await;
    worker.pause();
    server.mailbox().wait_for_count(1).await;
    eventually("every limit is over", PATIENCE, async || {
        let over = "select now() - changed_at > interval '1 second' from outboxd.delivery where state = 'transmitting'";
        let over: Option<bool> = sqlx::query_scalar(over).fetch_optional(&db.pool).await.unwrap();
        over.filter(|over| *over).ok_or(over)
    })
    .await;
    worker.resume();
    let state = eventually("the attempt has ended", PATIENCE, async || {
        let state = db.state(id).await;
        if state == "transmitting" { Err(state) } else { Ok(state) }
    })
    .await;
    assert_eq!(state, "sent");
}
