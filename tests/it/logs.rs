//! What a worker writes while everything goes wrong names notifications by their ids, and nobody and nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outboxd::sandbox::smtp::{Action, Auth, Options, Rule, Script, SmtpServer, Stage, Tls, self_signed};
use outboxd::store::enqueue::{NewAttachment, NewNotification};

use crate::crashes::{count, worker};
use crate::harness::rows::plain;
use crate::harness::{Config, PATIENCE, TestDb, eventually};

const SECRETS: [&str; 3] = ["smtp-secret-Xq7", "database-secret-Zk3", "login-name-Wb5"];
const SUBJECT: &str = "subject-of-confidence";
const TEXT: &str = "text-of-confidence";
const SENDER: &str = "sender-local@private-sender.example";

/// A notification whose recipient tells the server what to do with it.
fn to(fate: &str) -> NewNotification {
    NewNotification {
        sender: SENDER.to_owned(),
        sender_name: Some("name-of-the-sender".to_owned()),
        recipient: format!("{fate}-local@private-recipient.example"),
        recipient_name: Some("name-of-the-recipient".to_owned()),
        subject: format!("{SUBJECT} {fate}"),
        body_text: Some(format!("{TEXT} {fate}")),
        body_html: Some(format!("<p>html-of-confidence {fate}</p>")),
        headers: vec![("X-Order".to_owned(), "header-of-confidence".to_owned())],
        attachments: vec![NewAttachment {
            filename: "file-of-confidence.txt".to_owned(),
            content_type: "text/plain".to_owned(),
            content: STANDARD.encode("attachment-of-confidence"),
        }],
        ..plain("acme")
    }
}

/// A reply that repeats all that the server was told.
fn telling(code: &str) -> Action {
    let password = SECRETS[0];
    Action::reply(&format!(
        "{code} <refused-local@private-recipient.example> from <{SENDER}> says {SUBJECT}: {TEXT} ({password})"
    ))
}

#[tokio::test]
async fn the_log_of_a_worker_names_no_address_no_content_and_no_secret() {
    let db = TestDb::new().await;
    let tls = self_signed(&["127.0.0.1"]).unwrap();
    let script = Script::new([
        Rule::at(Stage::Auth, telling("535 5.7.8")).times(2).label("auth refused"),
        Rule::at(Stage::Mail, telling("451 4.3.0")).once().label("mail deferred"),
        Rule::at(Stage::Mail, telling("421 4.3.2")).once().label("service closing"),
        Rule::at(Stage::Rcpt, telling("550 5.1.1")).recipient("refused").label("recipient refused"),
        Rule::at(Stage::Rcpt, telling("450 4.2.1")).recipient("deferred").once().label("recipient deferred"),
        Rule::at(Stage::Data, Action::Reset).recipient("cut").once().label("cut at data"),
        Rule::at(Stage::Data, Action::reply("oops to refused-local@private-recipient.example"))
            .once()
            .label("no reply at all"),
        Rule::at(Stage::Body, Action::Reset).recipient("body").once().label("cut in the body"),
        Rule::at(Stage::EndOfData, telling("554 5.6.0")).recipient("content").label("content refused"),
        Rule::at(Stage::EndOfData, Action::Close.after_accepting()).recipient("doubt").label("answer lost"),
        Rule::at(Stage::EndOfData, telling("250 2.0.0").after_accepting()).recipient("told").label("accepted"),
    ]);
    let server = SmtpServer::start(Options {
        tls: Tls::Implicit(tls.server),
        auth: Some(Auth::new(SECRETS[2], SECRETS[0])),
        script,
        ..Options::default()
    })
    .await
    .unwrap();
    let files = tempfile::TempDir::new().unwrap();
    let root = files.path().join("root.pem");
    std::fs::write(&root, tls.root_pem).unwrap();

    let mut fates = vec![to("refused"), to("deferred"), to("cut"), to("body"), to("content"), to("doubt"), to("told")];
    fates.push(NewNotification {
        recipient: "später-local@private-recipient.example".to_owned(),
        ..to("international")
    });
    for new in &fates {
        db.enqueue(new).await;
    }
    let url = db.url.replace("postgres@", &format!("postgres:{}@", SECRETS[1]));
    let config = Config::new(&db)
        .set("database.url", &url)
        .set("log.level", "trace")
        .set("log.format", "json")
        .provider("primary", server.addr())
        .set("provider.primary.security", "implicit-tls")
        .set("provider.primary.tls_ca_file", root.to_str().unwrap())
        .set("provider.primary.username", SECRETS[2])
        .set("provider.primary.password", SECRETS[0]);
    let mut proc = worker(&config);
    eventually("all have an outcome", PATIENCE, async || {
        // In one statement: between two, a row can go from one state to another and be seen in neither.
        let open = sqlx::query_scalar::<_, i64>(
            "select count(*) from outboxd.delivery where state in ('pending', 'claimed', 'transmitting')",
        );
        let open = open.fetch_one(&db.pool).await.unwrap();
        if open == 0 { Ok(()) } else { Err((open, server.script().fired(), proc.log())) }
    })
    .await;
    // The database goes away, too.
    sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'outboxd'")
        .execute(&db.pool)
        .await
        .unwrap();
    proc.line_with("the database answers again").await;
    proc.terminate();
    assert_eq!(proc.ended().await.code(), Some(0), "{}", proc.log());

    let fired = server.script().fired();
    assert_eq!(fired.len(), 11, "everything went wrong that should: {fired:?}");
    assert_eq!((count(&db, "failed").await, count(&db, "uncertain").await), (2, 1));
    let log = proc.log();
    assert!(log.lines().count() > 20 && log.contains("\"level\":\"DEBUG\""), "there is something to look at:\n{log}");
    let told = db.story(first_refused(&db).await).await;
    assert!(log.contains(&told.notification.id.to_string()), "notifications are named by id");
    let encoded = STANDARD.encode(format!("\0{}\0{}", SECRETS[2], SECRETS[0]));
    let pieces = ["private-sender", "private-recipient", "-local", "später", "of-confidence", "name-of-the", &encoded];
    for piece in pieces.iter().copied().chain(SECRETS).chain([STANDARD.encode(SECRETS[0]).as_str()]) {
        let line = log.lines().find(|line| line.contains(piece));
        assert!(line.is_none(), "{piece:?} stands in the log: {}", line.unwrap_or_default());
    }
}

async fn first_refused(db: &TestDb) -> outboxd::domain::ids::NotificationId {
    let id = sqlx::query_scalar("select notification_id from outboxd.delivery where state = 'failed' limit 1");
    outboxd::domain::ids::NotificationId(id.fetch_one(&db.pool).await.unwrap())
}
