//! Whom TLS to a provider trusts: the system's roots, and one more file where a provider has its own authority.
//!
//! There is no way to switch verification off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
pub use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
pub use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Why no TLS client could be made.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file with the extra authority cannot be read or holds something else.
    #[error("{path} cannot be read as PEM certificates: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        cause: String,
    },
    /// The file holds no certificate.
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    /// Neither the system nor the configuration has any root.
    #[error("this system has no root certificates; install them (package ca-certificates) or name a file of them")]
    NoRoots,
    /// The TLS library refused its own defaults.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] tokio_rustls::rustls::Error),
}

/// The system's root certificates, read once. Broken ones are left out, as every TLS client does.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// A TLS client that trusts `roots` and the authorities in `extra` (PEM).
///
/// # Errors
/// When `extra` cannot be used or there would be nobody to trust.
pub fn client(mut roots: RootCertStore, extra: Option<&Path>) -> Result<Arc<ClientConfig>, TrustError> {
    if let Some(path) = extra {
        let unreadable = |cause: String| TrustError::Unreadable { path: path.to_owned(), cause };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unreadable(error.to_string()))?;
        if certificates.is_empty() {
            return Err(TrustError::Empty(path.to_owned()));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
        }
    }
    if roots.is_empty() {
        return Err(TrustError::NoRoots);
    }
    build(roots)
}

/// A TLS client that trusts nobody, for an endpoint that is spelled out to be plaintext: used by mistake, it refuses.
///
/// # Errors
/// When the TLS library refuses its own defaults.
pub fn nobody() -> Result<Arc<ClientConfig>, TrustError> {
    build(RootCertStore::empty())
}

fn build(roots: RootCertStore) -> Result<Arc<ClientConfig>, TrustError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn an_extra_authority_is_trusted_even_where_the_system_has_none() {
        let pem = rcgen::generate_simple_self_signed(["mail.test".to_owned()]).unwrap().cert.pem();
        assert!(client(RootCertStore::empty(), Some(file(&pem).path())).is_ok());
    }

    #[test]
    fn nobody_to_trust_is_an_error_and_so_is_a_file_without_certificates() {
        assert!(matches!(client(RootCertStore::empty(), None), Err(TrustError::NoRoots)));
        assert!(matches!(client(RootCertStore::empty(), Some(file("hello").path())), Err(TrustError::Empty(_))));
        let missing = client(RootCertStore::empty(), Some(Path::new("/nowhere/ca.pem")));
        assert!(matches!(missing, Err(TrustError::Unreadable { .. })));
    }
}
