//! TLS with the rustls library over any stream. The certificate is read from a file, or is a new
//! self-signed certificate. The server can also require certificates from the clients (mTLS).

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier,
        client::WantsClientCert,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::{WantsServerCert, WebPkiClientVerifier},
    },
};

use crate::Result;

/// The host name in a new self-signed certificate.
pub const NAME: &str = "rdmsg.test";

/// The HTTP versions that the TLS handshake can select (ALPN). A server accepts both, and a client
/// offers only one of them.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificate chain of a server or client, and its private key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a certificate chain and its private key from PEM files.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or is malformed.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self> {
        Ok(Self {
            chain: read_certificates(certificate)?,
            key: PrivateKeyDer::from_pem_file(key)
                .map_err(|error| format!("{}: {error}", key.display()))?,
        })
    }

    /// Creates a new key and a self-signed certificate for [`NAME`]. Returns both as an identity,
    /// together with the PEM text of the certificate.
    ///
    /// # Errors
    ///
    /// Fails if the system provides no random numbers.
    pub fn make() -> Result<(Self, String)> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let identity = Self {
            chain: vec![made.cert.der().clone()],
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        };
        Ok((identity, made.cert.pem()))
    }

    /// Returns an acceptor, which performs the server's side of the TLS handshake.
    ///
    /// # Errors
    ///
    /// Fails if the key does not match the certificate.
    pub fn acceptor(self) -> Result<TlsAcceptor> {
        self.accept_by(for_servers()?.with_no_client_auth())
    }

    /// Returns a TLS acceptor that requires a certificate from each client. The certificate must be
    /// in `clients`, or be signed by a certificate in `clients`.
    ///
    /// # Errors
    ///
    /// Fails if a certificate is invalid, or if the key does not match the server's certificate.
    pub fn acceptor_for(self, clients: Vec<CertificateDer<'static>>) -> Result<TlsAcceptor> {
        let (roots, provider) = (roots(clients)?.into(), default_provider().into());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
        self.accept_by(for_servers()?.with_client_cert_verifier(verifier))
    }

    fn accept_by(
        self,
        builder: ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> Result<TlsAcceptor> {
        let mut config = builder.with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Returns a TLS connector that presents this certificate to the server. The server's
    /// certificate must be in `trusted`, or be signed by a certificate in `trusted`. The connector
    /// offers HTTP/2 if `http2` is true, and HTTP/1 if it is false.
    ///
    /// # Errors
    ///
    /// Fails if a certificate is invalid, or if the key does not match the client's certificate.
    pub fn connector(
        self,
        trusted: Vec<CertificateDer<'static>>,
        http2: bool,
    ) -> Result<TlsConnector> {
        let config = for_clients(trusted)?.with_client_auth_cert(self.chain, self.key)?;
        Ok(connect_by(config, http2))
    }
}

/// Returns a connector, which performs the client's side of the TLS handshake. The server's
/// certificate must be in `trusted`, or be signed by a certificate in `trusted`. The connector
/// offers HTTP/2 if `http2` is true, and HTTP/1 if it is false.
///
/// # Errors
///
/// Fails if a certificate is invalid.
pub fn connector(trusted: Vec<CertificateDer<'static>>, http2: bool) -> Result<TlsConnector> {
    let config = for_clients(trusted)?.with_no_client_auth();
    Ok(connect_by(config, http2))
}

fn for_servers() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
    let builder = ServerConfig::builder_with_provider(default_provider().into());
    Ok(builder.with_safe_default_protocol_versions()?)
}

fn for_clients(
    trusted: Vec<CertificateDer<'static>>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let builder = ClientConfig::builder_with_provider(default_provider().into());
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots(trusted)?))
}

fn connect_by(mut config: ClientConfig, http2: bool) -> TlsConnector {
    let protocol = PROTOCOLS[usize::from(!http2)];
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config))
}

fn roots(trusted: Vec<CertificateDer<'static>>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// Reads certificates from a PEM file.
///
/// # Errors
///
/// Fails if the file cannot be read, is malformed, or contains no certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let certificates =
        parse_certificates(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(certificates)
}

/// Parses certificates in PEM.
///
/// # Errors
///
/// Fails if the text is malformed or contains no certificate.
pub fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if certificates.is_empty() {
        return Err("the file contains no certificate".into());
    }
    Ok(certificates)
}
