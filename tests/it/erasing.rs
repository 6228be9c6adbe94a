//! A privacy request: one account's content goes, and what is needed to refuse a reused key stays.

use outboxd::domain::token::Scope;
use outboxd::store::enqueue::EnqueueError;
use serde_json::Value;

use crate::crashes::{in_state, server};
use crate::harness::api::{Api, api_config, message};
use crate::harness::rows::plain;
use crate::harness::{Config, Proc, TestDb};

async fn erase(db: &TestDb, account: &str) -> (Option<i32>, Value) {
    let mut command = Proc::start(&["erase", "--account", account, "--yes", "--json"], &api_config(db).text());
    let code = command.ended().await.code();
    (code, serde_json::from_str(&command.log()).unwrap_or_else(|_| panic!("{}", command.log())))
}

/// Everything that the database holds, as text.
async fn all_text(db: &TestDb) -> String {
    let mut text = String::new();
    for table in ["outbox", "delivery", "attempt", "evidence", "receipt", "message"] {
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select t::text from outboxd.{table} t")))
                .fetch_all(&db.pool)
                .await
                .unwrap();
        text.push_str(&rows.join("\n"));
    }
    text
}

#[tokio::test]
async fn the_content_of_one_account_goes_and_its_keys_stay_taken() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let other = Api::as_holder_of(db.token("other", &Scope::ALL).await.1, &api_config(&db)).await;
    let first = api.ask(&api.post("k1", &message())).await.json();
    let kept = other.ask(&other.post("k1", &message())).await;
    let mut new = plain("acme");
    new.dedup_key = Some("order-17".to_owned());
    let id = db.enqueue(&new).await;

    let (code, counts) = erase(&db, "acme").await;
    assert_eq!(code, Some(0));
    assert_eq!(
        counts,
        serde_json::json!({"cancelled": 2, "notifications": 2, "messages": 1, "receipts": 1, "under_way": 0})
    );
    let answer = api.ask(&api.post("k1", &message())).await;
    assert_eq!((answer.status, answer.problem().as_str()), (410, "erased"));
    let known = api.ask(&api.call("GET /v1/operations/messages.create/k1")).await.json();
    assert_eq!(
        (&known["state"], &known["fingerprint"], &known["response"]["body"]),
        (&"erased".into(), &Value::Null, &Value::Null)
    );
    let told = api.ask(&api.call(&format!("GET /v1/messages/{}", first["message_id"].as_str().unwrap()))).await.json();
    assert_eq!((&told["content"], &told["notifications"][0]["state"]), (&Value::Null, &"cancelled".into()));
    assert!(told["erased_at"].is_string());
    let reused = outboxd::enqueue(&mut db.pool.acquire().await.unwrap(), &new).await.unwrap_err();
    assert!(matches!(reused, EnqueueError::KeyReused { .. }), "{reused}");
    assert_eq!(db.state(id).await, "cancelled");

    let replay = other.ask(&other.post("k1", &message())).await;
    assert_eq!((&replay.body, replay.replayed()), (&kept.body, true), "another account is not touched");
    db.sql("delete from outboxd.message where account_id = 'other'; delete from outboxd.delivery where account_id = 'other';
            delete from outboxd.outbox where account_id = 'other'").await.unwrap();
    let text = all_text(&db).await;
    for personal in ["jo@example.net", "shop@example.org", "Your order", "on its way"] {
        assert!(!text.contains(personal), "{personal} is still there:\n{text}");
    }
    let (code, again) = erase(&db, "acme").await;
    assert_eq!(
        (code, again),
        (
            Some(0),
            serde_json::json!({"cancelled": 0, "notifications": 0, "messages": 0, "receipts": 0, "under_way": 0})
        )
    );
}

#[tokio::test]
async fn what_is_under_way_is_left_and_said_and_goes_the_next_time() {
    let db = TestDb::new().await;
    let mut line = db.line();
    let claim = crate::harness::rows::claim();
    let claimed = db.claimed(&mut line, &claim).await;
    let (code, counts) = erase(&db, "acme").await;
    assert_eq!((code, &counts["under_way"], &counts["notifications"]), (Some(3), &1.into(), &0.into()));
    assert!(all_text(&db).await.contains("jo@example.net"));
    db.age(claimed.id(), "2 hours").await;
    line.sweep_leases(10, std::time::Duration::ZERO).await.unwrap();
    let (code, counts) = erase(&db, "acme").await;
    assert_eq!((code, &counts["cancelled"]), (Some(0), &1.into()));
    assert!(!all_text(&db).await.contains("jo@example.net"));
}

#[tokio::test]
async fn what_is_erased_is_never_sent_again_whatever_a_person_decides() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let id = db.enqueue(&plain("acme")).await;
    let config = Config::new(&db).provider("primary", server.addr());
    let _worker = Proc::start(&["worker"], &config.text());
    in_state(&db, id, "sent").await;
    assert_eq!(erase(&db, "acme").await.0, Some(0));
    let mut resend = Proc::start(
        &["resolve", &id.to_string(), "--resend", "--duplicate", "--reason", "try", "--as", "me"],
        &api_config(&db).text(),
    );
    assert_eq!(resend.ended().await.code(), Some(3), "{}", resend.log());
    // Nor by hand: there is nothing to make a message of.
    db.sql(&format!(
        "update outboxd.delivery set state = 'pending', due_at = now(), ready = true where notification_id = '{id}'"
    ))
    .await
    .unwrap();
    in_state(&db, id, "failed").await;
    assert_eq!(server.mailbox().count(), 1);
}
