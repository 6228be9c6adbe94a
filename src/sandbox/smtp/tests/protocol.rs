//! What a good client gets, and what a bad one is told.

use super::*;

#[tokio::test]
async fn a_message_is_kept_as_it_was_sent_with_its_envelope() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    assert_eq!(client.code("MAIL FROM:<bounce+n-1@example.com> SIZE=40 BODY=8BITMIME").await, 250);
    assert_eq!(client.code("RCPT TO:<b@example.com> NOTIFY=NEVER").await, 250);
    assert_eq!(client.code("DATA").await, 354);
    client.send("Message-ID: <n-1@example.com>\r\n\r\n..dot\r\ncaf\u{e9}\r\n.\r\n").await;
    assert_eq!(client.reply().await, "250 2.0.0 Ok: queued as S000001\r\n");
    assert_eq!(client.ask("QUIT").await, "221 2.0.0 Bye\r\n");
    assert_eq!(client.rest().await, (vec![], End::Fin));

    let messages = server.mailbox().messages();
    let [message] = messages.as_slice() else { panic!("{} messages", messages.len()) };
    assert_eq!(&*message.bytes, "Message-ID: <n-1@example.com>\r\n\r\n.dot\r\ncaf\u{e9}\r\n".as_bytes());
    assert_eq!(message.notification, "n-1");
    assert_eq!(message.message_id, "n-1@example.com");
    assert_eq!(message.sender, "bounce+n-1@example.com");
    let params = [("SIZE", "40"), ("BODY", "8BITMIME")].map(|(key, value)| (key.to_owned(), Some(value.to_owned())));
    assert_eq!(message.params, params);
    let recipient = Recipient {
        address: "b@example.com".to_owned(),
        params: vec![("NOTIFY".to_owned(), Some("NEVER".to_owned()))],
    };
    assert_eq!(message.recipients, [recipient]);
    assert!(!message.answer_lost && message.connection == 1);
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn pipelined_commands_are_answered_in_order_even_around_a_refusal() {
    let server = server([Rule::at(Stage::Rcpt, Action::reply("550 5.1.1 no")).recipient("nobody")]).await;
    let mut client = Client::hello(&server).await;
    client
        .send(
            "MAIL FROM:<a@example.com>\r\nRCPT TO:<nobody@example.com>\r\nRCPT TO:<b@example.com>\r\nRSET\r\n\
             MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n",
        )
        .await;
    let mut codes = Vec::new();
    for _ in 0..7 {
        codes.push(client.reply().await[..3].to_owned());
    }
    assert_eq!(codes, ["250", "550", "250", "250", "250", "250", "354"]);
    client.send(format!("{MESSAGE}MAIL FROM:<a@example.com>\r\n")).await;
    assert!(client.reply().await.contains("queued"));
    assert!(client.reply().await.starts_with("250 2.1.0"));
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn the_rest_of_a_group_whose_mail_or_recipient_was_refused_is_no_violation() {
    let server = server([
        Rule::at(Stage::Mail, Action::reply("451 later")).once(),
        Rule::at(Stage::Rcpt, Action::reply("450 later")),
    ])
    .await;
    let mut client = Client::hello(&server).await;
    client.send("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n").await;
    let replies = [client.reply().await, client.reply().await, client.reply().await];
    assert_eq!(replies.map(|reply| reply[..3].to_owned()), ["451", "503", "503"]);
    client.send("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n").await;
    let replies = [client.reply().await, client.reply().await, client.reply().await];
    assert_eq!(replies.map(|reply| reply[..3].to_owned()), ["250", "450", "554"]);
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn commands_out_of_order_are_refused_and_recorded() {
    let server = server([]).await;
    let mut client = Client::raw(&server).await;
    client.reply().await;
    assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 503);
    client.code("EHLO client.test").await;
    assert_eq!(client.code("RCPT TO:<b@example.com>").await, 503);
    assert_eq!(client.code("DATA").await, 503);
    assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 250);
    assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 503);
    assert_eq!(client.code("DATA").await, 554);
    assert_eq!(client.code("STARTTLS").await, 502);
    assert_eq!(client.code("AUTH PLAIN").await, 503);
    assert_eq!(client.code("RSET").await, 250);
    assert_eq!(client.code("AUTH PLAIN").await, 502);
    assert_eq!(client.code("XYZZY").await, 500);
    assert_eq!(server.violations().len(), 9, "{:?}", server.violations());
    assert_eq!(client.deliver().await, "250 2.0.0 Ok: queued as S000001\r\n", "and it can still do right");
}

#[tokio::test]
async fn a_bare_lf_or_cr_is_refused_and_recorded_in_commands_and_in_data() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    client.send("NOOP\n").await;
    assert!(client.reply().await.starts_with("500 "));
    client.send("NO\rOP\r\n").await;
    assert!(client.reply().await.starts_with("500 "));
    for smuggled in ["a\n.\n", "a\n.\r\n", "a\r\n.\n", "a\r.\r"] {
        client.start_mail().await;
        client.send(format!("{smuggled}MAIL FROM:<evil@example.com>\r\n.\r\n")).await;
        assert!(client.reply().await.starts_with("554 5.6.0 bare "), "{smuggled:?}");
    }
    assert_eq!(server.mailbox().count(), 0);
    let violations = server.violations();
    assert_eq!(violations.iter().filter(|one| one.contains("in a command")).count(), 2, "{violations:?}");
    assert!(violations.iter().filter(|one| one.contains("in data")).count() >= 4, "{violations:?}");
}

#[tokio::test]
async fn pipelining_that_was_not_offered_is_recorded() {
    let options = Options { extensions: Extensions::none(), ..Options::default() };
    let server = SmtpServer::start(options).await.unwrap();
    let mut client = Client::hello(&server).await;
    client.send("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\n").await;
    assert_eq!(client.reply().await, "250 Ok\r\n", "without enhanced codes, which were not offered either");
    client.reply().await;
    assert_eq!(server.violations().len(), 1, "{:?}", server.violations());
}

#[tokio::test]
async fn a_client_that_goes_on_before_the_answer_that_it_must_await_is_recorded() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    client.send(format!("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n{MESSAGE}")).await;
    for expected in ["250", "250", "354", "250"] {
        assert!(client.reply().await.starts_with(expected));
    }
    let violations = server.violations();
    assert!(violations.len() == 1 && violations[0].contains("must end a group"), "{violations:?}");
}

#[tokio::test]
async fn a_message_over_the_offered_size_is_refused_declared_or_not() {
    let extensions = Extensions { size: Some(20), ..Extensions::default() };
    let server = SmtpServer::start(Options { extensions, ..Options::default() }).await.unwrap();
    let mut client = Client::hello(&server).await;
    assert_eq!(client.code("MAIL FROM:<a@example.com> SIZE=21").await, 552);
    assert!(client.deliver().await.starts_with("552 "));
    assert_eq!(server.mailbox().count(), 0);
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn ehlo_lists_what_is_offered_and_helo_nothing() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    let hello = client.ask("EHLO client.test").await;
    for word in ["250-PIPELINING", "250-8BITMIME", "250-SMTPUTF8", "SIZE 10485760", "ENHANCEDSTATUSCODES"] {
        assert!(hello.contains(word), "{hello}");
    }
    assert!(!hello.contains("STARTTLS") && !hello.contains("AUTH"), "{hello}");
    assert_eq!(client.ask("HELO client.test").await, "250 sandbox.test\r\n");
    assert_eq!(client.code("MAIL FROM:<a@example.com> SIZE=1").await, 555);
}

#[tokio::test]
async fn a_repeated_id_is_answered_and_not_delivered_until_it_is_forgotten() {
    let dedup = Dedup { header: "X-Notification-ID".to_owned(), window: Duration::from_secs(3_600) };
    let server = SmtpServer::start(Options { dedup: Some(dedup), ..Options::default() }).await.unwrap();
    let mailbox = server.mailbox();
    let mut client = Client::hello(&server).await;
    let first = client.deliver().await;
    assert_eq!(client.deliver().await, first, "the same queue id");
    assert_eq!((mailbox.deliveries("n-1"), mailbox.deduplicated()), (1, 1));
    mailbox.forget_ids();
    assert_ne!(client.deliver().await, first);
    assert_eq!((mailbox.deliveries("n-1"), mailbox.deduplicated()), (2, 1));
    assert_eq!(mailbox.duplicates().into_iter().collect::<Vec<_>>(), [("n-1".to_owned(), 2)]);
}

#[tokio::test]
async fn a_paused_server_refuses_connections_and_comes_back_on_its_port() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    server.pause().await;
    let refused = TcpStream::connect(server.addr()).await.map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
    assert!(client.deliver().await.starts_with("250 "), "an open connection goes on");
    server.resume().await.unwrap();
    Client::hello(&server).await;
}

#[tokio::test]
async fn connections_are_counted_cut_and_stopped() {
    let server = server([]).await;
    let addr = server.addr();
    let mut clients = [Client::hello(&server).await, Client::hello(&server).await];
    assert_eq!(server.connections(), Connections { now: 2, total: 2, peak: 2 });
    server.cut_connections().await;
    assert_eq!(server.connections(), Connections { now: 0, total: 2, peak: 2 });
    for client in &mut clients {
        assert_eq!(client.rest().await.0, b"");
    }
    let mut client = Client::hello(&server).await;
    server.stop().await;
    assert_eq!(client.rest().await.0, b"");
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_dropped_server_cuts_its_connections() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    drop(server);
    assert_eq!(client.rest().await.0, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_connections_deliver_at_once() {
    let server = Arc::new(server([]).await);
    let everyone = Arc::new(tokio::sync::Barrier::new(300));
    let mut tasks = JoinSet::new();
    for _ in 0..300 {
        let (server, everyone) = (Arc::clone(&server), Arc::clone(&everyone));
        tasks.spawn(async move {
            let mut client = Client::hello(&server).await;
            everyone.wait().await;
            for _ in 0..5 {
                assert!(client.deliver().await.starts_with("250 "));
            }
        });
    }
    soon(tasks.join_all()).await;
    assert_eq!((server.mailbox().count(), server.connections().peak), (1_500, 300));
    assert_eq!(server.violations(), Vec::<String>::new());
}
