//! The commands as a person meets them: what they print, how they end, and what they leave in the database.

use std::io::Write as _;
use std::process::{Command, Stdio};

use outboxd::sandbox::smtp::{Action, Rule, Stage};
use serde_json::{Value, json};

use crate::crashes::{in_state, server, worker};
use crate::harness::{Config, TestDb, cluster};

/// How a command ended and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the real program to its end.
pub(crate) fn outboxd(args: &[&str], config: &Config, stdin: &str) -> Ended {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("outboxd.toml");
    std::fs::write(&file, config.text()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OUTBOXD_")) {
        command.env_remove(name);
    }
    let mut child = command
        .args(args)
        .arg("--config")
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read it may have ended already.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn offline(db: &TestDb) -> Config {
    Config::new(db).set("provider.primary.host", "127.0.0.1")
}

/// A notification as it comes from standard input, with some fields given or changed.
fn notification(fields: Value) -> String {
    let mut whole = json!({
        "account_id": "acme", "sender": "shop@example.org", "recipient": "jo@example.net", "subject": "Your order",
        "body_text": "It is on its way.",
    });
    for (name, value) in fields.as_object().unwrap() {
        whole[name] = value.clone();
    }
    whole.to_string()
}

async fn stored(db: &TestDb) -> i64 {
    sqlx::query_scalar("select count(*) from outboxd.outbox").fetch_one(&db.pool).await.unwrap()
}

#[tokio::test]
async fn migrate_may_be_run_again_and_says_what_it_did() {
    let url = cluster().url(&cluster().create_database(None).await.unwrap());
    let config = offline(&TestDb::new().await).set("database.url", &url);
    let first = outboxd(&["migrate"], &config, "");
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(first.stdout.starts_with("applied "), "{first:?}");
    let again = outboxd(&["migrate"], &config, "");
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "the schema is current\n"), "{again:?}");
}

#[tokio::test]
async fn config_check_says_what_is_in_force_or_everything_that_is_wrong_with_it() {
    let db = TestDb::new().await;
    let good = outboxd(&["config", "check"], &offline(&db), "");
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.stdout.contains("lease.duration") && good.stdout.contains("the configuration is usable"), "{good:?}");
    assert!(!good.stdout.contains(&db.url), "the database's address may hold a password: {good:?}");

    let bad = offline(&db).set("lease.duration", "1s").set("provider.primary.on_uncertain", "resend-within-window");
    let ended = outboxd(&["config", "check"], &bad, "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for key in ["lease.duration", "lease.renew_every", "provider.primary.on_uncertain"] {
        assert!(ended.stderr.contains(key), "{key}: {ended:?}");
    }
    let ended = outboxd(&["worker"], &bad, "");
    assert_eq!(ended.code, Some(2), "no worker runs on it: {ended:?}");
}

#[tokio::test]
async fn enqueue_takes_flags_or_json_and_prints_the_id() {
    let db = TestDb::new().await;
    let config = offline(&db);
    let flags = [
        "enqueue",
        "--account",
        "acme",
        "--from",
        "shop@example.org",
        "--to",
        "jo@example.net",
        "--subject",
        "Grüße",
        "--text",
        "Hallo",
        "--html",
        "<p>Hallo</p>",
        "--priority",
        "1",
        "--not-before",
        "2026-01-02T03:04:05+01:00",
    ];
    let ended = outboxd(&flags, &config, "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let story = db.story(ended.stdout.trim().parse().unwrap()).await;
    assert_eq!((story.notification.subject.as_str(), story.notification.priority), ("Grüße", 1));

    let attachment = json!([{"filename": "a.txt", "content_type": "text/plain", "content": "aGFsbG8="}]);
    let text =
        notification(json!({"headers": [["X-Order", "7"]], "attachments": attachment, "message_ref": "order 7"}));
    let ended = outboxd(&["enqueue", "--stdin"], &config, &text);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let story = db.story(ended.stdout.trim().parse().unwrap()).await;
    assert_eq!(story.notification.message_ref.as_deref(), Some("order 7"));
    assert_eq!((stored(&db).await, story.notification.state.as_str()), (2, "pending"));
}

#[tokio::test]
async fn the_same_dedup_key_prints_the_same_id_and_other_content_is_refused_by_name() {
    let db = TestDb::new().await;
    let config = offline(&db);
    let flags = |text| {
        [
            "enqueue",
            "--account",
            "a",
            "--from",
            "a@example.org",
            "--to",
            "b@example.net",
            "--dedup-key",
            "k",
            "--text",
            text,
        ]
    };
    let first = outboxd(&flags("x"), &config, "");
    let again = outboxd(&flags("x"), &config, "");
    assert_eq!((first.code, &first.stdout), (Some(0), &again.stdout), "{first:?} {again:?}");
    let other = outboxd(&flags("y"), &config, "");
    assert_eq!((other.code, other.stdout.as_str()), (Some(1), ""), "{other:?}");
    for word in ["dedup_key", first.stdout.trim(), "new key"] {
        assert!(other.stderr.contains(word), "{word}: {other:?}");
    }
    assert_eq!(stored(&db).await, 1);
}

#[tokio::test]
async fn what_cannot_be_a_notification_is_refused_with_its_field_and_a_remedy_and_nothing_is_stored() {
    let db = TestDb::new().await;
    let config = offline(&db);
    let attachment = |content: &str| json!([{"filename": "a", "content_type": "text/plain", "content": content}]);
    // Fields, the field that is named, a word of the remedy.
    let cases = [
        (json!({"account_id": ""}), "account_id", "name the account"),
        (json!({"sender": "nobody"}), "sender", "give"),
        (json!({"recipient": "jo@example.net\r\nBcc: all@example.net"}), "recipient", "give"),
        (json!({"recipient": "Jo <jo@example.net>"}), "recipient", "give"),
        (json!({"recipient": "jo@localhost..net"}), "recipient", "give"),
        (json!({"subject": "one\r\nBcc: all@example.net"}), "subject", "remove"),
        (json!({"subject": "x".repeat(1_000)}), "subject", "shorten"),
        (json!({"subject": "nul \u{0}"}), "subject", "remove"),
        (json!({"body_text": null}), "body_text", "give"),
        (json!({"body_text": "nul \u{0}"}), "body_text", "remove"),
        (json!({"body_html": "x".repeat(2_097_153)}), "body_html", "shorten"),
        (json!({"sender_name": "a\nb"}), "sender_name", "remove"),
        (json!({"reply_to": "jo"}), "reply_to", "give"),
        (json!({"headers": [["Subject", "mine"]]}), "headers[0]", ""),
        (json!({"headers": [["X-One", "a\r\nb"]]}), "headers[0]", "remove"),
        (json!({"headers": [["X-One", "nul \u{0}"]]}), "headers[0]", "remove"),
        (json!({"headers": [["no name", "x"]]}), "headers[0]", ""),
        (json!({"attachments": attachment("%%%")}), "attachments[0].content", "base64"),
        (json!({"attachments": attachment("nul \u{0}")}), "attachments[0].content", "remove"),
        (json!({"list_unsubscribe": "http://example.org"}), "list_unsubscribe", "give"),
        (json!({"list_unsubscribe_post": true}), "list_unsubscribe_post", "give"),
        (json!({"route": ""}), "route", "leave"),
        (json!({"priority": 10}), "priority", "leave"),
        (json!({"not_before": "2199-01-01T00:00:00Z"}), "not_before", "nearer"),
        (json!({"expires_at": "2001-01-01T00:00:00Z"}), "expires_at", "later"),
        (json!({"dedup_key": ""}), "dedup_key", "give"),
        (json!({"message_ref": "x".repeat(201)}), "message_ref", "give"),
        (json!({"recipients": "jo@example.net"}), "recipients", "expected one of"),
        (json!({"priority": "high"}), "priority", "docs/producers.md"),
        (json!({"not_before": "tomorrow"}), "not_before", "docs/producers.md"),
        (json!({"recipient": null}), "recipient: invalid type: null", "docs/producers.md"),
    ];
    let mut wrong = Vec::new();
    for (fields, field, remedy) in cases {
        let ended = outboxd(&["enqueue", "--stdin"], &config, &notification(fields.clone()));
        let said = ended.stderr.to_lowercase();
        if ended.code != Some(1)
            || !ended.stdout.is_empty()
            || !said.contains(field)
            || !said.contains(&remedy.to_lowercase())
        {
            let shown: String = fields.to_string().chars().take(80).collect();
            wrong.push(format!("{shown}: wants {field:?} and {remedy:?}, got {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for text in ["", "{", "[]", "null", "\u{feff}{}"] {
        let ended = outboxd(&["enqueue", "--stdin"], &config, text);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{text:?}: {ended:?}");
        assert!(ended.stderr.contains("standard input"), "{ended:?}");
    }
    let ended = outboxd(&["enqueue", "--account", "acme", "--to", "jo@example.net"], &config, "");
    assert!(ended.code == Some(2) && ended.stderr.contains("--from"), "{ended:?}");
    assert_eq!(stored(&db).await, 0);
}

#[tokio::test]
async fn show_tells_the_whole_story_to_people_and_to_programs() {
    let db = TestDb::new().await;
    let server = server([
        Rule::at(Stage::Rcpt, Action::reply("450 4.2.1 try again later")).once(),
        Rule::at(Stage::EndOfData, Action::Close.after_accepting()),
    ])
    .await;
    let config = Config::new(&db).provider("primary", server.addr());
    let id = outboxd(&["enqueue", "--stdin"], &config, &notification(json!({"dedup_key": "order 7"}))).stdout;
    let id = id.trim();
    let mut proc = worker(&config);
    in_state(&db, id.parse().unwrap(), "uncertain").await;
    proc.terminate();
    proc.ended().await;

    let human = outboxd(&["show", id], &config, "");
    assert_eq!(human.code, Some(0), "{human:?}");
    for words in [
        id,
        "state      uncertain since",
        "waits for evidence until",
        "to         jo@example.net",
        "dedup key  order 7",
        "attempt 1: claimed by test-",
        "deferred at rcpt: 450 ",
        "try again later",
        "attempt 2:",
        "begun, from here on the body may have left",
        "uncertain at end_of_data",
    ] {
        assert!(human.stdout.contains(words), "{words:?} is not in\n{}", human.stdout);
    }
    let machine = outboxd(&["show", id, "--json"], &config, "");
    let story: Value = serde_json::from_str(&machine.stdout).unwrap();
    assert_eq!((&story["notification"]["state"], &story["notification"]["id"]), (&json!("uncertain"), &json!(id)));
    assert_eq!(story["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(story["attempts"][0]["reply_code"], 450);
    assert_eq!(story["evidence"], json!([]));
}

#[tokio::test]
async fn show_says_that_there_is_no_such_notification_or_no_such_id() {
    let db = TestDb::new().await;
    let ended = outboxd(&["show", "0197b8a0-0000-7000-8000-000000000000"], &offline(&db), "");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert!(ended.stderr.contains("there is no notification or message 0197b8a0-"), "{ended:?}");
    let ended = outboxd(&["show", "yesterday's"], &offline(&db), "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[tokio::test]
async fn a_command_whose_database_is_away_says_so_and_fails() {
    let db = TestDb::new().await;
    let config = offline(&db).set("database.url", "postgres://postgres@127.0.0.1:9/none");
    for args in [&["migrate"][..], &["show", "0197b8a0-0000-7000-8000-000000000000"], &["enqueue", "--stdin"]] {
        let ended = outboxd(args, &config, &notification(json!({})));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        assert!(ended.stderr.contains("cannot reach the database (database.url)"), "{ended:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure_to_report() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output =
        Command::new(env!("CARGO_BIN_EXE_outboxd")).args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
