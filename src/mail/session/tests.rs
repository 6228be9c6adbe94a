//! Each row of the table "What an SMTP failure proves", played by a small scripted server over real sockets.

use std::net::Ipv4Addr;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::*;
use crate::domain::outcome::{Blame, Outcome, Verdict};
use crate::mail::classify::{accepted, classify};

/// Longer than any of these tests needs, so that only what is meant to stall runs into a limit.
const PATIENCE: Duration = Duration::from_secs(20);

/// For what is meant to stall.
const SHORT: Duration = Duration::from_millis(150);

const SMALL: &[u8] = b"Subject: t\r\n\r\n.hello\r\n";

/// More than the sockets of both sides can hold, so a write of it cannot be done before the server reads.
fn large() -> Vec<u8> {
    b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(1 << 17)
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
    let socket = TcpSocket::new_v4().unwrap();
    // So that a server which stops reading is felt after the client's own buffer is full.
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
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
async fn assert_each(script: &[Act], message: &[u8], timeouts: Option<Timeouts>, check: impl Fn(&Verdict)) {
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
        check(&verdict);
        served.await.unwrap();
    }
}

mod ending;
mod offering;
mod opening;
mod reuse;
