//! The processes that serve the API: `outboxd api`, and `outboxd run`, which sends as well.

use outboxd::sandbox::guardian::free_port;

use crate::crashes::server;
use crate::harness::api::{Api, Call, api_config, message};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

#[tokio::test]
async fn run_serves_the_api_and_sends_what_it_stores() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let config = Config::new(&db)
        .set("api.listen", "127.0.0.1:0")
        .set("console.listen", "127.0.0.1:0")
        .provider("primary", server.addr());
    let token = db.token("acme", &outboxd::domain::token::Scope::ALL).await.1;
    let mut api = Api::running("run", token, &config).await;
    let line = api.proc.line_with("key=\"console.listen\"").await;
    let console = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let page = Call::new("GET /sign-in").ask(console).await.expect("the console answers too");
    assert_eq!(page.status, 200, "{page:?}");
    let receipt = api.ask(&api.post("k1", &message())).await.json();
    let path = format!("GET /v1/messages/{}", receipt["message_id"].as_str().unwrap());
    eventually("the message's notification is sent", PATIENCE, async || {
        let told = api.ask(&api.call(&path)).await.json();
        if told["notifications"][0]["state"] == "sent" { Ok(()) } else { Err(told) }
    })
    .await;
    assert_eq!(server.mailbox().count(), 1);
    api.proc.terminate();
    assert_eq!(api.proc.ended().await.code(), Some(0), "{}", api.proc.log());
}

#[tokio::test]
async fn a_drain_answers_what_is_under_way_and_takes_nothing_new() {
    let db = TestDb::new().await;
    let mut api = Api::start(&db).await;
    let mut lock = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.message in exclusive mode").execute(&mut *lock).await.unwrap();
    let (call, addr) = (api.post("k1", &message()), api.addr);
    let under_way = tokio::spawn(async move { call.ask(addr).await });
    db.until_something_waits_for_a_lock().await;
    api.proc.terminate();
    eventually("nobody listens any more", PATIENCE, async || match tokio::net::TcpStream::connect(api.addr).await {
        Ok(_) => Err("still listening"),
        Err(_) => Ok(()),
    })
    .await;
    lock.rollback().await.unwrap();
    assert_eq!(under_way.await.unwrap().expect("the answer of a drained request").status, 201);
    assert_eq!(api.proc.ended().await.code(), Some(0), "{}", api.proc.log());
    assert_eq!(db.stored().await, (1, 1, 1));
}

#[tokio::test]
async fn an_address_that_is_taken_ends_the_process_and_names_the_setting() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let sending =
        api_config(&db).set("mail.message_id_domain", "mail.example.org").set("provider.primary.host", "localhost");
    for (command, key) in
        [("api", "api.listen"), ("run", "api.listen"), ("console", "console.listen"), ("run", "console.listen")]
    {
        let mut second = Proc::start(&[command], &sending.clone().set(key, &api.addr.to_string()).text());
        assert_eq!(second.ended().await.code(), Some(1));
        assert!(second.log().contains(&format!("cannot listen on {key}")), "{}", second.log());
    }
}

#[tokio::test]
async fn an_api_needs_no_provider_and_a_run_does() {
    let db = TestDb::new().await;
    let mut run = Proc::start(&["run"], &api_config(&db).text());
    assert_eq!(run.ended().await.code(), Some(2), "{}", run.log());
    for key in ["mail.message_id_domain", "route.default"] {
        assert!(run.log().contains(key), "{}", run.log());
    }
    let half = api_config(&db).set("provider.primary.host", "localhost");
    let mut api = Proc::start(&["api"], &half.text());
    assert_eq!(api.ended().await.code(), Some(2), "what is there is checked");
    assert!(api.log().contains("mail.message_id_domain"), "{}", api.log());
}

#[tokio::test]
async fn the_api_is_ready_when_its_database_answers_and_says_so() {
    let db = TestDb::new().await;
    let port = free_port().unwrap();
    let ops = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let _api = Api::with(&db, &api_config(&db).set("ops.listen", &ops.to_string())).await;
    eventually("the API is ready", PATIENCE, async || {
        let answer = Call::new("GET /readyz").ask(ops).await;
        if answer.as_ref().is_some_and(|answer| answer.status == 200) { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn no_secret_address_or_content_is_logged() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &api_config(&db).set("log.level", "trace")).await;
    let mut wrong = message();
    wrong["recipients"][0]["address"] = "jo@example.net, al@example.net".into();
    for call in [
        api.post("k1", &message()),
        api.post("k1", &wrong),
        api.post("k2", &wrong),
        api.post("k3", &message()).body("{\"sender\": \"shop@example.org\""),
        api.call("GET /v1/operations/messages.create/k1"),
    ] {
        api.ask(&call).await;
    }
    let log = api.proc.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "the log is a loud one: {log}");
    for secret in [&api.token.reveal()[4..], "jo@example.net", "shop@example.org", "on its way", "Your order"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}
