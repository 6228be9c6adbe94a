//! Each row of the table "What an SMTP failure proves", played by a small scripted server over real sockets.

use std::net::Ipv4Addr;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::*;
use crate::domain::outcome::{Blame, Outcome, Verdict};
use crate::mail::classify::{accepted, classify};
use crate::mail::pool::{Limits, Pool};

/// Longer than any of these tests needs, so that only what is meant to stall runs into a limit.
const PATIENCE: Duration = Duration::from_secs(20);

/// For what is meant to stall.
const SHORT: Duration = Duration::from_millis(150);

const SMALL: &[u8] = b"Subject: t\r\n\r\n.hello\r\n";

/// More than the sockets of both sides can hold, so a write of it cannot be done before the server reads.
fn large() -> Vec<u8> {
    b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(1 << 18)
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The server's side of one connection.
struct Peer(BufReader<Box<dyn Io>>);

impl Peer {
    async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        // The client may be gone, which is for its own assertions to notice.
        let _ = self.0.write_all(bytes.as_ref()).await;
        let _ = self.0.flush().await;
    }

    /// The next line without its end; empty at the end of the stream.
    async fn hear(&mut self) -> String {
        let mut line = Vec::new();
        let _ = self.0.read_until(b'\n', &mut line).await;
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    async fn hear_message(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        while !message.ends_with(b"\r\n.\r\n") && message != b".\r\n" {
            if self.0.read_until(b'\n', &mut message).await.unwrap_or(0) == 0 {
                break;
            }
        }
        message
    }

    async fn hear_the_end(&mut self) {
        let _ = self.0.read_to_end(&mut Vec::new()).await;
    }
}

/// One act of a scripted server. At the end of its script it closes the connection.
#[derive(Clone, Copy)]
enum Act {
    Say(&'static [u8]),
    /// Hears a line that begins with this.
    Hear(&'static str),
    /// Hears this many bytes of a message.
    HearBytes(usize),
    /// Hears a message and its end.
    HearMessage,
    /// Says nothing until the client hangs up.
    Stall,
    /// Closes with RST (SO_LINGER of nought).
    Reset,
}
use Act::{Hear, HearBytes, HearMessage, Reset, Say, Stall};

async fn play(peer: &mut Peer, script: &[Act]) {
    for act in script {
        match *act {
            Say(bytes) => peer.say(bytes).await,
            Hear(start) => {
                let line = peer.hear().await;
                assert!(line.starts_with(start), "heard {line:?}, expected {start:?}");
            }
            HearBytes(count) => {
                let _ = peer.0.read_exact(&mut vec![0; count]).await;
            }
            HearMessage => {
                peer.hear_message().await;
            }
            Stall => peer.hear_the_end().await,
            Reset => {}
        }
    }
}

struct Tls {
    client: Arc<ClientConfig>,
    acceptor: TlsAcceptor,
}

fn tls() -> Tls {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let secret = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], secret)
        .unwrap();
    Tls { client: Arc::new(client), acceptor: TlsAcceptor::from(Arc::new(server)) }
}

fn endpoint(port: u16, security: Security, tls: &Tls) -> Endpoint {
    Endpoint {
        host: "127.0.0.1".to_owned(),
        port,
        security,
        tls: tls.client.clone(),
        server_name: ServerName::try_from("localhost").unwrap(),
        auth: None,
        hello: "client.example".to_owned(),
        timeouts: Timeouts {
            resolve: PATIENCE,
            connect: PATIENCE,
            greeting: PATIENCE,
            ehlo: PATIENCE,
            tls: PATIENCE,
            auth: PATIENCE,
            mail: PATIENCE,
            rcpt: PATIENCE,
            data: PATIENCE,
            block: PATIENCE,
            body: PATIENCE,
            end_of_data: PATIENCE,
        },
    }
}

fn all_short() -> Timeouts {
    Timeouts {
        resolve: PATIENCE,
        connect: PATIENCE,
        greeting: SHORT,
        ehlo: SHORT,
        tls: SHORT,
        auth: SHORT,
        mail: SHORT,
        rcpt: SHORT,
        data: SHORT,
        block: SHORT,
        body: PATIENCE,
        end_of_data: SHORT,
    }
}

/// Serves one connection, under TLS from the start if an acceptor is given.
async fn serve<T: Send + 'static, F: Future<Output = T> + Send>(
    acceptor: Option<TlsAcceptor>,
    with_reset: bool,
    script: impl FnOnce(Peer) -> F + Send + 'static,
) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        if with_reset {
            stream.set_zero_linger().unwrap();
        }
        let stream: Box<dyn Io> = match acceptor {
            Some(acceptor) => Box::new(acceptor.accept(stream).await.unwrap()),
            None => Box::new(stream),
        };
        script(Peer(BufReader::new(stream))).await
    });
    (port, served)
}

async fn serve_script(acceptor: Option<TlsAcceptor>, script: Vec<Act>) -> (u16, JoinHandle<()>) {
    let with_reset = script.iter().any(|act| matches!(act, Reset));
    serve(acceptor, with_reset, move |mut peer| async move { play(&mut peer, &script).await }).await
}

fn envelope() -> Envelope {
    Envelope { sender: "s@example.com".to_owned(), recipient: "r@example.org".to_owned(), smtputf8: false }
}

async fn send(endpoint: &Endpoint, message: &[u8]) -> Verdict {
    let result = async {
        let mut session = Session::open(endpoint).await?;
        session.offer(&envelope(), message.len()).await?;
        let result = session.transmit(message).await;
        let lost = matches!(&result, Err(Failure { cause, .. }) if !matches!(cause, Cause::Reply(_)));
        assert!(!(lost && session.usable()), "a session is of no use after a surprise");
        result
    };
    match result.await {
        Ok(reply) => accepted(reply),
        Err(failure) => classify(failure),
    }
}

const GREET: [Act; 3] = [Say(b"220 t\r\n"), Hear("EHLO client.example"), Say(b"250 t\r\n")];
const GREET_PIPELINING: [Act; 3] =
    [Say(b"220 t\r\n"), Hear("EHLO client.example"), Say(b"250-t\r\n250-SIZE 99999999\r\n250 PIPELINING\r\n")];
const OFFER: [Act; 6] = [
    Hear("MAIL FROM:<s@example.com>"),
    Say(b"250 2.1.0 ok\r\n"),
    Hear("RCPT TO:<r@example.org>"),
    Say(b"251 2.1.5 ok\r\n"),
    Hear("DATA"),
    Say(b"354 go\r\n"),
];

/// Plays `script` to a plain client with and without PIPELINING, and under TLS, and asserts on every verdict.
async fn assert_each(name: &str, script: &[Act], message: &[u8], timeouts: Option<Timeouts>, check: impl Fn(&Verdict)) {
    let tls = tls();
    for (greet, security) in [
        (GREET, Security::Plaintext),
        (GREET_PIPELINING, Security::Plaintext),
        (GREET_PIPELINING, Security::ImplicitTls),
    ] {
        let acceptor = (security == Security::ImplicitTls).then(|| tls.acceptor.clone());
        let (port, served) = serve_script(acceptor, [&greet, script].concat()).await;
        let mut endpoint = endpoint(port, security, &tls);
        if let Some(timeouts) = timeouts.clone() {
            endpoint.timeouts = Timeouts { greeting: PATIENCE, ehlo: PATIENCE, tls: PATIENCE, ..timeouts };
        }
        let verdict = send(&endpoint, message).await;
        println!("{name} {security:?}: {verdict:?}");
        check(&verdict);
        served.await.unwrap();
    }
}

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
        assert_each("accepted", &script, SMALL, None, |verdict| {
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
    assert_each("long", &script, SMALL, None, |verdict| assert_eq!(verdict.outcome, Outcome::Sent)).await;
    let bytes = [Say(b"2"), Say(b"5"), Say(b"0"), Say(b" "), Say(b"o"), Say(b"\r"), Say(b"\n")];
    let script = [&OFFER[..], &[HearMessage], &bytes, &[Stall]].concat();
    assert_each("bytes", &script, SMALL, None, |verdict| assert_eq!(verdict.outcome, Outcome::Sent)).await;
}

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
        assert_each(name, &script, SMALL, None, |verdict| {
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
        assert_each(name, &script, SMALL, timeouts, |verdict| {
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
    assert_each("552", &script, &large(), None, |verdict| {
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
    assert_each("250", &script, &large(), None, |verdict| {
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
        assert_each(name, &script, SMALL, timeouts, |verdict| {
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
    let rows: Vec<(&'static [u8], Option<Mechanism>, Vec<Act>, &str)> = vec![
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
