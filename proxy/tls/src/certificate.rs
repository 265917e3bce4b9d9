//! One certificate with its chain and key, read from files.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::names::CertificateName;

/// The largest file that is read, in bytes. A chain has a few KiB; a bundle of every public CA
/// has about 200.
const MAX_FILE: u64 = 1024 * 1024;
/// The longest chain that is served. Clients refuse longer ones (OpenSSL's default depth is 100,
/// but no public CA has more than four).
const MAX_CHAIN: usize = 16;

/// A file that is no use, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", file.display())]
pub struct LoadError {
    /// The file or directory.
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: LoadFault,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum LoadFault {
    /// It, or its directory, can't be read.
    #[error("can't be read: {0}")]
    Unreadable(io::Error),
    /// It is a directory, a pipe or a device.
    #[error("is no regular file")]
    NotAFile,
    /// It is longer than any such file.
    #[error("has more than {MAX_FILE} bytes, and can't be what it should be")]
    TooLong,
    /// It is no PEM, or ends in the middle.
    #[error("is no good PEM: {0}; write the file again")]
    Pem(String),
    /// There is no certificate in it.
    #[error("has no certificate; it has to have a `BEGIN CERTIFICATE`, the server's first")]
    NoCertificate,
    /// There are too many certificates in it.
    #[error("has more than {MAX_CHAIN} certificates; give the server's and its intermediates only")]
    LongChain,
    /// There is no private key in it.
    #[error("has no private key that is not encrypted; it has to have a `BEGIN PRIVATE KEY`")]
    NoKey,
    /// A certificate in it can't be parsed.
    #[error("has a certificate that can't be read: {0}")]
    BadCertificate(String),
    /// The key can't be used.
    #[error("has a private key that can't be used: {0}; RSA, P-256, P-384 and Ed25519 can")]
    BadKey(String),
    /// The key is that of another certificate.
    #[error("is the key of another certificate than that in {}", .0.display())]
    OtherKey(PathBuf),
    /// The certificate is for no host name.
    #[error("has a certificate without a DNS name (subject alternative name)")]
    NoNames,
    /// The default name has no certificate.
    #[error("no certificate is for `{0}`, the default; add one or name another")]
    NoDefault(CertificateName),
    /// The key in it is no base64.
    #[error("has no key in base64url; write it as the CA has given it to you")]
    NotBase64,
    /// The certificate is for others.
    #[error("has a certificate that is not for `{0}`")]
    OtherName(CertificateName),
    /// A directory can't be watched.
    #[error("can't be watched, so that changes are seen once an hour only: {0}")]
    Unwatched(String),
}

/// Gives a fault its file.
pub(crate) fn at(file: &Path) -> impl Fn(LoadFault) -> LoadError {
    move |fault| LoadError { file: file.to_owned(), fault }
}

/// What a file had in it: enough to tell whether it has changed.
pub(crate) type Stamp = [u8; 32];

/// A certificate that can be served.
pub(crate) struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) names: Vec<CertificateName>,
    #[cfg_attr(not(feature = "acme"), expect(dead_code, reason = "renewal goes by it"))]
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    stamp: Stamp,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads a certificate. Gives back `old` if the files have in them what it was read from.
    pub(crate) fn read(
        cert: &Path,
        key: &Path,
        provider: &CryptoProvider,
        old: Option<&Arc<Self>>,
    ) -> Result<Arc<Self>, LoadError> {
        let (cert_at, key_at) = (at(cert), at(key));
        let cert_pem = read_file(cert)?;
        let key_pem = read_file(key)?;
        let mut stamp = Sha256::new();
        stamp.update((cert_pem.len() as u64).to_le_bytes());
        stamp.update(&cert_pem);
        stamp.update(&key_pem);
        let stamp = stamp.finalize().into();
        if let Some(old) = old.filter(|old| old.stamp == stamp) {
            return Ok(old.clone());
        }
        let chain = certificates(&cert_pem, MAX_CHAIN).map_err(&cert_at)?;
        let first = chain.first().ok_or(LoadFault::NoCertificate).map_err(&cert_at)?;
        let (names, [not_before, not_after]) = look_into(first).map_err(&cert_at)?;
        if names.is_empty() {
            return Err(cert_at(LoadFault::NoNames));
        }
        let private = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| {
            key_at(match error {
                pem::Error::NoItemsFound => LoadFault::NoKey,
                error => pem_fault(&error),
            })
        })?;
        let key =
            CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => key_at(LoadFault::OtherKey(cert.to_owned())),
                rustls::Error::InvalidCertificate(error) => {
                    cert_at(LoadFault::BadCertificate(error.to_string()))
                }
                error => key_at(LoadFault::BadKey(error.to_string())),
            })?;
        Ok(Arc::new(Self { key: Arc::new(key), names, not_before, not_after, stamp }))
    }

    /// A certificate that is in no file, for `name`.
    pub(crate) fn managed(key: CertifiedKey, name: CertificateName) -> Result<Self, rustls::Error> {
        key.keys_match()?;
        let (_, [not_before, not_after]) = look_into(key.end_entity_cert()?)
            .map_err(|fault| rustls::Error::General(fault.to_string()))?;
        Ok(Self {
            key: Arc::new(key),
            names: vec![name],
            not_before,
            not_after,
            stamp: Stamp::default(),
        })
    }
}

/// Whether a key is its certificate's, for certificates that rustls itself can't read: that of a
/// challenge has a critical extension of its own (RFC 8737, section 3).
pub(crate) fn is_own_key(key: &CertifiedKey) -> Result<(), rustls::Error> {
    let bad = |error: &dyn fmt::Display| rustls::Error::General(error.to_string());
    let (_, certificate) =
        X509Certificate::from_der(key.end_entity_cert()?).map_err(|e| bad(&e))?;
    match key.key.public_key() {
        Some(public) if public.as_ref() == certificate.public_key().raw => Ok(()),
        _ => Err(rustls::InconsistentKeys::KeyMismatch.into()),
    }
}

/// Every certificate in a PEM text, at most `limit`.
pub(crate) fn certificates(
    text: &[u8],
    limit: usize,
) -> Result<Vec<CertificateDer<'static>>, LoadFault> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text) {
        if found.len() == limit {
            return Err(LoadFault::LongChain);
        }
        found.push(certificate.map_err(|error| pem_fault(&error))?);
    }
    Ok(found)
}

/// Says what is wrong without showing what is in the file: it may be a key.
fn pem_fault(error: &pem::Error) -> LoadFault {
    LoadFault::Pem(
        match error {
            pem::Error::MissingSectionEnd { .. } => "it ends in the middle",
            pem::Error::IllegalSectionStart { .. } => "a `BEGIN` line is broken",
            pem::Error::Base64Decode(_) => "it is no base64",
            _ => "it can't be decoded",
        }
        .to_owned(),
    )
}

/// The names in a certificate, which may be none, and when it begins and ends.
fn look_into(der: &[u8]) -> Result<(Vec<CertificateName>, [SystemTime; 2]), LoadFault> {
    let bad = |error: &dyn fmt::Display| LoadFault::BadCertificate(error.to_string());
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| bad(&e))?;
    let mut names = BTreeSet::new();
    if let Some(extension) = certificate.subject_alternative_name().map_err(|e| bad(&e))? {
        for name in &extension.value.general_names {
            // A name that no client can ask for is none.
            if let GeneralName::DNSName(name) = name {
                names.extend(name.parse::<CertificateName>());
            }
        }
    }
    let validity = certificate.validity();
    let time = |seconds: i64| {
        let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        SystemTime::UNIX_EPOCH.checked_add(seconds).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let ends = [validity.not_before, validity.not_after].map(|end| time(end.timestamp()));
    Ok((names.into_iter().collect(), ends))
}

/// Reads a file whole, if it is a file and not too long.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let at = at(path);
    let unreadable = |error| at(LoadFault::Unreadable(error));
    // Before it is opened: opening a pipe would wait for its other end.
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        return Err(at(LoadFault::NotAFile));
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE { Err(at(LoadFault::TooLong)) } else { Ok(text) }
}
