//! The body: it has begun, and until a byte of the end of data may have left nothing can have been accepted.

use outboxd::sandbox::smtp::{Action, Extensions, Options, Stage};
use outboxd::store::enqueue::{NewAttachment, NewNotification};

use crate::harness::rows::plain;
use crate::harness::scene::{Ended, Scene, deferred, not_sent, refused, uncertain};

/// More than the kernel takes in for a server that does not read: 8 MiB, and a third more in base64.
fn large() -> NewNotification {
    let attachment = NewAttachment {
        filename: "report.bin".to_owned(),
        content_type: "application/octet-stream".to_owned(),
        content: "QUJD".repeat(8 * 1_024 * 1_024 / 3),
    };
    NewNotification { attachments: vec![attachment], ..plain("acme") }
}

async fn scene() -> Scene {
    let extensions = Extensions { size: Some(0), ..Extensions::default() };
    Scene::with(Options { extensions, keep_bodies: false, ..Options::default() }).await
}

/// A large message whose body meets this is known not to have been accepted, and is sent by the next attempt.
async fn sent_again(scene: Scene, action: Action, ended: Ended) {
    let scene = scene.once(Stage::Body, action.after_bytes(1_000));
    let worker = scene.worker();
    let id = scene.db.enqueue(&large()).await;
    let story = scene.until(id, "sent").await;
    assert_eq!(story.attempts.len(), 2, "{story:#?}");
    ended.assert(&story.attempts[0]);
    assert!(story.notification.doubt_since.is_none() && !story.notification.duplicate_possible);
    scene.assert_deliveries(id, 1);
    worker.drain().await;
}

const LOST: Ended = not_sent("body").begun();

#[tokio::test]
async fn a_connection_reset_in_the_body_is_not_sent() {
    sent_again(scene().await, Action::Reset, LOST).await;
}

#[tokio::test]
async fn a_connection_closed_in_the_body_is_not_sent() {
    sent_again(scene().await, Action::Close, LOST).await;
}

#[tokio::test]
async fn a_connection_reset_in_the_body_under_tls_is_not_sent() {
    let extensions = Extensions { size: Some(0), ..Extensions::default() };
    let options = Options { extensions, keep_bodies: false, ..Options::default() };
    sent_again(Scene::under_tls("implicit-tls", options).await, Action::Reset, LOST).await;
}

#[tokio::test]
async fn a_server_that_stops_reading_the_body_is_not_sent() {
    let scene = scene().await.set("provider.primary.timeouts.block", "500ms");
    sent_again(scene, Action::Hang, LOST.says("no answer within 500ms")).await;
}

#[tokio::test]
async fn a_body_cut_short_by_a_451_is_deferred() {
    let ended = deferred("body", 451).begun().says("out of space");
    sent_again(scene().await, Action::reply_then_close("451 4.2.2 out of space"), ended).await;
}

#[tokio::test]
async fn a_body_cut_short_by_a_421_costs_no_try() {
    let ended = deferred("body", 421).begun().uncounted();
    sent_again(scene().await, Action::reply_then_close("421 4.3.2 shutting down"), ended).await;
}

#[tokio::test]
async fn a_body_cut_short_by_a_552_is_refused() {
    let action = Action::reply_then_close("552 5.3.4 message too big");
    let scene = scene().await.once(Stage::Body, action.after_bytes(1_000));
    let worker = scene.worker();
    let id = scene.db.enqueue(&large()).await;
    let story = scene.until(id, "failed").await;
    assert_eq!((story.notification.reason.as_deref(), story.attempts.len()), (Some("refused"), 1));
    refused("body", 552).begun().says("message too big").assert(&story.attempts[0]);
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_connection_lost_in_a_body_that_had_left_whole_is_uncertain() {
    // To the client this is the same as a connection lost behind the end of data: its bytes had left with the body's.
    let scene = Scene::new().await.once(Stage::Body, Action::Reset.after_bytes(1));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "uncertain").await;
    uncertain().assert(&story.attempts[0]);
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}
