//! What is refused is refused in the documented order, by a stable code, and leaves nothing behind.

use std::time::Duration;

use outboxd::domain::token::Scope;
use outboxd::store::tokens;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::TestDb;
use crate::harness::api::{Answer, Api, Call, api_config, message};

#[tokio::test]
async fn every_refusal_has_its_code_and_leaves_no_receipt() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &api_config(&db).set("api.body_max_bytes", "100000")).await;
    let ok = api.post("k1", &message());
    let mut invalid = message();
    invalid["recipients"][0]["address"] = json!("nobody");
    let long = "k".repeat(201);
    for (call, status, code) in [
        (ok.clone().without("authorization"), 401, "unauthenticated"),
        (ok.clone().without("authorization").header("Authorization", "Bearer obx_x"), 401, "unauthenticated"),
        (ok.clone().header("Authorization", "Bearer obx_x"), 401, "unauthenticated"),
        (ok.clone().without("authorization").header("Authorization", "Basic YTpi"), 401, "unauthenticated"),
        (ok.clone().without("idempotency-key"), 400, "key_missing"),
        (ok.clone().header("Idempotency-Key", "k2"), 400, "key_invalid"),
        (ok.clone().without("idempotency-key").header("Idempotency-Key", "a b"), 400, "key_invalid"),
        (ok.clone().without("idempotency-key").header("Idempotency-Key", &long), 400, "key_invalid"),
        (ok.clone().without("content-type"), 415, "unsupported_media_type"),
        (ok.clone().without("content-type").header("Content-Type", "text/plain"), 415, "unsupported_media_type"),
        (ok.clone().header("Content-Encoding", "gzip"), 415, "unsupported_media_type"),
        (ok.clone().body("{"), 400, "malformed"),
        (ok.clone().body(""), 400, "malformed"),
        (ok.clone().body(&" ".repeat(100_001)), 413, "too_large"),
        (api.post("k1", &invalid), 422, "invalid_content"),
        (api.post("k1", &json!({})), 422, "invalid_content"),
        (api.call("GET /v1/nothing"), 404, "not_found"),
        (api.call("GET /v1/messages/not-a-uuid"), 404, "not_found"),
        (api.call("GET /v1/operations/messages.create/k1"), 404, "not_found"),
        (api.call("GET /v1/operations/messages.create/%00"), 404, "not_found"),
        (api.call("GET /v1/operations/%00/k1"), 404, "not_found"),
        (api.call("GET /v1/operations/messages.create/%ff"), 404, "not_found"),
        (api.call("POST /v1/keys"), 404, "not_found"),
        (api.call("DELETE /v1/messages"), 405, "method_not_allowed"),
    ] {
        let answer = api.ask(&call).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, code), "{call:?}");
        if status == 405 {
            assert_eq!(answer.header("allow"), Some("POST"));
        }
    }
    assert_eq!(db.stored().await, (0, 0, 0));
    let answer = api.ask(&ok).await;
    assert_eq!((answer.status, answer.replayed()), (201, false), "the key is still free: {answer:?}");
}

#[tokio::test]
async fn a_wrong_field_is_named_with_the_remedy() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([{"address": "jo@example.net"}, {"address": "Al <al@example.net>"}]);
    let problem = api.ask(&api.post("k1", &body)).await.json();
    assert_eq!(problem["errors"][0]["field"], "recipients[1].address");
    assert!(problem["errors"][0]["detail"].as_str().unwrap().contains("store the name apart"));
    // Only the database's clock can tell this, after the reservation: that is undone, too.
    body["recipients"] = json!([]);
    body["recipients"] = json!([{"address": "jo@example.net"}]);
    body["expires_at"] = json!("2020-01-01T00:00:00Z");
    let answer = api.ask(&api.post("k1", &body)).await;
    assert_eq!(
        (answer.problem().as_str(), answer.json()["errors"][0]["field"].clone()),
        ("invalid_content", json!("expires_at"))
    );
    assert_eq!(db.stored().await, (0, 0, 0));
}

#[tokio::test]
async fn the_token_is_looked_at_first_and_the_body_last() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    // Headers only: whoever has no token is told so before a body is awaited.
    let mut stream = TcpStream::connect(api.addr).await.unwrap();
    let head = "POST /v1/messages HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.unwrap().problem(), "unauthenticated");

    let reader = db.token("acme", &[Scope::LookUp]).await.1;
    let bare = Call::new("POST /v1/messages").header("Authorization", &format!("Bearer {}", reader.reveal()));
    assert_eq!(bare.ask(api.addr).await.unwrap().problem(), "forbidden", "before the missing key");
    let no_key = api.call("POST /v1/messages").header("Content-Type", "text/plain").body("{");
    assert_eq!(api.ask(&no_key).await.problem(), "key_missing", "before the body");
}

#[tokio::test]
async fn a_token_does_only_what_its_scopes_say() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let first = api.ask(&api.post("k1", &message())).await.json();
    let id = first["message_id"].as_str().unwrap();
    let creator = Api { token: db.token("acme", &[Scope::CreateMessages]).await.1, ..api };
    let reader_token = db.token("acme", &[Scope::LookUp]).await.1;
    let as_reader = |line: &str| Call::new(line).header("Authorization", &format!("bearer {}", reader_token.reveal()));
    for line in [format!("GET /v1/messages/{id}"), "GET /v1/operations/messages.create/k1".to_owned()] {
        assert_eq!(creator.ask(&creator.call(&line)).await.status, 200, "its own operations");
        assert_eq!(creator.ask(&as_reader(&line)).await.status, 200);
    }
    assert_eq!(creator.ask(&creator.call("GET /v1/operations/orders.create/k1")).await.problem(), "forbidden");
    assert_eq!(creator.ask(&as_reader("GET /v1/operations/orders.create/k1")).await.problem(), "not_found");
    assert_eq!(creator.ask(&as_reader("POST /v1/messages")).await.problem(), "forbidden");
    assert_eq!(creator.ask(&as_reader("POST /v1/keys")).await.problem(), "forbidden");
}

#[tokio::test]
async fn a_revoked_or_expired_token_gets_no_replay() {
    let db = TestDb::new().await;
    let (id, token) = db.token("acme", &Scope::ALL).await;
    let api = Api::as_holder_of(token, &api_config(&db)).await;
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    assert!(tokens::revoke(&mut db.pool.acquire().await.unwrap(), id).await.unwrap());
    assert_eq!(api.ask(&api.post("k1", &message())).await.problem(), "unauthenticated");
    assert_eq!(api.ask(&api.call("GET /v1/operations/messages.create/k1")).await.problem(), "unauthenticated");
    db.sql("update outboxd.token set revoked_at = null, expires_at = now()").await.unwrap();
    assert_eq!(api.ask(&api.post("k1", &message())).await.problem(), "unauthenticated");
    db.sql("update outboxd.token set expires_at = now() + interval '1 hour'").await.unwrap();
    assert!(api.ask(&api.post("k1", &message())).await.replayed(), "the receipt was there all the time");
}

#[tokio::test]
async fn other_content_under_a_used_key_is_a_mismatch_and_changes_nothing() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let first = api.ask(&api.post("k1", &message())).await;
    let mut changed = message();
    changed["body_text"] = json!("It is on its way. ");
    let answer = api.ask(&api.post("k1", &changed)).await;
    assert_eq!((answer.status, answer.problem().as_str()), (422, "payload_mismatch"));
    assert_eq!(db.stored().await, (1, 1, 1));
    assert_eq!(api.ask(&api.post("k1", &message())).await.body, first.body);
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_another_one_with_its_key_is_told_so() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &api_config(&db).set("api.lock_timeout", "100ms")).await;
    let mut other = db.pool.begin().await.unwrap();
    sqlx::query("select outboxd.reserve('acme', 'messages.create', 'k1', '\\x01')").execute(&mut *other).await.unwrap();
    let answer = api.ask(&api.post("k1", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (409, "in_progress"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    other.rollback().await.unwrap();
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201, "the other one came to nothing");
}

#[tokio::test]
async fn a_lock_that_has_nothing_to_do_with_the_key_is_no_request_in_progress() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &api_config(&db).set("api.lock_timeout", "50ms")).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.receipt in exclusive mode").execute(&mut *lock).await.unwrap();
    let answer = api.ask(&api.post("k1", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "overloaded"));
    assert!(answer.header("retry-after").is_some());
    lock.rollback().await.unwrap();
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
}

#[tokio::test]
async fn a_receipt_without_an_answer_is_a_broken_invariant_and_said_so() {
    let db = TestDb::new().await;
    let mut api = Api::start(&db).await;
    // No transaction can commit one; a hand that turns the rules off can.
    let fingerprint = "select payload_hash from outboxd.receipt";
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    let hash: Vec<u8> = sqlx::query_scalar(fingerprint).fetch_one(&db.pool).await.unwrap();
    db.sql("begin; set local session_replication_role = replica; update outboxd.receipt set response_status = null, response_body = null; commit").await.unwrap();
    let answer = api.ask(&api.post("k1", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (500, "receipt_incomplete"));
    api.proc.line_with("a receipt has no answer").await;
    let kept: Vec<u8> = sqlx::query_scalar(fingerprint).fetch_one(&db.pool).await.unwrap();
    assert_eq!((kept, db.stored().await), (hash, (1, 1, 1)));
}

#[tokio::test]
async fn a_retry_of_what_was_accepted_gets_its_receipt_even_when_a_rule_has_changed() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["route"] = json!("bulk");
    let first = api.ask(&api.post("k1", &body)).await;
    assert_eq!(first.status, 201, "an API that knows no provider takes any route");
    let stricter =
        api_config(&db).set("mail.message_id_domain", "mail.example.org").set("provider.primary.host", "localhost");
    let stricter = Api::as_holder_of(api.token.clone(), &stricter).await;
    let replay = stricter.ask(&stricter.post("k1", &body)).await;
    assert_eq!((replay.status, &replay.body, replay.replayed()), (201, &first.body, true));
    assert_eq!(stricter.ask(&stricter.post("k2", &body)).await.problem(), "invalid_content", "but nothing new by it");
    body["subject"] = json!("Another");
    assert_eq!(stricter.ask(&stricter.post("k1", &body)).await.problem(), "payload_mismatch");
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn more_requests_than_allowed_are_told_to_come_back() {
    let db = TestDb::new().await;
    let config = api_config(&db).set("api.in_flight", "2").set("api.account_in_flight", "1");
    let api = Api::with(&db, &config).await;
    let other = db.token("other", &Scope::ALL).await.1;
    let as_other = |key: &str| {
        api.post(key, &message())
            .without("authorization")
            .header("Authorization", &format!("Bearer {}", other.reveal()))
    };
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let first = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    let answer = api.ask(&api.post("k2", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (429, "overloaded"), "the account's own share");
    let (call, addr) = (as_other("k1"), api.addr);
    let second = tokio::spawn(async move { call.ask(addr).await });
    db.until_waiting_for_locks(2).await;
    let answer = api.ask(&as_other("k2")).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "overloaded"), "all accounts' share");
    assert_eq!(answer.header("retry-after"), Some("1"));
    lock.rollback().await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().status, 201);
    assert_eq!(second.await.unwrap().unwrap().status, 201);
    assert_eq!(api.ask(&api.post("k2", &message())).await.status, 201, "the places are free again");
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_given_up() {
    let db = TestDb::new().await;
    let config = api_config(&db)
        .set("api.request_timeout", "300ms")
        .set("api.statement_timeout", "300ms")
        .set("api.lock_timeout", "300ms");
    let api = Api::with(&db, &config).await;
    let mut stream = TcpStream::connect(api.addr).await.unwrap();
    let bytes = api.post("k1", &message()).bytes();
    stream.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    let began = std::time::Instant::now();
    assert_eq!(Answer::read(&mut stream).await.unwrap().problem(), "request_timeout");
    assert!(began.elapsed() >= Duration::from_millis(200), "it was given its time");
    assert_eq!(db.stored().await, (0, 0, 0));
}

#[tokio::test]
async fn without_a_database_nothing_is_stored_and_nothing_else_is_claimed() {
    let db = TestDb::new().await;
    let proxy =
        outboxd::sandbox::proxy::Proxy::start(([127, 0, 0, 1], crate::harness::cluster().port()).into()).await.unwrap();
    let through =
        db.url.replace(&format!(":{}", crate::harness::cluster().port()), &format!(":{}", proxy.addr().port()));
    let api = Api::with(&db, &api_config(&db).set("database.url", &through)).await;
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);
    proxy.refuse().await;
    proxy.cut(outboxd::sandbox::proxy::Cut::Reset).await;
    let answer = api.ask(&api.post("k2", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
    proxy.accept().await.unwrap();
    assert_eq!(api.ask(&api.post("k2", &message())).await.status, 201);
    assert_eq!(db.stored().await, (2, 2, 2));
}
