//! A certificate for loopback, by an authority made for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::StartError;

fn wrong(e: impl std::fmt::Display) -> StartError {
    StartError::Certificate(e.to_string())
}

/// Writes the authority into `dir`, and accepts for `127.0.0.1`.
pub(crate) fn acceptor(dir: &Path) -> Result<(PathBuf, TlsAcceptor), StartError> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().map_err(wrong)?;
    let authority = params.self_signed(&key).map_err(wrong)?;
    let path = dir.join("ca.pem");
    std::fs::write(&path, authority.pem())?;
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().map_err(wrong)?;
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).map_err(wrong)?;
    let cert = params.signed_by(&own, &issuer).map_err(wrong)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::Pkcs8(own.serialize_der().into()),
        )
        .map_err(wrong)?;
    Ok((path, TlsAcceptor::from(Arc::new(config))))
}
