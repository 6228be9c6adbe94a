//! Opens a session: resolve, connect, TLS, greeting, EHLO, STARTTLS, AUTH.
//!
//! Nothing of a notification is here. It must never authenticate in clear, nor go on in clear where TLS was asked for.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret as _;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::classify::{Cause, Failure};
use super::endpoint::{Auth, Endpoint, Mechanism, Security};
use super::reply::Severity;
use super::stream::Connection;
use crate::domain::outcome::{Phase, Reply};

/// How many of a name's addresses are tried: enough for both families of a provider with two hosts, few enough to bound the wait.
pub const ADDRESSES_MAX: usize = 4;

/// What the server's last EHLO reply offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) pipelining: bool,
    pub(super) starttls: bool,
    pub(super) smtputf8: bool,
    pub(super) eight_bit_mime: bool,
    /// Whether SIZE is offered (RFC 1870).
    pub(super) size: bool,
    /// The largest message it takes, if it says so.
    pub(super) size_limit: Option<usize>,
    plain: bool,
    login: bool,
    xoauth2: bool,
}

impl Capabilities {
    /// Takes in one line of an EHLO reply.
    fn learn(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).to_ascii_uppercase();
        // Some servers still say `AUTH=PLAIN LOGIN`.
        let mut words = line.split([' ', '=']).filter(|word| !word.is_empty());
        match words.next() {
            Some("PIPELINING") => self.pipelining = true,
            Some("STARTTLS") => self.starttls = true,
            Some("SMTPUTF8") => self.smtputf8 = true,
            Some("8BITMIME") => self.eight_bit_mime = true,
            Some("SIZE") => {
                self.size = true;
                // RFC 1870, 4: nought says that there is no limit.
                self.size_limit = words.next().and_then(|limit| limit.parse().ok()).filter(|&limit| limit > 0);
            }
            Some("AUTH") => {
                for mechanism in words {
                    self.plain |= mechanism == "PLAIN";
                    self.login |= mechanism == "LOGIN";
                    self.xoauth2 |= mechanism == "XOAUTH2";
                }
            }
            Some(_) | None => {}
        }
    }
}

/// Runs one phase within its limit; on expiry the future, and with it the connection, is dropped.
async fn within<T>(phase: Phase, limit: Duration, work: impl Future<Output = Result<T, Cause>>) -> Result<T, Failure> {
    match timeout(limit, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(Failure::new(phase, cause)),
        Err(_) => Err(Failure::new(phase, Cause::Timeout(limit))),
    }
}

/// Sends a line and takes the reply, which must be 2yz or, where `go_on`, 3yz.
async fn ask(
    connection: &mut Connection,
    line: &[u8],
    go_on: bool,
    each_line: impl FnMut(&[u8]),
) -> Result<Reply, Cause> {
    if connection.has_leftover() {
        return Err(Cause::Protocol("bytes that nothing had asked for"));
    }
    let written = connection.write(line).await;
    // A server that hung up may have said why.
    match (connection.reply_lines(each_line).await, written) {
        (Ok(reply), _) => expect(reply, go_on),
        (Err(_), Err(cause)) | (Err(cause), Ok(())) => Err(cause),
    }
}

fn expect(reply: Reply, go_on: bool) -> Result<Reply, Cause> {
    match Severity::of(reply.code) {
        Severity::Completed => Ok(reply),
        Severity::Intermediate if go_on => Ok(reply),
        Severity::Transient | Severity::Permanent => Err(Cause::Reply(reply)),
        Severity::Intermediate | Severity::Unknown => Err(Cause::Protocol("a reply that does not belong here")),
    }
}

/// Opens a connection that is ready for MAIL.
pub(super) async fn open(endpoint: &Endpoint) -> Result<(Connection, Capabilities), Failure> {
    let timeouts = &endpoint.timeouts;
    if endpoint.auth.is_some() && endpoint.security == Security::Plaintext {
        return Err(Failure::new(Phase::Auth, Cause::Unsupported("authentication without TLS")));
    }
    if endpoint.hello.is_empty() || !endpoint.hello.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::new(Phase::Ehlo, Cause::Unsupported("an EHLO name that is not a name")));
    }
    let mut connection = Connection::plain(connect(endpoint).await?);
    let tls = |connection: Connection| {
        let handshake = connection.start_tls(endpoint.tls.clone(), endpoint.server_name.clone());
        within(Phase::Tls, timeouts.tls, handshake)
    };

    if endpoint.security == Security::ImplicitTls {
        connection = tls(connection).await?;
    }
    within(Phase::Greeting, timeouts.greeting, async { expect(connection.reply().await?, false) }).await?;
    let mut offered = within(Phase::Ehlo, timeouts.ehlo, ehlo(&mut connection, &endpoint.hello)).await?;
    if endpoint.security == Security::StartTls {
        if !offered.starttls {
            return Err(Failure::new(Phase::Tls, Cause::Unsupported("STARTTLS is not offered")));
        }
        within(Phase::Tls, timeouts.ehlo, ask(&mut connection, b"STARTTLS\r\n", false, |_| ())).await?;
        connection = tls(connection).await?;
        // What was offered in clear is forgotten (RFC 3207, 4.2).
        offered = within(Phase::Ehlo, timeouts.ehlo, ehlo(&mut connection, &endpoint.hello)).await?;
    }
    if let Some(auth) = &endpoint.auth {
        authenticate(&mut connection, &offered, auth, timeouts.auth).await?;
    }
    Ok((connection, offered))
}

async fn connect(endpoint: &Endpoint) -> Result<TcpStream, Failure> {
    let timeouts = &endpoint.timeouts;
    let addresses: Vec<SocketAddr> = within(Phase::Resolve, timeouts.resolve, async {
        Ok(lookup_host((endpoint.host.as_str(), endpoint.port)).await?.take(ADDRESSES_MAX).collect())
    })
    .await?;
    let mut last = Failure::new(Phase::Resolve, Cause::Io(io::Error::other("the name has no address")));
    for address in addresses {
        let connected = within(Phase::Connect, timeouts.connect, async {
            let stream = TcpStream::connect(address).await?;
            // Two writes a message under TLS: with Nagle's algorithm the second waits for a delayed ACK, 40 ms.
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        match connected.await {
            Ok(stream) => return Ok(stream),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

async fn ehlo(connection: &mut Connection, hello: &str) -> Result<Capabilities, Cause> {
    let mut offered = Capabilities::default();
    let mut first = true;
    ask(connection, format!("EHLO {hello}\r\n").as_bytes(), false, |line| {
        // The first line is the server's name, which may be any word.
        if !std::mem::take(&mut first) {
            offered.learn(line);
        }
    })
    .await?;
    Ok(offered)
}

async fn authenticate(
    connection: &mut Connection,
    offered: &Capabilities,
    auth: &Auth,
    limit: Duration,
) -> Result<(), Failure> {
    let unsupported = |what| Err(Failure::new(Phase::Auth, Cause::Unsupported(what)));
    if !connection.is_tls() {
        return unsupported("authentication without TLS");
    }
    let mechanism = match auth.mechanism {
        Some(Mechanism::Plain) | None if offered.plain => Mechanism::Plain,
        Some(Mechanism::Login) | None if offered.login => Mechanism::Login,
        Some(Mechanism::XOAuth2) if offered.xoauth2 => Mechanism::XOAuth2,
        Some(_) => return unsupported("the configured AUTH mechanism is not offered"),
        None => return unsupported("neither AUTH PLAIN nor AUTH LOGIN is offered"),
    };
    let (user, secret) = (auth.username.as_str(), auth.secret.expose_secret());
    if user.contains(['\0', '\x01']) || secret.contains(['\0', '\x01']) {
        return unsupported("a user name or a secret with a control character");
    }
    let lines = match mechanism {
        Mechanism::Plain => {
            vec![format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{secret}")))]
        }
        Mechanism::Login => vec!["AUTH LOGIN".to_owned(), STANDARD.encode(user), STANDARD.encode(secret)],
        Mechanism::XOAuth2 => {
            let response = STANDARD.encode(format!("user={user}\x01auth=Bearer {secret}\x01\x01"));
            // A token that is refused is answered by 334 and the reason; the empty line asks for the verdict.
            vec![format!("AUTH XOAUTH2 {response}"), String::new()]
        }
    };
    let mut left = lines.iter();
    while let Some(line) = left.next() {
        let go_on = left.len() > 0;
        let line = format!("{line}\r\n");
        let answer = ask(connection, line.as_bytes(), go_on, |_| ());
        let reply = within(Phase::Auth, limit, answer).await.map_err(|failure| withhold(failure, user, &lines))?;
        if Severity::of(reply.code) == Severity::Completed {
            return Ok(());
        }
    }
    Err(Failure::new(Phase::Auth, Cause::Protocol("authentication without an end")))
}

/// A server that repeats a command in its refusal would have the secret stored with the reply: such a text is left out.
fn withhold(failure: Failure, user: &str, lines: &[String]) -> Failure {
    let Failure { phase, cause } = failure;
    let cause = match cause {
        Cause::Reply(Reply { code, enhanced, text }) => {
            let repeats = |secret: &str| !secret.is_empty() && text.contains(secret);
            let told = lines.iter().filter_map(|line| line.rsplit(' ').next()).any(repeats) || repeats(user);
            Cause::Reply(Reply { code, enhanced, text: if told { "(withheld)".to_owned() } else { text } })
        }
        other => other,
    };
    Failure::new(phase, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(lines: &[&str]) -> Capabilities {
        let mut offered = Capabilities::default();
        lines.iter().for_each(|line| offered.learn(line.as_bytes()));
        offered
    }

    #[test]
    fn what_a_server_offers_is_read_in_any_case_and_form() {
        let offered = learn(&["Pipelining", "size 1000", "AUTH=PLAIN", "auth LOGIN XOAUTH2 CRAM-MD5", "8bitmime", ""]);
        assert!(offered.pipelining && offered.plain && offered.login && offered.xoauth2 && offered.eight_bit_mime);
        assert!(!offered.smtputf8 && !offered.starttls);
        assert_eq!((offered.size, offered.size_limit), (true, Some(1000)));
    }

    #[test]
    fn a_size_of_nought_or_without_a_number_is_no_limit() {
        for line in ["SIZE", "SIZE 0", "SIZE many", "SIZE 99999999999999999999999"] {
            let offered = learn(&[line]);
            assert_eq!((offered.size, offered.size_limit), (true, None), "{line}");
        }
    }

    #[test]
    fn a_refusal_that_repeats_the_secret_is_kept_without_its_text() {
        let refusal = |text: &str| {
            let reply = Reply { code: 535, enhanced: Some("5.7.8".into()), text: text.into() };
            Failure::new(Phase::Auth, Cause::Reply(reply))
        };
        let lines = ["AUTH PLAIN AGEAYg==".to_owned()];
        let text = |failure: Failure| match failure.cause {
            Cause::Reply(reply) => reply.text,
            other => other.to_string(),
        };
        assert_eq!(text(withhold(refusal("bad command AUTH PLAIN AGEAYg=="), "a@b", &lines)), "(withheld)");
        assert_eq!(text(withhold(refusal("no account a@b"), "a@b", &lines)), "(withheld)");
        assert_eq!(text(withhold(refusal("wrong password"), "a@b", &lines)), "wrong password");
    }
}
