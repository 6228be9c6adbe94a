//! What a hostile stranger, a curious viewer, a hasty colleague and a bad word in a form cannot do.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::harness::api::Call;

impl Desk {
    async fn get(&self, path: &str, cookie: &str) -> Answer {
        self.ask(Call::new(&format!("GET {path}")).header("Cookie", cookie)).await
    }

    async fn post(&self, path: &str, cookie: &str, form: &str) -> Answer {
        self.ask(posted(path, form).header("Cookie", cookie)).await
    }
}

/// The fields of a preview's form, as a browser would send them.
fn previewed(page: &str, csrf: &str, action: &str) -> String {
    let ids = page.split("name=\"id\" value=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let ids: String = ids.map(|id| format!("&id={id}")).collect();
    format!("csrf={csrf}&action={action}&reason=seen{ids}")
}

#[tokio::test]
async fn a_form_that_never_comes_is_given_up_and_one_that_is_too_long_refused() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let mut stream = TcpStream::connect(desk.addr).await.unwrap();
    stream.write_all(b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nn").await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    let long = format!("name={}", "x".repeat(300_000));
    assert_eq!(desk.ask(posted("/sign-in", &long)).await.status, 413);
    let name = format!("name={}&token=x", "x".repeat(201));
    for _ in 0..7 {
        assert_eq!(
            desk.ask(posted("/sign-in", &name)).await.status,
            403,
            "such a name is nobody's, and not remembered"
        );
    }
}

#[tokio::test]
async fn many_who_guess_hold_no_connection_to_the_database() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let (viewer, _) = desk.signed_in(Role::Viewer).await;
    let guesses = (0..40).map(|n| {
        let addr = desk.addr;
        tokio::spawn(
            async move { posted("/sign-in", &format!("name=operator{n}&token=x")).ask(addr).await.unwrap().status },
        )
    });
    for guess in guesses.collect::<Vec<_>>() {
        assert_eq!(guess.await.unwrap(), 403);
    }
    assert_eq!(desk.get("/pauses", &viewer).await.status, 200);
}

#[tokio::test]
async fn no_page_takes_more_connections_than_the_console_has() {
    let db = TestDb::new().await;
    failed(&db).await;
    let desk = Desk::open(&db).await;
    let (operator, csrf) = desk.signed_in(Role::Operator).await;
    let planned = desk.post("/replays", &operator, &format!("csrf={csrf}&reason=x")).await;
    let path = planned.header("location").unwrap().to_owned();
    let pages = (0..40).map(|_| {
        let (addr, call) = (desk.addr, Call::new(&format!("GET {path}")).header("Cookie", &operator));
        tokio::spawn(async move { call.ask(addr).await.unwrap().status })
    });
    let pages: Vec<_> = pages.collect();
    for page in pages {
        assert_eq!(page.await.unwrap(), 200);
    }
    let connections: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'outboxd'",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert!(connections <= 4, "{connections}");
}

#[tokio::test]
async fn one_row_that_is_locked_holds_up_no_other_and_nothing_is_said_of_what_is_not_known() {
    let db = TestDb::new().await;
    let desk = Desk::with(&db, &Config::new(&db).set("database.lock_timeout", "200ms")).await;
    let ids = [in_doubt(&db).await, in_doubt(&db).await, in_doubt(&db).await];
    let (operator, csrf) = desk.signed_in(Role::Operator).await;
    let mut tx = db.pool.begin().await.unwrap();
    sqlx::query("select from outboxd.delivery where notification_id = $1 for update")
        .bind(ids[1].0)
        .execute(&mut *tx)
        .await
        .unwrap();
    let form = format!("csrf={csrf}&action=sent&reason=seen&id={}&id={}&id={}", ids[0], ids[1], ids[2]);
    let preview = desk.post("/decide/preview", &operator, &form).await;
    assert!(preview.status == 200 && preview.body.contains("2 of 3"), "{preview:?}");
    let decided = desk.post("/decide", &operator, &form).await;
    assert!(decided.body.contains("2 of 3 decided and on record"), "{decided:?}");
    assert!(decided.body.contains("Of 1 nothing is known") && decided.body.contains("or locked"), "{decided:?}");
    tx.rollback().await.unwrap();
    let states = [db.state(ids[0]).await, db.state(ids[1]).await, db.state(ids[2]).await];
    assert_eq!(states, ["sent", "uncertain", "sent"]);
}

#[tokio::test]
async fn what_a_colleague_has_decided_since_the_preview_is_not_overridden() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let id = in_doubt(&db).await;
    let (operator, csrf) = desk.signed_in(Role::Operator).await;
    let (admin, admins) = desk.signed_in(Role::Admin).await;
    let form = format!("csrf={csrf}&action=resend&reason=seen&id={id}");
    let preview = desk.post("/decide/preview", &operator, &form).await;
    assert!(preview.body.contains(&format!("value=\"{id}:uncertain:1\"")), "{preview:?}");
    let theirs = format!("csrf={admins}&action=give-up&reason=known&id={id}");
    assert!(desk.post("/decide", &admin, &theirs).await.body.contains("1 of 1 decided"));
    let decided = desk.post("/decide", &operator, &previewed(&preview.body, &csrf, "resend")).await;
    assert!(
        decided.body.contains("0 of 1 decided") && decided.body.contains("not as it was in the preview"),
        "{decided:?}"
    );
    assert_eq!(db.state(id).await, "failed");
}

#[tokio::test]
async fn a_viewer_is_told_no_address_on_any_page() {
    const SECRETS: [&str; 6] = ["jo@", "jo smith", "joanna", "Your order", "welcome:", "%40example"];
    let db = TestDb::new().await;
    let new = NewNotification {
        recipient: "joanna@example.net".to_owned(),
        subject: "Your order".to_owned(),
        dedup_key: Some("welcome-jo@example.net".to_owned()),
        ..plain("acme")
    };
    let id = db.enqueue(&new).await;
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &holding()).await;
    let mut refused = verdict(Outcome::Refused, Phase::Rcpt);
    refused.error = Some("No such user joanna here; ask \"jo smith\"@example.net or jo=40example.net".to_owned());
    line.settle(&[Settlement::new(claimed, refused, Next::Fail(FailReason::Refused))], 96 * LONG).await.unwrap();
    let detail = "{\"subject\": \"Your order\", \"to\": \"Jo Smith <jo@example.net>\"}";
    db.sql(&format!(
        "insert into outboxd.evidence (notification_id, attempt_number, kind, proves, source, reference, detail, recorded_by)
         values ('{id}', 1, 'provider_event', 'inconclusive', 'jo@example.net', 'jo@example.net', '{detail}', 'jo@example.net')"
    ))
    .await
    .unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    let decider = outboxd::store::decide::Decider { who: "ada", reason: "jo@example.net complained" };
    let all = outboxd::store::decide::Pausable::All;
    outboxd::store::decide::pause(&mut conn, &all, &decider).await.unwrap();
    let filter = outboxd::store::search::Filter::default();
    let replay = outboxd::store::replay::plan(&mut conn, &filter, false, &decider).await.unwrap();
    let desk = Desk::open(&db).await;
    let (viewer, _) = desk.signed_in(Role::Viewer).await;
    let (operator, _) = desk.signed_in(Role::Operator).await;
    let pages = ["/", "/uncertain", "/search", "/replays", "/audit", "/pauses"].map(str::to_owned);
    let of_these = [format!("/notifications/{id}"), format!("/replays/{replay}")];
    let mut told = String::new();
    for path in pages.into_iter().chain(of_these) {
        let page = desk.get(&path, &viewer).await;
        assert_eq!(page.status, 200, "{path}");
        for secret in SECRETS {
            assert!(!page.body.to_lowercase().contains(&secret.to_lowercase()), "{path} tells {secret}: {}", page.body);
        }
        told.push_str(&desk.get(&path, &operator).await.body);
    }
    for secret in ["jo@", "jo smith", "joanna", "Your order", "welcome-jo"] {
        assert!(told.contains(secret), "an operator is told {secret}");
    }
    // Nor by asking for one after the other.
    for key in ["welcome-jo@example.net", "welcome-no@example.net"] {
        let answer = desk.get(&format!("/search?account=acme&q={key}"), &viewer).await;
        assert!(answer.status == 200 && answer.body.contains("There is no notification"), "{answer:?}");
    }
    assert_eq!(desk.get(&format!("/search?q={id}"), &viewer).await.status, 303);
}

#[tokio::test]
async fn whatever_stands_in_an_address_is_answered_in_words() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let (operator, _) = desk.signed_in(Role::Operator).await;
    for (query, told) in [
        ("since=9999-12-31T23:59:59-23:59", "years 1970 to 9999"),
        ("until=0000-01-01T00:00:00%2B23:59", "years 1970 to 9999"),
        ("since=9000years", "years 1970 to 9999"),
        ("since=yesterday", "RFC 3339"),
        ("state=bogus", "is not a state"),
        ("outcome=bogus", "is not an outcome"),
        ("code=abc", "is not a reply code"),
        ("code=99999", "is not a reply code"),
        ("below=zz", "is not an id"),
        ("until=9999-01-01T00:00:00Z", "Nothing is found"),
    ] {
        let answer = desk.get(&format!("/search?{query}"), &operator).await;
        assert!(answer.status == 200 && answer.body.contains(told), "{query}: {answer:?}");
    }
    for path in [
        "/uncertain?account=%00",
        "/search?q=%00",
        "/audit?who=%00",
        "/uncertain?until=9999-12-31T23:59:59-23:59&after=x",
        "/uncertain?until=2030-01-01T00:00:00Z&after=x",
        "/audit?about=garbage",
        "/audit.csv?about=garbage",
        "/audit?below=x",
    ] {
        assert_eq!(desk.get(path, &operator).await.status, 422, "{path}");
    }
    let erased = db.enqueue(&plain("acme")).await;
    db.sql(&format!("select outboxd.erase_notifications(array['{erased}']::uuid[])")).await.unwrap();
    assert_eq!(desk.get(&format!("/search?q={erased}"), &operator).await.status, 303, "it is there, without content");
}

#[tokio::test]
async fn a_page_that_only_follows_keeps_nobody_signed_in() {
    let db = TestDb::new().await;
    let desk = Desk::with(&db, &Config::new(&db).set("console.idle", "3s")).await;
    let (used, _) = desk.signed_in(Role::Operator).await;
    let (followed, _) = desk.signed_in(Role::Operator).await;
    eventually("the session that nobody uses has ended", PATIENCE, async || {
        let asked = Call::new("GET /pauses").header("Cookie", &followed).header("X-Outboxd-Follows", "1");
        assert_eq!(desk.get("/pauses", &used).await.status, 200, "the other is used");
        let status = desk.ask(asked).await.status;
        if status == 303 { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test]
async fn one_person_cannot_take_every_place_of_those_who_follow() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let (viewer, _) = desk.signed_in(Role::Viewer).await;
    let (operator, _) = desk.signed_in(Role::Operator).await;
    let follow = async |cookie: &str| {
        let mut stream = TcpStream::connect(desk.addr).await.unwrap();
        let request = format!("GET /live HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        (stream, String::from_utf8(answer).unwrap())
    };
    let mut streams = Vec::new();
    for _ in 0..10 {
        let (stream, status) = follow(&viewer).await;
        assert_eq!(status, "HTTP/1.1 200");
        streams.push(stream);
    }
    assert_eq!(follow(&viewer).await.1, "HTTP/1.1 503");
    assert_eq!(follow(&operator).await.1, "HTTP/1.1 200");
    drop(streams);
    eventually("the places are free again", PATIENCE, async || {
        let status = follow(&viewer).await.1;
        if status.ends_with("200") { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test]
async fn who_signs_in_and_who_is_signed_out_is_on_record_whatever_their_name() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let token = Token::new([9; 32]);
    let hash = sign_in::hash(&token).unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    assert!(operators::add(&mut conn, "a/../b", Role::Viewer, Proof::Token(&hash), "test").await.unwrap());
    let signed_in = desk.ask(posted("/sign-in", &format!("name=a/../b&token={}", token.reveal()))).await;
    let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(desk.get("/", &cookie).await.status, 200);
    // Who signs in anew leaves no session behind.
    let again = posted("/sign-in", &format!("name=a/../b&token={}", token.reveal())).header("Cookie", &cookie);
    assert_eq!(desk.ask(again).await.status, 303);
    assert_eq!(desk.get("/", &cookie).await.status, 303);
    let (admin, csrf) = desk.signed_in(Role::Admin).await;
    assert_eq!(desk.post("/operators/sign-out", &admin, &format!("csrf={csrf}&name=a/../b")).await.status, 303);
    let open: i64 = sqlx::query_scalar(
        "select count(*) from outboxd.session s join outboxd.operator o on o.id = s.operator_id where o.name = 'a/../b'",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!(open, 0);
    let audit = desk.get("/audit", &admin).await.body;
    for told in ["sign in", "sign out", "operator a/../b", "with a token"] {
        assert!(audit.contains(told), "{told}: {audit}");
    }
}

#[tokio::test]
async fn an_export_holds_every_decision_however_many_there_are() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    db.sql(
        "insert into outboxd.decision (decided_by, action, reason, subject)
         select 'ada', 'pause', 'because ' || n, 'account ' || n from generate_series(1, 2500) n",
    )
    .await
    .unwrap();
    let (operator, _) = desk.signed_in(Role::Operator).await;
    let csv = desk.get("/audit.csv?who=ada", &operator).await.body;
    assert_eq!(csv.lines().count(), 2_501, "and a heading");
    assert!(csv.starts_with("\"number\",\"when\"") && csv.contains("\"because 1\""));
    let json: serde_json::Value = serde_json::from_str(&desk.get("/audit.json?who=ada", &operator).await.body).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2_500);
    let none: serde_json::Value = serde_json::from_str(&desk.get("/audit.json?who=eve", &operator).await.body).unwrap();
    assert_eq!(none, serde_json::json!([]));
}

#[tokio::test]
async fn a_slow_replay_that_is_paused_lets_go_and_can_be_run_on() {
    let db = TestDb::new().await;
    for _ in 0..3 {
        failed(&db).await;
    }
    let desk = Desk::open(&db).await;
    let (operator, csrf) = desk.signed_in(Role::Operator).await;
    let planned = desk.post("/replays", &operator, &format!("csrf={csrf}&reason=x")).await;
    let path = planned.header("location").unwrap().to_owned();
    for rate in ["0", "1e-300", "0.01", "x", "inf", "NaN"] {
        let refused = desk.post(&format!("{path}/run"), &operator, &format!("csrf={csrf}&reason=x&rate={rate}")).await;
        assert_eq!(refused.status, 422, "{rate}");
    }
    let run = format!("csrf={csrf}&reason=x&rate=0.1");
    assert_eq!(desk.post(&format!("{path}/run"), &operator, &run).await.status, 303);
    eventually("the first is replayed", PATIENCE, async || {
        let page = desk.get(&path, &operator).await.body;
        if page.contains("1 replayed") { Ok(()) } else { Err(page) }
    })
    .await;
    let pause = format!("csrf={csrf}&reason=x&how=pause");
    assert_eq!(desk.post(&format!("{path}/stop"), &operator, &pause).await.status, 303);
    eventually("it can be run on", PATIENCE, async || {
        let again = desk.post(&format!("{path}/run"), &operator, &run).await;
        if again.status == 303 { Ok(()) } else { Err(again) }
    })
    .await;
}
