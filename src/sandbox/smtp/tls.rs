//! Certificates for tests of TLS: a fresh root and a server certificate under it, never stored.

use std::io;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A server's side of TLS and the root that a client must trust.
#[derive(Clone)]
pub struct SelfSigned {
    /// For [`super::Tls`].
    pub server: Arc<ServerConfig>,
    /// The root certificate, for a root store.
    pub root_der: CertificateDer<'static>,
    /// The root certificate, for a file.
    pub root_pem: String,
    /// The server's private key and its certificate, for the file of a server that is a program of its own.
    pub server_pem: String,
}

/// Makes a root and a certificate for these host names and IP addresses.
///
/// # Errors
/// If a name cannot stand in a certificate.
pub fn self_signed(names: &[&str]) -> io::Result<SelfSigned> {
    let mut root = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
    root.distinguished_name.push(DnType::CommonName, "outboxd sandbox root");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let root_key = KeyPair::generate().map_err(io::Error::other)?;
    let root = CertifiedIssuer::self_signed(root, root_key).map_err(io::Error::other)?;

    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let leaf = CertificateParams::new(names).and_then(|leaf| leaf.signed_by(&key, &root)).map_err(io::Error::other)?;

    let server_pem = format!("{}{}", key.serialize_pem(), leaf.pem());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key))
        .map_err(io::Error::other)?;
    Ok(SelfSigned { server: Arc::new(server), root_der: root.der().clone(), root_pem: root.pem(), server_pem })
}
