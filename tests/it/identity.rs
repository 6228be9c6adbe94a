//! Signing in to the console at an identity provider: an operator comes in, and nobody who only looks like one.

use outboxd::domain::operator::Role;
use outboxd::sandbox::guardian::free_port;
use outboxd::store::operators::{self, Proof};
use serde_json::{Value, json};

use crate::harness::api::{Answer, Call};
use crate::harness::browser::{Person, no_browser};
use crate::harness::identity::{CLIENT_ID, Identity};
use crate::harness::{Config, Proc, TestDb};

/// A console whose operator `ada` signs in at a provider.
struct Desk {
    db: TestDb,
    identity: Identity,
    addr: std::net::SocketAddr,
    _proc: Proc,
}

impl Desk {
    async fn open(claim: &str, ada: &str) -> Self {
        let (db, identity) = (TestDb::new().await, Identity::start().await);
        let mut conn = db.pool.acquire().await.unwrap();
        let proof = Proof::Identity(ada);
        assert!(operators::add(&mut conn, "ada", Role::Operator, proof, "test").await.unwrap());
        let addr: std::net::SocketAddr = ([127, 0, 0, 1], free_port().unwrap()).into();
        let config = Config::new(&db)
            .set("console.listen", &addr.to_string())
            .set("console.secure_cookie", "false")
            .set("console.oidc.issuer", identity.issuer())
            .set("console.oidc.client_id", CLIENT_ID)
            .set("console.oidc.client_secret", "hush")
            .set("console.oidc.claim", claim)
            .set("console.oidc.redirect_url", &format!("http://{addr}/sign-in/oidc/return"));
        let mut proc = Proc::start(&["console"], &config.text());
        proc.line_with("key=\"console.listen\"").await;
        Self { db, identity, addr, _proc: proc }
    }

    async fn ask(&self, path: &str, cookie: &str) -> Answer {
        Call::new(&format!("GET {path}")).header("Cookie", cookie).ask(self.addr).await.expect("an answer")
    }

    /// Leaves for the provider: the cookie, and the path that it sends back to.
    async fn leaves(&self, next: &str) -> (String, String) {
        let answer = self.ask(&format!("/sign-in/oidc?next={next}"), "").await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap().to_owned();
        assert!(cookie.contains("HttpOnly; SameSite=Lax"), "{cookie}");
        let there = answer.header("location").unwrap().strip_prefix(self.identity.issuer()).unwrap().to_owned();
        let sent_back = Call::new(&format!("GET {there}")).ask(self.identity.addr).await.unwrap();
        assert_eq!(sent_back.status, 303, "{sent_back:?}");
        let back = sent_back.header("location").unwrap();
        let back = back.strip_prefix(&format!("http://{}", self.addr)).unwrap().to_owned();
        (cookie.split(';').next().unwrap().to_owned(), back)
    }

    async fn signs_in(&self) -> Answer {
        let (cookie, back) = self.leaves("/audit").await;
        self.ask(&back, &cookie).await
    }

    async fn sessions(&self) -> i64 {
        sqlx::query_scalar("select count(*) from outboxd.session").fetch_one(&self.db.pool).await.unwrap()
    }
}

fn session(answer: &Answer) -> String {
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.starts_with("outboxd=") && cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn whoever_the_provider_knows_as_an_operator_comes_in_as_that_one() {
    for (claim, ada) in [("email", "ada@example.org"), ("preferred_username", "ada"), ("sub", "0815")] {
        let desk = Desk::open(claim, ada).await;
        let answer = desk.signs_in().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.contains("url=/audit"), "{answer:?}");
        let page = desk.ask("/", &session(&answer)).await;
        assert!(page.status == 200 && page.body.contains("ada · operator"), "{page:?}");
        // Whose token is none cannot be guessed.
        for token in ["", "-"] {
            let form = Call::new("POST /sign-in").header("Content-Type", "application/x-www-form-urlencoded");
            let answer = form.body(&format!("name=ada&token={token}")).ask(desk.addr).await.unwrap();
            assert_eq!(answer.status, 403, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn an_id_token_that_proves_nothing_opens_nothing() {
    let desk = Desk::open("email", "ada@example.org").await;
    let lies: [(&str, Value); 9] = [
        ("another issuer", json!({ "iss": "http://127.0.0.1:1" })),
        ("for another client", json!({ "aud": "other" })),
        ("for others, too, and by another", json!({ "aud": [CLIENT_ID, "other"], "azp": "other" })),
        ("over", json!({ "exp": 1_000_000_000 })),
        ("of another sign-in", json!({ "nonce": "other" })),
        ("of no sign-in", json!({ "nonce": null })),
        ("no address", json!({ "email": null })),
        ("an address that anybody can claim", json!({ "email_verified": false })),
        ("an address of which nothing is said", json!({ "email_verified": null })),
    ];
    for (what, claims) in lies {
        desk.identity.lies(claims);
        let answer = desk.signs_in().await;
        assert_eq!(answer.status, 403, "{what}: {answer:?}");
        assert!(answer.body.contains("does not prove who you are"), "{what}: {answer:?}");
    }
    desk.identity.lies(json!({}));
    for header in
        [json!({ "alg": "none" }), json!({ "alg": "HS256", "kid": "1" }), json!({ "alg": "RS256", "kid": "1" })]
    {
        desk.identity.header(header.clone());
        assert_eq!(desk.signs_in().await.status, 403, "{header}");
    }
    desk.identity.header(json!({ "alg": "ES256", "kid": "1" }));
    desk.identity.other_key(false);
    assert_eq!(desk.signs_in().await.status, 403, "signed by a key that is not the provider's");
    assert_eq!(desk.sessions().await, 0);
}

#[tokio::test]
async fn somebody_who_is_no_operator_is_told_so() {
    let desk = Desk::open("email", "ada@example.org").await;
    for claims in
        [json!({ "email": "bob@example.org" }), json!({ "email": "ADA@example.org" }), json!({ "email": "a\u{0}" })]
    {
        desk.identity.lies(claims);
        let answer = desk.signs_in().await;
        assert!(answer.status == 403 && answer.body.contains("outboxd does not"), "{answer:?}");
    }
    desk.identity.lies(json!({}));
    let come_in = session(&desk.signs_in().await);
    let mut conn = desk.db.pool.acquire().await.unwrap();
    assert!(operators::disable(&mut conn, "ada").await.unwrap());
    assert_eq!(desk.ask("/", &come_in).await.status, 303, "signed out at once");
    assert_eq!(desk.signs_in().await.status, 403);
    assert_eq!(desk.sessions().await, 0);
}

#[tokio::test]
async fn what_comes_back_must_belong_to_this_browser_and_works_once() {
    let desk = Desk::open("email", "ada@example.org").await;
    let (cookie, back) = desk.leaves("/").await;
    let (other, _) = desk.leaves("/").await;
    for cookie in ["", "outboxd-flow=", "outboxd-flow=bm90IGpzb24", other.as_str()] {
        let answer = desk.ask(&back, cookie).await;
        assert_eq!(answer.status, 403, "{cookie}: {answer:?}");
    }
    for query in ["", "?error=access_denied&state=x", "?code=code-0", "?state=x&code=code-0"] {
        let answer = desk.ask(&format!("/sign-in/oidc/return{query}"), &cookie).await;
        assert_eq!(answer.status, 403, "{query}: {answer:?}");
    }
    assert_eq!(desk.sessions().await, 0);
    assert_eq!(desk.ask(&back, &cookie).await.status, 200);
    assert_eq!(desk.ask(&back, &cookie).await.status, 403, "a code is good for once");
    // Nowhere but to this console.
    let (cookie, back) = desk.leaves("https://elsewhere.example/").await;
    let answer = desk.ask(&back, &cookie).await;
    assert!(answer.body.contains("url=/\"") && !answer.body.contains("elsewhere"), "{answer:?}");
}

#[tokio::test]
async fn a_provider_that_is_away_leaves_the_token_and_one_with_a_new_key_is_asked_again() {
    let desk = Desk::open("email", "ada@example.org").await;
    assert_eq!(desk.signs_in().await.status, 200);
    desk.identity.other_key(true);
    // It has just been asked for its keys; once that is a while ago, it is asked again.
    crate::harness::eventually("the new key is known", 2 * crate::harness::PATIENCE, async || {
        let answer = desk.signs_in().await;
        if answer.status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;

    let away = format!("http://127.0.0.1:{}", free_port().unwrap());
    let db = TestDb::new().await;
    let config = Config::new(&db)
        .set("console.listen", "127.0.0.1:0")
        .set("console.secure_cookie", "false")
        .set("console.oidc.issuer", &away)
        .set("console.oidc.client_id", CLIENT_ID)
        .set("console.oidc.redirect_url", "http://localhost/sign-in/oidc/return");
    let mut proc = Proc::start(&["console"], &config.text());
    let line = proc.line_with("key=\"console.listen\"").await;
    let addr = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let answer = Call::new("GET /sign-in/oidc").ask(addr).await.unwrap();
    assert!(answer.status == 502 && answer.body.contains("A token still signs you in"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_signs_in_at_the_provider_in_a_browser_and_lands_where_they_wanted() {
    if no_browser("an_operator_signs_in_at_the_provider_in_a_browser_and_lands_where_they_wanted") {
        return;
    }
    let desk = Desk::open("email", "ada@example.org").await;
    let ada = Person::at(&format!("http://{}", desk.addr), 1280, 900, false).await;
    ada.goes_to("/replays").await;
    ada.until_shown("Sign in at the identity provider").await;
    ada.clicks("a[href^='/sign-in/oidc']").await;
    ada.until_shown("Plan a replay").await;
    ada.until_shown("ada · operator").await;
    ada.clicks("form.who button").await;
    ada.until_shown("Sign in at the identity provider").await;
    ada.client.close().await.unwrap();
}
