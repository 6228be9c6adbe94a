//! The worker against a real Postfix that delivers to a local mailbox, mail for mail: what the database says, what Postfix
//! logged and what lies in the mailbox must agree.

mod mail;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::postfix::{BOUNCE_DOMAIN, Postfix};
use outboxd::sandbox::smtp::{SelfSigned, self_signed};
use outboxd::store::enqueue::NewNotification;
use outboxd::store::story::Attempt;
use tempfile::TempDir;

use crate::harness::rows::plain;
use crate::harness::{PATIENCE, Proc, TestDb, eventually, no_postfix};
use mail::{ID_DOMAIN, IDN, Mail, RECIPIENTS, every_kind};

/// The name in the relay's certificate.
const RELAY_NAME: &str = "mail.outbox.test";

/// A Postfix with a mailbox for each of [`RECIPIENTS`] and the shop, and for nobody else.
fn start(settings: &[(&str, &str)]) -> Postfix {
    let boxes: String =
        RECIPIENTS.iter().chain(&["shop@outbox.test"]).map(|who| format!(" {{{who} = box/}}")).collect();
    let boxes = format!("inline:{{{}}}", boxes.replace(IDN[0], IDN[1]));
    let domains = format!("outbox.test, {}", IDN[1]);
    let own = [("virtual_mailbox_maps", boxes.as_str()), ("virtual_mailbox_domains", domains.as_str())];
    Postfix::start(&[&own, settings].concat()).unwrap()
}

/// A worker's configuration for one relay; `provider` are further lines of its section.
fn config(db: &TestDb, postfix: &Postfix, provider: &str) -> String {
    format!(
        r#"
        database = {{ url = "{url}", statement_timeout = "2s", lock_timeout = "1s" }}
        lease = {{ duration = "3s", renew_every = "1s" }}
        worker.poll_interval = "100ms"
        maintenance.every = "200ms"
        mail.message_id_domain = "{ID_DOMAIN}"
        ops.listen = ""
        [provider_defaults.breaker]
        open_min = "50ms"
        open_max = "100ms"
        [provider_defaults.timeouts]
        greeting = "5s"
        ehlo = "5s"
        tls = "5s"
        [provider.primary]
        host = "127.0.0.1"
        port = {port}
        {provider}
        "#,
        url = db.url,
        port = postfix.address().port(),
    )
}

/// Waits until nothing is left to be done by itself, and returns every notification with its state.
async fn at_rest(db: &TestDb, worker: &Proc, postfix: &Postfix) -> HashMap<NotificationId, String> {
    // A relay that has just been started on a busy machine has been seen to greet nobody for half a minute.
    eventually("no notification is waiting or under way", 4 * PATIENCE, async || {
        let rows: Vec<(sqlx::types::Uuid, String)> =
            sqlx::query_as("select notification_id, state from outboxd.delivery").fetch_all(&db.pool).await.unwrap();
        let busy =
            rows.iter().filter(|(_, state)| ["pending", "claimed", "transmitting"].contains(&state.as_str())).count();
        if busy == 0 {
            Ok(rows.into_iter().map(|(id, state)| (NotificationId(id), state)).collect())
        } else {
            // What both sides said last is worth more than a count.
            let last = |log: String| log.lines().rev().take(30).collect::<Vec<_>>().join("\n");
            Err(format!(
                "{busy} of {}; the worker, backwards:\n{}\nPostfix:\n{}",
                rows.len(),
                last(worker.log()),
                last(postfix.log())
            ))
        }
    })
    .await
}

/// Every mail in the mailbox by the notification that it says it is; none may be there twice. Bounces, which alone have an
/// empty envelope sender, are left out.
fn mailbox(postfix: &Postfix, id_header: &str) -> HashMap<NotificationId, Mail> {
    let mut arrived = HashMap::new();
    for file in postfix.maildir().unwrap() {
        if file.starts_with(b"Return-Path: <>\n") {
            continue;
        }
        let mail = Mail::read(&file, id_header);
        let id = mail.id();
        assert!(arrived.insert(id, mail).is_none(), "{id} is in the mailbox twice");
    }
    arrived
}

/// What Postfix's log says of each queue id: the Message-ID, and how often it was accepted.
fn accepted(log: &str) -> BTreeMap<String, (String, usize)> {
    let mut queue: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for line in log.lines() {
        // "… postfix/cleanup[12]: QUEUEID: message-id=<…>", "… postfix/qmgr[12]: QUEUEID: from=<…>, … (queue active)"
        let Some((service, rest)) = line.split_once("]: ") else { continue };
        let Some((queue_id, what)) = rest.split_once(": ") else { continue };
        if let Some(id) = what.strip_prefix("message-id=").filter(|_| service.contains("/cleanup[")) {
            queue.entry(queue_id.to_owned()).or_default().0 = id.trim_matches(['<', '>']).to_owned();
        } else if service.contains("/qmgr[") && what.ends_with("(queue active)") {
            queue.entry(queue_id.to_owned()).or_default().1 += 1;
        }
    }
    queue
}

/// The queue id in the reply that ended an attempt: "2.0.0 Ok: queued as QUEUEID".
fn queue_id(attempt: &Attempt) -> String {
    let reply = attempt.reply_text.as_deref().unwrap_or_default();
    let (_, queue_id) = reply.split_once("queued as ").unwrap_or_else(|| panic!("no queue id in {reply:?}"));
    queue_id.trim().to_owned()
}

#[tokio::test]
async fn every_kind_of_notification_arrives_once_and_as_it_was_enqueued() {
    if no_postfix("every_kind_of_notification_arrives_once_and_as_it_was_enqueued") {
        return;
    }
    let db = TestDb::new().await;
    let postfix = start(&[("smtpd_error_sleep_time", "0")]);

    let mut expected: HashMap<NotificationId, NewNotification> = HashMap::new();
    for new in every_kind(20) {
        expected.insert(db.enqueue(&new).await, new);
    }
    assert!(expected.len() >= 250);
    let to = |recipient: &str| NewNotification {
        sender: "shop@outbox.test".to_owned(),
        recipient: recipient.to_owned(),
        ..plain("acme")
    };
    let bouncing = db.enqueue(&to(&format!("gone@{BOUNCE_DOMAIN}"))).await;
    let unknown = db.enqueue(&to("nobody@outbox.test")).await;

    let mut worker = Proc::start(&["worker"], &config(&db, &postfix, r#"security = "plaintext""#));
    let states = at_rest(&db, &worker, &postfix).await;
    worker.terminate();
    let ended = worker.ended().await;
    assert!(ended.success() && !worker.log().contains("ERROR"), "{}", worker.log());

    for (id, state) in &states {
        assert_eq!(state, if *id == unknown { "failed" } else { "sent" }, "{id}: {}", worker.log());
    }
    let arrived = eventually("all that was sent is in the mailbox", PATIENCE, async || {
        let arrived = mailbox(&postfix, "X-Notification-ID");
        if arrived.len() >= expected.len() { Ok(arrived) } else { Err(format!("{}: {}", arrived.len(), postfix.log())) }
    })
    .await;
    assert_eq!(arrived.len(), expected.len(), "nothing else is in the mailbox");
    for (id, new) in &expected {
        assert_eq!(arrived.get(id), Some(&Mail::of(*id, new)), "{id}");
    }

    let queue = eventually("the log tells of every message and of the bounce", PATIENCE, async || {
        let log = postfix.log();
        let queue = accepted(&log);
        let complete =
            queue.values().filter(|(id, times)| id.ends_with(ID_DOMAIN) && *times > 0).count() > expected.len();
        if complete && log.contains("status=bounced") { Ok(queue) } else { Err(log) }
    })
    .await;
    let mut told = BTreeSet::new();
    for id in expected.keys().chain([&bouncing]) {
        let story = db.story(*id).await;
        let [attempt] = &story.attempts[..] else { panic!("{id}: {:?}", story.attempts) };
        assert_eq!((attempt.outcome.as_deref(), attempt.reply_code), (Some("sent"), Some(250)));
        let queue_id = queue_id(attempt);
        let (message_id, times) = &queue[&queue_id];
        assert_eq!((message_id, *times), (&format!("{id}@{ID_DOMAIN}"), 1), "queue id {queue_id}");
        assert!(told.insert(queue_id), "two notifications have one queue id");
    }
    let ours =
        queue.iter().filter(|(_, (message_id, _))| message_id.ends_with(ID_DOMAIN)).map(|(queue_id, _)| queue_id);
    assert_eq!(
        ours.collect::<Vec<_>>(),
        told.iter().collect::<Vec<_>>(),
        "Postfix took in nothing that is not on record"
    );

    let refused = db.story(unknown).await;
    assert_eq!(refused.notification.reason.as_deref(), Some("refused"));
    let [attempt] = &refused.attempts[..] else { panic!("{:?}", refused.attempts) };
    assert_eq!((attempt.phase.as_deref(), attempt.reply_code), (Some("rcpt"), Some(550)));
    assert_eq!((attempt.begun_at, attempt.enhanced_code.as_deref()), (None, Some("5.1.1")));
}

#[tokio::test]
async fn a_worker_killed_in_mid_send_leaves_no_mail_twice_and_every_doubt_flagged() {
    if no_postfix("a_worker_killed_in_mid_send_leaves_no_mail_twice_and_every_doubt_flagged") {
        return;
    }
    let db = TestDb::new().await;
    // Postfix takes a second after the end of data before it accepts.
    let postfix = start(&[("smtpd_end_of_data_restrictions", "sleep 1")]);
    let config = config(&db, &postfix, "security = \"plaintext\"\nconnections = 8");
    let mut expected = HashMap::new();
    for new in every_kind(2) {
        expected.insert(db.enqueue(&new).await, new);
    }

    let mut worker = Proc::start(&["worker"], &config);
    eventually("some are sent, and others have been on their way for a while", PATIENCE, async || {
        let (sent, under_way): (bool, bool) = sqlx::query_as(
            "select exists (select from outboxd.attempt where outcome = 'sent'),
                exists (select from outboxd.attempt where ended_at is null and begun_at < now() - interval '200 ms')",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        (sent && under_way).then_some(())
    })
    .await;
    worker.pause();
    let first = eventually("Postfix has accepted what the stopped worker will never hear of", PATIENCE, async || {
        let arrived = mailbox(&postfix, "X-Notification-ID");
        for id in arrived.keys() {
            if db.state(*id).await == "transmitting" {
                return Ok(*id);
            }
        }
        Err(format!("{} in the mailbox", arrived.len()))
    })
    .await;
    worker.kill();
    worker.ended().await;

    let mut successor = Proc::start(&["worker"], &config);
    let states = at_rest(&db, &worker, &postfix).await;
    successor.terminate();
    successor.ended().await;

    assert_eq!(states[&first], "uncertain", "{}", successor.log());
    let arrived = eventually("what is recorded as sent is in the mailbox", PATIENCE, async || {
        let arrived = mailbox(&postfix, "X-Notification-ID");
        let missing = states.iter().filter(|(id, state)| *state == "sent" && !arrived.contains_key(id)).count();
        if missing == 0 { Ok(arrived) } else { Err(missing) }
    })
    .await;
    for (id, state) in &states {
        assert!(["sent", "uncertain"].contains(&state.as_str()), "{id} is {state}");
        if let Some(mail) = arrived.get(id) {
            assert_eq!(mail, &Mail::of(*id, &expected[id]));
        }
        if state == "uncertain" {
            let story = db.story(*id).await;
            let last = story.attempts.last().unwrap();
            assert_eq!((last.ended_by.as_deref(), last.outcome.as_deref()), (Some("lease"), Some("uncertain")));
            assert!(last.begun_at.is_some() && story.notification.doubt_until.is_some());
        }
    }
}

/// A Postfix that takes mail over TLS only, with a certificate for [`RELAY_NAME`]; the file of its authority; and what
/// holds the files.
fn postfix_with_tls() -> (Postfix, String, TempDir) {
    let SelfSigned { server_pem, root_pem, .. } = self_signed(&[RELAY_NAME]).unwrap();
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("server.pem"), server_pem).unwrap();
    fs::write(path("root.pem"), root_pem).unwrap();
    let postfix = start(&[
        ("smtpd_tls_security_level", "encrypt"),
        ("smtpd_tls_chain_files", &path("server.pem")),
        ("smtpd_tls_received_header", "yes"),
    ]);
    (postfix, path("root.pem"), directory)
}

#[tokio::test]
async fn mail_goes_over_starttls_to_a_relay_whose_own_authority_is_trusted() {
    if no_postfix("mail_goes_over_starttls_to_a_relay_whose_own_authority_is_trusted") {
        return;
    }
    let db = TestDb::new().await;
    let (postfix, root, _files) = postfix_with_tls();
    let provider = format!(
        r#"
        security = "starttls"
        tls_ca_file = "{root}"
        tls_server_name = "{RELAY_NAME}"
        dedup = {{ header = "Resend-Idempotency-Key", window = "24h" }}
        "#
    );
    let mut expected = HashMap::new();
    for new in every_kind(2) {
        expected.insert(db.enqueue(&new).await, new);
    }
    let worker = Proc::start(&["worker"], &config(&db, &postfix, &provider));
    let states = at_rest(&db, &worker, &postfix).await;
    assert!(states.values().all(|state| state == "sent"), "{}", worker.log());
    let arrived = eventually("all are in the mailbox", PATIENCE, async || {
        let arrived = mailbox(&postfix, "Resend-Idempotency-Key");
        if arrived.len() == expected.len() { Ok(arrived) } else { Err(arrived.len()) }
    })
    .await;
    for (id, new) in &expected {
        assert_eq!(arrived.get(id), Some(&Mail::of(*id, new)), "{id}");
    }
    for file in postfix.maildir().unwrap() {
        let file = String::from_utf8_lossy(&file).into_owned();
        assert!(file.contains("(using TLSv1.3 "), "Postfix says that it came over TLS: {file}");
        assert!(!file.contains("X-Notification-ID"), "the configured header alone carries the id");
    }
}

#[tokio::test]
async fn nothing_leaves_for_a_relay_whose_certificate_is_not_its_own_until_that_is_mended() {
    if no_postfix("nothing_leaves_for_a_relay_whose_certificate_is_not_its_own_until_that_is_mended") {
        return;
    }
    let db = TestDb::new().await;
    let (postfix, root, _files) = postfix_with_tls();
    let provider = |name: &str, root: &str| format!("security = \"starttls\"\ntls_server_name = \"{name}\"\n{root}");
    let trusted = format!("tls_ca_file = \"{root}\"");
    let id = db.enqueue(&NewNotification { recipient: RECIPIENTS[0].to_owned(), ..plain("acme") }).await;
    let mut attempts = 0;
    for (name, root) in [("other.outbox.test", trusted.as_str()), (RELAY_NAME, "")] {
        let mut worker = Proc::start(&["worker"], &config(&db, &postfix, &provider(name, root)));
        let story = eventually("two more attempts have ended", PATIENCE, async || {
            let story = db.story(id).await;
            let ended = story.attempts.iter().filter(|attempt| attempt.ended_at.is_some()).count();
            if ended >= attempts + 2 { Ok(story) } else { Err(worker.log()) }
        })
        .await;
        worker.terminate();
        worker.ended().await;
        for attempt in story.attempts[attempts..].iter().filter(|attempt| attempt.ended_at.is_some()) {
            assert_eq!((attempt.outcome.as_deref(), attempt.phase.as_deref()), (Some("not_sent"), Some("tls")));
            assert_eq!((attempt.begun_at, attempt.counted), (None, false));
            let error = attempt.error.as_deref().unwrap_or_default();
            assert!(error.contains("certificate"), "{error:?}");
        }
        let story = db.story(id).await;
        assert_eq!((story.notification.state.as_str(), story.notification.tries), ("pending", 0), "{}", worker.log());
        attempts = story.attempts.len();
    }
    assert!(accepted(&postfix.log()).is_empty() && postfix.maildir().unwrap().is_empty(), "{}", postfix.log());

    let worker = Proc::start(&["worker"], &config(&db, &postfix, &provider(RELAY_NAME, &trusted)));
    at_rest(&db, &worker, &postfix).await;
    assert_eq!(db.state(id).await, "sent", "{}", worker.log());
    eventually("it is in the mailbox", PATIENCE, async || mailbox(&postfix, "X-Notification-ID").remove(&id)).await;
}
