//! A CA, its certificates in a directory, and a client that tells what it was served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, SignatureAlgorithm,
};
use rouse_tls::{Accepted, CertificateFiles, Config, Facts, HandshakeError, Tls, load};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// A CA with a directory of its own.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    ca: Issuer<'static, KeyPair>,
    pub(crate) ca_pem: String,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Pair {
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    pub(crate) fn certified(&self) -> CertifiedKey {
        CertifiedKey::from_der(vec![self.der()], self.key(), &ring::default_provider()).unwrap()
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self { dir: tempfile::tempdir().unwrap(), ca: Issuer::new(params, key), ca_pem }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn pair(&self, names: &[&str]) -> Pair {
        self.pair_of(names, &PKCS_ECDSA_P256_SHA256)
    }

    pub(crate) fn pair_of(&self, names: &[&str], algorithm: &'static SignatureAlgorithm) -> Pair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "someone");
        params.not_after = rcgen::date_time_ymd(2040, 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate_for(algorithm).unwrap();
        let cert = params.signed_by(&key, &self.ca).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }

    /// The certificate that a request (in DER) is for.
    #[cfg(feature = "acme")]
    pub(crate) fn sign(&self, request: &[u8], now: std::time::SystemTime) -> String {
        let request = rustls::pki_types::CertificateSigningRequestDer::from(request.to_vec());
        let mut request = rcgen::CertificateSigningRequestParams::from_der(&request).unwrap();
        request.params.not_before = now.into();
        request.params.not_after = (now + std::time::Duration::from_secs(90 * 86_400)).into();
        request.signed_by(&self.ca).unwrap().pem()
    }

    /// Puts a pair where `[[tls.certificates]]` would look for it.
    pub(crate) fn put(&self, name: &str, pair: &Pair) -> CertificateFiles {
        CertificateFiles {
            cert: self.write(&format!("{name}.pem"), &pair.cert),
            key: self.write(&format!("{name}.key"), &pair.key),
        }
    }

    /// Puts a pair into a directory of certificates.
    pub(crate) fn drop_in(&self, name: &str, pair: &Pair) {
        self.write(&format!("certs.d/{name}/fullchain.pem"), &pair.cert);
        self.write(&format!("certs.d/{name}/privkey.pem"), &pair.key);
    }

    /// A server of one certificate, for `names`.
    pub(crate) fn config(&self, names: &[&str]) -> Config {
        let files = self.put("one", &self.pair(names));
        Config { certificates: vec![files], ..Config::default() }
    }
}

pub(crate) fn tls(config: &Config) -> Tls {
    Tls::new(Arc::new(load(config).unwrap()), config).unwrap()
}

/// Takes any certificate, if the server has its key, and asks for certain signatures.
#[derive(Debug)]
struct Any(Vec<SignatureScheme>, Arc<CryptoProvider>, bool);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.1.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !self.2 {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let algorithms = &self.1.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// A client to be made.
pub(crate) struct Client {
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    pub(crate) alpn: &'static [&'static str],
    pub(crate) schemes: Vec<SignatureScheme>,
    pub(crate) shows: Option<Pair>,
    /// Whether the server has to prove its key. rustls can't read a challenge's certificate, and so
    /// not check its key either.
    pub(crate) checks: bool,
}

impl Default for Client {
    fn default() -> Self {
        let provider = ring::default_provider();
        Self {
            versions: vec![&TLS12, &TLS13],
            alpn: &["h2", "http/1.1"],
            schemes: provider.signature_verification_algorithms.supported_schemes(),
            shows: None,
            checks: true,
        }
    }
}

impl Client {
    pub(crate) fn make(self) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Any(self.schemes, provider, self.checks)));
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_auth_cert(vec![pair.der()], pair.key()).unwrap(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// What became of a handshake at both ends.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) server: Result<Facts, HandshakeError>,
    /// The certificate that the client was served, once it has read a byte within TLS.
    pub(crate) client: std::io::Result<CertificateDer<'static>>,
}

/// Has a client ask for `name`, or for no name if it is an address.
pub(crate) async fn meet(tls: &Tls, client: &Arc<ClientConfig>, name: &str) -> Met {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let client = async {
        let mut stream = TlsConnector::from(client.clone()).connect(name, theirs).await?;
        stream.read_u8().await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        Ok(chain[0].clone().into_owned())
    };
    let server = async {
        match tls.accept(ours, |_| {}).await? {
            Accepted::Visitor(mut stream, facts) => {
                // The client may find our certificate wanting, and be gone.
                let _ = stream.write_u8(1).await;
                let _ = stream.flush().await;
                Ok(facts)
            }
            Accepted::Challenge { .. } => panic!("no challenge was meant"),
        }
    };
    let (client, server) = tokio::join!(client, server);
    Met { server, client }
}

/// The file names in errors.
pub(crate) fn file_of(error: &rouse_tls::LoadError, world: &World) -> String {
    let relative: &Path = error.file.strip_prefix(world.dir.path()).unwrap();
    relative.display().to_string()
}
