//! Before MAIL nothing of a notification was offered: the provider is at fault, and the notifications wait without cost.

use std::time::Duration;

use outboxd::sandbox::smtp::{Action, Auth, Options, Rule, SmtpServer, Stage, Tls, self_signed};
use sqlx::Row as _;

use crate::harness::scene::{Ended, Scene, not_sent};
use crate::harness::{PATIENCE, Worker, eventually};

/// More than fit into the breaker's threshold many times over.
const ROWS: usize = 20;

/// How long the breaker is open in these tests.
const OPEN: Duration = Duration::from_millis(150);

/// So many attempts can be under way or done before the breaker opens: its threshold and its connections, both two.
const BEFORE_OPEN: usize = 3;

/// A worker whose provider fails from the start in this way: the breaker opens and lets single probes through, no attempt
/// has begun, and every notification is as it was.
async fn outage(scene: Scene, ended: Ended) -> (Scene, Worker) {
    let scene = scene
        .set("provider.primary.connections", "2")
        .set("provider.primary.breaker.threshold", "2")
        .set("provider.primary.breaker.open_min", "150ms")
        .set("provider.primary.breaker.open_max", "150ms");
    scene.enqueue_many(ROWS).await;
    let worker = scene.worker();
    eventually("the breaker lets probes through", PATIENCE, async || {
        let ended: i64 = sqlx::query_scalar("select count(*) from outboxd.attempt where ended_at is not null")
            .fetch_one(&scene.db.pool)
            .await
            .unwrap();
        if ended >= 6 { Ok(()) } else { Err(ended) }
    })
    .await;
    let row = sqlx::query(
        "select count(*) as attempts, extract(epoch from max(claimed_at) - min(claimed_at))::float8 as took,
            (select count(*) from outboxd.delivery where state not in ('pending', 'claimed')) as moved,
            (select count(*) from outboxd.delivery where tries > 0 or suspicions > 0) as charged
         from outboxd.attempt",
    )
    .fetch_one(&scene.db.pool)
    .await
    .unwrap();
    let (attempts, took): (i64, f64) = (row.get("attempts"), row.get("took"));
    let (moved, charged): (i64, i64) = (row.get("moved"), row.get("charged"));
    assert_eq!((moved, charged), (0, 0), "every notification is pending, and none was charged for it");
    let probes = (took / OPEN.as_secs_f64()) as usize;
    assert!(
        usize::try_from(attempts).unwrap() <= BEFORE_OPEN + probes + 1,
        "{attempts} attempts in {took} s: the breaker opened and let single probes through"
    );
    for story in stories(&scene).await {
        story.attempts.iter().filter(|attempt| attempt.ended_at.is_some()).for_each(|attempt| ended.assert(attempt));
    }
    assert_eq!(scene.mailbox().count(), 0);
    (scene, worker)
}

async fn stories(scene: &Scene) -> Vec<outboxd::store::story::Story> {
    let ids: Vec<sqlx::types::Uuid> =
        sqlx::query_scalar("select id from outboxd.outbox").fetch_all(&scene.db.pool).await.unwrap();
    let mut stories = Vec::with_capacity(ids.len());
    for id in ids {
        stories.push(scene.db.story(outboxd::domain::ids::NotificationId(id)).await);
    }
    stories
}

/// The provider works again: everything is sent, once, and no try was used up on the way.
async fn recovered((scene, worker): (Scene, Worker), ended: Ended, mailbox: &outboxd::sandbox::smtp::Mailbox) {
    scene.until_all("sent").await;
    for story in stories(&scene).await {
        assert_eq!(mailbox.deliveries(&story.notification.id.to_string()), 1);
        assert_eq!(story.notification.tries, 1, "the one that was accepted");
        let (last, before) = story.attempts.split_last().unwrap();
        assert_eq!(last.outcome.as_deref(), Some("sent"));
        before.iter().for_each(|attempt| ended.assert(attempt));
    }
    assert_eq!(mailbox.count(), ROWS);
    worker.drain().await;
}

/// A server that does this at this stage until it behaves.
async fn fault(scene: Scene, stage: Stage, action: Action, ended: Ended) {
    let (scene, worker) = outage(scene.rule(Rule::at(stage, action)), ended).await;
    assert_eq!(scene.server.violations(), Vec::<String>::new());
    scene.server.script().clear();
    let mailbox = scene.mailbox();
    recovered((scene, worker), ended, &mailbox).await;
}

fn with_account() -> Options {
    Options { auth: Some(Auth::new("outboxd", "s3cret")), ..Options::default() }
}

async fn authenticating() -> Scene {
    Scene::under_tls("implicit-tls", with_account())
        .await
        .set("provider.primary.username", "outboxd")
        .set("provider.primary.password", "s3cret")
}

#[tokio::test]
async fn a_name_that_is_not_found_is_not_sent() {
    let scene = Scene::new().await.set("provider.primary.host", "nowhere.invalid");
    let (scene, worker) = outage(scene, not_sent("resolve")).await;
    drop(worker);
    let host = scene.server.addr().ip().to_string();
    let scene = scene.set("provider.primary.host", &host);
    let (worker, mailbox) = (scene.worker(), scene.mailbox());
    recovered((scene, worker), not_sent("resolve"), &mailbox).await;
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let scene = Scene::new().await;
    scene.server.pause().await;
    let ended = not_sent("connect").says("refused");
    let (scene, worker) = outage(scene, ended).await;
    scene.server.resume().await.unwrap();
    let mailbox = scene.mailbox();
    recovered((scene, worker), ended, &mailbox).await;
}

#[tokio::test]
async fn a_greeting_of_421_is_not_sent() {
    let action = Action::reply_then_close("421 4.3.2 too many connections");
    fault(Scene::new().await, Stage::Connect, action, not_sent("greeting").code(421).says("too many connections"))
        .await;
}

#[tokio::test]
async fn a_greeting_of_554_is_not_sent() {
    let action = Action::reply("554 no SMTP service here");
    fault(Scene::new().await, Stage::Connect, action, not_sent("greeting").code(554).says("no SMTP service")).await;
}

#[tokio::test]
async fn a_connection_closed_without_a_greeting_is_not_sent() {
    fault(Scene::new().await, Stage::Connect, Action::Close, not_sent("greeting").says("connection closed")).await;
}

#[tokio::test]
async fn a_greeting_that_never_comes_is_not_sent() {
    let scene = Scene::new().await.set("provider.primary.timeouts.greeting", "200ms");
    fault(scene, Stage::Connect, Action::Hang, not_sent("greeting").says("no answer within 200ms")).await;
}

#[tokio::test]
async fn a_greeting_that_is_not_smtp_is_not_sent() {
    let action = Action::Reply(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec());
    fault(Scene::new().await, Stage::Connect, action, not_sent("greeting").says("unreadable reply")).await;
}

#[tokio::test]
async fn an_ehlo_answered_502_is_not_sent() {
    let action = Action::reply("502 5.5.1 not implemented");
    fault(Scene::new().await, Stage::Ehlo, action, not_sent("ehlo").code(502).says("not implemented")).await;
}

#[tokio::test]
async fn a_connection_closed_at_ehlo_is_not_sent() {
    fault(Scene::new().await, Stage::Ehlo, Action::Close, not_sent("ehlo").says("connection closed")).await;
}

#[tokio::test]
async fn an_ehlo_that_is_never_answered_is_not_sent() {
    let scene = Scene::new().await.set("provider.primary.timeouts.ehlo", "200ms");
    fault(scene, Stage::Ehlo, Action::Hang, not_sent("ehlo").says("no answer")).await;
}

#[tokio::test]
async fn a_server_that_offers_no_starttls_is_not_sent_to_in_clear() {
    let scene = Scene::under_tls("starttls", Options::default()).await;
    let without = Action::Reply(b"250-sandbox.test\r\n250 PIPELINING\r\n".to_vec());
    fault(scene, Stage::Ehlo, without, not_sent("tls").says("STARTTLS is not offered")).await;
}

#[tokio::test]
async fn a_starttls_answered_454_is_not_sent() {
    let scene = Scene::under_tls("starttls", Options::default()).await;
    let action = Action::reply("454 4.7.0 TLS not available");
    fault(scene, Stage::StartTls, action, not_sent("tls").code(454).says("TLS not available")).await;
}

#[tokio::test]
async fn bytes_in_clear_behind_the_220_to_starttls_are_not_sent() {
    let scene = Scene::under_tls("starttls", Options::default()).await;
    let injected = Action::Reply(b"220 go ahead\r\n250-injected\r\n250 AUTH PLAIN\r\n".to_vec());
    fault(scene, Stage::StartTls, injected, not_sent("tls").says("bytes in clear before the TLS handshake")).await;
}

#[tokio::test]
async fn a_handshake_that_is_cut_is_not_sent() {
    for security in ["implicit-tls", "starttls"] {
        let scene = Scene::under_tls(security, Options::default()).await;
        fault(scene, Stage::Handshake, Action::Close, not_sent("tls").says("")).await;
    }
}

#[tokio::test]
async fn a_handshake_answered_in_clear_is_not_sent() {
    let scene = Scene::under_tls("implicit-tls", Options::default()).await;
    fault(scene, Stage::Handshake, Action::reply("220 sandbox.test ESMTP"), not_sent("tls").says("TLS")).await;
}

/// A server whose certificate is not for it or from nobody known, and then the same address with a right one.
async fn wrong_certificate(names: &[&str], trusted: bool, says: &'static str) {
    let wrong = self_signed(names).unwrap();
    let right = self_signed(&["localhost"]).unwrap();
    let scene = Scene::with(Options { tls: Tls::Implicit(wrong.server), ..Options::default() }).await;
    let roots = if trusted { format!("{}{}", wrong.root_pem, right.root_pem) } else { right.root_pem };
    let scene = scene
        .set("provider.primary.security", "implicit-tls")
        .set("provider.primary.tls_server_name", "localhost")
        .trusting(&roots);
    let ended = not_sent("tls").says(says);
    let (mut scene, worker) = outage(scene, ended).await;
    let bind = scene.server.addr();
    let options = Options { bind, tls: Tls::Implicit(right.server), ..Options::default() };
    scene.server.pause().await;
    scene.server = SmtpServer::start(options).await.unwrap();
    let mailbox = scene.mailbox();
    recovered((scene, worker), ended, &mailbox).await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_sent_to() {
    wrong_certificate(&["elsewhere.example"], true, "not valid for").await;
}

#[tokio::test]
async fn a_certificate_from_an_unknown_root_is_not_sent_to() {
    wrong_certificate(&["localhost"], false, "invalid peer certificate").await;
}

#[tokio::test]
async fn an_auth_answered_535_is_not_sent() {
    let action = Action::reply("535 5.7.8 credentials invalid");
    fault(authenticating().await, Stage::Auth, action, not_sent("auth").code(535).says("credentials invalid")).await;
}

#[tokio::test]
async fn an_auth_answered_454_is_not_sent() {
    let action = Action::reply("454 4.7.0 temporary authentication failure");
    fault(authenticating().await, Stage::Auth, action, not_sent("auth").code(454)).await;
}

#[tokio::test]
async fn a_server_that_offers_no_auth_is_not_sent_to() {
    let without = Action::Reply(b"250-sandbox.test\r\n250 PIPELINING\r\n".to_vec());
    let says = "neither AUTH PLAIN nor AUTH LOGIN is offered";
    fault(authenticating().await, Stage::Ehlo, without, not_sent("auth").says(says)).await;
}

#[tokio::test]
async fn an_auth_that_is_never_answered_is_not_sent() {
    let scene = authenticating().await.set("provider.primary.timeouts.auth", "200ms");
    fault(scene, Stage::Auth, Action::Hang, not_sent("auth").says("no answer")).await;
}

#[tokio::test]
async fn a_wrong_password_is_not_sent_and_is_not_told() {
    let scene = authenticating().await.set("provider.primary.password", "not-the-one");
    let ended = not_sent("auth").code(535);
    let (scene, worker) = outage(scene, ended).await;
    let told: String = sqlx::query_scalar("select string_agg(a::text, ' ') from outboxd.attempt a")
        .fetch_one(&scene.db.pool)
        .await
        .unwrap();
    assert!(!told.contains("not-the-one") && !told.contains("bm90LXRoZS1vbmU"), "{told}");
    drop(worker);
    let scene = scene.set("provider.primary.password", "s3cret");
    let (worker, mailbox) = (scene.worker(), scene.mailbox());
    recovered((scene, worker), ended, &mailbox).await;
}
