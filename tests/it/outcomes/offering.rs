//! MAIL, RCPT and DATA: a refusal is known, nothing of the body has left, and nothing has begun.

use outboxd::sandbox::smtp::{Action, Extensions, Options, Rule, Stage};

use crate::harness::scene::{Ended, Scene, deferred, not_sent, refused};

/// Plays with a server that takes commands in a group and, at the same time, with one that takes them one by one.
async fn with_both(play: impl AsyncFn(Scene)) {
    let singly = Extensions { pipelining: false, ..Extensions::default() };
    tokio::join!(async { play(Scene::new().await).await }, async {
        play(Scene::with(Options { extensions: singly, ..Options::default() }).await).await;
    });
}

/// Whether the provider has accepted something before.
#[derive(Clone, Copy, PartialEq)]
enum Provider {
    Unknown,
    Proven,
}

/// A notification whose attempts are answered so, and end so, is put back and then sent; `suspicions` as often as it was suspected.
async fn put_back(provider: Provider, stage: Stage, action: &Action, ended: &[Ended], suspicions: i16) {
    with_both(async |scene| {
        let worker = scene.worker();
        if provider == Provider::Proven {
            let proof = scene.enqueue().await;
            scene.until(proof, "sent").await;
        }
        let scene = scene.rule(Rule::at(stage, action.clone()).times(u64::try_from(ended.len()).unwrap()));
        let id = scene.enqueue().await;
        let story = scene.until(id, "sent").await;
        assert_eq!(story.attempts.len(), ended.len() + 1, "{story:#?}");
        ended.iter().zip(&story.attempts).for_each(|(ended, attempt)| ended.assert(attempt));
        let tries = story.attempts.iter().filter(|attempt| attempt.counted).count();
        assert_eq!(usize::try_from(story.notification.tries).unwrap(), tries);
        assert_eq!(scene.suspicions(id).await, suspicions);
        assert!(story.notification.doubt_since.is_none());
        scene.assert_deliveries(id, 1);
        worker.drain().await;
    })
    .await;
}

/// A notification whose attempts are answered so, and end so, fails; the next one, on the same connection, is sent.
async fn given_up(provider: Provider, stage: Stage, action: &Action, ended: &[Ended]) {
    with_both(async |scene| {
        let scene = scene.set("provider.primary.connections", "1");
        let worker = scene.worker();
        if provider == Provider::Proven {
            let proof = scene.enqueue().await;
            scene.until(proof, "sent").await;
        }
        let scene = scene.rule(Rule::at(stage, action.clone()).times(u64::try_from(ended.len()).unwrap()));
        let id = scene.enqueue().await;
        let story = scene.until(id, "failed").await;
        assert_eq!(story.notification.reason.as_deref(), Some("refused"));
        assert_eq!((story.attempts.len(), story.notification.tries), (ended.len(), 1));
        ended.iter().zip(&story.attempts).for_each(|(ended, attempt)| ended.assert(attempt));
        scene.assert_deliveries(id, 0);
        let next = scene.enqueue().await;
        assert_eq!(scene.until(next, "sent").await.attempts.len(), 1);
        assert_eq!(scene.server.connections().total, 1, "after a refusal the connection is used on");
        scene.assert_deliveries(next, 1);
        worker.drain().await;
    })
    .await;
}

#[tokio::test]
async fn a_mail_answered_451_by_an_unproven_provider_costs_no_try() {
    let action = Action::reply("451 4.3.0 try later");
    put_back(Provider::Unknown, Stage::Mail, &action, &[deferred("mail", 451).uncounted()], 1).await;
}

#[tokio::test]
async fn a_mail_answered_451_by_a_proven_provider_costs_a_try_from_the_second_time_on() {
    let action = Action::reply("451 4.3.0 try later");
    let ended = deferred("mail", 451).says("try later");
    put_back(Provider::Proven, Stage::Mail, &action, &[ended.uncounted(), ended], 1).await;
}

#[tokio::test]
async fn a_mail_answered_550_by_an_unproven_provider_is_put_back() {
    let action = Action::reply("550 5.1.8 sender not allowed");
    put_back(Provider::Unknown, Stage::Mail, &action, &[refused("mail", 550).uncounted()], 1).await;
}

#[tokio::test]
async fn a_mail_answered_550_by_a_proven_provider_is_refused_the_second_time() {
    let action = Action::reply("550 5.1.8 sender not allowed");
    let ended = refused("mail", 550).says("sender not allowed");
    given_up(Provider::Proven, Stage::Mail, &action, &[ended.uncounted(), ended]).await;
}

#[tokio::test]
async fn a_mail_answered_552_is_refused() {
    let action = Action::reply("552 5.3.4 message too big");
    given_up(Provider::Unknown, Stage::Mail, &action, &[refused("mail", 552)]).await;
}

#[tokio::test]
async fn a_mail_answered_421_costs_no_try() {
    let action = Action::reply_then_close("421 4.3.2 shutting down");
    put_back(Provider::Unknown, Stage::Mail, &action, &[deferred("mail", 421).uncounted()], 1).await;
}

#[tokio::test]
async fn a_rcpt_answered_450_is_deferred() {
    let action = Action::reply("450 4.2.1 mailbox busy");
    put_back(Provider::Unknown, Stage::Rcpt, &action, &[deferred("rcpt", 450).says("mailbox busy")], 0).await;
}

#[tokio::test]
async fn a_rcpt_answered_550_is_refused() {
    let action = Action::reply("550 5.1.1 no such user");
    given_up(Provider::Unknown, Stage::Rcpt, &action, &[refused("rcpt", 550).says("no such user")]).await;
}

#[tokio::test]
async fn a_rcpt_answered_552_is_deferred() {
    let action = Action::reply("552 too many recipients");
    put_back(Provider::Unknown, Stage::Rcpt, &action, &[deferred("rcpt", 552)], 0).await;
}

#[tokio::test]
async fn a_rcpt_answered_554_relay_denied_by_an_unproven_provider_is_put_back() {
    let action = Action::reply("554 5.7.1 relay access denied");
    put_back(Provider::Unknown, Stage::Rcpt, &action, &[refused("rcpt", 554).uncounted()], 1).await;
}

#[tokio::test]
async fn a_rcpt_answered_421_costs_no_try() {
    let action = Action::reply_then_close("421 4.3.2 shutting down");
    put_back(Provider::Proven, Stage::Rcpt, &action, &[deferred("rcpt", 421).uncounted()], 1).await;
}

#[tokio::test]
async fn a_data_answered_451_is_deferred() {
    let action = Action::reply("451 local error");
    put_back(Provider::Unknown, Stage::Data, &action, &[deferred("data", 451).says("local error")], 0).await;
}

#[tokio::test]
async fn a_data_answered_554_is_refused() {
    let action = Action::reply("554 5.6.0 no");
    given_up(Provider::Unknown, Stage::Data, &action, &[refused("data", 554)]).await;
}

#[tokio::test]
async fn a_data_answered_250_is_not_sent_and_no_body_leaves() {
    let action = Action::reply("250 2.0.0 ok");
    let ended = not_sent("data").says("a reply that does not belong here");
    put_back(Provider::Unknown, Stage::Data, &action, &[ended], 1).await;
}

#[tokio::test]
async fn a_connection_lost_while_it_was_offered_is_not_sent() {
    for (stage, phase) in [(Stage::Mail, "mail"), (Stage::Rcpt, "rcpt"), (Stage::Data, "data")] {
        let action = if stage == Stage::Rcpt { Action::Reset } else { Action::Close };
        put_back(Provider::Unknown, stage, &action, &[not_sent(phase)], 1).await;
    }
}

#[tokio::test]
async fn an_offer_that_is_never_answered_is_not_sent() {
    for (stage, phase) in [(Stage::Mail, "mail"), (Stage::Rcpt, "rcpt"), (Stage::Data, "data")] {
        let scene =
            Scene::new().await.set(&format!("provider.primary.timeouts.{phase}"), "300ms").once(stage, Action::Hang);
        let worker = scene.worker();
        let id = scene.enqueue().await;
        let story = scene.until(id, "sent").await;
        not_sent(phase).says("no answer within 300ms").assert(&story.attempts[0]);
        assert_eq!((story.attempts.len(), story.notification.tries), (2, 1));
        scene.assert_deliveries(id, 1);
        worker.drain().await;
    }
}

#[tokio::test]
async fn a_refused_rcpt_whose_pipelined_data_was_answered_354_is_refused_and_gets_no_body() {
    // The replies to RCPT and, as it seems, to DATA; then the one that the server gives to DATA is one too many.
    let both = Action::Reply(b"550 5.1.1 no such user\r\n354 go ahead\r\n".to_vec());
    let scene = Scene::new().await.set("provider.primary.connections", "1").once(Stage::Rcpt, both);
    let worker = scene.worker();
    let id = scene.enqueue().await;
    let story = scene.until(id, "failed").await;
    refused("rcpt", 550).says("no such user").assert(&story.attempts[0]);
    assert_eq!(story.notification.reason.as_deref(), Some("refused"));
    let next = scene.enqueue().await;
    scene.until(next, "sent").await;
    assert_eq!(scene.server.connections().total, 2, "what waits for a body is not used again");
    // Had anything been written after the 354, the server would have taken it for commands.
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}

#[tokio::test]
async fn a_server_without_smtputf8_is_not_offered_what_needs_it() {
    let extensions = Extensions { smtputf8: false, ..Extensions::default() };
    let scene = Scene::with(Options { extensions, ..Options::default() }).await;
    let scene = scene.rule(Rule::at(Stage::Mail, Action::Proceed).label("mail"));
    let worker = scene.worker();
    let id = scene.enqueue_to("jörg@example.net").await;
    let story = scene.until(id, "failed").await;
    assert_eq!(story.notification.reason.as_deref(), Some("refused"));
    assert_eq!(story.attempts.len(), 1);
    let attempt = &story.attempts[0];
    assert_eq!((attempt.outcome.as_deref(), attempt.phase.as_deref()), (Some("refused"), Some("mail")));
    assert!(attempt.error.as_deref().unwrap().contains("does not offer SMTPUTF8"), "{attempt:#?}");
    assert_eq!(scene.server.script().times_fired("mail"), 0, "nothing was said about it");
    // The domain alone has a form in ASCII.
    for recipient in ["jo@example.net", "jo@bücher.example"] {
        let plain = scene.enqueue_to(recipient).await;
        scene.until(plain, "sent").await;
        scene.assert_deliveries(plain, 1);
    }
    worker.drain().await;
}

#[tokio::test]
async fn a_message_larger_than_the_server_takes_is_refused_before_mail() {
    let extensions = Extensions { size: Some(1_000), ..Extensions::default() };
    let scene = Scene::with(Options { extensions, ..Options::default() }).await;
    let worker = scene.worker();
    let mut large = crate::harness::rows::plain("acme");
    large.body_text = Some("word ".repeat(1_000));
    let id = scene.db.enqueue(&large).await;
    let story = scene.until(id, "failed").await;
    assert!(story.attempts[0].error.as_deref().unwrap().contains("larger than the provider takes"), "{story:#?}");
    let small = scene.enqueue().await;
    scene.until(small, "sent").await;
    scene.assert_deliveries(id, 0);
    worker.drain().await;
}
