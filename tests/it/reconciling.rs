//! The drill: a real Postfix whose answers are lost after the end of data, settled from its own log.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboxd::sandbox::postfix::Postfix;
use outboxd::sandbox::proxy::{Cut, Direction, Proxy};
use serde_json::Value;

use crate::harness::api::api_config;
use crate::harness::rows::plain;
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually, no_postfix, say};

const DOMAIN: &str = "mail.example.org";
const NOTIFICATIONS: usize = 500;

async fn count(db: &TestDb, states: &str) -> i64 {
    sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from outboxd.delivery where state in ({states})")))
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

async fn maillog(db: &TestDb, args: &[&str]) -> Value {
    let mut command = Proc::start(
        &[&["evidence", "maillog"], args, &["--domain", DOMAIN, "--as", "ada", "--json"]].concat(),
        &api_config(db).text(),
    );
    assert_eq!(command.ended().await.code(), Some(0), "{}", command.log());
    serde_json::from_str(command.log().trim()).unwrap_or_else(|_| panic!("{}", command.log()))
}

/// How often each id lies in the mailbox.
fn mailbox(postfix: &Postfix) -> HashMap<String, usize> {
    let mut found = HashMap::new();
    for mail in postfix.maildir().unwrap() {
        let mail = String::from_utf8_lossy(&mail).into_owned();
        let id = mail.split("Message-ID: <").nth(1).and_then(|rest| rest.split('@').next()).map(str::to_owned);
        *found.entry(id.unwrap_or_default()).or_default() += 1;
    }
    found.remove("");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postfix_took_and_what_it_did_not_is_told_by_its_log() {
    if no_postfix("what_postfix_took_and_what_it_did_not_is_told_by_its_log") {
        return;
    }
    let db = TestDb::new().await;
    let boxes = [
        ("virtual_mailbox_maps", "inline:{ {jo@outbox.test = box/} {shop@outbox.test = box/} }"),
        ("virtual_mailbox_domains", "outbox.test"),
    ];
    let postfix = Postfix::start(&boxes).unwrap();
    let proxy = Arc::new(Proxy::start(postfix.address()).await.unwrap());
    let mut new = plain("acme");
    new.sender = "shop@outbox.test".to_owned();
    new.recipient = "jo@outbox.test".to_owned();
    for _ in 0..NOTIFICATIONS {
        db.enqueue(&new).await;
    }
    let config = Config::new(&db)
        .set("mail.message_id_domain", DOMAIN)
        .set("provider_defaults.connections", "16")
        .set("provider_defaults.breaker.threshold", "1000")
        .provider("primary", proxy.addr());
    let mut worker = Proc::start(&["worker"], &config.text());

    let quiet = Arc::new(AtomicBool::new(false));
    let cutter = {
        let (proxy, quiet) = (Arc::clone(&proxy), Arc::clone(&quiet));
        tokio::spawn(async move {
            while !quiet.load(Ordering::Relaxed) {
                // slow on purpose: mail goes through, then answers are held back, and then they are lost
                tokio::time::sleep(Duration::from_millis(60)).await;
                proxy.stall(Direction::ToClient);
                // slow on purpose: so long, that some have sent their end of data
                tokio::time::sleep(Duration::from_millis(25)).await;
                proxy.cut(Cut::Reset).await;
                proxy.resume();
            }
        })
    };
    eventually("everything was tried", 3 * PATIENCE, async || {
        let waiting = count(&db, "'pending', 'claimed', 'transmitting'").await;
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    quiet.store(true, Ordering::Relaxed);
    cutter.await.unwrap();
    worker.terminate();
    worker.ended().await;
    let uncertain = count(&db, "'uncertain'").await;
    assert!(uncertain >= 20, "{uncertain} answers were lost");

    // The log is complete once it tells of something that came after the last attempt.
    let log = postfix.log_file();
    let log = log.to_str().unwrap();
    eventually("the log goes on beyond the last attempt", PATIENCE, async || {
        let greeted = tokio::net::TcpStream::connect(postfix.address()).await.is_ok();
        let seconds: f64 =
            sqlx::query_scalar("select extract(epoch from now() - max(begun_at))::float8 from outboxd.attempt")
                .fetch_one(&db.pool)
                .await
                .unwrap();
        if greeted && seconds > 3.0 { Ok(()) } else { Err(seconds) }
    })
    .await;
    let first = maillog(&db, &[log, "--provider", "primary", "--complete", "--margin", "0s"]).await;
    let again = maillog(&db, &[log, "--provider", "primary", "--complete", "--margin", "0s"]).await;
    assert_eq!(
        (&again["new"], &again["moved"]),
        (&0.into(), &serde_json::json!({})),
        "the same log again changes nothing: {again}"
    );
    // What Postfix had begun to read and never queued stays in doubt, as it would on hold: a person looks, and says so.
    for id in crate::crashes::ids(&db, "uncertain").await {
        assert!(!mailbox(&postfix).contains_key(&id), "{id}");
        let args = ["resolve", &id, "--not-sent", "--reason", "not in the queue"];
        let mut resolve = Proc::start(&args, &api_config(&db).text());
        assert_eq!(resolve.ended().await.code(), Some(0), "{}", resolve.log());
    }
    assert_eq!(count(&db, "'uncertain', 'unresolved'").await, 0, "{first}");
    let not_accepted = count(&db, "'pending'").await;
    say(&format!("drill: {uncertain} uncertain, of which {not_accepted} had not been accepted; {first}"));

    // What was not accepted goes out now, once.
    let calm = config.provider("primary", postfix.address());
    let mut worker = Proc::start(&["worker"], &calm.text());
    let sent = i64::try_from(NOTIFICATIONS).unwrap();
    eventually("all are sent", PATIENCE, async || {
        let done = count(&db, "'sent'").await;
        if done == sent { Ok(()) } else { Err(done) }
    })
    .await;
    worker.terminate();
    worker.ended().await;
    let arrived = eventually("all have arrived", PATIENCE, async || {
        let arrived = mailbox(&postfix);
        if arrived.len() == NOTIFICATIONS { Ok(arrived) } else { Err(arrived.len()) }
    })
    .await;
    assert_eq!(arrived.values().filter(|copies| **copies > 1).count(), 0, "nobody got it twice");
    let contradictions: i64 =
        sqlx::query_scalar("select count(*) from outboxd.delivery where contradiction or duplicate_possible")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert_eq!(contradictions, 0);
}

#[tokio::test]
async fn a_log_in_parts_packed_or_from_standard_input_tells_the_same() {
    use std::io::Write as _;

    let db = TestDb::new().await;
    let directory = tempfile::TempDir::new().unwrap();
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &crate::harness::rows::holding()).await;
    let id = claimed.id();
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    db.age(id, "2 hours").await;
    line.sweep_leases(10, Duration::ZERO).await.unwrap();
    assert_eq!(db.state(id).await, "uncertain");
    let first = directory.path().join("mail.log.1.gz");
    let mut packed =
        flate2::write::GzEncoder::new(std::fs::File::create(&first).unwrap(), flate2::Compression::default());
    writeln!(packed, "Dec  1 10:00:00 m postfix/cleanup[1]: 4F1AB2: message-id=<{id}@{DOMAIN}>").unwrap();
    packed.finish().unwrap();
    let second = directory.path().join("mail.log");
    std::fs::write(
        &second,
        b"\xff\xfe garbage\nDec  1 10:00:01 m postfix/qmgr[2]: 4F1AB2: from=<x>, size=1, nrcpt=1 (queue active)\n",
    )
    .unwrap();
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let nothing = maillog(&db, &[first]).await;
    assert_eq!((&nothing["lines"], &nothing["new"]), (&1.into(), &0.into()), "a message-id line proves nothing");
    assert_eq!(db.state(id).await, "uncertain");
    let told = maillog(&db, &[first, second]).await;
    assert_eq!((&told["lines"], &told["moved"]["uncertain to sent"]), (&3.into(), &1.into()), "{told}");
    let evidence = db.story(id).await.evidence;
    assert_eq!((evidence[0].reference.as_str(), evidence[0].recorded_by.as_str()), ("4F1AB2", "ada"));
    let mut missing =
        Proc::start(&["evidence", "maillog", "/nowhere/mail.log", "--domain", DOMAIN], &api_config(&db).text());
    assert_eq!(missing.ended().await.code(), Some(1));
    assert!(missing.log().contains("/nowhere/mail.log"), "{}", missing.log());
    let mut half =
        Proc::start(&["evidence", "maillog", second, "--complete", "--domain", DOMAIN], &api_config(&db).text());
    assert_eq!(half.ended().await.code(), Some(2), "--complete is about one provider: {}", half.log());
}

#[tokio::test]
async fn the_silence_of_a_complete_log_proves_only_what_it_covers() {
    let db = TestDb::new().await;
    let directory = tempfile::TempDir::new().unwrap();
    let log = directory.path().join("mail.log");
    let mut line = db.line();
    let mut ids = Vec::new();
    for _ in 0..4 {
        let claimed = db.claimed(&mut line, &crate::harness::rows::holding()).await;
        line.begin(&[(claimed.id(), claimed.fence())]).await.unwrap();
        ids.push(claimed.id());
    }
    for id in &ids {
        db.age(*id, "2 hours").await;
    }
    line.sweep_leases(10, Duration::ZERO).await.unwrap();
    // One before the log, one too near to its end, one with another provider, and one that it covers.
    db.sql(&format!(
        "begin; set local session_replication_role = replica;
         update outboxd.attempt set begun_at = timestamptz '2026-11-01 10:30:00Z' where notification_id = '{}';
         update outboxd.attempt set begun_at = timestamptz '2026-11-01 09:59:00Z' where notification_id = '{}';
         update outboxd.attempt set begun_at = timestamptz '2026-11-01 10:50:00Z' where notification_id = '{}';
         update outboxd.attempt set begun_at = timestamptz '2026-11-01 10:30:00Z', provider = 'backup' where notification_id = '{}'; commit",
        ids[0], ids[1], ids[2], ids[3]
    ))
    .await
    .unwrap();
    let accepted = "01a230e5-9f38-7878-abaa-63e052288578";
    std::fs::write(
        &log,
        format!(
            "2026-11-01T10:00:00+00:00 m postfix/cleanup[1]: 4F1AB2: message-id=<{accepted}@{DOMAIN}>\n\
             2026-11-01T11:00:00+00:00 m postfix/qmgr[2]: 4F1AB2: from=<x>, size=1, nrcpt=1 (queue active)\n"
        ),
    )
    .unwrap();
    let told = maillog(&db, &[log.to_str().unwrap(), "--provider", "primary", "--complete"]).await;
    assert_eq!(
        (&told["not_accepted"], &told["moved"]["uncertain to pending"], &told["unknown"]),
        (&1.into(), &1.into(), &1.into()),
        "{told}"
    );
    let mut states = Vec::new();
    for id in ids {
        states.push(db.state(id).await);
    }
    assert_eq!(states, ["pending", "uncertain", "uncertain", "uncertain"]);
}

#[tokio::test]
async fn a_log_is_gone_on_with_where_it_was_left_also_after_rotation() {
    let db = TestDb::new().await;
    let directory = tempfile::TempDir::new().unwrap();
    let (log, state) = (directory.path().join("mainlog"), directory.path().join("state.json"));
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &crate::harness::rows::holding()).await;
    let id = claimed.id();
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    db.age(id, "2 hours").await;
    line.sweep_leases(10, Duration::ZERO).await.unwrap();
    let args = [log.to_str().unwrap(), "--provider", "primary", "--resume", state.to_str().unwrap()];
    let arrival = format!(
        "2026-12-01 10:00:00 1dJ08B-0003oP-5i <= shop@example.org H=a [192.0.2.1] P=esmtp S=1 id={id}@{DOMAIN}"
    );
    std::fs::write(&log, format!("2026-12-01 09:00:00 exim 4.96 daemon started\n{arrival}")).unwrap();
    let told = maillog(&db, &args).await;
    assert_eq!(
        (&told["lines"], &told["new"]),
        (&1.into(), &0.into()),
        "a line that is being written is not read: {told}"
    );
    std::fs::write(&log, format!("2026-12-01 09:00:00 exim 4.96 daemon started\n{arrival}\n")).unwrap();
    let told = maillog(&db, &args).await;
    assert_eq!((&told["lines"], &told["moved"]["uncertain to sent"]), (&1.into(), &1.into()), "{told}");
    // Rotated, and the bounce is told in the new file of mail that arrived in the old one.
    std::fs::rename(&log, directory.path().join("mainlog.1")).unwrap();
    std::fs::write(
        &log,
        "2026-12-01 10:00:01 1dJ08B-0003oP-5i ** jo@example.net R=x T=y H=mx [192.0.2.2]: 550 no such user\n",
    )
    .unwrap();
    let told = maillog(&db, &args).await;
    assert_eq!(
        (&told["lines"], &told["moved"]["sent to bounced"], &told["lost"]),
        (&1.into(), &1.into(), &0.into()),
        "{told}"
    );
    let story = db.story(id).await;
    assert_eq!(story.evidence.iter().map(|piece| piece.source.as_str()).collect::<Vec<_>>(), ["exim", "exim"]);
    assert_eq!(maillog(&db, &args).await["lines"], 0);
    std::fs::remove_file(directory.path().join("mainlog.1")).unwrap();
    std::fs::write(&log, "2026-12-02 10:00:01 another file\n").unwrap();
    let told = maillog(&db, &args).await;
    assert_eq!((&told["lines"], &told["lost"]), (&1.into(), &1.into()), "that something may be unread is said: {told}");
}
