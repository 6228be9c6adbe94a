//! A worker that is killed, paused or slow: what had begun is in doubt, what had not is sent by the next, and a result that
//! comes late is evidence. The real program throughout.

use std::collections::BTreeSet;
use std::time::Duration;

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::smtp::{Action, Mailbox, Options, Rule, Script, SmtpServer, Stage};
use outboxd::store::enqueue::NewNotification;
use outboxd::store::story::Story;

use crate::harness::rows::{plain, ready};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

/// A lease that is soon over: long enough for a busy machine to renew it, short enough to wait for.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The configuration of a worker with [`LEASE`] and what must fit into it.
pub(crate) fn config(db: &TestDb, server: &SmtpServer) -> Config {
    Config::new(db)
        .set("lease.duration", "2s")
        .set("lease.renew_every", "400ms")
        .set("database.statement_timeout", "1500ms")
        .set("database.lock_timeout", "1s")
        .provider("primary", server.addr())
}

pub(crate) async fn server(rules: impl IntoIterator<Item = Rule>) -> SmtpServer {
    SmtpServer::start(Options { script: Script::new(rules), ..Options::default() }).await.unwrap()
}

pub(crate) fn worker(config: &Config) -> Proc {
    Proc::start(&["worker"], &config.text())
}

/// A plain notification to this recipient.
pub(crate) async fn enqueue_to(db: &TestDb, recipient: &str) -> NotificationId {
    db.enqueue(&NewNotification { recipient: recipient.to_owned(), ..plain("acme") }).await
}

/// Waits for a state and returns the story.
pub(crate) async fn in_state(db: &TestDb, id: NotificationId, state: &str) -> Story {
    eventually(&format!("{id} is {state}"), PATIENCE, async || {
        let story = db.story(id).await;
        if story.notification.state == state { Ok(story) } else { Err(story) }
    })
    .await
}

/// How many notifications are in a state.
pub(crate) async fn count(db: &TestDb, state: &str) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.delivery where state = $1")
        .bind(state)
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

/// The ids in a state.
pub(crate) async fn ids(db: &TestDb, state: &str) -> BTreeSet<String> {
    let ids: Vec<String> =
        sqlx::query_scalar("select notification_id::text from outboxd.delivery where state = $1 order by 1")
            .bind(state)
            .fetch_all(&db.pool)
            .await
            .unwrap();
    ids.into_iter().collect()
}

/// Stores many at once, spread over a few accounts.
pub(crate) async fn enqueue_many(db: &TestDb, rows: u32) {
    db.sql(&format!(
        "select outboxd.enqueue(account_id => 'account ' || n % 5, sender => 'shop@example.org',
            recipient => 'r' || n || '@example.net', subject => 'Number ' || n, body_text => 'Text ' || n)
         from generate_series(1, {rows}) n"
    ))
    .await
    .unwrap();
}

pub(crate) fn deliveries(mailbox: &Mailbox, id: NotificationId) -> u64 {
    mailbox.deliveries(&id.to_string())
}

#[tokio::test]
async fn a_killed_worker_leaves_in_doubt_what_had_begun_and_nothing_else() {
    let db = TestDb::new().await;
    let server = server([
        Rule::at(Stage::Rcpt, Action::Hang).recipient("rcpt").times(3).label("at rcpt"),
        Rule::at(Stage::Body, Action::Hang.after_bytes(50)).recipient("body").label("in the body"),
        Rule::at(Stage::EndOfData, Action::Hang.after_accepting()).recipient("dot").label("after the dot"),
    ])
    .await;
    let config = config(&db, &server).set("provider_defaults.connections", "9");
    let (mut rcpt, mut body, mut dot) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..3 {
        rcpt.push(enqueue_to(&db, &format!("rcpt{n}@example.net")).await);
        body.push(enqueue_to(&db, &format!("body{n}@example.net")).await);
        dot.push(enqueue_to(&db, &format!("dot{n}@example.net")).await);
    }
    let first = worker(&config);
    for stage in ["at rcpt", "in the body", "after the dot"] {
        server.script().wait_fired(stage, 3).await;
    }
    let waiting = enqueue_to(&db, "waiting@example.net").await;
    first.kill();

    let _next = worker(&config);
    for id in &rcpt {
        let story = in_state(&db, *id, "sent").await;
        let [lost, sent] = &story.attempts[..] else { panic!("{story:#?}") };
        assert_eq!(
            (lost.outcome.as_deref(), lost.ended_by.as_deref()),
            (Some("not_sent"), Some("lease")),
            "{story:#?}"
        );
        assert!(lost.begun_at.is_none() && !lost.counted, "{story:#?}");
        assert!(lost.ended_at.unwrap() >= lost.claimed_at + LEASE, "not before the lease was over: {story:#?}");
        assert_eq!(
            (sent.outcome.as_deref(), story.notification.tries),
            (Some("sent"), 1),
            "no try was used up by the crash"
        );
        assert_eq!(deliveries(&server.mailbox(), *id), 1);
    }
    in_state(&db, waiting, "sent").await;
    for (id, accepted) in body.iter().map(|id| (id, 0)).chain(dot.iter().map(|id| (id, 1))) {
        let story = in_state(&db, *id, "uncertain").await;
        let [lost] = &story.attempts[..] else { panic!("{story:#?}") };
        assert_eq!(
            (lost.outcome.as_deref(), lost.ended_by.as_deref()),
            (Some("uncertain"), Some("lease")),
            "{story:#?}"
        );
        assert!(lost.begun_at.is_some() && story.notification.doubt_until.is_some(), "{story:#?}");
        assert!(story.notification.resend_at.is_none(), "it is held: {story:#?}");
        assert_eq!(deliveries(&server.mailbox(), *id), accepted);
    }

    // The next worker goes on claiming, and leaves those alone.
    let marker = enqueue_to(&db, "marker@example.net").await;
    in_state(&db, marker, "sent").await;
    assert_eq!(count(&db, "uncertain").await, 6);
    for id in body.iter().chain(&dot) {
        assert_eq!(db.story(*id).await.attempts.len(), 1);
    }
    assert!(server.mailbox().duplicates().is_empty());
}

/// A worker paused after the dot, past its lease; another takes its notification for uncertain; then the answer is heard.
async fn answered_late(answer: Action, state: &str) -> Story {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::EndOfData, answer.after(LEASE * 2)).label("answers late")]).await;
    let config = config(&db, &server);
    let paused = worker(&config);
    let id = enqueue_to(&db, "jo@example.net").await;
    server.script().wait_fired("answers late", 1).await;
    paused.pause();
    let _other = worker(&config);
    let doubted = in_state(&db, id, "uncertain").await;
    assert!(doubted.evidence.is_empty(), "the answer was not heard yet: {doubted:#?}");
    paused.resume();
    let story = in_state(&db, id, state).await;
    assert_eq!(story.attempts.len(), 1, "nobody began again: {story:#?}");
    assert_eq!(server.script().times_fired("answers late"), 1, "nor was anything handed over again");
    story
}

#[tokio::test]
async fn an_acceptance_heard_after_the_lease_was_lost_is_evidence_and_the_notification_is_sent() {
    let story = answered_late(Action::Proceed, "sent").await;
    let [evidence] = &story.evidence[..] else { panic!("{story:#?}") };
    assert_eq!((evidence.kind.as_str(), evidence.proves.as_str()), ("late_result", "accepted"), "{story:#?}");
    assert!(!story.notification.duplicate_possible && story.notification.doubt_since.is_none(), "{story:#?}");
}

#[tokio::test]
async fn a_refusal_heard_after_the_lease_was_lost_is_evidence_and_the_notification_has_failed() {
    let story = answered_late(Action::reply("550 5.1.1 no such mailbox"), "failed").await;
    let [evidence] = &story.evidence[..] else { panic!("{story:#?}") };
    assert_eq!((evidence.kind.as_str(), evidence.proves.as_str()), ("late_result", "not_accepted"), "{story:#?}");
    assert_eq!(story.notification.reason.as_deref(), Some("refused"));
}

#[tokio::test]
async fn a_worker_paused_before_begin_past_its_lease_cannot_begin_any_more() {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::Rcpt, Action::Proceed.after(LEASE * 2)).once().label("slow")]).await;
    let config = config(&db, &server);
    let mut paused = worker(&config);
    let id = enqueue_to(&db, "jo@example.net").await;
    server.script().wait_fired("slow", 1).await;
    paused.pause();
    let _other = worker(&config);
    in_state(&db, id, "sent").await;
    paused.resume();
    paused.line_with("begin refused").await;
    let story = eventually("what it knows is on record", PATIENCE, async || {
        let story = db.story(id).await;
        if story.evidence.is_empty() { Err(story) } else { Ok(story) }
    })
    .await;
    assert_eq!(story.evidence[0].proves, "not_accepted", "{story:#?}");
    assert_eq!((story.notification.state.as_str(), story.attempts.len()), ("sent", 2), "{story:#?}");
    assert!(story.attempts[0].begun_at.is_none(), "{story:#?}");
    assert_eq!(deliveries(&server.mailbox(), id), 1);
}

#[tokio::test]
async fn the_lease_of_a_send_that_takes_three_times_as_long_is_renewed() {
    let db = TestDb::new().await;
    let server = server([Rule::at(Stage::EndOfData, Action::Proceed.after(LEASE * 3))]).await;
    let config = config(&db, &server);
    // The other one would sweep it.
    let (_one, _other) = (worker(&config), worker(&config));
    let id = enqueue_to(&db, "jo@example.net").await;
    let story = in_state(&db, id, "sent").await;
    let [attempt] = &story.attempts[..] else { panic!("{story:#?}") };
    assert_eq!(attempt.ended_by.as_deref(), Some("worker"));
    assert!(attempt.ended_at.unwrap() >= attempt.claimed_at + LEASE * 3, "{story:#?}");
    assert!(story.evidence.is_empty());
    assert_eq!(deliveries(&server.mailbox(), id), 1);
}

#[tokio::test]
async fn two_workers_and_a_kill_in_the_midst_lose_nothing_and_send_nothing_twice() {
    const ROWS: u32 = 2_000;
    let db = TestDb::new().await;
    let server = SmtpServer::start(Options { keep_bodies: false, ..Options::default() }).await.unwrap();
    let config = config(&db, &server).set("worker.name", "twin");
    enqueue_many(&db, ROWS).await;
    let (first, _second) = (worker(&config), worker(&config));
    server.mailbox().wait_for_count(300).await;
    first.kill();
    let _restarted = worker(&config);
    eventually("every notification has an outcome", PATIENCE * 2, async || {
        let done = count(&db, "sent").await + count(&db, "uncertain").await;
        if done == i64::from(ROWS) { Ok(()) } else { Err(done) }
    })
    .await;
    let (sent, uncertain, accepted) = (ids(&db, "sent").await, ids(&db, "uncertain").await, server.mailbox().ids());
    assert!(server.mailbox().duplicates().is_empty(), "{:?}", server.mailbox().duplicates());
    assert!(sent.is_subset(&accepted), "what is called sent was accepted");
    assert!(accepted.difference(&sent).all(|id| uncertain.contains(id)), "what was accepted is sent or flagged");
    assert!(uncertain.len() <= 8, "no more can have begun than one worker has connections: {}", uncertain.len());
}

mod batches {
    //! A worker that claims again what it lost can hold a stale claim and the present one at the same time.

    use outboxd::domain::outcome::{Outcome, Phase};
    use outboxd::domain::policy::Next;
    use outboxd::store::claim::Claimed;
    use outboxd::store::settle::Settlement;
    use outboxd::worker::begin::{Begun, beginner};
    use outboxd::worker::held::Held;
    use outboxd::worker::settle::{SettleSettings, settler};

    use super::*;
    use crate::harness::rows::{LONG, claim, verdict};

    /// A claim whose lease was lost before begin, and the one after it, on the same notification.
    async fn stale_and_present(db: &TestDb) -> [Claimed; 2] {
        let mut line = db.line();
        let stale = db.claimed(&mut line, &claim()).await;
        db.age(stale.id(), "2 hours").await;
        assert_eq!(line.sweep_leases(12, LONG).await.unwrap().rows, 1);
        let present = ready(&mut line, &claim(), 1).await.remove(0);
        assert_eq!(stale.id(), present.id());
        [stale, present]
    }

    #[tokio::test]
    async fn a_stale_claim_does_not_begin_in_the_company_of_the_present_one() {
        let db = TestDb::new().await;
        let [stale, present] = stale_and_present(&db).await;
        let (beginner, serve) = beginner(db.line());
        let asked = async move {
            let id = stale.id();
            tokio::join!(beginner.begin(id, stale.fence()), beginner.begin(id, present.fence()))
        };
        // Both are asked for before the task runs, so one statement answers both.
        let (answers, ()) = tokio::join!(asked, serve);
        assert_eq!(answers, (Begun::Refused, Begun::Yes));
    }

    #[tokio::test]
    async fn a_stale_claims_result_is_evidence_also_in_the_company_of_the_present_one() {
        let db = TestDb::new().await;
        let [stale, present] = stale_and_present(&db).await;
        let id = stale.id();
        let settings = SettleSettings { worker: "w1".to_owned(), patience: PATIENCE, deadline: LONG };
        let (settler, serve) = settler(db.line(), Held::default(), settings, || {});
        let again = Next::Retry { delay: Duration::ZERO, counted: false, suspected: false };
        settler.settle(Settlement::new(stale, verdict(Outcome::NotSent, Phase::Begin), again)).await;
        settler.settle(Settlement::new(present, verdict(Outcome::NotSent, Phase::Connect), again)).await;
        drop(settler);
        serve.await;
        let story = db.story(id).await;
        assert_eq!(story.attempts[1].ended_by.as_deref(), Some("worker"), "{story:#?}");
        assert_eq!((story.evidence.len(), story.evidence[0].attempt_number), (1, 1), "{story:#?}");
    }
}
