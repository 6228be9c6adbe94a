//! A provider's fault costs the provider its turn and no notification a try; another provider may take its place.

use std::sync::{Arc, Mutex};

use outboxd::sandbox::smtp::{Action, Dedup, Options, Rule, SmtpServer, Stage};

use crate::harness::rows::LONG;
use crate::harness::scene::{Scene, not_sent, refused, uncertain};
use crate::harness::{PATIENCE, eventually};

/// How many attempts have ended.
async fn ended(scene: &Scene) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.attempt where ended_at is not null")
        .fetch_one(&scene.db.pool)
        .await
        .unwrap()
}

async fn until_ended(scene: &Scene, count: i64) {
    eventually(&format!("{count} attempts have ended"), PATIENCE, async || {
        let ended = ended(scene).await;
        if ended >= count { Ok(()) } else { Err(ended) }
    })
    .await;
}

/// How many notifications have been charged for something: a try, or more suspicions than this.
async fn charged(scene: &Scene, suspicions: i16) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.delivery where tries > 0 or suspicions > $1 or state = 'failed'")
        .bind(suspicions)
        .fetch_one(&scene.db.pool)
        .await
        .unwrap()
}

/// Always open for this long, so that the number of probes follows from the time.
fn open_for(scene: Scene, open: &str) -> Scene {
    scene.set("provider.primary.breaker.open_min", open).set("provider.primary.breaker.open_max", open)
}

#[tokio::test]
async fn an_outage_costs_few_connections_and_no_try_and_ends_with_one_probe() {
    let scene = open_for(Scene::new().await, "300ms");
    scene.server.pause().await;
    scene.enqueue_many(200).await;
    let worker = scene.worker();
    // The threshold of five, and a few probes.
    until_ended(&scene, 9).await;
    let (attempts, took): (i64, f64) = sqlx::query_as(
        "select count(*), extract(epoch from max(claimed_at) - min(claimed_at))::float8 from outboxd.attempt",
    )
    .fetch_one(&scene.db.pool)
    .await
    .unwrap();
    // Before it opens: four faults, and what the eight connections had under way. Then one probe each 300 ms.
    let most = 4 + 8 + (took / 0.3) as i64 + 1;
    assert!(attempts <= most, "{attempts} attempts in {took} s for 200 notifications, at most {most}");
    assert_eq!(charged(&scene, 0).await, 0);

    let opened_after = Arc::new(Mutex::new(Vec::new()));
    let (mailbox, opened) = (scene.mailbox(), Arc::clone(&opened_after));
    scene.server.script().push(Rule::at(Stage::Connect, Action::Proceed).when(move |_| {
        opened.lock().unwrap().push(mailbox.count());
        false
    }));
    scene.server.resume().await.unwrap();
    scene.until_all("sent").await;
    let opened_after = opened_after.lock().unwrap().clone();
    assert_eq!(opened_after[0], 0);
    assert!(opened_after[1..].iter().all(|&accepted| accepted > 0), "one message probed first: {opened_after:?}");
    assert_eq!(scene.mailbox().count(), 200);
    assert!(scene.mailbox().duplicates().is_empty());
    let tries: i64 =
        sqlx::query_scalar("select sum(tries) from outboxd.delivery").fetch_one(&scene.db.pool).await.unwrap();
    assert_eq!(tries, 200, "one each: the one that was accepted");
    worker.drain().await;
}

#[tokio::test]
async fn a_greeting_of_421_three_times_costs_no_try() {
    let busy = Action::reply_then_close("421 4.3.2 too many connections");
    let scene = open_for(Scene::new().await, "200ms")
        .set("provider.primary.breaker.threshold", "3")
        .set("provider.primary.connections", "4")
        .rule(Rule::at(Stage::Connect, busy).times(3).label("busy"));
    scene.enqueue_many(30).await;
    let worker = scene.worker();
    scene.until_all("sent").await;
    assert_eq!(scene.server.script().times_fired("busy"), 3);
    assert!(scene.server.connections().peak <= 4, "{:?}", scene.server.connections());
    let uncounted: i64 =
        sqlx::query_scalar("select count(*) from outboxd.attempt where not counted and phase = 'greeting'")
            .fetch_one(&scene.db.pool)
            .await
            .unwrap();
    assert_eq!(uncounted, 3);
    let tries: i64 =
        sqlx::query_scalar("select sum(tries) from outboxd.delivery").fetch_one(&scene.db.pool).await.unwrap();
    assert_eq!((tries, scene.mailbox().count()), (30, 30));
    worker.drain().await;
}

/// Every message is refused for a reason that hits all; `before` says how many were accepted before that began.
async fn relay_denied(before: usize) {
    let scene = open_for(Scene::new().await, "400ms").set("provider.primary.connections", "4");
    let worker = scene.worker();
    scene.enqueue_many(before).await;
    scene.until_all("sent").await;
    scene.server.script().push(Rule::at(Stage::Rcpt, Action::reply("550 5.7.1 relay access denied")).label("denied"));
    let ids = scene.enqueue_many(40).await;
    scene.server.script().wait_fired("denied", 9).await;
    let failed: i64 = sqlx::query_scalar("select count(*) from outboxd.delivery where state = 'failed'")
        .fetch_one(&scene.db.pool)
        .await
        .unwrap();
    assert_eq!(failed, 0, "what hits every message is the provider's fault");
    let (attempts, took): (i64, f64) = sqlx::query_as(
        "select count(*), extract(epoch from max(claimed_at) - min(claimed_at))::float8 from outboxd.attempt
         where outcome = 'refused'",
    )
    .fetch_one(&scene.db.pool)
    .await
    .unwrap();
    let most = 4 + 4 + (took / 0.4) as i64 + 1;
    assert!(attempts <= most, "{attempts} refusals in {took} s, at most {most}: the breaker is open");
    scene.server.script().clear();
    scene.until_all("sent").await;
    for id in ids {
        let story = scene.db.story(id).await;
        assert_eq!(story.notification.tries, 1);
        let (_, before) = story.attempts.split_last().unwrap();
        before.iter().for_each(|attempt| refused("rcpt", 550).uncounted().assert(attempt));
        scene.assert_deliveries(id, 1);
    }
    worker.drain().await;
}

#[tokio::test]
async fn a_provider_that_refuses_every_message_from_the_start_fails_none() {
    relay_denied(0).await;
}

#[tokio::test]
async fn a_provider_that_begins_to_refuse_every_message_fails_none() {
    relay_denied(3).await;
}

#[tokio::test]
async fn a_bad_recipient_among_good_ones_is_refused() {
    for reply in ["550 5.1.1 no such user", "550 5.7.1 recipient blocked by policy"] {
        let scene = Scene::new().await.rule(Rule::at(Stage::Rcpt, Action::reply(reply)).recipient("bad@"));
        let worker = scene.worker();
        let mut good = scene.enqueue_many(10).await;
        let bad = scene.enqueue_to("bad@example.net").await;
        good.extend(scene.enqueue_many(10).await);
        for id in good {
            assert_eq!(scene.until(id, "sent").await.notification.tries, 1);
        }
        let story = scene.until(bad, "failed").await;
        assert_eq!(story.notification.reason.as_deref(), Some("refused"));
        assert!(story.attempts.len() <= 3, "{story:#?}");
        scene.assert_deliveries(bad, 0);
        worker.drain().await;
    }
}

#[tokio::test]
async fn a_lone_notification_that_is_always_suspect_fails_in_the_end() {
    let scene = Scene::new().await.rule(Rule::at(Stage::EndOfData, Action::reply("554 5.7.1 looks like spam")));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    assert_eq!(story.notification.reason.as_deref(), Some("refused"));
    // Put back five times, and then taken for its own.
    assert_eq!((story.attempts.len(), story.notification.tries, scene.suspicions(id).await), (6, 1, 5));
    let refusal = refused("end_of_data", 554).begun();
    story.attempts[..5].iter().for_each(|attempt| refusal.uncounted().assert(attempt));
    refusal.assert(&story.attempts[5]);
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_poisonous_message_that_always_breaks_the_connection_ends_and_holds_up_nothing() {
    let scene =
        Scene::new().await.set("retry.max_tries", "3").rule(Rule::at(Stage::Rcpt, Action::Reset).recipient("poison@"));
    let worker = scene.worker();
    let poison = scene.enqueue_to("poison@example.net").await;
    let good = scene.enqueue_many(20).await;
    for id in good {
        scene.until(id, "sent").await;
    }
    let story = scene.until(poison, "failed").await;
    assert_eq!((story.notification.reason.as_deref(), story.notification.tries), (Some("exhausted"), 3));
    worker.drain().await;
}

/// Longer than the second after which a probe's notification is ready again, which is then not the next probe, too.
const PAST_A_RETRY: &str = "1500ms";

/// A scene with a second provider, which takes the first one's place on the route.
async fn with_backup(options: Options) -> (Scene, SmtpServer) {
    let backup = SmtpServer::start(Options::default()).await.unwrap();
    let scene = Scene::with(options).await;
    let config = scene.config.clone().provider("backup", backup.addr()).set("route.default", "primary,backup");
    (Scene { config, ..scene }, backup)
}

#[tokio::test]
async fn while_the_preferred_provider_is_down_the_backup_sends_and_what_was_not_accepted_goes_through_it() {
    let (scene, backup) = with_backup(Options::default()).await;
    // Open for longer than the test: nothing probes it.
    let scene =
        open_for(scene, "10m").set("provider.primary.breaker.threshold", "2").set("provider.primary.connections", "1");
    scene.server.pause().await;
    let worker = scene.worker();
    let ids = scene.enqueue_many(20).await;
    scene.until_all("sent").await;
    let mut moved = 0;
    for id in ids {
        let story = scene.db.story(id).await;
        let (last, before) = story.attempts.split_last().unwrap();
        assert_eq!(last.provider, "backup");
        for attempt in before {
            assert_eq!(attempt.provider, "primary");
            not_sent("connect").assert(attempt);
            moved += 1;
        }
        assert_eq!(story.notification.tries, 1);
        assert_eq!(backup.mailbox().deliveries(&id.to_string()), 1);
    }
    assert_eq!(moved, 2, "the threshold's worth of messages met the outage");
    worker.drain().await;
}

#[tokio::test]
async fn the_preferred_provider_is_used_while_it_works_and_again_when_it_is_back() {
    let (scene, backup) = with_backup(Options::default()).await;
    let scene = open_for(scene, PAST_A_RETRY)
        .set("provider.primary.breaker.threshold", "1")
        .set("provider.primary.connections", "1");
    let worker = scene.worker();
    scene.enqueue_many(10).await;
    scene.until_all("sent").await;
    assert_eq!((scene.mailbox().count(), backup.mailbox().count()), (10, 0), "busy is not down");
    scene.server.pause().await;
    scene.server.cut_connections().await;
    scene.enqueue_many(10).await;
    scene.until_all("sent").await;
    assert_eq!(backup.mailbox().count(), 10);
    scene.server.resume().await.unwrap();
    eventually("the preferred one is used again", PATIENCE, async || {
        scene.enqueue().await;
        scene.until_all("sent").await;
        (scene.mailbox().count() > 10).then_some(())
    })
    .await;
    worker.drain().await;
}

#[tokio::test]
async fn what_is_uncertain_at_one_provider_never_goes_through_another_scope() {
    let dedup = Dedup { header: "X-Notification-ID".to_owned(), window: LONG };
    let (scene, backup) = with_backup(Options { dedup: Some(dedup), ..Options::default() }).await;
    let scene = open_for(scene, PAST_A_RETRY)
        .set("provider.primary.breaker.threshold", "3")
        .set("provider.primary.on_uncertain", "resend-within-window")
        .set("provider.primary.dedup.window", "1h")
        // The lost answers, before anything else is accepted.
        .rule(Rule::at(Stage::EndOfData, Action::Close.after_accepting()).times(3).label("lost"));
    let worker = scene.worker();
    let doubtful = scene.enqueue_many(3).await;
    scene.server.script().wait_fired("lost", 3).await;
    scene.server.pause().await;
    scene.server.cut_connections().await;
    let clear = scene.enqueue_many(20).await;
    for &id in &clear {
        let story = scene.until(id, "sent").await;
        assert_eq!(backup.mailbox().deliveries(&id.to_string()), 1, "{story:#?}");
    }
    // The resends are due, and their provider is down: they wait for it.
    for &id in &doubtful {
        let story = scene.until_story("its resend waits", id, |story| story.notification.state == "pending").await;
        uncertain().assert(&story.attempts[0]);
        assert!(story.notification.doubt_since.is_some());
        assert!(story.attempts.iter().all(|attempt| attempt.provider == "primary"), "{story:#?}");
        assert_eq!(backup.mailbox().deliveries(&id.to_string()), 0);
    }
    scene.server.resume().await.unwrap();
    for &id in &doubtful {
        let story = scene.until(id, "sent").await;
        assert!(story.attempts.iter().all(|attempt| attempt.provider == "primary"));
        assert!(!story.notification.duplicate_possible);
        scene.assert_deliveries(id, 1);
        assert_eq!(backup.mailbox().deliveries(&id.to_string()), 0);
    }
    worker.drain().await;
}
