//! What becomes of a message in doubt: held, resent to a provider that deduplicates, or resent at a risk that was chosen.

use outboxd::sandbox::smtp::{Action, Dedup, Options, Rule, Stage};

use crate::harness::rows::LONG;
use crate::harness::scene::{Scene, deferred, refused, sent, uncertain};

/// A provider that deduplicates on the header of the configuration, and a worker that resends within its window.
async fn deduplicating(header: &str) -> Scene {
    let dedup = Dedup { header: header.to_owned(), window: LONG };
    Scene::with(Options { dedup: Some(dedup), ..Options::default() })
        .await
        .set("provider.primary.on_uncertain", "resend-within-window")
        .set("provider.primary.dedup.header", header)
        .set("provider.primary.dedup.scope", "the account")
        .set("provider.primary.dedup.window", "1h")
}

fn lost_answers(count: u64) -> Rule {
    Rule::at(Stage::EndOfData, Action::Close.after_accepting()).times(count)
}

#[tokio::test]
async fn a_held_message_waits_its_window_out_and_is_left_to_a_person() {
    let scene = Scene::new().await.set("recovery.window", "500ms").rule(lost_answers(1));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "unresolved").await;
    uncertain().assert(&story.attempts[0]);
    let now = &story.notification;
    assert!(now.changed_at - now.doubt_since.unwrap() >= std::time::Duration::from_millis(500), "{story:#?}");
    // Sweeps go on; what is sent after it shows that nothing takes it up again.
    let next = scene.enqueue().await;
    scene.until(next, "sent").await;
    worker.drain().await;
    let story = scene.db.story(id).await;
    assert_eq!((story.notification.state.as_str(), story.attempts.len()), ("unresolved", 1));
    assert!(!story.notification.duplicate_possible);
    scene.assert_deliveries(id, 1);
}

#[tokio::test]
async fn a_resend_to_a_provider_that_deduplicates_is_one_delivery() {
    for header in ["X-Notification-ID", "Resend-Idempotency-Key"] {
        let scene = deduplicating(header).await.rule(lost_answers(2));
        let worker = scene.worker();
        let id = scene.enqueue().await;
        let story = scene.until(id, "sent").await;
        assert_eq!(story.attempts.len(), 3, "{story:#?}");
        uncertain().assert(&story.attempts[0]);
        uncertain().assert(&story.attempts[1]);
        sent(250).assert(&story.attempts[2]);
        assert!(story.attempts.iter().all(|attempt| attempt.dedup_scope == "the account"));
        let now = &story.notification;
        assert_eq!((now.tries, now.duplicate_possible, now.doubt_since), (3, false, None));
        worker.drain().await;
        scene.assert_deliveries(id, 1);
        assert_eq!(scene.mailbox().deduplicated_of(&id.to_string()), 2);
        let received = scene.mailbox().of(&id.to_string()).remove(0);
        assert_eq!(received.message_id, format!("{id}@mail.example.org"));
        assert_eq!(received.header(header), Some(id.to_string()));
    }
}

#[tokio::test]
async fn a_resend_of_what_had_not_been_accepted_is_one_delivery() {
    let scene = deduplicating("X-Notification-ID").await.once(Stage::EndOfData, Action::Reset);
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "sent").await;
    assert_eq!(story.attempts.len(), 2);
    uncertain().assert(&story.attempts[0]);
    worker.drain().await;
    scene.assert_deliveries(id, 1);
    assert_eq!(scene.mailbox().deduplicated(), 0);
}

#[tokio::test]
async fn a_resend_that_is_deferred_is_resent_again() {
    let scene = deduplicating("X-Notification-ID")
        .await
        .rule(lost_answers(1))
        .rule(Rule::at(Stage::Rcpt, Action::reply("450 4.2.1 mailbox busy")).skip(1).once());
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "sent").await;
    uncertain().assert(&story.attempts[0]);
    deferred("rcpt", 450).assert(&story.attempts[1]);
    sent(250).assert(&story.attempts[2]);
    assert!(!story.notification.duplicate_possible);
    worker.drain().await;
    scene.assert_deliveries(id, 1);
}

#[tokio::test]
async fn a_resend_that_is_refused_leaves_the_doubt_and_never_fails() {
    let scene = deduplicating("X-Notification-ID")
        .await
        .rule(lost_answers(1))
        .rule(Rule::at(Stage::Rcpt, Action::reply("550 5.1.1 no such user")).skip(1).once());
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene
        .until_story("the resend was refused", id, |story| {
            story.attempts.len() == 2 && story.attempts[1].ended_at.is_some()
        })
        .await;
    refused("rcpt", 550).assert(&story.attempts[1]);
    let now = &story.notification;
    assert_eq!((now.state.as_str(), now.reason.as_deref(), now.resend_at), ("uncertain", None, None));
    assert_eq!(now.doubt_since, story.attempts[0].begun_at, "the windows still count from the first begin");
    worker.drain().await;
    scene.assert_deliveries(id, 1);
}

#[tokio::test]
async fn a_resend_is_not_made_when_its_tries_are_used_up() {
    let scene = deduplicating("X-Notification-ID").await.set("retry.max_tries", "2").rule(lost_answers(9));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until_story("two tries ended", id, |story| story.notification.tries == 2).await;
    let now = &story.notification;
    assert_eq!((now.state.as_str(), now.resend_at, story.attempts.len()), ("uncertain", None, 2));
    worker.drain().await;
    scene.assert_deliveries(id, 1);
}

#[tokio::test]
async fn a_resend_where_duplicates_are_accepted_says_that_one_is_possible() {
    let scene = Scene::new().await.set("recovery.on_uncertain", "accept-duplicates").rule(lost_answers(1));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "sent").await;
    assert_eq!(story.attempts.len(), 2);
    uncertain().assert(&story.attempts[0]);
    assert!(story.notification.duplicate_possible, "{story:#?}");
    worker.drain().await;
    scene.assert_deliveries(id, 2);
}
