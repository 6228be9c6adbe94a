//! Providers as the whole worker uses them: breaker and failover, rates, connections, delays, and rows that cannot be sent.

mod breaker;
mod limits;

use std::time::Duration;

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::smtp::{Action, Rule, Stage};
use outboxd::store::enqueue::NewNotification;
use sqlx::types::Uuid;
use time::OffsetDateTime;

use crate::harness::rows::plain;
use crate::harness::scene::{Scene, deferred};

#[tokio::test]
async fn a_delay_that_the_server_states_is_kept() {
    let scene = Scene::new().await.once(Stage::Rcpt, Action::reply("450 4.7.1 try again in 120 seconds"));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until_story("it was deferred", id, |story| story.notification.tries == 1).await;
    deferred("rcpt", 450).says("try again in 120 seconds").assert(&story.attempts[0]);
    let now = &story.notification;
    assert_eq!(now.state, "pending");
    assert!(now.due_at.unwrap() - story.attempts[0].ended_at.unwrap() >= Duration::from_secs(120), "{story:#?}");
    // Another notification does not wait for it.
    let other = scene.enqueue().await;
    scene.until(other, "sent").await;
    assert_eq!(scene.db.state(id).await, "pending");
    worker.drain().await;
}

#[tokio::test]
async fn a_notification_whose_tries_are_used_up_is_exhausted() {
    let scene = Scene::new()
        .await
        .set("retry.max_tries", "3")
        .rule(Rule::at(Stage::Rcpt, Action::reply("450 4.2.1 mailbox busy")));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    let now = &story.notification;
    assert_eq!((now.reason.as_deref(), now.tries, story.attempts.len()), (Some("exhausted"), 3, 3));
    story.attempts.iter().for_each(|attempt| deferred("rcpt", 450).assert(attempt));
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_notification_that_is_deferred_past_its_deadline_is_expired() {
    let scene = Scene::new()
        .await
        .set("retry.max_tries", "1000")
        .set("retry.deadline", "1s")
        .set("retry.stated_delay_cap", "1s")
        .rule(Rule::at(Stage::Rcpt, Action::reply("450 4.2.1 mailbox busy")));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    assert_eq!(story.notification.reason.as_deref(), Some("expired"));
    assert!(story.attempts.len() > 1, "{story:#?}");
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_notification_with_an_expiry_of_its_own_is_expired_while_its_provider_is_down() {
    let scene = Scene::new().await;
    scene.server.pause().await;
    let worker = scene.worker();
    let expires_at = Some(OffsetDateTime::now_utc() + Duration::from_millis(1_500));
    let id = scene.db.enqueue(&NewNotification { expires_at, ..plain("acme") }).await;
    let other = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    assert_eq!((story.notification.reason.as_deref(), story.notification.tries), (Some("expired"), 0));
    scene.server.resume().await.unwrap();
    scene.until(other, "sent").await;
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

/// Puts a row in as a hand with `psql` could, past every check of the producer's contract.
async fn by_hand(scene: &Scene, recipient: &str, subject: &str, headers: &str, attachments: &str) -> NotificationId {
    let id = Uuid::now_v7();
    sqlx::query(
        "insert into outboxd.outbox (id, account_id, sender, recipient, subject, body_text, headers, attachments)
         values ($1, 'acme', 'shop@example.org', $2, $3, 'text', $4::jsonb, $5::jsonb)",
    )
    .bind(id)
    .bind(recipient)
    .bind(subject)
    .bind(headers)
    .bind(attachments)
    .execute(&scene.db.pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into outboxd.delivery (notification_id, account_id, route, priority, size_bytes, first_due_at, due_at, ready)
         values ($1, 'acme', 'default', 5, 100, now(), now(), true)",
    )
    .bind(id)
    .execute(&scene.db.pool)
    .await
    .unwrap();
    NotificationId(id)
}

#[tokio::test]
async fn rows_that_cannot_be_made_into_messages_are_invalid_and_hold_up_nothing() {
    let scene = Scene::new().await;
    let bad = "nobody at nowhere";
    let good = "jo@example.net";
    let mut rows = scene.enqueue_many(25).await;
    let poison = [
        (by_hand(&scene, bad, "s", "[]", "[]").await, "recipient"),
        (by_hand(&scene, "jo@example.net>\r\nRCPT TO:<eve@example.com", "s", "[]", "[]").await, "recipient"),
        (by_hand(&scene, good, "s\r\nBcc: eve@example.com", "[]", "[]").await, "subject"),
        (by_hand(&scene, good, "s", r#"[["X-A", "b\r\nBcc: eve@example.com"]]"#, "[]").await, "headers"),
        (by_hand(&scene, good, "s", r#"{"X-A": 1}"#, "[]").await, "headers"),
        (by_hand(&scene, good, "s", "null", "[]").await, "headers"),
        (by_hand(&scene, good, "s", "[]", r#"[{"what": 1}]"#).await, "attachments"),
        (
            by_hand(&scene, good, "s", "[]", r#"[{"filename": "a", "content_type": "text/plain", "content": "?!"}]"#)
                .await,
            "attachments",
        ),
    ];
    rows.extend(scene.enqueue_many(25).await);
    let worker = scene.worker();
    for (id, names) in poison {
        let story = scene.until(id, "failed").await;
        assert_eq!(story.notification.reason.as_deref(), Some("invalid"));
        assert_eq!(story.attempts.len(), 1);
        let attempt = &story.attempts[0];
        assert_eq!((attempt.outcome.as_deref(), attempt.phase.as_deref()), (Some("not_sent"), Some("compose")));
        assert_eq!((attempt.begun_at, attempt.counted, story.notification.tries), (None, false, 0));
        let error = attempt.error.as_deref().unwrap();
        assert!(error.contains(names), "{names} is named in {error:?}");
        for part in ["nobody", "nowhere", "jo@", "eve"] {
            assert!(!error.contains(part), "{error:?} holds an address");
        }
        scene.assert_deliveries(id, 0);
    }
    for id in rows {
        let story = scene.until(id, "sent").await;
        assert_eq!(story.attempts.len(), 1);
        scene.assert_deliveries(id, 1);
    }
    assert_eq!(scene.mailbox().count(), 50);
    worker.drain().await;
}

#[tokio::test]
async fn a_batch_whose_seventh_message_hangs_sends_the_other_nine() {
    let scene = Scene::new()
        .await
        .set("provider.primary.connections", "10")
        .rule(Rule::at(Stage::EndOfData, Action::Hang.after_accepting()).recipient("r7@").label("hang"));
    let ids = scene.enqueue_many(10).await;
    let worker = scene.worker();
    for (at, id) in ids.iter().enumerate().filter(|(at, _)| *at != 6) {
        let story = scene.until(*id, "sent").await;
        assert_eq!(story.attempts.len(), 1, "r{}", at + 1);
    }
    scene.server.script().wait_fired("hang", 1).await;
    let hanging = scene.db.story(ids[6]).await;
    assert_eq!(hanging.notification.state, "transmitting", "the others did not wait for it");
    assert_eq!(scene.mailbox().count(), 10);
    drop(worker);
}
