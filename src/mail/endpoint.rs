//! Where and how a provider is reached, and what may be known of it: nothing here shows a secret or an address.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// How the connection is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Security {
    /// TLS from the first byte (RFC 8314, 3.3).
    ImplicitTls,
    /// STARTTLS (RFC 3207), and nothing but EHLO before it. Never falls back to clear text.
    StartTls,
    /// No TLS: only for a relay on the same host or in the same sandbox. Excludes authentication.
    Plaintext,
}

/// How a client proves who it is (RFC 4954).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// RFC 4616.
    Plain,
    /// The de facto LOGIN.
    Login,
    /// An OAuth 2 bearer token; only when it is asked for, since its secret is not a password.
    XOAuth2,
}

/// The account at the provider.
#[derive(Clone)]
pub struct Auth {
    /// The mechanism; `None` takes the best offered of PLAIN and LOGIN.
    pub mechanism: Option<Mechanism>,
    /// The account's name.
    pub username: String,
    /// The password, or the token for XOAUTH2.
    pub secret: SecretString,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

/// The longest waits. RFC 5321, 4.5.3.2 has one a command and none for the whole; on expiry the connection is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// For the name's addresses.
    pub resolve: Duration,
    /// For the TCP connection, for each of at most [`super::open::ADDRESSES_MAX`] addresses.
    pub connect: Duration,
    /// For the greeting.
    pub greeting: Duration,
    /// For the reply to EHLO, and to STARTTLS.
    pub ehlo: Duration,
    /// For the TLS handshake.
    pub tls: Duration,
    /// For each reply in the authentication.
    pub auth: Duration,
    /// For the reply to MAIL, and to RSET.
    pub mail: Duration,
    /// For the reply to RCPT.
    pub rcpt: Duration,
    /// For the reply to DATA.
    pub data: Duration,
    /// For progress while the body is written: some of it must leave within this.
    pub block: Duration,
    /// For the whole body, so that a server which takes it by single bytes cannot hold a notification for days.
    pub body: Duration,
    /// For the reply to the end of data.
    pub end_of_data: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            // Not SMTP's: a resolver or a host that takes longer is as good as down, and the provider is backed off.
            resolve: Duration::from_secs(30),
            connect: Duration::from_secs(30),
            // RFC 5321, 4.5.3.2.1; it names none for EHLO, TLS and AUTH, which get the same.
            greeting: MINUTE * 5,
            ehlo: MINUTE * 5,
            tls: MINUTE * 5,
            auth: MINUTE * 5,
            // 4.5.3.2.2 to 4.5.3.2.6.
            mail: MINUTE * 5,
            rcpt: MINUTE * 5,
            data: MINUTE * 2,
            block: MINUTE * 3,
            end_of_data: MINUTE * 10,
            // 25 MB at 42 kB/s.
            body: MINUTE * 10,
        }
    }
}

impl Timeouts {
    /// The longest that [`super::session::Session::transmit`] can take: what a lease and the recovery terms must allow for.
    #[must_use]
    pub fn transmit(&self) -> Duration {
        self.body + self.block + self.end_of_data
    }
}

/// One way to reach one provider.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// A host name or an IP address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// How the connection is protected.
    pub security: Security,
    /// Whom to trust; see [`super::trust`].
    pub tls: Arc<ClientConfig>,
    /// The name that the certificate must be for.
    pub server_name: ServerName<'static>,
    /// The account, if the provider asks for one.
    pub auth: Option<Auth>,
    /// What EHLO says: this host's name, or an address literal (RFC 5321, 4.1.1.1).
    pub hello: String,
    /// The longest waits.
    pub timeouts: Timeouts,
}
