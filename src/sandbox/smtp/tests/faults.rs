//! Each action at each stage does what it says, and the mailbox tells the truth about it.

use super::*;

/// Brings a new connection to where `stage` is about to be decided: the next thing to come is its answer.
async fn at(stage: Stage, server: &SmtpServer) -> Client<TcpStream> {
    let mut client = Client::raw(server).await;
    if stage == Stage::Connect {
        return client;
    }
    client.reply().await;
    if stage == Stage::Ehlo {
        client.send("EHLO client.test\r\n").await;
        return client;
    }
    client.ask("EHLO client.test").await;
    let (before, last): (&[&str], &str) = match stage {
        Stage::Connect | Stage::Ehlo => (&[], ""),
        Stage::StartTls | Stage::Handshake => (&[], "STARTTLS"),
        Stage::Auth => (&[], "AUTH PLAIN AHUAcA=="),
        Stage::Mail => (&[], "MAIL FROM:<a@example.com>"),
        Stage::Rcpt => (&["MAIL FROM:<a@example.com>"], "RCPT TO:<b@example.com>"),
        Stage::Data => (&["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>"], "DATA"),
        Stage::Body => {
            client.start_mail().await;
            return client;
        }
        Stage::EndOfData | Stage::Idle => {
            client.start_mail().await;
            (&[], MESSAGE.strip_suffix("\r\n").unwrap())
        }
        Stage::Rset => (&[], "RSET"),
        Stage::Quit => (&[], "QUIT"),
        Stage::Other => (&[], "NOOP"),
    };
    for line in before {
        client.ask(line).await;
    }
    client.send(format!("{last}\r\n")).await;
    if stage == Stage::Idle {
        assert!(client.reply().await.starts_with("250 "));
    }
    client
}

/// A server with everything that is needed to reach `stage`.
async fn reaching(stage: Stage, action: Action) -> SmtpServer {
    let script = Script::new([Rule::at(stage, action).label("it")]);
    let mut options = Options { script, ..Options::default() };
    match stage {
        Stage::StartTls | Stage::Handshake => options.tls = Tls::StartTls(self_signed(&["localhost"]).unwrap().server),
        Stage::Auth => options.auth = Some(Auth::new("u", "p")),
        _ => {}
    }
    SmtpServer::start(options).await.unwrap()
}

/// What comes before the fault, where the stage is reached with an answer already on its way.
fn said_before(stage: Stage) -> &'static [u8] {
    match stage {
        Stage::Handshake => b"220 2.0.0 go ahead\r\n",
        _ => b"",
    }
}

fn accepted_before(stage: Stage) -> usize {
    usize::from(stage == Stage::Idle)
}

#[tokio::test]
async fn at_every_stage_a_cut_by_fin_is_seen_as_an_end_and_a_cut_by_rst_as_a_reset() {
    for stage in Stage::ALL {
        for (action, expected) in [(Action::Close, End::Fin), (Action::Reset, End::Rst)] {
            let server = reaching(stage, action).await;
            let mut client = at(stage, &server).await;
            assert_eq!(client.rest().await, (said_before(stage).to_vec(), expected), "{stage}");
            assert_eq!(server.mailbox().count(), accepted_before(stage), "{stage}");
            assert_eq!(server.script().times_fired("it"), 1);
            assert_eq!(server.violations(), Vec::<String>::new(), "{stage}");
        }
    }
}

#[tokio::test]
async fn at_every_stage_a_reply_and_a_close_can_take_the_place_of_the_answer() {
    for stage in Stage::ALL {
        let server = reaching(stage, Action::ReplyThenClose(b"\xff 421 \0 bye\n".to_vec())).await;
        let mut client = at(stage, &server).await;
        let expected = [said_before(stage), b"\xff 421 \0 bye\n"].concat();
        assert_eq!(client.rest().await, (expected, End::Fin), "{stage}");
        assert_eq!(server.mailbox().count(), accepted_before(stage), "{stage}");
    }
}

#[tokio::test]
async fn at_every_stage_the_server_can_hang_until_the_client_leaves() {
    for stage in Stage::ALL {
        let server = reaching(stage, Action::Hang).await;
        let mut client = at(stage, &server).await;
        soon(server.script().wait_fired("it", 1)).await;
        if !said_before(stage).is_empty() {
            client.reply().await;
        }
        let silence = tokio::time::timeout(Duration::from_millis(30), client.stream.read(&mut [0; 8])).await;
        assert!(silence.is_err(), "{stage}: {silence:?}");
        assert_eq!(server.connections().now, 1, "{stage}");
        drop(client);
        soon(server.wait_for_connections(|connections| connections.now == 0)).await;
        assert_eq!(server.mailbox().count(), accepted_before(stage), "{stage}");
    }
}

#[tokio::test]
async fn at_every_stage_a_delay_comes_before_the_action() {
    let delay = Duration::from_millis(60);
    for stage in Stage::ALL {
        let server = reaching(stage, Action::reply_then_close("421 late").after(delay)).await;
        let begun = std::time::Instant::now();
        let mut client = at(stage, &server).await;
        let (bytes, _) = client.rest().await;
        assert!(begun.elapsed() >= delay, "{stage}");
        assert_eq!(bytes, [said_before(stage), b"421 late\r\n"].concat(), "{stage}");
    }
}

#[tokio::test]
async fn a_4yz_or_5yz_at_mail_rcpt_data_or_the_end_leaves_the_connection_usable() {
    for stage in [Stage::Mail, Stage::Rcpt, Stage::Data, Stage::EndOfData, Stage::Rset, Stage::Other] {
        for code in ["451", "550"] {
            let server = server([Rule::at(stage, Action::reply(&format!("{code} 0.0.0 no"))).once()]).await;
            let mut client = at(stage, &server).await;
            assert!(client.reply().await.starts_with(code), "{stage}");
            assert_eq!(server.mailbox().count(), 0);
            client.ask("RSET").await;
            assert!(client.deliver().await.starts_with("250 "), "{stage}");
            assert_eq!(server.violations(), Vec::<String>::new(), "{stage}");
        }
    }
}

#[tokio::test]
async fn a_refused_ehlo_leaves_helo() {
    let server = server([Rule::at(Stage::Ehlo, Action::reply("502 no")).once()]).await;
    let mut client = at(Stage::Ehlo, &server).await;
    assert_eq!(client.reply().await, "502 no\r\n");
    assert_eq!(client.code("HELO client.test").await, 250);
    assert!(client.deliver().await.starts_with("250 "));
}

#[tokio::test]
async fn after_a_refusing_greeting_only_quit_is_served() {
    let server = server([Rule::at(Stage::Connect, Action::reply("554 no service"))]).await;
    let mut client = Client::raw(&server).await;
    assert_eq!(client.reply().await, "554 no service\r\n");
    assert_eq!(client.code("EHLO client.test").await, 503);
    assert_eq!(client.code("QUIT").await, 221);
}

#[tokio::test]
async fn data_answered_with_250_is_not_followed_by_a_body() {
    let server = server([Rule::at(Stage::Data, Action::reply("250 what?")).once()]).await;
    let mut client = at(Stage::Data, &server).await;
    assert_eq!(client.reply().await, "250 what?\r\n");
    assert_eq!(client.code("NOOP").await, 250);
    assert_eq!(client.code("DATA").await, 354, "the transaction is still open");
}

#[tokio::test]
async fn a_body_is_cut_after_exactly_as_many_bytes_as_told() {
    for (action, expected) in [(Action::Close, End::Fin), (Action::Reset, End::Rst)] {
        let server = server([Rule::at(Stage::Body, action.after_bytes(10)).label("cut").once()]).await;
        let mut client = Client::hello(&server).await;
        client.start_mail().await;
        soon(server.script().wait_fired("cut", 1)).await;
        client.send("123456789").await;
        let silence = tokio::time::timeout(Duration::from_millis(30), client.stream.read(&mut [0; 8])).await;
        assert!(silence.is_err(), "{silence:?} after nine bytes");
        client.send("0").await;
        assert_eq!(client.rest().await, (vec![], expected));
        assert_eq!(server.mailbox().count(), 0);
    }
}

#[tokio::test]
async fn a_body_shorter_than_the_cut_is_delivered() {
    let server = server([Rule::at(Stage::Body, Action::Close.after_bytes(1_000_000))]).await;
    assert!(Client::hello(&server).await.deliver().await.starts_with("250 "));
}

#[tokio::test]
async fn a_server_that_hangs_in_the_body_stops_reading_so_that_a_big_body_cannot_be_written() {
    let server = server([Rule::at(Stage::Body, Action::Hang.after_bytes(10)).label("hang")]).await;
    let mut client = Client::hello(&server).await;
    client.start_mail().await;
    let line = [[b'x'; 70].as_slice(), b"\r\n"].concat().repeat(1_000);
    let mut written = 0;
    // More than the kernel's buffers can hold by far.
    let stuck = loop {
        match tokio::time::timeout(Duration::from_millis(200), client.stream.write_all(&line)).await {
            Ok(result) => result.unwrap(),
            Err(_) => break true,
        }
        written += line.len();
        if written > 64 * 1_024 * 1_024 {
            break false;
        }
    };
    assert!(stuck, "{written} bytes were written");
    server.cut_connections().await;
    assert_eq!(server.mailbox().count(), 0);
}

#[tokio::test]
async fn a_reply_in_the_body_comes_before_the_end_of_data() {
    let server = server([Rule::at(Stage::Body, Action::reply("452 full").after_bytes(5))]).await;
    let mut client = Client::hello(&server).await;
    client.start_mail().await;
    client.send("X: 12").await;
    assert_eq!(client.reply().await, "452 full\r\n");
    client.send("\r\n\r\n.\r\n").await;
    assert!(client.reply().await.starts_with("250 "));
}

#[tokio::test]
async fn an_accepted_message_is_kept_however_its_answer_is_lost() {
    let late = Duration::from_millis(40);
    for (action, expected, bytes) in [
        (Action::Close, End::Fin, &b""[..]),
        (Action::Reset, End::Rst, b""),
        (Action::Close.after(late), End::Fin, b""),
        (Action::ReplyThenClose(b"garbage".to_vec()), End::Fin, b"garbage"),
        (Action::ReplyThenClose(b"250 half a li".to_vec()), End::Fin, b"250 half a li"),
        (Action::reply_then_close("451 a lie"), End::Fin, b"451 a lie\r\n"),
    ] {
        let server = server([Rule::at(Stage::EndOfData, action.clone().after_accepting())]).await;
        let mut client = at(Stage::EndOfData, &server).await;
        assert_eq!(client.rest().await, (bytes.to_vec(), expected), "{action}");
        assert_eq!((server.mailbox().count(), server.mailbox().answers_lost()), (1, 1), "{action}");
    }
}

#[tokio::test]
async fn a_message_is_accepted_before_a_lost_answer_is_waited_for() {
    let server = server([Rule::at(Stage::EndOfData, Action::Hang.after_accepting())]).await;
    let client = at(Stage::EndOfData, &server).await;
    soon(server.mailbox().wait_for_count(1)).await;
    assert_eq!((server.mailbox().answers_lost(), server.connections().now), (1, 1));
    drop(client);
}

#[tokio::test]
async fn a_late_answer_is_an_answer_for_a_client_that_waits_and_lost_on_one_that_left() {
    let late = Action::Proceed.after(Duration::from_millis(80)).after_accepting();
    let server = server([Rule::at(Stage::EndOfData, late)]).await;
    let mut patient = at(Stage::EndOfData, &server).await;
    soon(server.mailbox().wait_for_count(1)).await;
    assert!(patient.reply().await.starts_with("250 2.0.0 Ok"));
    assert_eq!(patient.code("QUIT").await, 221);
    assert_eq!(server.mailbox().answers_lost(), 0);

    let hasty = at(Stage::EndOfData, &server).await;
    soon(server.mailbox().wait_for_count(2)).await;
    drop(hasty);
    soon(server.mailbox().wait_for(|mailbox| mailbox.answers_lost() == 1)).await;
    assert!(server.mailbox().messages()[1].answer_lost);
}

#[tokio::test]
async fn an_answer_that_a_stopped_server_never_gave_is_lost() {
    let late = Action::Proceed.after(Duration::from_secs(3_600)).after_accepting();
    let server = server([Rule::at(Stage::EndOfData, late)]).await;
    let mailbox = server.mailbox();
    let _client = at(Stage::EndOfData, &server).await;
    soon(mailbox.wait_for_count(1)).await;
    assert_eq!(mailbox.answers_lost(), 0, "it could still come");
    server.stop().await;
    assert_eq!(mailbox.answers_lost(), 1);
}

#[tokio::test]
async fn a_250_to_a_message_that_was_thrown_away_leaves_nothing_in_the_mailbox() {
    let server = server([Rule::at(Stage::EndOfData, Action::reply("250 2.0.0 trust me"))]).await;
    let mut client = at(Stage::EndOfData, &server).await;
    assert_eq!(client.reply().await, "250 2.0.0 trust me\r\n");
    assert_eq!(server.mailbox().count(), 0);
}

#[tokio::test]
async fn a_slow_server_accepts_only_after_its_delay() {
    let slow = Action::Proceed.after(Duration::from_secs(3_600));
    let server = server([Rule::at(Stage::EndOfData, slow).label("slow")]).await;
    let _client = at(Stage::EndOfData, &server).await;
    soon(server.script().wait_fired("slow", 1)).await;
    assert_eq!(server.mailbox().count(), 0);
}

#[tokio::test]
async fn a_fault_in_a_pipelined_group_lets_the_earlier_answers_through() {
    for (action, expected) in [(Action::Close, End::Fin), (Action::Reset, End::Rst)] {
        let server = server([Rule::at(Stage::Data, action)]).await;
        let mut client = Client::hello(&server).await;
        client.send("MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n").await;
        assert_eq!(client.rest().await, (b"250 2.1.0 Ok\r\n250 2.1.5 Ok\r\n".to_vec(), expected));
    }
}

#[tokio::test]
async fn an_idle_connection_is_told_off_unless_the_client_speaks_first() {
    let unasked = Action::reply_then_close("421 4.4.2 idle").after(Duration::from_millis(50));
    let server = server([Rule::at(Stage::Idle, unasked).once()]).await;
    let mut client = at(Stage::Idle, &server).await;
    assert_eq!(client.rest().await, (b"421 4.4.2 idle\r\n".to_vec(), End::Fin));

    let patient = Action::Close.after(Duration::from_secs(3_600));
    server.script().replace(Script::new([Rule::at(Stage::Idle, patient)]));
    let mut client = at(Stage::Idle, &server).await;
    assert!(client.deliver().await.starts_with("250 "));
}

#[tokio::test]
async fn rules_can_be_changed_while_the_server_runs() {
    let server = server([]).await;
    let mut client = Client::hello(&server).await;
    assert!(client.deliver().await.starts_with("250 "));
    server.script().push(Rule::at(Stage::EndOfData, Action::reply("451 later")).notification("n-1"));
    server.script().push_front(Rule::at(Stage::EndOfData, Action::reply("452 full")).once());
    assert!(client.deliver().await.starts_with("452 "));
    assert!(client.deliver().await.starts_with("451 "));
    server.script().clear();
    assert!(client.deliver().await.starts_with("250 "));
}

#[tokio::test]
async fn rules_know_connections_and_transactions() {
    let server = server([Rule::at(Stage::Mail, Action::reply("450 not you")).connection(2).transaction(2)]).await;
    for connection in 1..=3 {
        let mut client = Client::hello(&server).await;
        for transaction in 1..=3 {
            let expected = if (connection, transaction) == (2, 2) { 450 } else { 250 };
            assert_eq!(client.code("MAIL FROM:<a@example.com>").await, expected, "{connection}/{transaction}");
            client.code("RSET").await;
        }
    }
}

#[tokio::test]
async fn in_any_weather_the_mailbox_knows_each_answer_that_a_client_got() {
    let weather = Rates { lost_by_hang: 0.0, ..Rates::every(0.05, Duration::from_millis(1)) };
    let options = Options { script: Script::chaos(11, weather), ..Options::default() };
    let server = SmtpServer::start(options).await.unwrap();
    let (mut answered, mut refused, mut lost) = (0, 0, 0);
    for _ in 0..400 {
        let Ok(stream) = TcpStream::connect(server.addr()).await else { continue };
        let mut client = Client { stream, input: Vec::new() };
        // Everything at once: the last reply tells, as far as the fault lets it through.
        let all = "EHLO client.test\r\nMAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n";
        let _ = client.stream.write_all(format!("{all}{MESSAGE}QUIT\r\n").as_bytes()).await;
        let (bytes, _) = client.rest().await;
        match String::from_utf8_lossy(&bytes) {
            replies if replies.contains("queued as") => answered += 1,
            replies if replies.contains("554 ") || replies.contains("550 ") || replies.contains("45") => refused += 1,
            _ => lost += 1,
        }
    }
    let mailbox = server.mailbox();
    assert_eq!(mailbox.count() - mailbox.answers_lost(), answered, "{:?}", server.script().fired());
    assert!(
        mailbox.answers_lost() > 20 && refused > 20 && lost > mailbox.answers_lost(),
        "{answered}/{refused}/{lost}"
    );
}
