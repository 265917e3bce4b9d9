//! What one listener speaks.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use crate::config::{Alpn, ClientAuth, Config, Version};
use crate::hello::{ACME, fold};
use crate::store::Store;
use crate::trust::Trust;

static FROM_12: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
static FROM_13: &[&SupportedProtocolVersion] = &[&TLS13];

/// Why a listener can't speak TLS as configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Clients' certificates can't be checked.
    #[error("clients have to show certificates, but their CAs (`client_ca`) could not be read")]
    NoClientCa,
    /// rustls or the system's randomness does not serve.
    #[error("TLS can't be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The TLS of one listener.
///
/// Sessions are resumed by tickets only, so that they take no memory here. The keys of tickets live
/// as long as this: a reload of certificates leaves them. They are thrown away with the clients' CAs,
/// for a resumed session's client certificate is not checked again.
#[derive(Debug)]
pub struct Tls {
    pub(crate) store: Arc<Store>,
    pub(crate) config: Config,
    built: ArcSwap<Built>,
    challenge: Arc<ServerConfig>,
}

#[derive(Debug)]
struct Built {
    /// What it was built for.
    trust: Option<Arc<Trust>>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// A listener that serves what is in `store` as `config` has it. Of `config` it uses versions,
    /// ALPN, whether clients show certificates, and the handshake's time; files are the store's.
    pub fn new(store: Arc<Store>, config: &Config) -> Result<Self, TlsError> {
        let built = build(&store, config, store.trust())?;
        let mut challenge = ServerConfig::builder_with_provider(store.provider().clone())
            .with_protocol_versions(FROM_12)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Challenges(store.clone())));
        challenge.alpn_protocols = vec![ACME.to_vec()];
        challenge.session_storage = Arc::new(NoServerSessionStorage {});
        challenge.send_tls13_tickets = 0;
        Ok(Self {
            config: config.clone(),
            built: ArcSwap::from_pointee(built),
            challenge: Arc::new(challenge),
            store,
        })
    }

    /// The certificates that this serves.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What a visitor's handshake goes by now.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let trust = self.store.trust();
        let built = self.built.load();
        let same = match (&built.trust, &trust) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same || self.config.client_auth == ClientAuth::Off {
            return Ok(built.server.clone());
        }
        // Two handshakes may do this at once. The tickets of one of them are lost, no more.
        let new = build(&self.store, &self.config, trust)?;
        let server = new.server.clone();
        self.built.store(Arc::new(new));
        Ok(server)
    }

    /// What a challenge's handshake goes by.
    pub(crate) fn challenge(&self) -> Arc<ServerConfig> {
        self.challenge.clone()
    }
}

fn build(
    store: &Arc<Store>,
    config: &Config,
    trust: Option<Arc<Trust>>,
) -> Result<Built, TlsError> {
    let versions = match config.min_version {
        Version::Tls12 => FROM_12,
        Version::Tls13 => FROM_13,
    };
    let verifier = match (config.client_auth, &trust) {
        (ClientAuth::Off, _) => WebPkiClientVerifier::no_client_auth(),
        (auth, trust) => {
            trust.as_ref().and_then(|trust| trust.verifier(auth)).ok_or(TlsError::NoClientCa)?
        }
    };
    // The suites are rustls' own choice: AEAD with ECDHE only.
    let mut server = ServerConfig::builder_with_provider(store.provider().clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(ByName(store.clone())));
    server.alpn_protocols = alpn(&config.alpn);
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = ring::Ticketer::new()?;
    // A request in early data can be replayed by anyone who has seen it.
    server.max_early_data_size = 0;
    Ok(Built { trust, server: Arc::new(server) })
}

fn alpn(list: &[Alpn]) -> Vec<Vec<u8>> {
    list.iter().map(|alpn| alpn.as_str().as_bytes().to_vec()).collect()
}

/// A visitor's certificate.
#[derive(Debug)]
struct ByName(Arc<Store>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name().map(fold);
        self.0.find(host.as_deref(), hello.signature_schemes())
    }
}

/// A challenge's certificate.
#[derive(Debug)]
struct Challenges(Arc<Store>);

impl ResolvesServerCert for Challenges {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.challenge(&fold(hello.server_name()?))
    }
}
