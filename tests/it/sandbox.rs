//! The private PostgreSQL and the private Postfix: they work, they come back, and they leave nothing behind.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use outboxd::sandbox::cluster::{Cluster, Options};
use outboxd::sandbox::guardian::free_port;
use outboxd::sandbox::postfix::{BOUNCE_DOMAIN, DEFER_DOMAIN, DOMAIN, Postfix, smtp_sink, smtp_source};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

use crate::harness::{PATIENCE, Proc, TestDb, cluster, eventually, no_postfix, say};

async fn connect(cluster: &Cluster, database: &str) -> PgConnection {
    PgConnection::connect(&cluster.url(database)).await.unwrap()
}

#[tokio::test]
async fn a_private_cluster_answers_over_tcp_and_its_socket_in_utf8() {
    for url in [cluster().url("postgres"), cluster().socket_url("postgres")] {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let (encoding, ctype, fsync): (String, String, String) = sqlx::query_as(
            "SELECT getdatabaseencoding()::text, datcollate, current_setting('fsync') FROM pg_database LIMIT 1",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!((encoding.as_str(), ctype.as_str(), fsync.as_str()), ("UTF8", "C.UTF-8", "off"));
    }
}

#[tokio::test]
async fn a_durable_cluster_keeps_what_was_committed_over_a_stop_and_a_crash() {
    let port = free_port().unwrap();
    let settings = vec![("application_name".to_owned(), "it's \\ mine".to_owned())];
    let cluster = Cluster::start(&Options { durable: true, settings, port: Some(port) }).unwrap();
    let database = cluster.create_database(None).await.unwrap();
    let mut before = connect(&cluster, &database).await;
    sqlx::raw_sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").execute(&mut before).await.unwrap();
    let (name, fsync): (String, String) =
        sqlx::query_as("SELECT current_setting('application_name'), current_setting('fsync')")
            .fetch_one(&mut before)
            .await
            .unwrap();
    assert_eq!((name.as_str(), fsync.as_str()), ("it's \\ mine", "on"));

    cluster.stop_immediate().unwrap();
    before.ping().await.expect_err("a connection of a stopped server is dead");
    cluster.restart().unwrap();
    sqlx::raw_sql("INSERT INTO kept VALUES (2)").execute(&mut connect(&cluster, &database).await).await.unwrap();

    cluster.crash().unwrap();
    cluster.restart().unwrap();
    cluster.restart().unwrap();
    assert_eq!(cluster.port(), port);
    let kept: Vec<i32> = sqlx::query_scalar("SELECT n FROM kept ORDER BY n")
        .fetch_all(&mut connect(&cluster, &database).await)
        .await
        .unwrap();
    assert_eq!(kept, [1, 2]);
    assert!(cluster.log().contains("automatic recovery"), "it was not a clean stop:\n{}", cluster.log());

    let directory = cluster.directory().to_path_buf();
    drop(cluster);
    assert!(!directory.exists());
    TcpStream::connect(("127.0.0.1", port)).expect_err("nobody listens after the drop");
}

#[test]
fn a_port_in_use_is_an_error_with_postgresqls_own_words() {
    let options = Options { port: Some(cluster().port()), ..Options::default() };
    let error = format!("{:#}", Cluster::start(&options).expect_err("the port is taken"));
    assert!(error.contains("Address already in use"), "{error}");
}

#[tokio::test]
async fn a_cluster_is_gone_after_its_process_is_killed() {
    const HOLD: &str = "HOLD_A_CLUSTER_UNTIL_KILLED";
    if std::env::var_os(HOLD).is_some() {
        let cluster = Cluster::start(&Options::default()).unwrap();
        say(&format!("\nholding {} {}", cluster.port(), cluster.directory().display()));
        std::thread::park();
    }

    // The process that is killed is this very test, run again.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sandbox::a_cluster_is_gone_after_its_process_is_killed", "--nocapture"]).env(HOLD, "yes");
    let mut holder = Proc::spawn(command, TempDir::new().unwrap());
    let line = holder.line_with("holding").await;
    let [_, port, directory] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    TcpStream::connect(address).expect("the cluster runs");

    holder.kill();
    holder.ended().await;
    eventually("the directory is removed", PATIENCE, async || (!Path::new(directory).exists()).then_some(())).await;
    TcpStream::connect(address).expect_err("nobody listens any more");
}

#[tokio::test]
async fn a_test_database_has_the_projects_migrations() {
    let db = TestDb::new().await;
    let mut connection = db.pool.acquire().await.unwrap();
    assert_eq!(outboxd::store::migrate::pending(&mut connection).await.unwrap(), 0);
    let mut bare = connect(cluster(), &cluster().create_database(None).await.unwrap()).await;
    assert_ne!(outboxd::store::migrate::pending(&mut bare).await.unwrap(), 0);
}

/// One message by a raw SMTP conversation; returns the reply to the end of the data.
fn send_raw(to: SocketAddr, recipient: &str, message_id: &str) -> String {
    let mut connection = TcpStream::connect(to).unwrap();
    let mut replies = BufReader::new(connection.try_clone().unwrap());
    let mut reply = String::new();
    let message = format!("Message-ID: {message_id}\r\nSubject: raw\r\n\r\nHello\r\n.\r\n");
    let steps = [
        ("", "220"),
        ("HELO client.test\r\n", "250"),
        (&format!("MAIL FROM:<sender@{DOMAIN}>\r\n"), "250"),
        (&format!("RCPT TO:<{recipient}>\r\n"), "250"),
        ("DATA\r\n", "354"),
        (&message, "250"),
    ];
    for (line, expected) in steps {
        connection.write_all(line.as_bytes()).unwrap();
        reply.clear();
        replies.read_line(&mut reply).unwrap();
        assert!(reply.starts_with(expected), "{line:?} was answered {reply:?}");
    }
    reply
}

#[tokio::test]
async fn the_private_postfix_delivers_bounces_and_defers_as_a_real_one_does() {
    if no_postfix("the_private_postfix_delivers_bounces_and_defers_as_a_real_one_does") {
        return;
    }
    let postfix = Postfix::start(&[("smtpd_banner", "mail.outbox.test ESMTP private")]).unwrap();

    let reply = send_raw(postfix.address(), &format!("anna@{DOMAIN}"), "<one@client.test>");
    let queue_id = reply.trim().rsplit(' ').next().unwrap().to_owned();
    let mail = eventually("the message is in the mailbox", PATIENCE, async || {
        postfix.maildir().unwrap().pop().ok_or(postfix.log())
    })
    .await;
    let mail = String::from_utf8(mail).unwrap();
    assert!(
        mail.contains("Message-ID: <one@client.test>") && mail.contains("Delivered-To: anna@outbox.test"),
        "{mail}"
    );
    let log_has = async |parts: &[&str]| {
        let what = format!("one line of the mail log holds all of {parts:?}");
        eventually(&what, PATIENCE, async || {
            let log = postfix.log();
            if log.lines().any(|line| parts.iter().all(|part| line.contains(part))) { Ok(()) } else { Err(log) }
        })
        .await;
    };
    log_has(&[&queue_id, "message-id=<one@client.test>"]).await;
    log_has(&[&queue_id, "status=sent"]).await;

    send_raw(postfix.address(), &format!("anna@{DEFER_DOMAIN}"), "<two@client.test>");
    log_has(&["to=<anna@defer.test>", "status=deferred"]).await;
    send_raw(postfix.address(), &format!("anna@{BOUNCE_DOMAIN}"), "<three@client.test>");
    log_has(&["to=<anna@bounce.test>", "status=bounced"]).await;
    eventually("the sender has the bounce", PATIENCE, async || (postfix.maildir().unwrap().len() == 2).then_some(()))
        .await;

    postfix.abort().unwrap();
    TcpStream::connect(postfix.address()).expect_err("a stopped server does not answer");
    postfix.launch().unwrap();
    send_raw(postfix.address(), &format!("anna@{DOMAIN}"), "<four@client.test>");
}

#[test]
fn postfixs_own_test_programs_talk_to_each_other() {
    if no_postfix("postfixs_own_test_programs_talk_to_each_other") {
        return;
    }
    let sink = smtp_sink(&[]).unwrap();
    let mut source = smtp_source(&["-s", "4", "-m", "100"], sink.address()).unwrap();
    assert!(source.wait().unwrap().success());
    let refusing = smtp_sink(&["-r", "rcpt"]).unwrap();
    let mut source = smtp_source(&["-m", "1"], refusing.address()).unwrap();
    assert!(!source.wait().unwrap().success(), "a refused recipient is not a success");
    let address = sink.address();
    drop(sink);
    TcpStream::connect(address).expect_err("a dropped sink does not listen");
}
