//! The producer's contract: stored with the caller's transaction or not at all, and refused by name.

use outboxd::domain::address::EmailAddress;
use outboxd::domain::content::Content;
use outboxd::store::claim::Claimed;
use outboxd::store::enqueue::{EnqueueError, NewAttachment, NewNotification, enqueue};

use crate::harness::TestDb;
use crate::harness::rows::{claim, plain, ready};

#[tokio::test]
async fn a_notification_exists_if_and_only_if_its_transaction_commits() {
    let db = TestDb::new().await;
    let mut given_up = db.pool.begin().await.unwrap();
    enqueue(&mut given_up, &plain("acme")).await.unwrap();
    given_up.rollback().await.unwrap();
    let mut kept = db.pool.begin().await.unwrap();
    let id = enqueue(&mut kept, &plain("acme")).await.unwrap();
    kept.commit().await.unwrap();
    let mut line = db.line();
    assert_eq!(ready(&mut line, &claim(), 10).await.iter().map(Claimed::id).collect::<Vec<_>>(), [id]);
}

#[tokio::test]
async fn the_same_key_and_content_give_the_same_id_and_other_content_a_named_error() {
    let db = TestDb::new().await;
    let keyed = |subject: &str| NewNotification {
        dedup_key: Some("order-1".to_owned()),
        subject: subject.to_owned(),
        ..plain("acme")
    };
    let first = db.enqueue(&keyed("Hello")).await;
    assert_eq!(db.enqueue(&keyed("Hello")).await, first);
    let mut conn = db.pool.acquire().await.unwrap();
    let refused = enqueue(&mut conn, &keyed("Hello ")).await.unwrap_err();
    let EnqueueError::KeyReused { problem, .. } = refused else { panic!("{refused:?}") };
    assert!(problem.contains(&first.to_string()), "{problem}");
    let other_account = NewNotification { account_id: "other".to_owned(), ..keyed("Hello ") };
    assert_ne!(enqueue(&mut conn, &other_account).await.unwrap(), first);
}

#[tokio::test]
async fn many_producers_with_one_key_at_once_store_one_notification() {
    let db = TestDb::new().await;
    let keyed = NewNotification { dedup_key: Some("order-1".to_owned()), ..plain("acme") };
    let producers: Vec<_> = (0..24)
        .map(|_| {
            let (pool, keyed) = (db.pool.clone(), keyed.clone());
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                let id = enqueue(&mut tx, &keyed).await.unwrap();
                tx.commit().await.unwrap();
                id
            })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for producer in producers {
        ids.insert(producer.await.unwrap());
    }
    assert_eq!(ids.len(), 1);
    let stored: i64 = sqlx::query_scalar("select count(*) from outboxd.outbox").fetch_one(&db.pool).await.unwrap();
    assert_eq!(stored, 1);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_with_the_fields_name_and_the_remedy() {
    let db = TestDb::new().await;
    let mut conn = db.pool.acquire().await.unwrap();
    let now = time::OffsetDateTime::now_utc();
    let file = |name: &str, kind: &str, content: &str| NewAttachment {
        filename: name.to_owned(),
        content_type: kind.to_owned(),
        content: content.to_owned(),
    };
    let with = |change: &dyn Fn(&mut NewNotification)| {
        let mut new = plain("acme");
        change(&mut new);
        new
    };
    let cases: Vec<(&str, NewNotification)> = vec![
        ("account_id", with(&|n| n.account_id.clear())),
        ("account_id", with(&|n| n.account_id = "x".repeat(201))),
        ("recipient", with(&|n| n.recipient.clear())),
        ("recipient", with(&|n| n.recipient = "nobody".to_owned())),
        ("recipient", with(&|n| n.recipient = "Jo <jo@example.org>".to_owned())),
        ("recipient", with(&|n| n.recipient = "\"a\r\nRCPT TO:<x>\"@example.org".to_owned())),
        ("recipient", with(&|n| n.recipient = format!("{}@example.org", "x".repeat(65)))),
        ("recipient", with(&|n| n.recipient = format!("jo@{}.org", "x".repeat(64)))),
        ("sender", with(&|n| n.sender = "a@b@example.org".to_owned())),
        ("reply_to", with(&|n| n.reply_to = Some("a b@example.org".to_owned()))),
        ("subject", with(&|n| n.subject = "Hi\r\nBcc: x@example.org".to_owned())),
        ("subject", with(&|n| n.subject = "x".repeat(1_000))),
        ("sender_name", with(&|n| n.sender_name = Some("a\nb".to_owned()))),
        ("body_text", with(&|n| n.body_text = None)),
        ("body_text", with(&|n| n.body_text = Some("x".repeat(2_097_153)))),
        ("body_html", with(&|n| n.body_html = Some("x".repeat(2_097_153)))),
        ("headers[1]", with(&|n| n.headers = vec![("X-A".into(), "1".into()), ("Bcc".into(), "x@example.org".into())])),
        ("headers[0]", with(&|n| n.headers = vec![("X A".into(), "1".into())])),
        ("headers[0]", with(&|n| n.headers = vec![("X-A".into(), "1\r\nBcc: x".into())])),
        ("attachments[0].filename", with(&|n| n.attachments = vec![file("../x", "text/plain", "eA==")])),
        ("attachments[0].content_type", with(&|n| n.attachments = vec![file("x", "text", "eA==")])),
        ("attachments[0].content", with(&|n| n.attachments = vec![file("x", "text/plain", "not base64!")])),
        ("list_unsubscribe", with(&|n| n.list_unsubscribe = Some("http://example.org".to_owned()))),
        ("list_unsubscribe_post", with(&|n| n.list_unsubscribe_post = true)),
        ("route", with(&|n| n.route = Some(String::new()))),
        ("priority", with(&|n| n.priority = Some(10))),
        ("not_before", with(&|n| n.not_before = Some(now + time::Duration::days(400)))),
        ("expires_at", with(&|n| n.expires_at = Some(now - time::Duration::days(1)))),
        ("dedup_key", with(&|n| n.dedup_key = Some(String::new()))),
    ];
    for (expected, new) in cases {
        match enqueue(&mut conn, &new).await {
            Err(EnqueueError::Invalid { field, problem, remedy }) => {
                assert_eq!(field, expected, "{problem}");
                assert!(problem.starts_with(&format!("{expected}: ")) || problem.starts_with("headers["), "{problem}");
                assert!(remedy.len() > 10, "{expected}: {remedy:?}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

/// One judge: what the database takes, the worker can make into a message, and the other way round.
#[tokio::test]
async fn the_database_and_the_worker_agree_on_which_addresses_are_addresses() {
    let db = TestDb::new().await;
    let long_local = format!("{}@example.org", "x".repeat(64));
    let too_long_local = format!("{}@example.org", "x".repeat(65));
    let long_label = format!("a@{}.org", "x".repeat(63));
    let too_long_label = format!("a@{}.org", "x".repeat(64));
    let too_long = format!("a@{}", vec!["x".repeat(60); 5].join("."));
    for address in [
        "jo@example.org",
        "jo+tag@example.org",
        "j.o@sub.example.org",
        "jo@localhost",
        "josé@example.org",
        "jo@bücher.example",
        "用户@例子.公司",
        "o'brien@example.org",
        "\"jo doe\"@example.org",
        "\"jo\\\"doe\"@example.org",
        "#!$%&'*+-/=?^_`{}|~@example.org",
        &long_local,
        &long_label,
        "",
        "jo",
        "@example.org",
        "jo@",
        "jo@@example.org",
        "a@b@example.org",
        ".jo@example.org",
        "jo.@example.org",
        "j..o@example.org",
        "jo@.example.org",
        "jo@example..org",
        "jo@-example.org",
        "jo@example-.org",
        "jo@exa mple.org",
        "jo doe@example.org",
        "jo@[127.0.0.1]",
        "jo@[IPv6:::1]",
        "Jo <jo@example.org>",
        "<jo@example.org>",
        "jo(comment)@example.org",
        "jo,doe@example.org",
        "jo@example.org\r\n",
        "\"a\r\nb\"@example.org",
        "jo\u{7f}@example.org",
        "jo@exa_mple.org",
        &too_long_local,
        &too_long_label,
        &too_long,
    ] {
        let problem: Option<String> =
            sqlx::query_scalar("select outboxd.address_problem($1)").bind(address).fetch_one(&db.pool).await.unwrap();
        let parsed = address.parse::<EmailAddress>();
        assert_eq!(problem.is_none(), parsed.is_ok(), "{address:?}: database {problem:?}, worker {parsed:?}");
    }
}

#[tokio::test]
async fn everything_that_may_be_said_reaches_the_worker_as_it_was_said() {
    let db = TestDb::new().await;
    let new = NewNotification {
        body_html: Some("<p>Grüße 👋</p>".to_owned()),
        sender_name: Some("Der Laden".to_owned()),
        recipient_name: Some("Jö".to_owned()),
        reply_to: Some("hilfe@example.org".to_owned()),
        headers: vec![("X-Campaign".to_owned(), "spring".to_owned())],
        attachments: vec![NewAttachment {
            filename: "rechnung.pdf".to_owned(),
            content_type: "application/pdf".to_owned(),
            content: "JVBERg==".to_owned(),
        }],
        list_unsubscribe: Some("https://example.org/u?x=1".to_owned()),
        list_unsubscribe_post: true,
        message_ref: Some("order 1".to_owned()),
        ..plain("acme")
    };
    let id = db.enqueue(&new).await;
    let mut line = db.line();
    let claimed = ready(&mut line, &claim(), 1).await.remove(0);
    let raw = claimed.content();
    assert_eq!((claimed.id(), raw.sender.as_str(), raw.recipient.as_str()), (id, "shop@example.org", "jo@example.net"));
    assert_eq!(raw.body_html, new.body_html);
    assert_eq!(raw.headers, serde_json::json!(new.headers));
    assert_eq!(raw.attachments, serde_json::json!(new.attachments));
    Content::parse(raw.clone()).expect("what the database takes can be parsed");
}

#[tokio::test]
async fn only_one_transaction_in_a_slot_of_ten_milliseconds_carries_a_notify() {
    let db = TestDb::new().await;
    let mut listener = sqlx::postgres::PgListener::connect_with(&db.pool).await.unwrap();
    listener.listen("outboxd").await.unwrap();
    let started = std::time::Instant::now();
    for _ in 0..200 {
        db.enqueue(&plain("acme")).await;
    }
    let slots = started.elapsed().as_millis() / 10 + 2;
    sqlx::query("select pg_notify('outboxd', 'end')").execute(&db.pool).await.unwrap();
    let mut hints = 0;
    while listener.recv().await.unwrap().payload() != "end" {
        hints += 1;
    }
    assert!(hints >= 1 && hints <= slots, "{hints} hints in {slots} slots");
}

#[tokio::test]
async fn at_repeatable_read_a_race_over_one_key_is_a_serialization_failure_and_not_a_second_notification() {
    let db = TestDb::new().await;
    let keyed = NewNotification { dedup_key: Some("order-1".to_owned()), ..plain("acme") };
    let mut second = db.pool.begin_with("begin isolation level repeatable read").await.unwrap();
    // Its snapshot is older than the first one's commit.
    sqlx::query("select 1").execute(&mut *second).await.unwrap();
    db.enqueue(&keyed).await;
    let refused = enqueue(&mut second, &keyed).await.unwrap_err();
    let EnqueueError::Database(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("40001"));
}
