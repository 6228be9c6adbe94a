//! Bounces as real servers make them: written by Postfix, read from its maildir and over IMAP from Dovecot.

use std::fs;

use outboxd::domain::ids::NotificationId;
use outboxd::sandbox::dovecot::{Dovecot, PASSWORD};
use outboxd::sandbox::postfix::{BOUNCE_DOMAIN, Postfix};
use outboxd::sandbox::smtp::self_signed;
use outboxd::store::enqueue::NewNotification;
use serde_json::Value;
use tempfile::TempDir;

use crate::crashes::in_state;
use crate::harness::api::api_config;
use crate::harness::rows::plain;
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually, no_postfix, say};

const DOMAIN: &str = "mail.example.org";

async fn bounces(db: &TestDb, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Proc::start(
        &[&["evidence", "bounces"], args, &["--domain", DOMAIN, "--as", "ada"]].concat(),
        &api_config(db).text(),
    );
    let code = command.ended().await.code();
    (code, command.log())
}

async fn told(db: &TestDb, args: &[&str]) -> Value {
    let (code, said) = bounces(db, &[args, &["--json"]].concat()).await;
    assert_eq!(code, Some(0), "{args:?}: {said}");
    serde_json::from_str(said.trim()).unwrap_or_else(|_| panic!("{said}"))
}

/// A notification to nobody, which Postfix takes and which then comes back.
async fn comes_back(db: &TestDb, postfix: &Postfix, messages: usize) -> NotificationId {
    let new = NewNotification {
        sender: "shop@outbox.test".to_owned(),
        recipient: format!("nobody@{BOUNCE_DOMAIN}"),
        ..plain("acme")
    };
    let id = db.enqueue(&new).await;
    in_state(db, id, "sent").await;
    eventually("the bounce has come", 4 * PATIENCE, async || {
        let mailbox = postfix.maildir().unwrap();
        if mailbox.len() >= messages { Ok(()) } else { Err((mailbox.len(), postfix.log())) }
    })
    .await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postfix_sends_back_is_read_from_its_maildir_and_over_imap() {
    const NAME: &str = "what_postfix_sends_back_is_read_from_its_maildir_and_over_imap";
    if no_postfix(NAME) {
        return;
    }
    let db = TestDb::new().await;
    let postfix = Postfix::start(&[]).unwrap();
    let config = Config::new(&db).set("mail.message_id_domain", DOMAIN).provider("primary", postfix.address());
    let worker = Proc::start(&["worker"], &config.text());
    let first = comes_back(&db, &postfix, 1).await;
    let maildir = postfix.mailbox();
    let maildir = maildir.to_str().unwrap();
    let told_now = told(&db, &[maildir]).await;
    assert_eq!((&told_now["reports"], &told_now["moved"]["sent to bounced"]), (&1.into(), &1.into()), "{told_now}");
    let story = db.story(first).await;
    let evidence = &story.evidence[0];
    assert_eq!(
        (evidence.kind.as_str(), evidence.proves.as_str(), evidence.recorded_by.as_str()),
        ("bounce", "bounced", "ada")
    );
    assert!(evidence.detail["status"].as_str().unwrap().starts_with("failed 5."), "{evidence:?}");
    // Nothing was marked, so it is read again, and known; then it is marked.
    let again = told(&db, &[maildir, "--mark"]).await;
    assert_eq!((&again["messages"], &again["known"], &again["new"]), (&1.into(), &1.into(), &0.into()), "{again}");
    assert_eq!(told(&db, &[maildir, "--mark"]).await["messages"], 0);
    drop(worker);

    // The next one comes to an address of its own, and is read over IMAP.
    let Some(reason) = Dovecot::unavailable() else {
        let directory = TempDir::new().unwrap();
        let config = config.set("provider.primary.bounce_address", "bounce+{id}@outbox.test");
        let _worker = Proc::start(&["worker"], &config.text());
        let second = comes_back(&db, &postfix, 1).await;
        let certificate = self_signed(&["localhost"]).unwrap();
        let dovecot = Dovecot::start(&postfix.mailbox(), &certificate).unwrap();
        let (root, password) = (directory.path().join("root.pem"), directory.path().join("password"));
        fs::write(&root, &certificate.root_pem).unwrap();
        fs::write(&password, format!("{PASSWORD}\n")).unwrap();
        let url = format!("imaps://localhost:{}/INBOX", dovecot.address().port());
        let imap = [
            "--imap",
            &url,
            "--username",
            "bounces",
            "--password-file",
            password.to_str().unwrap(),
            "--ca-file",
            root.to_str().unwrap(),
            "--bounce-address",
            "bounce+{id}@outbox.test",
        ];
        let read = told(&db, &[&imap[..], &["--mark"]].concat()).await;
        assert_eq!(
            (&read["messages"], &read["moved"]["sent to bounced"]),
            (&1.into(), &1.into()),
            "{read} {}",
            dovecot.log()
        );
        assert_eq!(db.state(second).await, "bounced");
        assert_eq!(told(&db, &imap).await["messages"], 0, "it was marked on the server");

        // What cannot be opened is told, without the password, and changes nothing.
        let wrong = directory.path().join("wrong");
        fs::write(&wrong, "guess").unwrap();
        let mut refused = imap;
        refused[5] = wrong.to_str().unwrap();
        let (code, said) = bounces(&db, &refused).await;
        assert!(code == Some(1) && said.contains("refuses") && !said.contains("guess"), "{code:?} {said}");
        let (code, said) = bounces(&db, &imap[..6]).await;
        assert!(code == Some(1) && said.contains("cannot be reached"), "its authority is not trusted: {code:?} {said}");
        let mut plain = imap;
        plain[1] = "imap://localhost/INBOX";
        let (code, said) = bounces(&db, &plain).await;
        assert!(code == Some(1) && said.contains("imaps://"), "{code:?} {said}");
        return;
    };
    say(&format!("SKIPPED the half of {NAME} over IMAP: {reason}"));
}

#[tokio::test]
async fn messages_come_one_by_one_in_an_mbox_or_from_a_pipe() {
    let db = TestDb::new().await;
    let directory = TempDir::new().unwrap();
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &crate::harness::rows::holding()).await;
    let id = claimed.id();
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    db.age(id, "2 hours").await;
    line.sweep_leases(10, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(db.state(id).await, "uncertain");
    let message = |action: &str| {
        format!(
            "To: shop@example.org\nMIME-Version: 1.0\nMessage-ID: <{action}@mx>\n\
             Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n\
             --b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; mx\n\nFinal-Recipient: rfc822; jo@example.net\n\
             Action: {action}\nStatus: 4.4.1\n\n--b\nContent-Type: text/rfc822-headers\n\nMessage-ID: <{id}@{DOMAIN}>\n\n--b--\n"
        )
    };
    let mbox = directory.path().join("mbox");
    let other = "From x@y Tue Dec  1 10:00:00 2026\nSubject: hello\n\nNothing.\n\n";
    fs::write(&mbox, format!("{other}From x@y Tue Dec  1 10:00:00 2026\n{}\n", message("delayed"))).unwrap();
    let read = told(&db, &[mbox.to_str().unwrap()]).await;
    assert_eq!(
        (&read["messages"], &read["not_ours"], &read["moved"]["uncertain to sent"]),
        (&2.into(), &1.into(), &1.into()),
        "{read}"
    );
    let file = directory.path().join("one.eml");
    fs::write(&file, message("failed")).unwrap();
    assert_eq!(told(&db, &[file.to_str().unwrap()]).await["moved"]["sent to bounced"], 1);
    // The tests' programs have nothing on standard input: an empty message is nobody's.
    assert_eq!(told(&db, &["-"]).await["not_ours"], 1);
    let (code, said) = bounces(&db, &[directory.path().to_str().unwrap()]).await;
    assert!(code == Some(1) && said.contains("no maildir"), "{said}");
    let (code, said) = bounces(&db, &["/nowhere"]).await;
    assert!(code == Some(1) && said.contains("/nowhere"), "{said}");
}
