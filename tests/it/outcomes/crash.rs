//! A worker that is killed: before *begin* nothing can have left, after it the message may have been accepted.

use outboxd::sandbox::smtp::{Action, Rule, Stage};
use outboxd::store::enqueue::NewNotification;

use crate::harness::Proc;
use crate::harness::rows::plain;
use crate::harness::scene::Scene;

/// Where the killed worker's attempt stands, and what the server has accepted by then.
const BEFORE_BEGIN: [Stage; 3] = [Stage::Mail, Stage::Rcpt, Stage::Data];
const AFTER_BEGIN: [(Stage, bool); 3] = [(Stage::Body, false), (Stage::EndOfData, false), (Stage::EndOfData, true)];

/// A notification whose sender and recipient name the place where the server hangs.
fn stuck_at(stage: Stage, accepted: bool) -> NewNotification {
    let name = format!("{}-{accepted}", stage.as_str().replace(' ', "-"));
    NewNotification { sender: format!("{name}@example.org"), recipient: format!("{name}@example.net"), ..plain("acme") }
}

async fn hang_at(scene: &Scene, stage: Stage, accepted: bool) -> outboxd::domain::ids::NotificationId {
    let new = stuck_at(stage, accepted);
    let action = if accepted { Action::Hang.after_accepting() } else { Action::Hang };
    let sender = new.sender.clone();
    scene
        .server
        .script()
        .push(Rule::at(stage, action).when(move |moment| moment.sender == sender).label(&new.sender).once());
    scene.db.enqueue(&new).await
}

/// Starts a worker, kills it while it waits for the server at each of these places, and starts another one.
async fn killed(scene: &Scene, places: &[(Stage, bool)]) -> Vec<outboxd::domain::ids::NotificationId> {
    let mut ids = Vec::new();
    for &(stage, accepted) in places {
        ids.push(hang_at(scene, stage, accepted).await);
    }
    let mut first = Proc::start(&["worker"], &scene.config.text());
    for &(stage, accepted) in places {
        scene.server.script().wait_fired(&stuck_at(stage, accepted).sender, 1).await;
    }
    first.kill();
    first.ended().await;
    ids
}

async fn scene() -> Scene {
    Scene::new()
        .await
        .set("database.statement_timeout", "2s")
        .set("database.lock_timeout", "1s")
        .set("lease.duration", "3s")
        .set("lease.renew_every", "1s")
}

#[tokio::test]
async fn a_worker_killed_before_begin_costs_nothing() {
    let scene = scene().await;
    let ids = killed(&scene, &BEFORE_BEGIN.map(|stage| (stage, false))).await;
    let second = scene.worker();
    for id in ids {
        let story = scene.until(id, "sent").await;
        let lost = &story.attempts[0];
        assert_eq!((lost.outcome.as_deref(), lost.phase.as_deref()), (Some("not_sent"), Some("claim")));
        assert_eq!((lost.ended_by.as_deref(), lost.begun_at, lost.counted), (Some("lease"), None, false));
        assert_eq!((story.attempts.len(), story.notification.tries), (2, 1));
        assert_ne!(story.attempts[0].worker, story.attempts[1].worker);
        scene.assert_deliveries(id, 1);
    }
    second.drain().await;
}

#[tokio::test]
async fn a_worker_killed_after_begin_leaves_doubt() {
    let scene = scene().await;
    let ids = killed(&scene, &AFTER_BEGIN).await;
    let second = scene.worker();
    for (id, (_, accepted)) in ids.into_iter().zip(AFTER_BEGIN) {
        let story = scene.until(id, "uncertain").await;
        let lost = &story.attempts[0];
        assert_eq!((lost.outcome.as_deref(), lost.phase.as_deref()), (Some("uncertain"), Some("begin")));
        assert_eq!((lost.ended_by.as_deref(), lost.counted), (Some("lease"), true));
        assert_eq!(story.notification.doubt_since, lost.begun_at);
        assert_eq!((story.attempts.len(), story.notification.resend_at), (1, None));
        scene.assert_deliveries(id, u64::from(accepted));
    }
    second.drain().await;
}
