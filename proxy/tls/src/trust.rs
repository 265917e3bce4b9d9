//! Who may sign clients' certificates.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};

use crate::certificate::{LoadError, LoadFault, Stamp, at, certificates, read_file};
use crate::config::ClientAuth;

/// How many CAs one file may have: every public one there is, a few times over.
const MAX_CAS: usize = 1024;

/// The CAs of clients, as one file has them.
pub(crate) struct Trust {
    required: Arc<dyn ClientCertVerifier>,
    optional: Arc<dyn ClientCertVerifier>,
    stamp: Stamp,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

impl Trust {
    /// Reads the CAs in `file`. Gives back `old` if it has in it what that was read from.
    pub(crate) fn read(
        file: &Path,
        provider: &Arc<CryptoProvider>,
        old: Option<&Arc<Self>>,
    ) -> Result<Arc<Self>, LoadError> {
        let at = at(file);
        let text = read_file(file)?;
        let stamp = Sha256::digest(&text).into();
        if let Some(old) = old.filter(|old| old.stamp == stamp) {
            return Ok(old.clone());
        }
        let found = certificates(&text, MAX_CAS).map_err(&at)?;
        if found.is_empty() {
            return Err(at(LoadFault::NoCertificate));
        }
        let mut roots = RootCertStore::empty();
        for certificate in found {
            roots.add(certificate).map_err(|e| at(LoadFault::BadCertificate(e.to_string())))?;
        }
        let builder = || {
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider.clone())
        };
        let bad =
            |e: rustls::server::VerifierBuilderError| at(LoadFault::BadCertificate(e.to_string()));
        let required = builder().build().map_err(bad)?;
        let optional = builder().allow_unauthenticated().build().map_err(bad)?;
        Ok(Arc::new(Self { required, optional, stamp }))
    }

    /// What checks clients' certificates; none where they are not asked for.
    pub(crate) fn verifier(&self, auth: ClientAuth) -> Option<Arc<dyn ClientCertVerifier>> {
        match auth {
            ClientAuth::Off => None,
            ClientAuth::Optional => Some(self.optional.clone()),
            ClientAuth::Required => Some(self.required.clone()),
        }
    }
}
