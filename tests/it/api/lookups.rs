//! What support can see: an operation, a message, and how its notifications stand.

use outboxd::http::api::OPENAPI;
use serde_json::{Value, json};

use crate::harness::TestDb;
use crate::harness::api::{Api, Call, api_config, message};

#[tokio::test]
async fn an_operation_is_found_by_its_key_with_its_receipt() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let first =
        api.ask(&api.call("POST /v1/messages").header("Idempotency-Key", r#""order 17/\"a\"""#).json(&message())).await;
    assert_eq!(first.status, 201, "{first:?}");
    let known = api.ask(&api.call("GET /v1/operations/messages.create/order%2017%2F%22a%22")).await.json();
    assert_eq!(known["request_key"], r#"order 17/"a""#);
    assert_eq!((&known["state"], &known["response"]["status"]), (&json!("stored"), &json!(201)));
    assert_eq!(known["response"]["body"], first.json());
    assert!(known["fingerprint"].as_str().unwrap().starts_with("01"));
    assert!(known["retained_until"].as_str().unwrap() > known["created_at"].as_str().unwrap());
}

#[tokio::test]
async fn a_message_tells_how_its_notifications_stand() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let mut body = message();
    body["recipients"] = json!([{"address": "jo@example.net"}, {"address": "al@example.net"}]);
    let receipt = api.ask(&api.post("k1", &body)).await.json();
    let path = format!("GET /v1/messages/{}", receipt["message_id"].as_str().unwrap());
    let [first, second] = [0, 1].map(|at| receipt["notification_ids"][at].as_str().unwrap().to_owned());
    db.sql(&format!("update outboxd.delivery set state = 'failed', reason = 'expired', due_at = null, ready = false where notification_id = '{first}'"))
        .await
        .unwrap();
    let told = api.ask(&api.call(&path)).await.json();
    assert_eq!((&told["request_key"], &told["operation"]), (&json!("k1"), &json!("messages.create")));
    assert_eq!((&told["content"]["subject"], &told["content"]["priority"]), (&json!("Your order"), &json!(5)));
    let notifications = told["notifications"].as_array().unwrap();
    assert_eq!(notifications[0]["id"], json!(first));
    assert_eq!((&notifications[0]["state"], &notifications[0]["reason"]), (&json!("failed"), &json!("expired")));
    assert_eq!(
        (&notifications[1]["state"], &notifications[1]["recipient"]),
        (&json!("pending"), &json!("al@example.net"))
    );
    db.sql(&format!("delete from outboxd.delivery where notification_id = '{second}'; delete from outboxd.outbox where id = '{second}'"))
        .await
        .unwrap();
    let told = api.ask(&api.call(&path)).await.json();
    assert_eq!(told["notifications"][1], json!({"id": second, "state": "removed"}));
}

#[tokio::test]
async fn the_description_is_served_to_everyone_and_knows_every_route() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let served = Call::new("GET /v1/openapi.json").ask(api.addr).await.unwrap();
    assert_eq!((served.status, served.body.as_str()), (200, OPENAPI));
    let described: Value = served.json();
    for path in described["paths"].as_object().unwrap().keys() {
        let path = path.replace("{id}", "x").replace("{operation}", "x").replace("{key}", "x");
        assert_eq!(api.ask(&api.call(&format!("PATCH {path}"))).await.status, 405, "{path} is a route");
    }
}

#[tokio::test]
async fn an_issued_key_works_within_its_window_and_is_refused_after_it() {
    let db = TestDb::new().await;
    let config = api_config(&db)
        .set("api.issued_keys", "required")
        .set("api.key_secret", &"s".repeat(32))
        .set("api.key_window", "1h");
    let api = Api::with(&db, &config).await;
    let issued = api.ask(&api.call("POST /v1/keys")).await;
    assert_eq!((issued.status, issued.header("cache-control")), (201, Some("no-store")));
    let key = issued.json()["key"].as_str().unwrap().to_owned();
    assert!(issued.json()["expires_at"].is_string());
    let first = api.ask(&api.post(&key, &message())).await;
    assert_eq!((first.status, first.replayed()), (201, false), "{first:?}");
    assert!(api.ask(&api.post(&key, &message())).await.replayed());
    assert_eq!(api.ask(&api.post("own", &message())).await.problem(), "key_invalid", "only issued ones are taken");
    assert_eq!(
        api.ask(&api.post(&key.replace("ik1.0", "ik1.1"), &message())).await.problem(),
        "key_invalid",
        "nobody makes one"
    );
    let other = db.token("other", &outboxd::domain::token::Scope::ALL).await.1;
    let stolen = api
        .post(&key, &message())
        .without("authorization")
        .header("Authorization", &format!("Bearer {}", other.reveal()));
    assert_eq!(api.ask(&stolen).await.problem(), "key_invalid", "nor uses another account's");

    // The receipt is gone, as retention leaves it: an old key is not taken for a new operation.
    db.sql("delete from outboxd.receipt").await.unwrap();
    let short = config.set("api.key_window", "1ms");
    let late = Api::as_holder_of(api.token.clone(), &short).await;
    let answer = late.ask(&late.post(&key, &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (410, "key_expired"));
    assert_eq!(db.stored().await, (0, 1, 1), "no second message");
}
