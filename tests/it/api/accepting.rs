//! What is accepted is stored once, as one whole, and answered the same for ever.

use outboxd::domain::token::Scope;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::TestDb;
use crate::harness::api::{Api, api_config, message};

#[tokio::test]
async fn a_message_its_receipt_and_its_notifications_are_stored_together() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([{"address": "jo@example.net", "name": "Jo"}, {"address": "al@example.net"}]);
    let answer = api.ask(&api.post("k1", &body)).await;
    assert_eq!((answer.status, answer.replayed()), (201, false), "{answer:?}");
    let receipt = answer.json();
    let id = receipt["message_id"].as_str().unwrap();
    assert_eq!(answer.header("location"), Some(format!("/v1/messages/{id}").as_str()));
    assert_eq!(
        (receipt["code"].as_str(), receipt["notification_ids"].as_array().unwrap().len()),
        (Some("accepted"), 2)
    );
    assert_eq!(db.stored().await, (1, 1, 2));

    let rows: Vec<(Uuid, String, Option<String>, String, String)> = sqlx::query_as(
        "select o.id, o.recipient, o.recipient_name, o.message_ref, d.state from outboxd.outbox o
         join outboxd.delivery d on d.notification_id = o.id where o.account_id = 'acme' order by o.id",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let expected = [("jo@example.net", Some("Jo")), ("al@example.net", None)];
    for ((row, expected), told) in rows.iter().zip(expected).zip(receipt["notification_ids"].as_array().unwrap()) {
        assert_eq!((row.1.as_str(), row.2.as_deref()), expected);
        assert_eq!(
            (told.as_str().unwrap(), id, "pending"),
            (row.0.to_string().as_str(), row.3.as_str(), row.4.as_str())
        );
    }
    let stored: (String, i16, Vec<u8>) = sqlx::query_as(
        "select response_body, response_status, payload_hash from outboxd.receipt
         where account_id = 'acme' and operation = 'messages.create' and request_key = 'k1'",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!((stored.0.as_str(), stored.1, stored.2[0], stored.2.len()), (answer.body.as_str(), 201, 1, 33));
}

#[tokio::test]
async fn a_retry_gets_the_same_receipt_byte_for_byte_and_stores_nothing() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let first = api.ask(&api.post("k1", &message())).await;
    // Another spelling of the same content, and of the same key.
    let spelled = message().to_string().replace("\"subject\"", " \"priority\":5,\n\"route\":null,  \"subject\"");
    let again = api
        .call("POST /v1/messages")
        .header("idempotency-key", "k1")
        .header("Content-Type", "application/json; charset=utf-8");
    for call in [api.post("k1", &message()), again.body(&spelled)] {
        let replay = api.ask(&call).await;
        assert_eq!((replay.status, &replay.body, replay.replayed()), (201, &first.body, true));
        assert_eq!(replay.header("location"), first.header("location"));
    }
    assert_eq!(db.stored().await, (1, 1, 1));
    let restarted = Api::as_holder_of(api.token.clone(), &api_config(&db)).await;
    assert_eq!(
        restarted.ask(&restarted.post("k1", &message())).await.body,
        first.body,
        "another process knows it, too"
    );
}

#[tokio::test]
async fn a_message_for_nobody_is_stored_without_notifications() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([]);
    let answer = api.ask(&api.post("k1", &body)).await;
    assert_eq!((answer.status, answer.json()["notification_ids"].clone()), (201, json!([])));
    assert_eq!(db.stored().await, (1, 1, 0));
}

#[tokio::test]
async fn every_field_reaches_the_outbox_as_it_was_given() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let body = json!({
        "sender": "shop@example.org", "sender_name": "Shop", "recipients": [{"address": "jo@example.net", "name": "Jo \u{1f600}"}],
        "subject": "S", "body_text": "a\tb\r\n\u{2028}\"\\", "body_html": "<p>x</p>", "reply_to": "help@example.org",
        "headers": [["X-B", "2"], ["X-A", "1"]],
        "attachments": [{"filename": "a.txt", "content_type": "text/plain", "content": "aGVs\nbG8"}],
        "list_unsubscribe": "https://example.org/u", "list_unsubscribe_post": true, "priority": 2,
        "not_before": "2026-12-01T00:00:00+02:00", "expires_at": "2099-01-01T00:00:00Z",
    });
    let answer = api.ask(&api.post("k1", &body)).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let row: Value = sqlx::query_scalar(
        "select to_jsonb(o) || jsonb_build_object('priority', d.priority, 'expires_at', d.expires_at at time zone 'utc', 'route', d.route)
         from outboxd.outbox o join outboxd.delivery d on d.notification_id = o.id",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    for field in [
        "sender",
        "sender_name",
        "subject",
        "body_text",
        "body_html",
        "reply_to",
        "headers",
        "list_unsubscribe",
        "list_unsubscribe_post",
        "priority",
    ] {
        assert_eq!(row[field], body[field], "{field}");
    }
    assert_eq!(row["recipient_name"], "Jo \u{1f600}");
    assert_eq!(row["attachments"][0]["content"], "aGVsbG8=");
    assert_eq!((row["route"].as_str(), row["expires_at"].as_str()), (Some("default"), Some("2099-01-01T00:00:00")));
}

#[tokio::test]
async fn a_key_of_one_account_is_invisible_to_another() {
    let db = TestDb::new().await;
    let acme = Api::start(&db).await;
    let other = Api::as_holder_of(db.token("other", &Scope::ALL).await.1, &api_config(&db)).await;
    let first = acme.ask(&acme.post("k1", &message())).await;
    let mut changed = message();
    changed["subject"] = json!("Another");
    let second = other.ask(&other.post("k1", &changed)).await;
    assert_eq!((second.status, second.replayed()), (201, false), "{second:?}");
    assert_ne!(first.json()["message_id"], second.json()["message_id"]);
    let id = first.json()["message_id"].as_str().unwrap().to_owned();
    assert_eq!(other.ask(&other.call(&format!("GET /v1/messages/{id}"))).await.problem(), "not_found");
    let seen = other.ask(&other.call("GET /v1/operations/messages.create/k1")).await.json();
    assert_eq!(seen["response"]["body"]["message_id"], second.json()["message_id"], "its own, not the other's");
    assert_eq!(db.stored().await, (2, 2, 2));
}

#[tokio::test]
async fn a_caller_that_leaves_at_once_does_not_stop_what_it_asked_for() {
    use tokio::io::AsyncWriteExt as _;

    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut stream = tokio::net::TcpStream::connect(api.addr).await.unwrap();
    // Its statement waits for this lock, while the caller leaves.
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    stream.write_all(&api.post("k1", &message()).bytes()).await.unwrap();
    db.until_something_waits_for_a_lock().await;
    drop(stream);
    lock.rollback().await.unwrap();
    crate::harness::eventually("the message is stored", crate::harness::PATIENCE, async || {
        let stored = db.stored().await;
        if stored == (1, 1, 1) { Ok(()) } else { Err(stored) }
    })
    .await;
    let retry = api.ask(&api.post("k1", &message())).await;
    assert_eq!((retry.status, retry.replayed()), (201, true));
}
