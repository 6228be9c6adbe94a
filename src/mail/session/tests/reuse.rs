//! A session that serves more than one message, and one that must not.

use super::*;
use crate::mail::pool::{Limits, Pool};

#[tokio::test]
async fn a_session_goes_on_after_a_refusal_with_rset() {
    let tls = tls();
    for greet in [GREET, GREET_PIPELINING] {
        let first = [&OFFER[..3], &[Say(b"550 5.1.1 no\r\n")]].concat();
        let unasked = if greet.iter().any(|act| matches!(act, Say(b"250 t\r\n"))) {
            vec![]
        } else {
            vec![Hear("DATA"), Say(b"503 5.5.1 no recipient\r\n")]
        };
        let second = [&[Hear("RSET"), Say(b"250 ok\r\n")], &OFFER[..], &[HearMessage, Say(b"554 no\r\n")]].concat();
        let third = [&[Hear("RSET"), Say(b"250 ok\r\n")], &OFFER[..], &[HearMessage, Say(b"250 done\r\n")]].concat();
        let script = [&greet[..], &first, &unasked, &second, &third, &[Hear("QUIT"), Say(b"221 bye\r\n")]].concat();
        let (port, served) = serve_script(None, script).await;
        let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
        assert_eq!(session.offer(&envelope(), 1).await.unwrap_err().phase, Phase::Rcpt);
        assert!(session.usable() && !session.reused());
        session.offer(&envelope(), 1).await.unwrap();
        assert!(session.reused());
        assert!(!session.usable(), "a transaction is open");
        assert_eq!(session.transmit(SMALL).await.unwrap_err().phase, Phase::EndOfData);
        assert!(session.usable());
        session.offer(&envelope(), 1).await.unwrap();
        assert_eq!(session.transmit(SMALL).await.unwrap().text, "done");
        session.quit().await;
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_says_more_than_it_was_asked_is_not_used_again() {
    let tls = tls();
    let script = [&GREET[..], &OFFER, &[HearMessage, Say(b"250 done\r\n250 again\r\n"), Stall]].concat();
    let (port, served) = serve_script(None, script).await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    session.offer(&envelope(), 1).await.unwrap();
    assert_eq!(session.transmit(SMALL).await.unwrap().text, "done");
    assert!(!session.usable());
    drop(session);
    served.await.unwrap();
}

#[tokio::test]
async fn a_late_answer_is_never_taken_for_anothers() {
    let tls = tls();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        for answer in [&b"250 late\r\n"[..], b"554 5.6.0 the second\r\n"] {
            let (stream, _) = listener.accept().await.unwrap();
            let mut peer = Peer(BufReader::new(Box::new(stream)));
            play(&mut peer, &[&GREET_PIPELINING[..], &OFFER, &[HearMessage]].concat()).await;
            if answer.starts_with(b"250") {
                peer.hear_the_end().await;
            }
            peer.say(answer).await;
        }
    });
    let mut endpoint = endpoint(port, Security::Plaintext, &tls);
    endpoint.timeouts.end_of_data = SHORT;
    let pool = Pool::new(endpoint, Limits::default());
    let mut session = pool.take().await.unwrap();
    session.offer(&envelope(), 1).await.unwrap();
    assert_eq!(classify(session.transmit(SMALL).await.unwrap_err()).outcome, Outcome::Uncertain);
    pool.give_back(session);
    assert_eq!(pool.idle_count(), 0);
    let mut session = pool.take().await.unwrap();
    session.offer(&envelope(), 1).await.unwrap();
    assert_eq!(classify(session.transmit(SMALL).await.unwrap_err()).outcome, Outcome::Refused);
    served.await.unwrap();
}

#[tokio::test]
async fn a_cancelled_transmission_tells_how_far_it_came_and_spoils_the_session() {
    let tls = tls();
    let (heard, wait) = oneshot::channel();
    let (port, served) = serve(None, false, |mut peer| async move {
        play(&mut peer, &[&GREET_PIPELINING[..], &OFFER, &[HearMessage]].concat()).await;
        heard.send(()).unwrap();
        peer.hear_the_end().await;
    })
    .await;
    let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
    session.offer(&envelope(), 1).await.unwrap();
    tokio::select! {
        _ = session.transmit(SMALL) => panic!("no answer was given"),
        _ = wait => {}
    }
    assert_eq!(session.phase(), Phase::EndOfData);
    assert!(!session.usable());
    session.leave();
    served.await.unwrap();
}

#[tokio::test]
async fn an_idle_session_that_was_closed_is_found_stale_and_costs_nothing() {
    let tls = tls();
    for farewell in [&b"421 4.4.2 idle for too long\r\n"[..], b"", b"250 what\r\n"] {
        let script = [&GREET[..], &OFFER, &[HearMessage, Say(b"250 done\r\n"), Hear("RSET"), Say(farewell)]].concat();
        let (port, served) = serve_script(None, script).await;
        let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
        session.offer(&envelope(), 1).await.unwrap();
        session.transmit(SMALL).await.unwrap();
        session.connection.write(b"RSET\r\n").await.unwrap();
        served.await.unwrap();
        let failure = if farewell.is_empty() {
            // Not looked at before it is used.
            session.offer(&envelope(), 1).await.unwrap_err()
        } else {
            while session.usable() {
                tokio::task::yield_now().await;
            }
            session.state = State::Ready;
            session.offer(&envelope(), 1).await.unwrap_err()
        };
        assert!(session.reused());
        assert_eq!(failure.is_stale_connection(), !farewell.starts_with(b"250"), "{failure}");
        assert_eq!(
            classify(failure).outcome,
            if farewell.starts_with(b"421") { Outcome::Deferred } else { Outcome::NotSent }
        );
    }
}

#[tokio::test]
async fn a_refused_rset_is_no_verdict_on_the_next_message() {
    let tls = tls();
    for answer in [&b"502 5.5.1 not implemented\r\n"[..], b"421 4.3.2 bye\r\n", b"354 go on\r\n", b"what\r\n"] {
        let refusal = [&OFFER[..3], &[Say(b"550 5.1.1 no\r\n"), Hear("RSET"), Say(answer)]].concat();
        let (port, served) = serve_script(None, [&GREET[..], &refusal].concat()).await;
        let mut session = Session::open(&endpoint(port, Security::Plaintext, &tls)).await.unwrap();
        assert_eq!(session.offer(&envelope(), 1).await.unwrap_err().phase, Phase::Rcpt);
        let failure = session.offer(&envelope(), 1).await.unwrap_err();
        assert!(session.reused() && failure.is_stale_connection(), "{failure}");
        assert_eq!(classify(failure).outcome, Outcome::NotSent);
        assert!(!session.usable());
        served.await.unwrap();
    }
}
