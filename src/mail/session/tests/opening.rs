//! Before MAIL: whatever fails here offered nothing and is the provider's fault.

use super::*;

#[tokio::test]
async fn whatever_fails_before_mail_offered_nothing_and_is_the_providers_fault() {
    let tls = tls();
    let ehlo = [Say(b"220 t\r\n"), Hear("EHLO")];
    let rows: Vec<(&str, Vec<Act>, Phase, &str)> = vec![
        ("greeting 421", vec![Say(b"421 busy\r\n")], Phase::Greeting, "reply"),
        ("greeting 554", vec![Say(b"554 go away\r\n")], Phase::Greeting, "reply"),
        ("greeting EOF", vec![], Phase::Greeting, "connection closed"),
        ("greeting stall", vec![Stall], Phase::Greeting, "no answer within 150ms"),
        ("greeting half", vec![Say(b"220 t")], Phase::Greeting, "connection closed in the midst of a reply"),
        (
            "greeting HTTP",
            vec![Say(b"HTTP/1.1 400 Bad"), Stall],
            Phase::Greeting,
            "unreadable reply: a line that is not a reply",
        ),
        (
            "greeting twice",
            vec![Say(b"220 t\r\n220 t\r\n"), Stall],
            Phase::Ehlo,
            "protocol error: bytes that nothing had asked for",
        ),
        ("EHLO EOF", ehlo.to_vec(), Phase::Ehlo, "connection closed"),
        ("EHLO 502", [&ehlo[..], &[Say(b"502 what\r\n")]].concat(), Phase::Ehlo, "reply"),
        (
            "EHLO 354",
            [&ehlo[..], &[Say(b"354 what\r\n")]].concat(),
            Phase::Ehlo,
            "protocol error: a reply that does not belong here",
        ),
        ("EHLO stall", [&ehlo[..], &[Say(b"250-t\r\n"), Stall]].concat(), Phase::Ehlo, "no answer within 150ms"),
    ];
    for (name, script, phase, error) in rows {
        let (port, served) = serve_script(None, script).await;
        let mut endpoint = endpoint(port, Security::Plaintext, &tls);
        if error.contains("within") {
            endpoint.timeouts = all_short();
        }
        let verdict = send(&endpoint, SMALL).await;
        assert_eq!(
            (verdict.outcome, verdict.blame, verdict.phase),
            (Outcome::NotSent, Blame::Provider, phase),
            "{name}"
        );
        assert_eq!(verdict.error.as_deref().unwrap_or("reply"), error, "{name}");
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_connection_offered_nothing() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let verdict = send(&endpoint(port, Security::Plaintext, &tls()), SMALL).await;
    assert_eq!((verdict.outcome, verdict.phase), (Outcome::NotSent, Phase::Connect));
    assert_eq!(verdict.error.as_deref(), Some("connection refused"));
}

#[tokio::test]
async fn a_name_that_does_not_resolve_offered_nothing() {
    let mut endpoint = endpoint(25, Security::Plaintext, &tls());
    endpoint.host = "no-such-host.invalid".to_owned();
    let verdict = send(&endpoint, SMALL).await;
    assert_eq!((verdict.outcome, verdict.phase), (Outcome::NotSent, Phase::Resolve));
}

/// Serves STARTTLS and then plays `script` under TLS.
async fn serve_starttls(tls: &Tls, script: Vec<Act>) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tls.acceptor.clone();
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut peer = Peer(BufReader::new(Box::new(stream)));
        play(&mut peer, &[Say(b"220 t\r\n"), Hear("EHLO"), Say(b"250-t\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n")]).await;
        play(&mut peer, &[Hear("STARTTLS"), Say(b"220 go\r\n")]).await;
        let mut peer = Peer(BufReader::new(Box::new(acceptor.accept(peer.0.into_inner()).await.unwrap())));
        play(&mut peer, &script).await;
    });
    (port, served)
}

#[tokio::test]
async fn after_starttls_only_what_is_offered_under_tls_counts() {
    let tls = tls();
    let script = vec![Hear("EHLO client.example"), Say(b"250 t\r\n")];
    let (port, served) = serve_starttls(&tls, script).await;
    let mut endpoint = endpoint(port, Security::StartTls, &tls);
    endpoint.auth = Some(auth(None));
    let failure = Session::open(&endpoint).await.unwrap_err();
    assert_eq!(failure.to_string(), "auth: not supported: neither AUTH PLAIN nor AUTH LOGIN is offered");
    served.await.unwrap();
}

#[tokio::test]
async fn a_message_is_sent_after_starttls() {
    let tls = tls();
    let script =
        [&[Hear("EHLO client.example"), Say(b"250 t\r\n")], &OFFER[..], &[HearMessage, Say(b"250 ok\r\n")]].concat();
    let (port, served) = serve_starttls(&tls, script).await;
    assert_eq!(send(&endpoint(port, Security::StartTls, &tls), SMALL).await.outcome, Outcome::Sent);
    served.await.unwrap();
}

#[tokio::test]
async fn starttls_never_falls_back_to_clear_text() {
    let tls = tls();
    let offered = [Say(b"220 t\r\n"), Hear("EHLO"), Say(b"250-t\r\n250 STARTTLS\r\n"), Hear("STARTTLS")];
    let rows: Vec<(Vec<Act>, &str)> = vec![
        (GREET.to_vec(), "tls: not supported: STARTTLS is not offered"),
        ([&offered[..], &[Say(b"454 4.7.0 later\r\n")]].concat(), "tls: reply 454 4.7.0"),
        (
            [&offered[..], &[Say(b"220 go\r\n250-injected\r\n250 AUTH PLAIN\r\n"), Stall]].concat(),
            "tls: protocol error: bytes in clear before the TLS handshake",
        ),
        ([&offered[..], &[Say(b"220 go\r\n"), Say(b"no TLS here at all\r\n"), Stall]].concat(), "tls: "),
        ([&offered[..], &[Say(b"220 go\r\n")]].concat(), "tls: "),
    ];
    for (script, said) in rows {
        let (port, served) = serve_script(None, script).await;
        let failure = Session::open(&endpoint(port, Security::StartTls, &tls)).await.unwrap_err();
        assert!(failure.to_string().starts_with(said), "{failure}");
        let verdict = classify(failure);
        assert_eq!((verdict.outcome, verdict.blame, verdict.phase), (Outcome::NotSent, Blame::Provider, Phase::Tls));
        served.await.unwrap();
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_or_of_nobody_known_is_refused() {
    let (tls, other) = (tls(), tls());
    for (trusted, name) in [(&tls, "elsewhere.example"), (&other, "localhost")] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut endpoint = endpoint(listener.local_addr().unwrap().port(), Security::ImplicitTls, trusted);
        endpoint.server_name = ServerName::try_from(name).unwrap();
        let acceptor = tls.acceptor.clone();
        let served = tokio::spawn(async move { acceptor.accept(listener.accept().await.unwrap().0).await.is_err() });
        let failure = Session::open(&endpoint).await.unwrap_err();
        assert!(matches!((failure.phase, &failure.cause), (Phase::Tls, Cause::Tls(_))), "{failure}");
        assert!(served.await.unwrap());
    }
}

#[tokio::test]
async fn a_handshake_that_stalls_ends() {
    let tls = tls();
    let (port, served) = serve_script(None, vec![Stall]).await;
    let mut endpoint = endpoint(port, Security::ImplicitTls, &tls);
    endpoint.timeouts = all_short();
    let failure = Session::open(&endpoint).await.unwrap_err();
    assert_eq!(failure.to_string(), "tls: no answer within 150ms");
    served.await.unwrap();
}

fn auth(mechanism: Option<Mechanism>) -> Auth {
    Auth { mechanism, username: "user".to_owned(), secret: SecretString::from("pass") }
}

#[tokio::test]
async fn authentication_in_clear_is_refused_before_anything_is_sent() {
    let mut endpoint = endpoint(1, Security::Plaintext, &tls());
    endpoint.auth = Some(auth(None));
    let failure = Session::open(&endpoint).await.unwrap_err();
    assert_eq!(failure.to_string(), "auth: not supported: authentication without TLS");
    assert!(!format!("{endpoint:?}").contains("pass") && !format!("{:?}", endpoint.auth).contains("user"));
}

#[tokio::test]
async fn each_mechanism_is_spoken_as_it_should_be() {
    let tls = tls();
    let plain = Hear("AUTH PLAIN AHVzZXIAcGFzcw==");
    let xoauth2 = Hear("AUTH XOAUTH2 dXNlcj11c2VyAWF1dGg9QmVhcmVyIHBhc3MBAQ==");
    let login =
        [Hear("AUTH LOGIN"), Say(b"334 VXNlcm5hbWU6\r\n"), Hear("dXNlcg=="), Say(b"334 x\r\n"), Hear("cGFzcw==")];
    let ok = Say(b"235 2.7.0 welcome\r\n");
    type Row = (&'static [u8], Option<Mechanism>, Vec<Act>, &'static str);
    let rows: Vec<Row> = vec![
        (b"PLAIN LOGIN", None, vec![plain, ok], ""),
        (b"LOGIN XOAUTH2", None, [&login[..], &[ok]].concat(), ""),
        (b"PLAIN LOGIN", Some(Mechanism::Login), [&login[..], &[ok]].concat(), ""),
        (b"XOAUTH2", Some(Mechanism::XOAuth2), vec![xoauth2, ok], ""),
        (
            b"XOAUTH2",
            Some(Mechanism::XOAuth2),
            vec![xoauth2, Say(b"334 eyJz\r\n"), Hear(""), Say(b"535 5.7.8 no\r\n")],
            "auth: reply 535 5.7.8",
        ),
        (b"PLAIN", None, vec![plain, Say(b"535 5.7.8 no\r\n")], "auth: reply 535 5.7.8"),
        (b"PLAIN", None, vec![plain, Say(b"454 4.7.0 later\r\n")], "auth: reply 454 4.7.0"),
        (
            b"PLAIN",
            None,
            vec![plain, Say(b"334 \r\n"), Stall],
            "auth: protocol error: a reply that does not belong here",
        ),
        (b"PLAIN", None, vec![plain], "auth: connection closed"),
        (b"XOAUTH2", None, vec![], "auth: not supported: neither AUTH PLAIN nor AUTH LOGIN is offered"),
        (b"PLAIN", Some(Mechanism::Login), vec![], "auth: not supported: the configured AUTH mechanism is not offered"),
    ];
    for (offered, mechanism, script, said) in rows {
        let offer = [&b"250-t\r\n250 AUTH "[..], offered, b"\r\n"].concat().leak();
        let script = [&[Say(b"220 t\r\n"), Hear("EHLO"), Say(offer)], &script[..]].concat();
        let (port, served) = serve_script(Some(tls.acceptor.clone()), script).await;
        let mut endpoint = endpoint(port, Security::ImplicitTls, &tls);
        endpoint.auth = Some(auth(mechanism));
        let failure = Session::open(&endpoint).await.err();
        assert_eq!(failure.as_ref().map(ToString::to_string).unwrap_or_default(), said);
        if let Some(failure) = failure {
            let verdict = classify(failure);
            assert_eq!((verdict.outcome, verdict.blame), (Outcome::NotSent, Blame::Provider));
        }
        served.await.unwrap();
    }
}
