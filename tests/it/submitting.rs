//! The caller's half (`outboxd submit`, `outboxd::client`): one key and one body, until the outcome is known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outboxd::client::{Client, Draft, DraftError, Limits, Outcome};
use outboxd::domain::operation::RequestKey;
use outboxd::sandbox::proxy::{Cut, Direction, Proxy};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::api::{Api, message};
use crate::harness::http::{Reply, Scripted};
use crate::harness::{Proc, TestDb};

const RECEIPT: &str = r#"{"code": "accepted", "message_id": "m", "notification_ids": [], "created_at": "t"}"#;

fn receipt() -> Reply {
    Reply::Answer(201, "Content-Type: application/json\r\n", RECEIPT.to_owned())
}

fn problem(status: u16, headers: &'static str, code: &str) -> Reply {
    Reply::Answer(status, headers, format!("{{\"code\": \"{code}\", \"detail\": \"do something\"}}"))
}

fn quick() -> Limits {
    Limits {
        deadline: Duration::from_secs(20),
        tries: 8,
        try_timeout: Duration::from_millis(500),
        delay_base: Duration::from_millis(5),
        delay_cap: Duration::from_millis(20),
        ..Limits::default()
    }
}

fn draft(directory: &TempDir, addr: std::net::SocketAddr) -> Draft {
    let key = RequestKey::new("k \"1\"").unwrap();
    Draft::create(directory.path(), &format!("http://{addr}/v1/messages"), key, "{ \"exact\":  1 }".to_owned()).unwrap()
}

/// Submits one draft to a server with this script.
async fn submit(script: Vec<Reply>, limits: Limits) -> (Outcome, Scripted, bool) {
    let directory = TempDir::new().unwrap();
    let server = Scripted::start(script).await;
    let client = Client::new("obx_t".into(), limits, false).unwrap();
    let mut draft = draft(&directory, server.addr);
    let outcome = client.submit(&mut draft).await.unwrap();
    let saved = fs::read_to_string(draft.path()).unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["in_doubt"], draft.in_doubt(), "what is on disk is what is known");
    (outcome, server, draft.in_doubt())
}

#[tokio::test]
async fn every_attempt_sends_the_same_key_and_the_same_octets() {
    let script = vec![
        Reply::CloseAtOnce,
        Reply::CloseAfterRequest,
        problem(503, "", "outcome_unconfirmed"),
        Reply::Cut(30, 201, RECEIPT.to_owned()),
        Reply::Raw("garbage\r\n\r\n"),
        Reply::Hang,
        problem(409, "", "in_progress"),
        receipt(),
    ];
    let (outcome, server, _) = submit(script, quick()).await;
    let Outcome::Confirmed { status: 201, body, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(body, RECEIPT);
    let asked = server.asked();
    assert_eq!(asked.len(), 7, "no attempt is repeated by a library, and none left out");
    for request in &asked {
        assert_eq!(request.header("idempotency-key"), Some(r#""k \"1\"""#));
        assert_eq!(request.header("authorization"), Some("Bearer obx_t"));
        assert_eq!(request.body, "{ \"exact\":  1 }");
    }
}

#[tokio::test]
async fn a_refusal_is_final_at_first_and_proves_nothing_after_a_lost_answer() {
    let (outcome, ..) = submit(vec![problem(422, "", "invalid_content")], quick()).await;
    assert!(
        matches!(&outcome, Outcome::Rejected { status: 422, code, .. } if code == "invalid_content"),
        "{outcome:?}"
    );
    let (outcome, server, _) =
        submit(vec![Reply::CloseAfterRequest, problem(422, "", "invalid_content")], quick()).await;
    assert!(matches!(outcome, Outcome::Unconfirmed { in_doubt: true, tries: 2, .. }), "{outcome:?}");
    assert_eq!(server.asked().len(), 2);
    let (outcome, ..) = submit(vec![Reply::CloseAfterRequest, problem(422, "", "payload_mismatch")], quick()).await;
    assert!(matches!(outcome, Outcome::Rejected { .. }), "this one speaks of the key itself: {outcome:?}");
}

#[tokio::test]
async fn what_was_not_stored_by_any_attempt_leaves_no_doubt() {
    let (outcome, _, in_doubt) = submit(vec![problem(503, "", "overloaded")], Limits { tries: 3, ..quick() }).await;
    assert!(matches!(outcome, Outcome::Unconfirmed { in_doubt: false, tries: 3, .. }) && !in_doubt, "{outcome:?}");
    let (outcome, _, in_doubt) = submit(vec![problem(503, "", "")], Limits { tries: 3, ..quick() }).await;
    assert!(
        matches!(outcome, Outcome::Unconfirmed { in_doubt: true, .. }) && in_doubt,
        "a proxy's 503 tells nothing: {outcome:?}"
    );
    // Nobody listens there.
    let directory = TempDir::new().unwrap();
    let mut unheard = draft(&directory, ([127, 0, 0, 1], outboxd::sandbox::guardian::free_port().unwrap()).into());
    let client = Client::new("obx_t".into(), Limits { tries: 2, ..quick() }, false).unwrap();
    let outcome = client.submit(&mut unheard).await.unwrap();
    assert!(matches!(outcome, Outcome::Unconfirmed { in_doubt: false, tries: 2, .. }), "{outcome:?}");
}

#[tokio::test]
async fn retry_after_is_kept_to_and_ends_the_run_where_it_does_not_fit() {
    let began = std::time::Instant::now();
    let (outcome, server, _) = submit(vec![problem(503, "Retry-After: 1\r\n", "overloaded"), receipt()], quick()).await;
    assert!(matches!(outcome, Outcome::Confirmed { .. }), "{outcome:?}");
    assert!(began.elapsed() >= Duration::from_secs(1), "not before the server said");
    assert_eq!(server.asked().len(), 2);
    let (outcome, server, _) = submit(vec![problem(503, "Retry-After: 3600\r\n", "overloaded")], quick()).await;
    assert!(matches!(outcome, Outcome::Unconfirmed { tries: 1, .. }), "{outcome:?}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_an_endless_answer_not_read() {
    let elsewhere = Scripted::start(vec![receipt()]).await;
    let location: &'static str = Box::leak(format!("Location: http://{}/\r\n", elsewhere.addr).into_boxed_str());
    let (outcome, ..) = submit(vec![Reply::Answer(307, location, String::new())], Limits { tries: 1, ..quick() }).await;
    assert!(matches!(outcome, Outcome::Unconfirmed { .. }), "{outcome:?}");
    assert!(elsewhere.asked().is_empty());
    let (outcome, ..) =
        submit(vec![Reply::Answer(201, "", " ".repeat(2_000_000))], Limits { tries: 1, ..quick() }).await;
    assert!(matches!(outcome, Outcome::Unconfirmed { in_doubt: true, .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_draft_too_old_for_its_window_is_not_sent() {
    let directory = TempDir::new().unwrap();
    let server = Scripted::start(vec![receipt()]).await;
    let mut draft = draft(&directory, server.addr);
    let client = Client::new("obx_t".into(), Limits { window: Duration::from_millis(500), ..quick() }, false).unwrap();
    let outcome = client.submit(&mut draft).await.unwrap();
    let Outcome::Unconfirmed { why, tries: 0, .. } = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("look the operation up"), "{why}");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_draft_that_cannot_be_saved_any_more_is_not_sent_any_more() {
    let directory = TempDir::new().unwrap();
    let server = Scripted::start(vec![receipt()]).await;
    let mut draft = draft(&directory, server.addr);
    fs::remove_dir_all(directory.path()).unwrap();
    let client = Client::new("obx_t".into(), quick(), false).unwrap();
    assert!(matches!(client.submit(&mut draft).await, Err(DraftError::Disk { .. })));
    assert!(server.asked().is_empty());
}

/// `outboxd submit` with a token in the environment and drafts of its own.
fn program(directory: &Path, args: &[&str]) -> Proc {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
    fs::write(directory.join("token"), "obx_hush\n").unwrap();
    command.arg("submit").args(args).arg("--drafts").arg(directory.join("drafts"));
    command.arg("--token-file").arg(directory.join("token")).current_dir(home.path());
    Proc::spawn(command, home)
}

fn drafts(directory: &Path) -> Vec<PathBuf> {
    Draft::list(&directory.join("drafts")).unwrap()
}

#[tokio::test]
async fn killed_in_an_attempt_and_resumed_it_goes_on_with_the_same_key_and_octets() {
    let home = TempDir::new().unwrap();
    let server = Scripted::start(vec![Reply::Hang, receipt()]).await;
    let (file, url) = (home.path().join("body.json"), format!("http://{}/v1/messages", server.addr));
    fs::write(&file, "{\"a\":   1}").unwrap();
    let mut killed = program(home.path(), &[file.to_str().unwrap(), "--url", &url]);
    server.until_asked(1).await;
    let [saved] = &drafts(home.path())[..] else { panic!("one draft") };
    let content: Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!((&content["in_doubt"], &content["attempts"]), (&true.into(), &1.into()), "the doubt was saved first");
    assert!(!content.to_string().contains("hush"), "a draft holds no token");
    let mut second = program(home.path(), &["--resume", saved.to_str().unwrap()]);
    assert_eq!(second.ended().await.code(), Some(1), "not while another one submits it: {}", second.log());
    killed.kill();
    killed.ended().await;

    let mut resumed = program(home.path(), &["--resume"]);
    assert_eq!(resumed.ended().await.code(), Some(0), "{}", resumed.log());
    assert!(resumed.log().contains("confirmed") && !resumed.log().contains("hush"), "{}", resumed.log());
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(
        (asked[0].header("idempotency-key"), &asked[0].body),
        (asked[1].header("idempotency-key"), &asked[1].body)
    );
    assert!(drafts(home.path()).is_empty(), "what is known needs no draft");
}

#[tokio::test]
async fn the_exit_code_tells_what_is_known() {
    for (script, code, stays) in [
        (vec![receipt()], 0, false),
        (vec![problem(422, "", "invalid_content")], 3, false),
        (vec![Reply::CloseAfterRequest], 4, true),
    ] {
        let home = TempDir::new().unwrap();
        let server = Scripted::start(script).await;
        let file = home.path().join("body.json");
        fs::write(&file, "{}").unwrap();
        let url = format!("http://{}/v1/messages", server.addr);
        let mut run = program(home.path(), &[file.to_str().unwrap(), "--url", &url, "--tries", "1", "--key", "k1"]);
        assert_eq!(run.ended().await.code(), Some(code), "{}", run.log());
        assert_eq!(!drafts(home.path()).is_empty(), stays);
        if stays {
            let [draft] = &drafts(home.path())[..] else { panic!("one draft") };
            assert!(run.log().contains(&format!("outboxd submit --resume {}", draft.display())), "{}", run.log());
        }
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_said_and_leaves_no_draft() {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("latin1"), b"{\"a\": \"\xe9\"}").unwrap();
    let file = home.path().join("latin1");
    let url = "http://127.0.0.1:9/v1/messages";
    for (args, word) in [
        (vec![file.to_str().unwrap(), "--url", url], "UTF-8"),
        (vec!["/nowhere/body.json", "--url", url], "/nowhere/body.json"),
        (vec![file.to_str().unwrap()], "client.url"),
    ] {
        let mut run = program(home.path(), &args);
        assert_eq!(run.ended().await.code(), Some(1), "{}", run.log());
        assert!(run.log().contains(word), "{}", run.log());
        assert!(drafts(home.path()).is_empty());
    }
    let body = home.path().join("body.json");
    fs::write(&body, "{}").unwrap();
    let mut run = program(home.path(), &[body.to_str().unwrap(), "--url", "http://api.example.org/v1/messages"]);
    assert_eq!(run.ended().await.code(), Some(3), "plain http to elsewhere: {}", run.log());
}

#[tokio::test]
async fn the_lost_answer_of_the_real_api_is_found_again_by_the_same_draft() {
    let db = TestDb::new().await;
    let api = Api::start(&db).await;
    let proxy = Proxy::start(api.addr).await.unwrap();
    let directory = TempDir::new().unwrap();
    let key = RequestKey::new("k1").unwrap();
    let url = format!("http://{}/v1/messages", proxy.addr());
    let mut draft = Draft::create(directory.path(), &url, key, message().to_string()).unwrap();
    let limits = Limits { try_timeout: Duration::from_secs(10), ..quick() };
    let client = Client::new(api.token.reveal().into(), limits, false).unwrap();
    proxy.stall(Direction::ToClient);
    let submitting = tokio::spawn(async move { client.submit(&mut draft).await });
    // It is committed, and the answer is on its way: now it is lost.
    crate::harness::eventually("the message is stored", crate::harness::PATIENCE, async || {
        let stored = db.stored().await;
        if stored == (1, 1, 1) { Ok(()) } else { Err(stored) }
    })
    .await;
    proxy.cut(Cut::Reset).await;
    proxy.resume();
    let outcome = submitting.await.unwrap().unwrap();
    let Outcome::Confirmed { body, replayed: true, .. } = outcome else { panic!("{outcome:?}") };
    let stored: String =
        sqlx::query_scalar("select response_body from outboxd.receipt").fetch_one(&db.pool).await.unwrap();
    assert_eq!((body, db.stored().await), (stored, (1, 1, 1)));
}
