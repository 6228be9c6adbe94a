//! TLS both ways, and AUTH.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;

async fn handshake(
    stream: TcpStream,
    identity: &SelfSigned,
    name: &'static str,
) -> io::Result<Client<TlsStream<TcpStream>>> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.root_der.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = soon(connector.connect(ServerName::try_from(name).unwrap(), stream)).await?;
    Ok(Client { stream, input: Vec::new() })
}

async fn secure_server(tls: Tls, auth: Option<Auth>, rules: impl IntoIterator<Item = Rule>) -> SmtpServer {
    SmtpServer::start(Options { tls, auth, script: Script::new(rules), ..Options::default() }).await.unwrap()
}

#[tokio::test]
async fn mail_goes_through_implicit_tls_and_ends_with_close_notify() {
    let identity = self_signed(&["mail.test", "127.0.0.1"]).unwrap();
    let server = secure_server(Tls::Implicit(Arc::clone(&identity.server)), None, []).await;
    for name in ["mail.test", "127.0.0.1"] {
        let mut client = handshake(Client::raw(&server).await.stream, &identity, name).await.unwrap();
        assert!(client.reply().await.starts_with("220 "));
        assert!(!client.ask("EHLO client.test").await.contains("STARTTLS"));
        assert!(client.deliver().await.starts_with("250 "));
        client.send("QUIT\r\n").await;
        assert_eq!(client.rest().await, (b"221 2.0.0 Bye\r\n".to_vec(), End::Fin));
    }
    assert_eq!(server.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_certificate_for_another_name_or_from_another_root_is_not_trusted() {
    let identity = self_signed(&["mail.test"]).unwrap();
    let server = secure_server(Tls::Implicit(Arc::clone(&identity.server)), None, []).await;
    assert!(handshake(Client::raw(&server).await.stream, &identity, "other.test").await.is_err());
    let stranger = self_signed(&["mail.test"]).unwrap();
    assert!(handshake(Client::raw(&server).await.stream, &stranger, "mail.test").await.is_err());
}

#[tokio::test]
async fn starttls_forgets_what_was_said_in_clear_and_is_not_offered_again() {
    let identity = self_signed(&["mail.test"]).unwrap();
    let server = secure_server(Tls::StartTls(Arc::clone(&identity.server)), Some(Auth::new("u", "p")), []).await;
    let mut client = Client::hello(&server).await;
    let hello = client.ask("EHLO client.test").await;
    assert!(hello.contains("STARTTLS") && !hello.contains("AUTH"), "{hello}");
    assert_eq!(client.code("AUTH PLAIN AHUAcA==").await, 538);
    assert_eq!(client.code("STARTTLS").await, 220);
    let mut client = handshake(client.stream, &identity, "mail.test").await.unwrap();
    assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 503, "EHLO is due again");
    let hello = client.ask("EHLO client.test").await;
    assert!(!hello.contains("STARTTLS") && hello.contains("AUTH PLAIN LOGIN XOAUTH2"), "{hello}");
    assert_eq!(client.code("STARTTLS").await, 503);
    assert_eq!(client.code("AUTH PLAIN AHUAcA==").await, 235);
    assert!(client.deliver().await.starts_with("250 "));
}

#[tokio::test]
async fn what_a_client_sends_between_starttls_and_the_handshake_is_recorded_and_ignored() {
    let identity = self_signed(&["mail.test"]).unwrap();
    let server = secure_server(Tls::StartTls(Arc::clone(&identity.server)), None, []).await;
    let mut client = Client::hello(&server).await;
    client.send("STARTTLS\r\nEHLO injected.test\r\n").await;
    assert!(client.reply().await.starts_with("220 "));
    let mut client = handshake(client.stream, &identity, "mail.test").await.unwrap();
    assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 503, "the injected EHLO does not count");
    assert!(server.violations().iter().any(|one| one.contains("before the handshake")), "{:?}", server.violations());
}

#[tokio::test]
async fn the_script_can_inject_an_answer_in_clear_behind_the_220_of_starttls() {
    let identity = self_signed(&["mail.test"]).unwrap();
    let inject = Action::Reply(b"220 go\r\n250 injected\r\n".to_vec());
    let server =
        secure_server(Tls::StartTls(Arc::clone(&identity.server)), None, [Rule::at(Stage::StartTls, inject)]).await;
    let mut client = Client::hello(&server).await;
    assert_eq!(client.ask("STARTTLS").await, "220 go\r\n");
    assert_eq!(client.reply().await, "250 injected\r\n");
    let mut client = handshake(client.stream, &identity, "mail.test").await.unwrap();
    assert_eq!(client.code("EHLO client.test").await, 250);
}

#[tokio::test]
async fn a_refused_starttls_leaves_the_connection_in_clear() {
    let identity = self_signed(&["mail.test"]).unwrap();
    let refuse = Rule::at(Stage::StartTls, Action::reply("454 4.7.0 not now"));
    let server = secure_server(Tls::StartTls(identity.server), None, [refuse]).await;
    let mut client = Client::hello(&server).await;
    assert_eq!(client.code("STARTTLS").await, 454);
    assert_eq!(client.code("NOOP").await, 250);
}

#[tokio::test]
async fn under_tls_a_cut_has_no_close_notify_and_a_reset_is_a_reset() {
    let identity = self_signed(&["mail.test"]).unwrap();
    for (action, expected) in
        [(Action::Close, End::Truncated), (Action::Reset, End::Rst), (Action::ReplyThenClose(vec![]), End::Fin)]
    {
        let rule = Rule::at(Stage::EndOfData, action.after_accepting());
        let server = secure_server(Tls::Implicit(Arc::clone(&identity.server)), None, [rule]).await;
        let mut client = handshake(Client::raw(&server).await.stream, &identity, "mail.test").await.unwrap();
        client.reply().await;
        client.ask("EHLO client.test").await;
        client.start_mail().await;
        client.send(MESSAGE).await;
        assert_eq!(client.rest().await, (vec![], expected));
        assert_eq!(server.mailbox().answers_lost(), 1);
    }
}

#[tokio::test]
async fn every_mechanism_lets_the_right_password_in_and_no_other() {
    for (password, expected) in [("p", 235), ("wrong", 535)] {
        let server = secure_server(Tls::None, Some(Auth::new("u", "p")), []).await;
        let encode = |text: String| STANDARD.encode(text);

        let mut client = Client::hello(&server).await;
        assert_eq!(client.code("MAIL FROM:<a@example.com>").await, 530);
        assert_eq!(client.code(&format!("AUTH PLAIN {}", encode(format!("\0u\0{password}")))).await, expected);
        assert_eq!(client.code("MAIL FROM:<a@example.com>").await, if expected == 235 { 250 } else { 530 });

        let mut client = Client::hello(&server).await;
        assert_eq!(client.ask("AUTH PLAIN").await, "334 \r\n");
        assert_eq!(client.code(&encode(format!("\0u\0{password}"))).await, expected);

        let mut client = Client::hello(&server).await;
        assert_eq!(client.ask("AUTH LOGIN").await, "334 VXNlcm5hbWU6\r\n");
        assert_eq!(client.ask(&encode("u".to_owned())).await, "334 UGFzc3dvcmQ6\r\n");
        assert_eq!(client.code(&encode(password.to_owned())).await, expected);

        let mut client = Client::hello(&server).await;
        let token = encode(format!("user=u\x01auth=Bearer {password}\x01\x01"));
        let mut code = client.code(&format!("AUTH XOAUTH2 {token}")).await;
        if expected == 535 {
            assert_eq!(code, 334, "the reason comes as a challenge");
            code = client.code("").await;
        }
        assert_eq!(code, expected);
        assert_eq!(server.violations(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_auth_exchange_can_be_cancelled_and_must_be_base64_and_offered() {
    let auth = Auth { mechanisms: vec![Mechanism::Plain], ..Auth::new("u", "p") };
    let server = secure_server(Tls::None, Some(auth), []).await;
    let mut client = Client::hello(&server).await;
    assert_eq!(client.code("AUTH LOGIN").await, 504);
    assert_eq!(client.code("AUTH PLAIN").await, 334);
    assert_eq!(client.code("*").await, 501);
    assert_eq!(client.code("AUTH PLAIN !").await, 501);
    assert_eq!(client.code("AUTH PLAIN AHUAcA==").await, 235);
    assert_eq!(client.code("AUTH PLAIN AHUAcA==").await, 503);
    assert_eq!(server.violations().len(), 3, "{:?}", server.violations());
}
