//! MAIL, RCPT and DATA: a refusal is one, and everything else proves non-acceptance.

use super::*;

#[tokio::test]
async fn a_refusal_is_known_wherever_it_comes() {
    let mail = |line| vec![Hear("MAIL"), Say(line)];
    let rcpt = |line| [&OFFER[..3], &[Say(line)]].concat();
    let data = |line| [&OFFER[..5], &[Say(line)]].concat();
    let end = |line| [&OFFER[..], &[HearMessage, Say(line)]].concat();
    let rows: Vec<(&str, Vec<Act>, Phase, Outcome, Blame)> = vec![
        ("MAIL 451", mail(b"451 4.3.0 later\r\n"), Phase::Mail, Outcome::Deferred, Blame::Suspect),
        ("MAIL 421", mail(b"421 closing\r\n"), Phase::Mail, Outcome::Deferred, Blame::Provider),
        ("MAIL 550", mail(b"550 5.7.1 no\r\n"), Phase::Mail, Outcome::Refused, Blame::Suspect),
        ("RCPT 450", rcpt(b"450 4.2.1 busy\r\n"), Phase::Rcpt, Outcome::Deferred, Blame::Notification),
        ("RCPT 550", rcpt(b"550-5.1.1 no\r\n550 5.1.1 user\r\n"), Phase::Rcpt, Outcome::Refused, Blame::Notification),
        ("RCPT 552", rcpt(b"552 too many\r\n"), Phase::Rcpt, Outcome::Deferred, Blame::Notification),
        ("DATA 451", data(b"451 later\r\n"), Phase::Data, Outcome::Deferred, Blame::Notification),
        ("DATA 554", data(b"554 5.5.1 no recipients\r\n"), Phase::Data, Outcome::Refused, Blame::Suspect),
        ("end 451", end(b"451 4.3.2 later\r\n"), Phase::EndOfData, Outcome::Deferred, Blame::Suspect),
        ("end 421", end(b"421 closing\r\n"), Phase::EndOfData, Outcome::Deferred, Blame::Provider),
        ("end 554", end(b"554 5.6.0 no\r\n"), Phase::EndOfData, Outcome::Refused, Blame::Notification),
        ("end 5", end(b"554\r\n"), Phase::EndOfData, Outcome::Refused, Blame::Notification),
    ];
    for (name, script, phase, outcome, blame) in rows {
        assert_each(&script, SMALL, None, |verdict| {
            assert_eq!((verdict.phase, verdict.outcome, verdict.blame), (phase, outcome, blame), "{name}");
            assert!(verdict.reply.is_some());
        })
        .await;
    }
}

#[tokio::test]
async fn a_connection_lost_before_the_body_proves_non_acceptance() {
    let rows: Vec<(&str, Vec<Act>, Phase)> = vec![
        ("MAIL EOF", OFFER[..1].to_vec(), Phase::Mail),
        ("MAIL stall", [&OFFER[..1], &[Stall]].concat(), Phase::Mail),
        ("MAIL 354", [&OFFER[..1], &[Say(b"354 go\r\n"), Stall]].concat(), Phase::Mail),
        ("RCPT EOF", OFFER[..3].to_vec(), Phase::Rcpt),
        ("RCPT RST", [&OFFER[..3], &[Reset]].concat(), Phase::Rcpt),
        ("RCPT half", [&OFFER[..3], &[Say(b"250 o"), Stall]].concat(), Phase::Rcpt),
        ("DATA EOF", OFFER[..5].to_vec(), Phase::Data),
        ("DATA stall", [&OFFER[..5], &[Stall]].concat(), Phase::Data),
        ("DATA 250", [&OFFER[..5], &[Say(b"250 ok\r\n"), Stall]].concat(), Phase::Data),
        ("DATA 350", [&OFFER[..5], &[Say(b"350 ok\r\n"), Stall]].concat(), Phase::Data),
        ("DATA 354 250", [&OFFER[..5], &[Say(b"354 go\r\n250 ok\r\n"), Stall]].concat(), Phase::Data),
    ];
    for (name, script, phase) in rows {
        let timeouts = name.ends_with("stall").then(all_short).or(name.ends_with("half").then(all_short));
        assert_each(&script, SMALL, timeouts, |verdict| {
            assert_eq!((verdict.outcome, verdict.blame), (Outcome::NotSent, Blame::Suspect), "{name}");
            // A server that closes while pipelined commands are unread resets, and that may overtake the replies' reading.
            assert!(
                verdict.phase == phase || name.ends_with("EOF") || name.ends_with("RST"),
                "{name} {}",
                verdict.phase
            );
            assert_eq!(verdict.reply, None);
        })
        .await;
    }
}

#[tokio::test]
async fn pipelined_commands_leave_before_any_is_answered() {
    let tls = tls();
    let acts =
        [Hear("MAIL FROM:<s@example.com> SIZE=22"), Hear("RCPT"), Hear("DATA"), Say(b"250 a\r\n250 b\r\n354 c\r\n")];
    let script = [&GREET_PIPELINING[..], &acts, &[HearMessage, Say(b"250 d\r\n"), Hear("QUIT")]].concat();
    let (port, served) = serve_script(None, script).await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    session.offer(&envelope(), SMALL.len()).await.unwrap();
    assert_eq!(session.transmit(SMALL).await.unwrap().text, "d");
    assert!(session.usable());
    session.leave();
    served.await.unwrap();
}

#[tokio::test]
async fn a_body_that_is_awaited_for_a_refused_recipient_gets_not_even_a_dot() {
    let tls = tls();
    let (port, served) = serve(None, false, |mut peer| async move {
        play(&mut peer, &[&GREET_PIPELINING[..], &[Hear("MAIL"), Hear("RCPT"), Hear("DATA")]].concat()).await;
        peer.say("250 ok\r\n550 5.1.1 no\r\n354 go\r\n").await;
        peer.hear_message().await
    })
    .await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    let verdict = classify(session.offer(&envelope(), SMALL.len()).await.unwrap_err());
    assert_eq!((verdict.outcome, verdict.phase), (Outcome::Refused, Phase::Rcpt));
    assert!(!session.usable());
    let unoffered = session.transmit(SMALL).await.unwrap_err();
    assert_eq!(classify(unoffered).outcome, Outcome::NotSent);
    session.leave();
    assert_eq!(served.await.unwrap(), b"");
}

#[tokio::test]
async fn what_cannot_be_sent_leaves_nothing_on_the_wire() {
    let tls = tls();
    let (port, served) = serve(None, false, |mut peer| async move {
        play(&mut peer, &GREET_PIPELINING).await;
        peer.hear().await
    })
    .await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    let with = |sender: &str, recipient: &str, smtputf8| Envelope {
        sender: sender.to_owned(),
        recipient: recipient.to_owned(),
        smtputf8,
    };
    for (envelope, size) in [
        (with("s@d", "\"a\r\nRCPT TO:<x>\"@d", false), 1),
        (with("s@d> SIZE=1\r\nRSET", "r@d", false), 1),
        (with("s@d", "", false), 1),
        (with("s@d", "josé@d", false), 1),
        (with("s@d", "josé@d", true), 1),
        (with("s@d", "r@d", false), 100_000_000),
    ] {
        let verdict = classify(session.offer(&envelope, size).await.unwrap_err());
        assert_eq!(
            (verdict.outcome, verdict.phase, verdict.blame),
            (Outcome::Refused, Phase::Mail, Blame::Notification)
        );
        assert!(session.usable());
    }
    session.quit().await;
    assert_eq!(served.await.unwrap(), "QUIT");
}

#[tokio::test]
async fn smtputf8_is_asked_for_only_when_it_is_needed() {
    let tls = tls();
    let (port, served) = serve(None, false, |mut peer| async move {
        play(&mut peer, &[Say(b"220 t\r\n"), Hear("EHLO"), Say(b"250-t\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n")]).await;
        let mut lines = Vec::new();
        for _ in 0..2 {
            lines.push(peer.hear().await);
            peer.say("450 4.2.0 no\r\n").await;
            if peer.hear().await == "RSET" {
                peer.say("250 ok\r\n").await;
            }
        }
        lines
    })
    .await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    session.offer(&envelope(), 1).await.unwrap_err();
    let envelope = Envelope { recipient: "josé@example.org".to_owned(), smtputf8: true, ..envelope() };
    session.offer(&envelope, 1).await.unwrap_err();
    drop(session);
    assert_eq!(
        served.await.unwrap(),
        ["MAIL FROM:<s@example.com>", "MAIL FROM:<s@example.com> BODY=8BITMIME SMTPUTF8"]
    );
}
