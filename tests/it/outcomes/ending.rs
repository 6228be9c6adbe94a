//! After the end of data only a complete 2yz, 4yz or 5yz is knowledge; and what is known no later failure changes.

use std::time::Duration;

use outboxd::sandbox::smtp::{Action, Rule, Stage};

use crate::harness::scene::{Ended, Scene, deferred, refused, sent, uncertain};

/// A message that was taken, or not, and answered so is in doubt: nothing will send it again, and nothing calls it failed.
async fn in_doubt(action: Action, says: &'static str) {
    for (action, taken) in [(action.clone().after_accepting(), 1), (action, 0)] {
        let scene =
            Scene::new().await.set("provider.primary.timeouts.end_of_data", "500ms").once(Stage::EndOfData, action);
        let worker = scene.worker();
        let id = scene.enqueue().await;
        let story = scene.until(id, "uncertain").await;
        uncertain().says(says).assert(&story.attempts[0]);
        let now = &story.notification;
        assert_eq!((story.attempts.len(), now.tries), (1, 1));
        assert_eq!(now.doubt_since, story.attempts[0].begun_at, "the windows count from begin");
        assert_eq!((now.resend_at, now.due_at), (None, None), "nothing is planned");
        assert_eq!(now.doubt_scope.as_deref(), Some("primary"));
        assert!(!now.duplicate_possible && !now.contradiction);
        // What comes after it is sent, and nothing moved it meanwhile.
        let next = scene.enqueue().await;
        scene.until(next, "sent").await;
        worker.drain().await;
        assert_eq!(scene.db.state(id).await, "uncertain");
        scene.assert_deliveries(id, taken);
    }
}

#[tokio::test]
async fn a_connection_closed_after_the_end_of_data_is_uncertain() {
    in_doubt(Action::Close, "connection closed").await;
}

#[tokio::test]
async fn a_connection_reset_after_the_end_of_data_is_uncertain() {
    in_doubt(Action::Reset, "").await;
}

#[tokio::test]
async fn no_answer_to_the_end_of_data_is_uncertain() {
    in_doubt(Action::Hang, "no answer within 500ms").await;
}

#[tokio::test]
async fn an_unreadable_answer_to_the_end_of_data_is_uncertain() {
    in_doubt(Action::Reply(b"\xff\x00OK, queued\r\n".to_vec()), "unreadable reply").await;
}

#[tokio::test]
async fn an_answer_of_354_to_the_end_of_data_is_uncertain() {
    in_doubt(Action::reply("354 go on"), "neither 2yz nor 4yz nor 5yz").await;
}

#[tokio::test]
async fn an_answer_of_a_code_that_is_none_is_uncertain() {
    in_doubt(Action::reply("650 what"), "unreadable reply").await;
}

#[tokio::test]
async fn half_an_answer_to_the_end_of_data_is_uncertain() {
    in_doubt(Action::ReplyThenClose(b"250 2.0.0 Ok: que".to_vec()), "closed in the midst of a reply").await;
    in_doubt(Action::ReplyThenClose(b"250-2.0.0 Ok\r\n".to_vec()), "closed in the midst of a reply").await;
}

#[tokio::test]
async fn an_answer_whose_lines_contradict_each_other_is_uncertain() {
    in_doubt(Action::Reply(b"250-2.0.0 Ok\r\n554 5.0.0 no\r\n".to_vec()), "different codes").await;
}

/// A message that was taken and answered so is sent by that attempt.
async fn is_sent(action: Action, ended: Ended) {
    let scene = Scene::new().await.once(Stage::EndOfData, action.after_accepting());
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "sent").await;
    ended.assert(&story.attempts[0]);
    assert_eq!((story.attempts.len(), story.notification.tries), (1, 1));
    assert!(story.notification.doubt_since.is_none());
    let next = scene.enqueue().await;
    scene.until(next, "sent").await;
    scene.assert_deliveries(id, 1);
    worker.drain().await;
}

#[tokio::test]
async fn a_250_is_sent_and_its_text_is_kept() {
    is_sent(Action::Proceed, sent(250).says("Ok: queued as S000001")).await;
}

#[tokio::test]
async fn a_bare_250_is_sent() {
    is_sent(Action::Reply(b"250\r\n".to_vec()), sent(250)).await;
}

#[tokio::test]
async fn a_250_ended_by_lf_alone_is_sent() {
    is_sent(Action::Reply(b"250 2.0.0 Ok\n".to_vec()), sent(250).says("Ok")).await;
}

#[tokio::test]
async fn a_250_in_latin_1_is_sent() {
    is_sent(Action::Reply(b"250 accept\xe9\r\n".to_vec()), sent(250).says("accept\\xe9")).await;
}

#[tokio::test]
async fn a_250_with_a_nul_is_sent() {
    is_sent(Action::Reply(b"250 queued as \x00\x07Q1\r\n".to_vec()), sent(250).says("\\x00\\x07Q1")).await;
}

#[tokio::test]
async fn a_250_of_many_lines_is_sent() {
    is_sent(
        Action::Reply(b"250-2.0.0 Ok\r\n250-2.0.0 queued\r\n250 2.0.0 as Q1\r\n".to_vec()),
        sent(250).says("Ok queued as Q1"),
    )
    .await;
}

#[tokio::test]
async fn another_2yz_is_sent() {
    is_sent(Action::reply("251 will forward"), sent(251)).await;
}

#[tokio::test]
async fn a_250_that_is_late_but_in_time_is_sent() {
    is_sent(Action::Proceed.after(Duration::from_millis(700)), sent(250)).await;
}

#[tokio::test]
async fn a_250_before_the_connection_is_lost_is_sent() {
    is_sent(Action::reply_then_close("250 2.0.0 Ok"), sent(250)).await;
}

/// A message that was answered so once is put back and then sent.
async fn put_back(action: Action, ended: Ended, suspicions: i16) {
    let scene = Scene::new().await.once(Stage::EndOfData, action);
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "sent").await;
    ended.assert(&story.attempts[0]);
    assert_eq!(story.attempts.len(), 2);
    assert_eq!(scene.suspicions(id).await, suspicions);
    assert!(story.notification.doubt_since.is_none() && !story.notification.duplicate_possible);
    scene.assert_deliveries(id, 1);
    worker.drain().await;
}

const fn end_of_data(ended: Ended) -> Ended {
    ended.begun()
}

#[tokio::test]
async fn a_451_to_the_end_of_data_is_deferred() {
    let ended = end_of_data(deferred("end_of_data", 451)).says("local error");
    put_back(Action::reply("451 4.2.0 local error"), ended, 0).await;
}

#[tokio::test]
async fn a_421_to_the_end_of_data_costs_no_try() {
    let ended = end_of_data(deferred("end_of_data", 421)).uncounted();
    put_back(Action::reply_then_close("421 4.3.2 shutting down"), ended, 1).await;
}

#[tokio::test]
async fn a_554_policy_refusal_by_an_unproven_provider_is_put_back() {
    let ended = end_of_data(refused("end_of_data", 554)).uncounted();
    put_back(Action::reply("554 5.7.1 not authorised to send from this domain"), ended, 1).await;
}

#[tokio::test]
async fn a_554_to_the_end_of_data_is_refused() {
    let scene = Scene::new().await.once(Stage::EndOfData, Action::reply("554 5.6.0 malformed"));
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    end_of_data(refused("end_of_data", 554)).says("malformed").assert(&story.attempts[0]);
    assert_eq!((story.notification.reason.as_deref(), story.attempts.len()), (Some("refused"), 1));
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_failing_quit_changes_nothing_that_is_known() {
    for action in [Action::Hang, Action::Reset, Action::reply("554 no"), Action::Reply(b"\xff".to_vec())] {
        let scene = Scene::new()
            .await
            .set("provider.primary.messages_per_connection", "1")
            .rule(Rule::at(Stage::Quit, action).label("quit"));
        let worker = scene.worker();
        for _ in 0..3 {
            let id = scene.enqueue().await;
            let story = scene.until(id, "sent").await;
            assert_eq!(story.attempts.len(), 1);
            scene.assert_deliveries(id, 1);
        }
        scene.server.script().wait_fired("quit", 3).await;
        worker.drain().await;
        assert_eq!(scene.mailbox().count(), 3);
    }
}

#[tokio::test]
async fn a_failing_rset_changes_nothing_that_is_known_and_costs_the_next_message_nothing() {
    let actions = [
        Action::Close,
        Action::Reset,
        Action::reply_then_close("421 4.3.2 shutting down"),
        Action::reply("502 5.5.1 not implemented"),
        Action::reply("451 4.3.0 not now"),
        Action::Reply(b"what\r\n".to_vec()),
        Action::Hang,
    ];
    for action in actions {
        let told = format!("{action}");
        let scene = Scene::new()
            .await
            .set("provider.primary.connections", "1")
            .set("provider.primary.timeouts.mail", "500ms")
            .rule(Rule::at(Stage::Rset, action).label("rset"));
        let worker = scene.worker();
        let proof = scene.enqueue().await;
        scene.until(proof, "sent").await;
        // It leaves the connection in a transaction that the next message must end.
        scene.server.script().push(Rule::at(Stage::Rcpt, Action::reply("550 5.1.1 no such user")).recipient("nobody@"));
        let gone = scene.enqueue_to("nobody@example.net").await;
        let refusal = scene.until(gone, "failed").await;
        refused("rcpt", 550).assert(&refusal.attempts[0]);
        let next = scene.enqueue().await;
        let story =
            scene.until_story(&told, next, |story| story.attempts.iter().any(|one| one.ended_at.is_some())).await;
        assert_eq!(story.notification.state, "sent", "RSET: {told}: {story:#?}");
        assert_eq!((story.attempts.len(), story.notification.tries), (1, 1), "RSET: {told}");
        assert_eq!(scene.server.script().times_fired("rset"), 1, "RSET: {told}");
        assert_eq!(scene.db.state(gone).await, "failed");
        assert_eq!(scene.db.story(gone).await.attempts.len(), 1);
        scene.assert_deliveries(next, 1);
        worker.drain().await;
    }
}
