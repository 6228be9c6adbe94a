//! Evidence over HTTP: from programs with a token, and from providers by their own signatures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outboxd::domain::ids::NotificationId;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::Next;
use outboxd::domain::token::Scope;
use outboxd::sandbox::smtp::{Action, Options, Rule, Script, SmtpServer, Stage};
use outboxd::store::settle::Settlement;
use ring::hmac;
use serde_json::{Value, json};

use crate::crashes::in_state;
use crate::harness::api::{Answer, Api, Call, api_config};
use crate::harness::rows::{LONG, holding, plain, verdict};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A notification that may have been accepted by `primary`, and is held.
async fn in_doubt(db: &TestDb) -> NotificationId {
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &holding()).await;
    let id = claimed.id();
    line.begin(&[(id, claimed.fence())]).await.unwrap();
    let doubt =
        Settlement::new(claimed, verdict(Outcome::Uncertain, Phase::EndOfData), Next::Doubt { resend_after: None });
    line.settle(&[doubt], 96 * LONG).await.unwrap();
    id
}

fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

/// A request as Resend signs it.
fn resend(id: &str, body: &Value) -> Call {
    let (at, body) = (now(), body.to_string());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(&SECRET[6..]).unwrap());
    let tag = STANDARD.encode(hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes()));
    Call::new("POST /v1/events/primary")
        .header("svix-id", id)
        .header("svix-timestamp", &at.to_string())
        .header("svix-signature", &format!("v1,{tag}"))
        .header("Content-Type", "application/json")
        .body(&body)
}

fn event(kind: &str, id: NotificationId) -> Value {
    json!({ "type": kind, "created_at": "2026-11-22T23:41:12.126Z", "data": {
        "email_id": "56761188-7520-42d8-8898-ff6fc54ce618", "from": "Acme <onboarding@resend.dev>", "to": ["delivered@resend.dev"],
        "subject": "Sending this example", "tags": { "outboxd_id": id } } })
}

fn with_events(db: &TestDb) -> Config {
    api_config(db)
        .set("events.primary.kind", "resend")
        .set("events.primary.provider", "primary")
        .set("events.primary.key", SECRET)
        .set("events.pm.kind", "postmark")
        .set("events.pm.provider", "primary")
        .set("events.pm.username", "outboxd")
        .set("events.pm.password", "secret")
}

fn counts(answer: &Answer) -> [i64; 5] {
    assert_eq!(answer.status, 200, "{answer:?}");
    ["events", "recorded", "known", "unknown", "without_id"].map(|key| answer.json()[key].as_i64().unwrap())
}

async fn evidence(db: &TestDb) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.evidence").fetch_one(&db.pool).await.unwrap()
}

#[tokio::test]
async fn a_providers_event_settles_what_is_in_doubt_however_often_it_comes() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &with_events(&db)).await;
    let id = in_doubt(&db).await;
    let delivered = resend("msg_1", &event("email.delivered", id));
    assert_eq!(counts(&api.ask(&delivered).await), [1, 1, 0, 0, 0]);
    assert_eq!(db.state(id).await, "sent");
    assert_eq!(counts(&api.ask(&delivered).await), [1, 0, 1, 0, 0]);
    let story = db.story(id).await;
    assert_eq!(story.evidence.len(), 1);
    let piece = &story.evidence[0];
    assert_eq!(
        (piece.kind.as_str(), piece.proves.as_str(), piece.source.as_str(), piece.reference.as_str()),
        ("provider_event", "delivered", "events primary", "msg_1")
    );
    assert_eq!(piece.detail, json!({ "event": "email.delivered", "words": "" }));
    // Later it comes back: that is evidence, too.
    assert_eq!(counts(&api.ask(&resend("msg_2", &event("email.bounced", id))).await), [1, 1, 0, 0, 0]);
    let story = db.story(id).await;
    assert_eq!(story.notification.state, "bounced");
    // Of mail of others, and without an id.
    let other = event("email.sent", "01a230e5-9f38-7878-abaa-63e052288578".parse().unwrap());
    assert_eq!(counts(&api.ask(&resend("msg_3", &other)).await), [1, 0, 0, 1, 0]);
    assert_eq!(counts(&api.ask(&resend("msg_4", &json!({ "type": "email.sent" }))).await), [1, 0, 0, 0, 1]);
    assert!(!api.proc.log().contains("delivered@resend.dev"));
}

#[tokio::test]
async fn what_nobody_has_signed_changes_nothing() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &with_events(&db)).await;
    let id = in_doubt(&db).await;
    let good = resend("msg_1", &event("email.delivered", id));
    let body = event("email.delivered", id).to_string();
    let forged = [
        good.clone().without("svix-signature"),
        good.clone().without("svix-signature").header("svix-signature", "v1,AAAA"),
        good.clone().without("svix-timestamp").header("svix-timestamp", &(now() - 7_200).to_string()),
        good.clone().body(&body.replace("delivered", "bounced")),
        Call::new("POST /v1/events/pm").json(&event("email.delivered", id)),
        Call::new("POST /v1/events/pm").header("Authorization", "Basic b3V0Ym94ZDp3cm9uZw==").json(&json!({})),
        // A token of the API is no signature.
        api.call("POST /v1/events/primary").json(&event("email.delivered", id)),
    ];
    for call in forged {
        let answer = api.ask(&call).await;
        assert_eq!((answer.status, answer.problem().as_str()), (403, "not_genuine"), "{call:?}");
    }
    assert_eq!(api.ask(&Call::new("POST /v1/events/nobody").json(&json!({}))).await.problem(), "not_found");
    let genuine = Call::new("POST /v1/events/pm").header("Authorization", "Basic b3V0Ym94ZDpzZWNyZXQ=").body("{");
    assert_eq!(api.ask(&genuine).await.problem(), "malformed");
    assert_eq!((evidence(&db).await, db.state(id).await.as_str()), (0, "uncertain"));
    assert!(!api.proc.log().contains(SECRET) && !api.proc.log().contains("b3V0"));
}

#[tokio::test]
async fn a_provider_is_told_to_come_again_when_the_database_is_away() {
    let db = TestDb::new().await;
    let api = Api::with(&db, &with_events(&db)).await;
    let id = in_doubt(&db).await;
    let call = resend("msg_1", &event("email.delivered", id));
    let mut holder = db.pool.begin().await.unwrap();
    sqlx::query("lock table outboxd.evidence in access exclusive mode").execute(&mut *holder).await.unwrap();
    let answer = api.ask(&call).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
    assert!(answer.header("retry-after").is_some());
    holder.rollback().await.unwrap();
    assert_eq!(counts(&api.ask(&call).await), [1, 1, 0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_of_the_provider_brings_the_id_back() {
    let db = TestDb::new().await;
    let lost = Rule::at(Stage::EndOfData, Action::Close.after_accepting()).once();
    let server = SmtpServer::start(Options { script: Script::new([lost]), ..Options::default() }).await.unwrap();
    let config = Config::new(&db)
        .set("api.listen", "127.0.0.1:0")
        .set("provider.primary.headers.X-PM-Metadata-outboxd_id", "{id}")
        .set("provider.primary.headers.X-SMTPAPI", "{\"unique_args\": {\"outboxd_id\": \"{id}\"}}")
        .set("provider.primary.bounce_address", "bounce+{id}@bounces.example.org")
        .set("events.pm.kind", "postmark")
        .set("events.pm.provider", "primary")
        .set("events.pm.username", "outboxd")
        .set("events.pm.password", "secret")
        .provider("primary", server.addr());
    let _worker = Proc::start(&["worker"], &config.text());
    let id = db.enqueue(&plain("acme")).await;
    in_state(&db, id, "uncertain").await;
    let received = server.mailbox().of(&id.to_string()).remove(0);
    assert_eq!(received.sender, format!("bounce+{id}@bounces.example.org"));
    assert_eq!(received.header("X-SMTPAPI").unwrap(), format!("{{\"unique_args\": {{\"outboxd_id\": \"{id}\"}}}}"));
    let metadata = received.header("X-PM-Metadata-outboxd_id").unwrap();
    let api = Api::with(&db, &config).await;
    let call = Call::new("POST /v1/events/pm").header("Authorization", "Basic b3V0Ym94ZDpzZWNyZXQ=").json(&json!({
        "RecordType": "Delivery", "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483", "Recipient": "john@example.com",
        "DeliveredAt": "2026-11-30T13:28:10.2735393-04:00", "Details": "250 ok", "Metadata": { "outboxd_id": metadata },
    }));
    assert_eq!(counts(&api.ask(&call).await), [1, 1, 0, 0, 0]);
    eventually("it is sent", PATIENCE, async || match db.state(id).await {
        state if state == "sent" => Ok(()),
        state => Err(state),
    })
    .await;
}

#[tokio::test]
async fn a_program_with_a_token_records_evidence_about_its_own_account() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let id = in_doubt(&db).await;
    let body = json!({
        "notification_id": id, "provider": "primary", "proves": "accepted", "source": "provider console", "reference": "4F1",
        "happened_at": "2026-11-30T10:00:00Z", "detail": { "ticket": 7 },
    });
    let post = |body: &Value| api.call("POST /v1/evidence").json(body);
    let answer = api.ask(&post(&body)).await;
    assert_eq!(
        (answer.status, answer.json()),
        (201, json!({ "recorded": true, "state": "sent", "contradiction": false }))
    );
    let again = api.ask(&post(&body)).await;
    assert_eq!(
        (again.status, again.json()),
        (200, json!({ "recorded": false, "state": "sent", "contradiction": false }))
    );
    let story = db.story(id).await;
    assert_eq!((story.evidence.len(), story.evidence[0].recorded_by.as_str()), (1, "token test of acme"));
    let guessed = json!({ "notification_id": id, "proves": "not_accepted", "source": "another" });
    let refused = api.ask(&post(&guessed)).await;
    assert_eq!(
        (refused.problem().as_str(), &refused.json()["errors"][0]["field"]),
        ("invalid_content", &"attempt".into())
    );
    let against = json!({ "notification_id": id, "attempt": 1, "proves": "not_accepted", "source": "another" });
    assert_eq!(api.ask(&post(&against)).await.json()["contradiction"], true);

    // Nobody else's, and not without the scope.
    let (_, token) = db.token("other", &Scope::ALL).await;
    let other =
        Call::new("POST /v1/evidence").header("Authorization", &format!("Bearer {}", token.reveal())).json(&body);
    assert_eq!(api.ask(&other).await.problem(), "not_found");
    let (_, token) = db.token("acme", &[Scope::CreateMessages, Scope::LookUp]).await;
    let powerless =
        Call::new("POST /v1/evidence").header("Authorization", &format!("Bearer {}", token.reveal())).json(&body);
    assert_eq!(api.ask(&powerless).await.problem(), "forbidden");
    assert_eq!(evidence(&db).await, 2);
}

#[tokio::test]
async fn evidence_that_is_wrong_is_refused_with_its_field() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let id = in_doubt(&db).await;
    let good = json!({ "notification_id": id, "proves": "accepted", "source": "s" });
    for (field, wrong) in [
        ("proves", json!({ "proves": "maybe" })),
        ("source", json!({ "source": "" })),
        ("source", json!({ "source": "a\u{0}" })),
        ("reference", json!({ "reference": "x".repeat(201) })),
        ("provider", json!({ "provider": "" })),
        ("notification_id", json!({ "notification_id": "7" })),
        ("attempt", json!({ "attempt": 2 })),
        ("attempt", json!({ "attempt": 3_000_000_000_u64 })),
        ("detail", json!({ "detail": { "a": "x".repeat(9_000) } })),
        ("detail", json!({ "detail": { "a\u{0}": 1 } })),
        ("detail", json!({ "detail": [] })),
        ("happened_at", json!({ "happened_at": "yesterday" })),
        ("happened_at", json!({ "happened_at": "0001-01-01T00:00:00Z" })),
        ("for_good", json!({ "for_good": true })),
        ("colour", json!({ "colour": "red" })),
    ] {
        let mut body = good.clone();
        body.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        let answer = api.ask(&api.call("POST /v1/evidence").json(&body)).await;
        assert_eq!((answer.status, answer.problem().as_str()), (422, "invalid_content"), "{body}");
        assert_eq!(answer.json()["errors"][0]["field"], field, "{answer:?}");
    }
    assert_eq!(evidence(&db).await, 0);
}
