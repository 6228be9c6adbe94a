//! Tokens at the command line: shown once, listed without themselves, revoked for ever.

use outboxd::domain::token::Token;

use crate::harness::api::{Api, api_config, message};
use crate::harness::{Proc, TestDb};

async fn run(db: &TestDb, args: &[&str]) -> (Option<i32>, String) {
    let mut proc = Proc::start(&[&["token"], args].concat(), &api_config(db).text());
    let code = proc.ended().await.code();
    (code, proc.log())
}

#[tokio::test]
async fn a_token_is_made_used_listed_and_revoked() {
    let db = TestDb::new().await;
    let (code, printed) = run(
        &db,
        &["create", "--account", "acme", "--scope", "messages.create", "--label", "shop", "--expires-in", "1d"],
    )
    .await;
    assert_eq!(code, Some(0), "{printed}");
    let token = Token::parse(printed.trim()).expect("the token alone is printed");
    let api = Api::as_holder_of(token.clone(), &api_config(&db)).await;
    assert_eq!(api.ask(&api.post("k1", &message())).await.status, 201);

    let (_, list) = run(&db, &["list", "--account", "acme"]).await;
    assert!(list.contains("shop") && list.contains("messages.create") && !list.contains(token.reveal()), "{list}");
    let (_, json) = run(&db, &["list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let stored: i64 = sqlx::query_scalar("select count(*) from outboxd.token t where t::text like '%' || $1 || '%'")
        .bind(&token.reveal()[4..])
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(stored, 0, "the database does not know the token itself");

    let id = listed[0]["id"].as_str().unwrap();
    assert_eq!(run(&db, &["revoke", id]).await.0, Some(0));
    assert_eq!(api.ask(&api.post("k1", &message())).await.problem(), "unauthenticated");
    let again = run(&db, &["revoke", id]).await;
    assert_eq!(again.0, Some(0), "revoked stays revoked: {}", again.1);
    assert_eq!(run(&db, &["revoke", "01a230e5-9f38-7878-abaa-63e052288578"]).await.0, Some(3));
}

#[tokio::test]
async fn what_no_token_can_have_is_refused_and_named() {
    let db = TestDb::new().await;
    let long = "x".repeat(201);
    for (args, word) in [
        (vec!["create", "--account", "acme"], "--scope"),
        (vec!["create", "--account", "acme", "--scope", "admin"], "is not a scope"),
        (vec!["create", "--account", "", "--scope", "look_up"], "--account"),
        (vec!["create", "--account", &long, "--scope", "look_up"], "--account"),
        (vec!["create", "--account", "a", "--scope", "look_up", "--expires-in", "0s"], "--expires-in"),
        (vec!["create", "--account", "a", "--scope", "look_up", "--expires-in", "soon"], "--expires-in"),
        (vec!["create", "--account", "a", "--scope", "look_up", "--label", &long], "--label"),
        (vec!["revoke", "x"], "ID"),
    ] {
        let (code, said) = run(&db, &args).await;
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let tokens: i64 = sqlx::query_scalar("select count(*) from outboxd.token").fetch_one(&db.pool).await.unwrap();
    assert_eq!(tokens, 0);
}
