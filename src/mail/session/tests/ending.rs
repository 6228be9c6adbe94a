//! The body and the end of data: where doubt begins, and where it does not.

use super::*;
use crate::mail::body::{end_of_data, stuff};

#[tokio::test]
async fn an_accepted_message_keeps_the_servers_reply() {
    for (said, text) in [
        (&b"250 2.0.0 queued as 42\r\n"[..], "queued as 42"),
        (b"250-2.0.0 queued\r\n250 2.0.0 as 42\r\n", "queued as 42"),
        (b"250\r\n", ""),
        (b"250 Gr\xfc\xdfe\r\n", "Gr\\xfc\\xdfe"),
        (b"250 ok\n", "ok"),
        (b"260 odd\r\n", "odd"),
    ] {
        let script = [&OFFER[..], &[HearMessage, Say(said), Stall]].concat();
        assert_each(&script, SMALL, None, |verdict| {
            assert_eq!((verdict.outcome, verdict.phase), (Outcome::Sent, Phase::EndOfData));
            assert_eq!(verdict.reply.as_ref().unwrap().text, text);
        })
        .await;
    }
}

#[tokio::test]
async fn a_reply_in_single_bytes_and_a_very_long_reply_are_read() {
    let long: &'static [u8] = format!("250 {}\r\n", "x".repeat(20_000)).leak().as_bytes();
    let script = [&OFFER[..], &[HearMessage, Say(long), Stall]].concat();
    assert_each(&script, SMALL, None, |verdict| assert_eq!(verdict.outcome, Outcome::Sent)).await;
    let bytes = [Say(b"2"), Say(b"5"), Say(b"0"), Say(b" "), Say(b"o"), Say(b"\r"), Say(b"\n")];
    let script = [&OFFER[..], &[HearMessage], &bytes, &[Stall]].concat();
    assert_each(&script, SMALL, None, |verdict| assert_eq!(verdict.outcome, Outcome::Sent)).await;
}

#[tokio::test]
async fn a_connection_lost_in_mid_body_proves_non_acceptance() {
    let large = large();
    for (name, act) in [("RST", Reset), ("EOF", Say(b"")), ("stall", Stall)] {
        let stalls = matches!(act, Stall);
        // A server that stalls must not read on, or it would take the whole body.
        let (hold, held) = oneshot::channel::<()>();
        let tls = tls();
        let (port, served) = serve(None, matches!(act, Reset), move |mut peer| async move {
            play(&mut peer, &[&GREET[..], &OFFER, &[HearBytes(100_000)]].concat()).await;
            if stalls {
                let _ = held.await;
            }
        })
        .await;
        let mut endpoint = endpoint(port, Security::Plaintext, &tls);
        if stalls {
            endpoint.timeouts.block = SHORT;
        }
        let verdict = send(&endpoint, &large).await;
        assert_eq!((verdict.outcome, verdict.phase), (Outcome::NotSent, Phase::Body), "{name}");
        let error = if stalls { "no answer within 150ms" } else { "connection reset" };
        assert_eq!(verdict.error.as_deref(), Some(error), "{name}");
        drop(hold);
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_only_trickles_away_is_given_up() {
    let tls = tls();
    let (port, served) = serve(None, true, |mut peer| async move {
        play(&mut peer, &[&GREET[..], &OFFER].concat()).await;
        // Reads until the client hangs up, but never fast enough.
        let mut byte = vec![0; 64 * 1024];
        while peer.0.read(&mut byte).await.is_ok_and(|count| count > 0) {
            // A peer that is slow on purpose: it takes the body by small bites.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut endpoint = endpoint(port, Security::Plaintext, &tls);
    endpoint.timeouts.body = SHORT;
    let verdict = send(&endpoint, &large()).await;
    assert_eq!((verdict.outcome, verdict.phase), (Outcome::NotSent, Phase::Body));
    assert_eq!(verdict.error.as_deref(), Some("no answer within 150ms"));
    served.await.unwrap();
}

#[tokio::test]
async fn a_refusal_in_mid_body_is_known_although_the_connection_was_reset() {
    let script = [&OFFER[..], &[HearBytes(100_000), Say(b"552 5.3.4 too big\r\n"), Reset]].concat();
    assert_each(&script, &large(), None, |verdict| {
        assert_eq!(
            (verdict.outcome, verdict.phase, verdict.blame),
            (Outcome::Refused, Phase::Body, Blame::Notification)
        );
    })
    .await;
}

#[tokio::test]
async fn an_acceptance_in_mid_body_is_none() {
    let script = [&OFFER[..], &[HearBytes(100_000), Say(b"250 ok\r\n"), Reset]].concat();
    assert_each(&script, &large(), None, |verdict| {
        assert_eq!((verdict.outcome, verdict.phase), (Outcome::NotSent, Phase::Body));
        assert_eq!(verdict.error.as_deref(), Some("protocol error: a reply that nothing had asked for"));
    })
    .await;
}

#[tokio::test]
async fn a_reply_that_came_before_the_body_is_noticed() {
    for (said, outcome) in [(&b"250 ok\r\n"[..], Outcome::NotSent), (b"421 bye\r\n", Outcome::Deferred)] {
        let tls = tls();
        let (go, wait) = oneshot::channel::<()>();
        let (port, served) = serve(None, false, move |mut peer| async move {
            play(&mut peer, &[&GREET_PIPELINING[..], &OFFER].concat()).await;
            wait.await.unwrap();
            peer.say(said).await;
            peer.hear_message().await
        })
        .await;
        let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
        session.offer(&envelope(), SMALL.len()).await.unwrap();
        go.send(()).unwrap();
        while session.connection.is_quiet() {
            tokio::task::yield_now().await;
        }
        let verdict = classify(session.transmit(SMALL).await.unwrap_err());
        assert_eq!((verdict.outcome, verdict.phase), (outcome, Phase::Body));
        drop(session);
        assert_eq!(served.await.unwrap(), b"", "nothing of the body left");
    }
}

#[tokio::test]
async fn whatever_is_not_a_clear_answer_to_the_end_of_data_leaves_doubt() {
    let rows: Vec<(&str, Vec<Act>, &str)> = vec![
        ("EOF", vec![], "connection closed"),
        ("RST", vec![Reset], "connection reset"),
        ("stall", vec![Stall], "no answer within 150ms"),
        ("354", vec![Say(b"354 go\r\n"), Stall], "protocol error: neither 2yz nor 4yz nor 5yz to the end of data"),
        ("half and EOF", vec![Say(b"250 o")], "connection closed in the midst of a reply"),
        ("half and stall", vec![Say(b"250 o"), Stall], "no answer within 150ms"),
        ("open multi-line and EOF", vec![Say(b"250-ok\r\n")], "connection closed in the midst of a reply"),
        ("garbage", vec![Say(b"\x16\x03\x01\x02garbage"), Stall], "unreadable reply: a line that is not a reply"),
        ("1yz", vec![Say(b"150 what\r\n"), Stall], "protocol error: neither 2yz nor 4yz nor 5yz to the end of data"),
        (
            "codes",
            vec![Say(b"250-ok\r\n554 no\r\n"), Stall],
            "unreadable reply: a reply whose lines have different codes",
        ),
    ];
    for (name, rest, error) in rows {
        let script = [&OFFER[..], &[HearMessage], &rest].concat();
        let timeouts = name.ends_with("stall").then(all_short);
        assert_each(&script, SMALL, timeouts, |verdict| {
            assert_eq!((verdict.outcome, verdict.phase), (Outcome::Uncertain, Phase::EndOfData), "{name}");
            assert_eq!(verdict.error.as_deref(), Some(error), "{name}");
        })
        .await;
    }
}

#[tokio::test]
async fn under_tls_a_cut_before_the_end_is_known_and_one_after_it_is_not() {
    let tls = tls();
    for (act, message, outcome, phase) in [
        (HearBytes(100_000), large(), Outcome::NotSent, Phase::Body),
        (HearMessage, large(), Outcome::Uncertain, Phase::EndOfData),
        (HearMessage, SMALL.to_vec(), Outcome::Uncertain, Phase::EndOfData),
    ] {
        for cut in [Reset, Say(b"")] {
            let script = [&GREET[..], &OFFER, &[act, cut]].concat();
            let (port, served) = serve_script(Some(tls.acceptor.clone()), script).await;
            let verdict = send(&endpoint(port, Security::ImplicitTls, &tls), &message).await;
            assert_eq!((verdict.outcome, verdict.phase), (outcome, phase), "{:?}", verdict.error);
            served.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_message_arrives_as_it_was_meant() {
    let tls = tls();
    for security in [Security::Plaintext, Security::ImplicitTls] {
        for message in [SMALL.to_vec(), b".".to_vec(), b"".to_vec(), large(), b"\r\n.\r\n..a".to_vec()] {
            let acceptor = (security == Security::ImplicitTls).then(|| tls.acceptor.clone());
            let (port, served) = serve(acceptor, false, |mut peer| async move {
                play(&mut peer, &[&GREET_PIPELINING[..], &OFFER].concat()).await;
                let message = peer.hear_message().await;
                peer.say("250 ok\r\n").await;
                message
            })
            .await;
            assert_eq!(send(&endpoint(port, security, &tls), &message).await.outcome, Outcome::Sent);
            let wire = served.await.unwrap();
            let shape = inspect(&message).unwrap();
            assert!(wire == [&stuff(&message, shape)[..], end_of_data(&message)].concat());
        }
    }
}

#[tokio::test]
async fn a_message_with_a_bare_line_end_never_leaves() {
    let tls = tls();
    for message in [&b"a\n.\nMAIL FROM:<x>\r\n"[..], b"a\rb\r\n", b"a\0\r\n", b"\xe9\r\n"] {
        let (port, served) = serve(None, false, |mut peer| async move {
            play(&mut peer, &[&GREET_PIPELINING[..], &OFFER].concat()).await;
            peer.hear_message().await
        })
        .await;
        let verdict = send(&endpoint(port, Security::Plaintext, &tls), message).await;
        assert_eq!(
            (verdict.outcome, verdict.phase, verdict.blame),
            (Outcome::Refused, Phase::Body, Blame::Notification)
        );
        assert_eq!(served.await.unwrap(), b"");
    }
}
