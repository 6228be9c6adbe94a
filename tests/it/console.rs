//! The console: what it refuses, and an operator's work in a real browser against a live worker.

use std::fs;
use std::net::SocketAddr;

use outboxd::domain::ids::NotificationId;
use outboxd::domain::operator::Role;
use outboxd::domain::outcome::{Outcome, Phase};
use outboxd::domain::policy::{FailReason, Next};
use outboxd::domain::token::Token;
use outboxd::http::console::sign_in;
use outboxd::sandbox::smtp::{Action, Rule, Stage};
use outboxd::store::enqueue::NewNotification;
use outboxd::store::operators::{self, Proof};
use outboxd::store::settle::Settlement;

use crate::crashes::{count, in_state, server};
use crate::harness::api::{Answer, Call};
use crate::harness::browser::{Person, no_browser};
use crate::harness::rows::{LONG, holding, plain, verdict};
use crate::harness::{Config, PATIENCE, Proc, TestDb, eventually};

mod hardening;

/// A running console and its operators: a viewer, an operator and an admin.
struct Desk {
    addr: SocketAddr,
    proc: Proc,
}

fn token(role: Role) -> Token {
    Token::new([role as u8; 32])
}

impl Desk {
    async fn open(db: &TestDb) -> Self {
        Self::with(db, &Config::new(db)).await
    }

    async fn with(db: &TestDb, config: &Config) -> Self {
        let mut conn = db.pool.acquire().await.unwrap();
        for role in Role::ALL {
            let hash = sign_in::hash(&token(role)).unwrap();
            assert!(operators::add(&mut conn, role.name(), role, Proof::Token(&hash), "test").await.unwrap());
        }
        let config = config.clone().set("console.listen", "127.0.0.1:0").set("console.secure_cookie", "false");
        let mut proc = Proc::start(&["console"], &config.text());
        let line = proc.line_with("key=\"console.listen\"").await;
        let addr = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        Self { addr, proc }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    async fn ask(&self, call: Call) -> Answer {
        call.ask(self.addr).await.expect("an answer")
    }

    /// The cookie and the form token of somebody who has signed in.
    async fn signed_in(&self, role: Role) -> (String, String) {
        let form = format!("name={}&token={}", role.name(), token(role).reveal());
        let answer = self.ask(posted("/sign-in", &form)).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let page = self.ask(Call::new("GET /pauses").header("Cookie", &cookie)).await;
        let csrf = page.body.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        (cookie, csrf)
    }

    async fn person(&self, role: Role) -> Person {
        Person::signed_in(&self.url(), role.name(), token(role).reveal()).await
    }
}

fn posted(path: &str, form: &str) -> Call {
    Call::new(&format!("POST {path}")).header("Content-Type", "application/x-www-form-urlencoded").body(form)
}

/// A notification that may have been accepted, and is held.
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

async fn failed(db: &TestDb) -> NotificationId {
    let mut line = db.line();
    let claimed = db.claimed(&mut line, &holding()).await;
    let id = claimed.id();
    let end = Settlement::new(claimed, verdict(Outcome::Refused, Phase::Rcpt), Next::Fail(FailReason::Refused));
    line.settle(&[end], 96 * LONG).await.unwrap();
    id
}

#[tokio::test]
async fn nobody_gets_in_without_a_session_and_every_answer_is_shut() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let id = in_doubt(&db).await;
    let pages =
        ["/", "/uncertain", "/search?q=x", "/replays", "/audit", "/audit.csv", "/audit.json", "/pauses", "/live"];
    let of_one =
        [format!("/notifications/{id}"), format!("/notifications/{id}/html"), format!("/notifications/{id}/source")];
    for path in pages.iter().map(ToString::to_string).chain(of_one) {
        for cookie in ["", "outboxd=", "outboxd=guess"] {
            let answer = desk.ask(Call::new(&format!("GET {path}")).header("Cookie", cookie)).await;
            assert_eq!(answer.status, 303, "{path} {answer:?}");
            assert!(answer.header("location").unwrap().starts_with("/sign-in?next=/"), "{answer:?}");
            let policy = answer.header("content-security-policy").unwrap();
            assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
            assert_eq!(
                (answer.header("x-content-type-options"), answer.header("cache-control")),
                (Some("nosniff"), Some("no-store"))
            );
        }
    }
    for path in ["/decide", "/decide/preview", "/replays", "/pauses", "/sign-out", "/operators/sign-out"] {
        assert_eq!(desk.ask(posted(path, "csrf=x")).await.status, 303, "{path}");
    }
    assert_eq!(desk.ask(Call::new("GET /nowhere")).await.status, 404);
    assert_eq!(db.state(id).await, "uncertain");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_after_five_whoever_guesses_has_to_wait() {
    let db = TestDb::new().await;
    let mut desk = Desk::open(&db).await;
    for name in ["operator", "nobody"] {
        for attempt in 0..6 {
            let answer = desk.ask(posted("/sign-in", &format!("name={name}&token=obx_wrong"))).await;
            assert_eq!(answer.status, if attempt < 5 { 403 } else { 429 }, "{answer:?}");
            assert!(answer.header("set-cookie").is_none());
        }
    }
    let right = format!("name=operator&token={}", token(Role::Operator).reveal());
    assert_eq!(desk.ask(posted("/sign-in", &right)).await.status, 303, "nobody is kept out by a stranger's guesses");
    // Where it leads to is a page of ours.
    for (next, to) in [
        ("/audit", "/audit"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
    ] {
        let form = format!("name=viewer&token={}&next={next}", token(Role::Viewer).reveal());
        assert_eq!(desk.ask(posted("/sign-in", &form)).await.header("location"), Some(to));
    }
    desk.proc.line_with("a sign-in to the console was refused").await;
    let log = desk.proc.log();
    assert!(!log.contains("obx_") && !log.contains("nobody"), "{log}");
    for (header, value) in [("Sec-Fetch-Site", "cross-site"), ("Origin", "https://evil.example")] {
        let right = format!("name=viewer&token={}", token(Role::Viewer).reveal());
        assert_eq!(desk.ask(posted("/sign-in", &right).header(header, value)).await.status, 403);
    }
}

#[tokio::test]
async fn a_form_from_elsewhere_a_viewer_and_an_ended_session_decide_nothing() {
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let id = in_doubt(&db).await;
    let decide = |cookie: &str, csrf: &str| {
        posted("/decide", &format!("csrf={csrf}&id={id}&action=sent&reason=seen")).header("Cookie", cookie)
    };
    let (viewer, viewers) = desk.signed_in(Role::Viewer).await;
    let refused = desk.ask(decide(&viewer, &viewers)).await;
    assert!(refused.status == 403 && refused.body.contains("needs the role operator"), "{refused:?}");
    for path in ["/pauses", "/operators/sign-out", "/replays"] {
        let form = format!("csrf={viewers}&kind=all&how=pause&reason=x");
        assert_eq!(desk.ask(posted(path, &form).header("Cookie", &viewer)).await.status, 403, "{path}");
    }
    for path in [
        format!("/notifications/{id}/html"),
        format!("/notifications/{id}/source"),
        "/audit.csv".to_owned(),
        "/audit.json".to_owned(),
    ] {
        assert_eq!(desk.ask(Call::new(&format!("GET {path}")).header("Cookie", &viewer)).await.status, 403, "{path}");
    }
    let page = desk.ask(Call::new(&format!("GET /notifications/{id}")).header("Cookie", &viewer)).await;
    assert!(page.body.contains("j•••@example.net") && !page.body.contains("jo@example.net"), "masked");
    let by_recipient = desk.ask(Call::new("GET /search?recipient=jo@example.net").header("Cookie", &viewer)).await;
    assert!(by_recipient.body.contains("needs the role operator"));

    let (operator, csrf) = desk.signed_in(Role::Operator).await;
    assert_eq!(desk.ask(decide(&operator, "")).await.status, 403);
    assert_eq!(desk.ask(decide(&operator, &viewers)).await.status, 403, "another session's");
    assert_eq!(desk.ask(decide(&operator, &csrf).header("Sec-Fetch-Site", "cross-site")).await.status, 403);
    assert_eq!(
        desk.ask(posted("/pauses", &format!("csrf={csrf}&kind=all&how=pause&reason=x")).header("Cookie", &operator))
            .await
            .status,
        403
    );
    for (form, why) in [
        (format!("csrf={csrf}&id={id}&action=sent&reason="), "Say why"),
        (format!("csrf={csrf}&id={id}&action=&reason=x"), "Choose what"),
        (format!("csrf={csrf}&id=7&action=sent&reason=x"), "not one"),
        (format!("csrf={csrf}&action=sent&reason=x"), "at least one"),
    ] {
        let answer = desk.ask(posted("/decide", &form).header("Cookie", &operator)).await;
        assert!(answer.status == 422 && answer.body.contains(why), "{answer:?}");
    }
    assert_eq!(db.state(id).await, "uncertain");
    // An admin ends the session; its cookie is worth nothing from then on.
    let (admin, admins) = desk.signed_in(Role::Admin).await;
    let ended = posted("/operators/sign-out", &format!("csrf={admins}&name=operator")).header("Cookie", &admin);
    assert_eq!(desk.ask(ended).await.status, 303);
    assert_eq!(desk.ask(decide(&operator, &csrf)).await.header("location"), Some("/sign-in?next=/"));
    assert_eq!(db.state(id).await, "uncertain");
    // A disabled operator is signed out, and gets in no more.
    assert!(operators::disable(&mut db.pool.acquire().await.unwrap(), "admin").await.unwrap());
    assert_eq!(desk.ask(Call::new("GET /").header("Cookie", &admin)).await.status, 303);
    let form = format!("name=admin&token={}", token(Role::Admin).reveal());
    assert_eq!(desk.ask(posted("/sign-in", &form)).await.status, 403);
}

#[tokio::test]
async fn the_message_is_shown_shut_in_and_its_bytes_are_those_that_went_out() {
    let db = TestDb::new().await;
    let server = server([]).await;
    let config = Config::new(&db).provider("primary", server.addr());
    let html = "<h1>Hello</h1><script>alert(1)</script><img src=\"http://127.0.0.1:1/x.png\">";
    let id = db.enqueue(&NewNotification { body_text: None, body_html: Some(html.to_owned()), ..plain("acme") }).await;
    let worker = Proc::start(&["worker"], &config.text());
    in_state(&db, id, "sent").await;
    worker.terminate();
    let desk = Desk::with(&db, &config).await;
    let (cookie, _) = desk.signed_in(Role::Operator).await;
    let source = desk.ask(Call::new(&format!("GET /notifications/{id}/source")).header("Cookie", &cookie)).await;
    let received = server.mailbox().of(&id.to_string()).remove(0);
    assert_eq!(source.body.as_bytes(), &received.bytes[..]);
    assert!(source.header("content-type").unwrap().starts_with("text/plain"));
    let shown = desk.ask(Call::new(&format!("GET /notifications/{id}/html")).header("Cookie", &cookie)).await;
    let policy = shown.header("content-security-policy").unwrap();
    assert!(policy.starts_with("sandbox; default-src 'none'") && !policy.contains("script-src"), "{policy}");
    assert_eq!(shown.body, html);
    let page = desk.ask(Call::new(&format!("GET /notifications/{id}")).header("Cookie", &cookie)).await;
    assert!(page.body.contains("sandbox=\"\"") && !page.body.contains("<script>alert"));
    db.sql(&format!("select outboxd.erase_notifications(array['{id}']::uuid[])")).await.unwrap();
    let erased = desk.ask(Call::new(&format!("GET /notifications/{id}/html")).header("Cookie", &cookie)).await;
    assert_eq!(erased.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_what_is_uncertain_and_settles_it_with_a_preview() {
    if no_browser("an_operator_finds_what_is_uncertain_and_settles_it_with_a_preview") {
        return;
    }
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let ids = [in_doubt(&db).await, in_doubt(&db).await, in_doubt(&db).await];
    let ada = Person::at(&desk.url(), 1280, 900, false).await;
    ada.goes_to("/uncertain").await;
    ada.writes("input[name=name]", "operator").await;
    ada.writes("input[name=token]", "obx_wrong").await;
    ada.clicks("button").await;
    ada.until_shown("The name or the token is not right.").await;
    ada.sign_in("operator", token(Role::Operator).reveal()).await;
    ada.until_shown("Nothing needs a person.").await;
    ada.clicks("nav a[href='/uncertain']").await;
    ada.until_shown("3 shown").await;
    for id in &ids[..2] {
        ada.clicks(&format!("input[value='{id}']")).await;
    }
    ada.chooses("select[name=action]", "sent").await;
    ada.writes(".actions input[name=reason]", "in the provider's console").await;
    ada.clicks("button.primary").await;
    let preview = ada.until_shown("2 of 2: it was accepted: it is sent").await;
    assert!(preview.contains("would become"), "{preview}");
    assert_eq!(count(&db, "uncertain").await, 3, "a preview changes nothing");
    ada.clicks("main button.primary").await;
    ada.until_shown("2 of 2 decided and on record").await;
    assert_eq!((count(&db, "sent").await, count(&db, "uncertain").await), (2, 1));
    ada.goes_to("/audit").await;
    let audit = ada.until_shown("resolve sent").await;
    assert!(audit.contains("operator") && audit.contains("in the provider's console"), "{audit}");
    // By the keyboard: search, find by id, read the story.
    ada.runs("document.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))").await;
    ada.until_shown("Id, or operation key").await;
    ada.writes("input[name=q]", &ids[0].to_string()).await;
    ada.clicks("button.primary").await;
    let story = ada.until_shown("operator decided: resolve sent, uncertain to sent").await;
    assert!(story.contains("evidence about attempt 1: accepted"), "{story}");
    ada.clicks(".who button").await;
    ada.until_shown("Sign in").await;
    ada.goes_to("/uncertain").await;
    ada.until_shown("Sign in").await;
    ada.client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_operators_who_decide_at_once_one_wins_and_the_other_is_told() {
    if no_browser("of_two_operators_who_decide_at_once_one_wins_and_the_other_is_told") {
        return;
    }
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let id = in_doubt(&db).await;
    let (ada, bob) = (desk.person(Role::Operator).await, desk.person(Role::Admin).await);
    for (person, action) in [(&ada, "sent"), (&bob, "not-sent")] {
        person.goes_to(&format!("/notifications/{id}")).await;
        person.chooses("select[name=action]", action).await;
        person.writes(".actions input[name=reason]", "I know").await;
        person.clicks("main button.primary").await;
        person.until_shown("1 of 1").await;
    }
    ada.clicks("main button.primary").await;
    ada.until_shown("1 of 1 decided and on record").await;
    bob.clicks("main button.primary").await;
    let told = bob.until_shown("somebody or something was faster").await;
    assert!(told.contains("not as it was in the preview"), "{told}");
    assert_eq!(db.state(id).await, "sent");
    let decisions: i64 = sqlx::query_scalar("select count(*) from outboxd.decision where notification_id is not null")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    assert_eq!(decisions, 1);
    ada.client.close().await.unwrap();
    bob.client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_planned_run_and_followed_while_a_worker_sends() {
    if no_browser("a_replay_is_planned_run_and_followed_while_a_worker_sends") {
        return;
    }
    let db = TestDb::new().await;
    let refuse = Rule::at(Stage::EndOfData, Action::reply("554 5.6.0 policy")).times(5).label("refused");
    let lost = Rule::at(Stage::EndOfData, Action::Close.after_accepting()).once();
    let server = server([refuse, lost]).await;
    let config = Config::new(&db)
        .set("provider_defaults.connections", "1")
        .set("provider_defaults.breaker.threshold", "1000")
        .provider("primary", server.addr());
    let desk = Desk::with(&db, &config).await;
    let ada = desk.person(Role::Operator).await;
    ada.until_shown("live").await;
    let _worker = Proc::start(&["worker"], &config.text());
    for _ in 0..6 {
        db.enqueue(&plain("acme")).await;
    }
    // The page follows by itself.
    eventually("the overview shows what has failed", PATIENCE, async || {
        let cards = ada.text().await;
        if cards.contains("5\nfailed") && cards.contains("1\nuncertain") { Ok(()) } else { Err(cards) }
    })
    .await;
    ada.goes_to("/replays").await;
    ada.clicks("summary").await;
    ada.writes("details input[name=provider]", "primary").await;
    ada.writes("details input[name=reason]", "the policy was a mistake").await;
    ada.clicks("details button.primary").await;
    let plan = ada.until_shown("known not to have been accepted").await;
    assert!(plan.contains("5 open") && plan.contains("1 left out"), "{plan}");
    ada.writes("form[action$='/run'] input[name=rate]", "100").await;
    ada.writes("form[action$='/run'] input[name=reason]", "they have lifted it").await;
    ada.clicks("form[action$='/run'] button").await;
    let ended = ada.until_shown("5 replayed").await;
    assert!(ended.contains("1 left out"), "{ended}");
    ada.until_shown("5 sent").await;
    assert_eq!((count(&db, "sent").await, count(&db, "uncertain").await, server.mailbox().count()), (5, 1, 6));
    assert_eq!(server.mailbox().duplicates().len(), 0);
    ada.client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_says_that_it_is_stale_when_nothing_is_heard_any_more() {
    if no_browser("a_page_says_that_it_is_stale_when_nothing_is_heard_any_more") {
        return;
    }
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let vic = desk.person(Role::Viewer).await;
    eventually("it is live", PATIENCE, async || {
        let mark = vic.sees("[data-live=mark]").await.text().await.unwrap_or_default();
        if mark == "live" { Ok(()) } else { Err(mark) }
    })
    .await;
    desk.proc.kill();
    vic.until_shown("stale: nothing heard").await;
    vic.client.close().await.unwrap();
}

/// Every page, as somebody sees it who has something to decide.
async fn every_page(db: &TestDb) -> Vec<(&'static str, String)> {
    let (doubt, refused) = (in_doubt(db).await, failed(db).await);
    in_doubt(db).await;
    let unresolved = in_doubt(db).await;
    db.age(unresolved, "30 days").await;
    db.line().close_windows().await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    let decider = outboxd::store::decide::Decider { who: "ada", reason: "the policy is lifted" };
    let filter = outboxd::store::search::Filter::default();
    let replay = outboxd::store::replay::plan(&mut conn, &filter, false, &decider).await.unwrap();
    outboxd::store::decide::pause(
        &mut conn,
        &outboxd::store::decide::Pausable::Account("initech".to_owned()),
        &decider,
    )
    .await
    .unwrap();
    vec![
        ("overview", "/".to_owned()),
        ("uncertain", "/uncertain".to_owned()),
        ("search", "/search".to_owned()),
        ("notification", format!("/notifications/{doubt}")),
        ("failed", format!("/notifications/{refused}")),
        ("replays", "/replays".to_owned()),
        ("replay", format!("/replays/{replay}")),
        ("audit", "/audit".to_owned()),
        ("pauses", "/pauses".to_owned()),
        ("missing", "/nowhere".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_asks_another_host_for_anything_or_is_wider_than_a_phone() {
    if no_browser("no_page_asks_another_host_for_anything_or_is_wider_than_a_phone") {
        return;
    }
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let admin = Person::at(&desk.url(), 400, 900, true).await;
    admin.sign_in("admin", token(Role::Admin).reveal()).await;
    admin.until_shown("Overview").await;
    for (name, path) in every_page(&db).await {
        admin.goes_to(&path).await;
        let asked =
            admin.runs("return performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)").await;
        for host in asked.as_array().unwrap() {
            assert_eq!(host.as_str().unwrap(), desk.addr.to_string(), "{name}");
        }
        let widths = admin.runs("return [document.documentElement.scrollWidth, screen.width]").await;
        assert_eq!(widths, serde_json::json!([400, 400]), "{name}: as wide as the screen and no wider");
    }
    admin.client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_no_violation_on_any_page() {
    const NAME: &str = "axe_finds_no_violation_on_any_page";
    if no_browser(NAME) {
        return;
    }
    let Ok(axe) = fs::read_to_string("target/axe-core/axe.min.js") else {
        crate::harness::say(&format!("SKIPPED {NAME}: axe-core is not there: run `make setup`"));
        return;
    };
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let pages = every_page(&db).await;
    for dark in [false, true] {
        let admin = Person::at(&desk.url(), 1280, 900, dark).await;
        admin.goes_to("/sign-in").await;
        let mut shown = vec![("sign-in", "/sign-in".to_owned())];
        shown.extend(pages.iter().cloned());
        for (name, path) in shown {
            if name == "overview" {
                admin.sign_in("admin", token(Role::Admin).reveal()).await;
                admin.until_shown("Overview").await;
            }
            admin.goes_to(&path).await;
            admin.runs(&axe).await;
            let found = admin
                .client
                .execute_async(
                    "const done = arguments[arguments.length - 1];
                     axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})
                        .then(r => done(r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | '))));",
                    Vec::new(),
                )
                .await
                .unwrap();
            assert_eq!(found, serde_json::json!([]), "{name}, dark: {dark}");
        }
        admin.client.close().await.unwrap();
    }
}

/// `make screenshots`: every page, light and dark, wide and narrow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn screenshots_of_every_page() {
    let Some(directory) = std::env::var_os("OUTBOXD_SCREENSHOTS").map(std::path::PathBuf::from) else { return };
    let db = TestDb::new().await;
    let desk = Desk::open(&db).await;
    let pages = every_page(&db).await;
    for (scheme, dark) in [("light", false), ("dark", true)] {
        for (size, width, height) in [("wide", 1280, 860), ("narrow", 400, 860)] {
            let admin = Person::at(&desk.url(), width, height, dark).await;
            admin.sign_in("admin", token(Role::Admin).reveal()).await;
            admin.until_shown("Overview").await;
            for (name, path) in pages.iter().filter(|(name, _)| *name != "missing") {
                admin.goes_to(path).await;
                admin.until_shown("live").await;
                let picture = admin.client.screenshot().await.unwrap();
                fs::write(directory.join(format!("{name}-{scheme}-{size}.png")), picture).unwrap();
            }
            admin.client.close().await.unwrap();
        }
    }
}
