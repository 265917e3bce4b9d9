//! All certificates that are served, by name.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use crate::certificate::{Certificate, LoadError, LoadFault, at, is_own_key};
use crate::config::Config;
use crate::files::Files;
use crate::names::{CertificateName, Names};
use crate::trust::Trust;

/// All certificates that are served: those of files, and those that were given to it.
///
/// A host is looked for first by its own name and then by wildcard, each first in files and then
/// among the managed ones, and last the default is taken.
pub struct Store {
    config: Config,
    provider: Arc<CryptoProvider>,
    /// Held while files are read, so that two reloads do not mix.
    files: Mutex<Files>,
    current: ArcSwap<Current>,
    managed: RwLock<Names<Arc<Certificate>>>,
    challenges: RwLock<Names<Arc<CertifiedKey>>>,
}

/// What the files had in them, ready to be served.
#[derive(Debug, Default)]
struct Current {
    names: Names<Vec<Arc<Certificate>>>,
    files: Vec<(PathBuf, Arc<Certificate>)>,
    trust: Option<Arc<Trust>>,
}

/// How a reload went.
#[derive(Debug)]
pub struct Reload {
    /// How many certificates of files are served now.
    pub certificates: usize,
    /// How many of them, or of the clients' CAs, were new or had changed.
    pub changed: usize,
    /// How many were taken away with their directory.
    pub removed: usize,
    /// What could not be read. What it was before is still served.
    pub errors: Vec<LoadError>,
}

/// One certificate, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// What it is for.
    pub names: Vec<String>,
    /// Its file; none for a managed one.
    pub file: Option<PathBuf>,
    /// When it expires.
    pub not_after: SystemTime,
}

/// Why a certificate is not taken over.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// It can't be read, or the key is not its own.
    #[error("the certificate for `{0}` can't be served: {1}")]
    Unfit(CertificateName, #[source] rustls::Error),
    /// A challenge is for one host.
    #[error("`{0}` is no host; a TLS-ALPN-01 challenge is for a host, not for a wildcard")]
    NoHost(CertificateName),
}

/// Reads all that `config` names. Whatever is wrong with it is told at once.
pub fn load(config: &Config) -> Result<Store, Vec<LoadError>> {
    let (store, errors) = Store::open(config);
    if errors.is_empty() { Ok(store) } else { Err(errors) }
}

impl Store {
    /// Reads what can be read of all that `config` names, and tells what can't be: for who would
    /// rather serve all sites but one than none.
    pub fn open(config: &Config) -> (Self, Vec<LoadError>) {
        let store = Self {
            config: config.clone(),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            files: Mutex::default(),
            current: ArcSwap::default(),
            managed: RwLock::default(),
            challenges: RwLock::default(),
        };
        let mut errors = store.reload().errors;
        #[cfg(feature = "acme")]
        if let Some(acme) = &config.acme {
            errors.extend(acme.check());
        }
        if let Some(name) = &config.default
            && !config.is_ordered(name)
            && store.default_certificate(&store.current.load(), &[]).is_none()
        {
            let file = config.directory.as_ref();
            let file = file.or(config.certificates.first().map(|files| &files.cert));
            let file = file.map(PathBuf::as_path).unwrap_or("tls.default".as_ref());
            errors.push(at(file)(LoadFault::NoDefault(name.clone())));
        }
        (store, errors)
    }

    /// Reads all files again and serves what they have in them now. It reads files, so it is not
    /// to be called where other tasks wait.
    pub fn reload(&self) -> Reload {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = files.reload(&self.config, &self.provider);
        let mut current = Current { trust: files.trust().cloned(), ..Current::default() };
        for (file, certificate) in files.certificates(&self.config) {
            for name in &certificate.names {
                current.names.push(name, certificate.clone());
            }
            current.files.push((file.clone(), certificate.clone()));
        }
        let certificates = current.files.len();
        if outcome.changed + outcome.removed > 0 {
            self.current.store(Arc::new(current));
        }
        Reload {
            certificates,
            changed: outcome.changed,
            removed: outcome.removed,
            errors: outcome.errors,
        }
    }

    /// Serves `key` to who asks for `name`, instead of what was given for it before.
    pub fn set_managed(
        &self,
        name: &CertificateName,
        key: CertifiedKey,
    ) -> Result<(), ManageError> {
        let certificate = Certificate::managed(key, name.clone())
            .map_err(|error| ManageError::Unfit(name.clone(), error))?;
        let mut managed = self.managed.write().unwrap_or_else(PoisonError::into_inner);
        managed.insert(name, Arc::new(certificate));
        Ok(())
    }

    /// Serves what was given for `name` no longer. Says whether there was any.
    pub fn clear_managed(&self, name: &CertificateName) -> bool {
        self.managed.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }

    /// Answers TLS-ALPN-01 challenges for `name` with `key` (RFC 8737, section 3).
    pub fn set_challenge(
        &self,
        name: &CertificateName,
        key: CertifiedKey,
    ) -> Result<(), ManageError> {
        if name.is_wildcard() {
            return Err(ManageError::NoHost(name.clone()));
        }
        is_own_key(&key).map_err(|error| ManageError::Unfit(name.clone(), error))?;
        let mut challenges = self.challenges.write().unwrap_or_else(PoisonError::into_inner);
        challenges.insert(name, Arc::new(key));
        Ok(())
    }

    /// Answers challenges for `name` no longer. Says whether they were.
    pub fn clear_challenge(&self, name: &CertificateName) -> bool {
        self.challenges.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }

    /// Every certificate that is served now; those of files first.
    pub fn certificates(&self) -> Vec<CertificateInfo> {
        let info = |file: Option<&PathBuf>, certificate: &Certificate| CertificateInfo {
            names: certificate.names.iter().map(ToString::to_string).collect(),
            file: file.cloned(),
            not_after: certificate.not_after,
        };
        let current = self.current.load();
        let managed = self.managed.read().unwrap_or_else(PoisonError::into_inner);
        let files = current.files.iter().map(|(file, certificate)| info(Some(file), certificate));
        files.chain(managed.values().map(|certificate| info(None, certificate))).collect()
    }

    /// What is served to who asks for `host`, in lower case and without a final dot, and can check
    /// signatures by `schemes`.
    pub(crate) fn find(
        &self,
        host: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        host.and_then(|host| self.named(&current, host, schemes))
            .or_else(|| self.default_certificate(&current, schemes))
    }

    fn named(
        &self,
        current: &Current,
        host: &str,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        if let Some(list) = current.names.exact(host) {
            return suited(list, schemes);
        }
        let managed = self.managed.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(certificate) = managed.exact(host) {
            return Some(certificate.key.clone());
        }
        if let Some(list) = current.names.wildcard(host) {
            return suited(list, schemes);
        }
        managed.wildcard(host).map(|certificate| certificate.key.clone())
    }

    fn default_certificate(
        &self,
        current: &Current,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let name = self.config.default.as_ref()?;
        if let Some(host) = name.host() {
            return self.named(current, host, schemes);
        }
        let managed = self.managed.read().unwrap_or_else(PoisonError::into_inner);
        match current.names.get(name) {
            Some(list) => suited(list, schemes),
            None => managed.get(name).map(|certificate| certificate.key.clone()),
        }
    }

    /// The answer to a challenge for `host`.
    pub(crate) fn challenge(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        let challenges = self.challenges.read().unwrap_or_else(PoisonError::into_inner);
        challenges.exact(host).cloned()
    }

    /// The CAs of clients, as they were read last.
    pub(crate) fn trust(&self) -> Option<Arc<Trust>> {
        self.current.load().trust.clone()
    }

    pub(crate) fn provider(&self) -> &Arc<CryptoProvider> {
        &self.provider
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The first that a client can check, so that RSA may stand behind ECDSA for old ones.
fn suited(list: &[Arc<Certificate>], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
    let suits = |c: &&Arc<Certificate>| c.key.key.choose_scheme(schemes).is_some();
    list.iter().find(suits).or(list.first()).map(|certificate| certificate.key.clone())
}
