//! A mailbox over IMAP (RFC 3501) under TLS: what nobody has read yet, one message at a time.
//!
//! Nothing is marked but by [`Mailbox::mark`], so what was fetched and not seen to comes again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_imap::Session;
use futures_util::TryStreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// IMAP under TLS (RFC 8314, 3.2).
pub const DEFAULT_PORT: u16 = 993;

/// For each command: a large message on a slow line takes its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a mailbox is, and who reads it.
#[derive(Debug, Clone)]
pub struct Access {
    /// The server's name, which its certificate must have.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The mailbox, such as `INBOX`.
    pub mailbox: String,
    /// Who.
    pub username: String,
    /// Proved by.
    pub password: SecretString,
    /// Certificates in PEM that are trusted besides the system's.
    pub roots_pem: Option<Vec<u8>>,
}

/// An open mailbox.
#[derive(Debug)]
pub struct Mailbox {
    session: Session<TlsStream<TcpStream>>,
}

/// Why it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImapError {
    /// The host is not a name or an address.
    #[error("{0:?} is not a host name or an address")]
    Host(String),
    /// The certificates to trust are none.
    #[error("the certificates to trust are not PEM")]
    Roots,
    /// The server cannot be reached, or its certificate is not trusted.
    #[error("the server cannot be reached: {0}")]
    Connection(#[from] io::Error),
    /// The server refuses, or says what nobody understands.
    #[error("the server refuses: {0}")]
    Protocol(#[from] async_imap::error::Error),
    /// No answer in time.
    #[error("no answer from the server within {PATIENCE:?}")]
    Silence,
}

async fn bound<T, E: Into<ImapError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, ImapError> {
    timeout(PATIENCE, work).await.map_err(|_| ImapError::Silence)?.map_err(Into::into)
}

impl Mailbox {
    /// Opens a mailbox.
    ///
    /// # Errors
    /// When the server cannot be reached, is not trusted, or refuses.
    pub async fn open(access: &Access) -> Result<Self, ImapError> {
        let name =
            ServerName::try_from(access.host.clone()).map_err(|_| ImapError::Host(access.host.clone()))?.to_owned();
        let connector = TlsConnector::from(Arc::new(trusting(access.roots_pem.as_deref())?));
        let session = bound(async {
            let stream = TcpStream::connect((access.host.as_str(), access.port)).await?;
            let stream = connector.connect(name, stream).await?;
            let mut client = async_imap::Client::new(stream);
            if client.read_response().await?.is_none() {
                return Err(ImapError::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
            let login = client.login(&access.username, access.password.expose_secret()).await;
            let mut session = login.map_err(|(error, _)| ImapError::Protocol(error))?;
            session.select(&access.mailbox).await?;
            Ok(session)
        })
        .await?;
        Ok(Self { session })
    }

    /// The unique ids of what nobody has read, the oldest first.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn unseen(&mut self) -> Result<Vec<u32>, ImapError> {
        let mut found: Vec<u32> = bound(self.session.uid_search("UNSEEN")).await?.into_iter().collect();
        found.sort_unstable();
        Ok(found)
    }

    /// A message; `None` where it is gone, or longer than `most` octets.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn fetch(&mut self, id: u32, most: usize) -> Result<Option<Vec<u8>>, ImapError> {
        let id = id.to_string();
        let size: Vec<_> =
            bound(async { self.session.uid_fetch(&id, "RFC822.SIZE").await?.try_collect().await }).await?;
        let fits = |size: Option<u32>| size.is_some_and(|size| size as usize <= most);
        if !size.iter().any(|message| fits(message.size)) {
            return Ok(None);
        }
        // PEEK: reading it does not mark it (RFC 3501, 6.4.5).
        let whole: Vec<_> =
            bound(async { self.session.uid_fetch(&id, "BODY.PEEK[]").await?.try_collect().await }).await?;
        Ok(whole.iter().find_map(|message| message.body().map(<[u8]>::to_vec)))
    }

    /// Marks a message as read.
    ///
    /// # Errors
    /// When the server cannot be asked; then it is read again next time.
    pub async fn mark(&mut self, id: u32) -> Result<(), ImapError> {
        let stored = async {
            let answers = self.session.uid_store(id.to_string(), "+FLAGS.SILENT (\\Seen)").await?;
            answers.try_collect::<Vec<_>>().await
        };
        bound(stored).await.map(drop)
    }

    /// Says goodbye. An error there changes nothing.
    pub async fn close(mut self) {
        let _ = bound(self.session.logout()).await;
    }
}

fn trusting(pem: Option<&[u8]>) -> Result<ClientConfig, ImapError> {
    // An error means that somebody has chosen one for the whole process, which will do.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(pem) = pem {
        let given: Vec<CertificateDer<'_>> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| ImapError::Roots)?;
        if roots.add_parsable_certificates(given).0 == 0 {
            return Err(ImapError::Roots);
        }
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}
