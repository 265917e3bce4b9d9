//! Where accounts and certificates are kept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use super::plan::Life;
use crate::certificate::{Certificate, LoadError, read_file};
use crate::names::CertificateName;

/// A directory for one account and its certificates. Only its owner can read what is in it.
///
/// A certificate and its key are one file, so that they change together.
#[derive(Debug)]
pub struct Keep {
    directory: PathBuf,
    provider: Arc<CryptoProvider>,
}

/// What can't be kept, or was not.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A file can't be written.
    #[error("{} can't be written: {error}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// What was read, or written, is no use.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Neither of the challenges that we answer proves a whole domain (RFC 8555, section 7.1.3).
    #[error("`{0}` is no host; a wildcard certificate can't be had by HTTP-01 or TLS-ALPN-01")]
    Wildcard(CertificateName),
}

impl Keep {
    /// Makes the directory if it is not there.
    pub fn new(directory: &Path) -> Result<Self, KeepError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| KeepError::Write { path: directory.to_owned(), error })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Self { directory: directory.to_owned(), provider })
    }

    /// Keeps the account's credentials.
    pub fn write_account(&self, credentials: &[u8]) -> Result<(), KeepError> {
        self.write(&self.directory.join("account.json"), credentials)
    }

    /// The account's credentials; none if there is no account yet.
    pub fn account(&self) -> Result<Option<Vec<u8>>, KeepError> {
        let path = self.directory.join("account.json");
        if self.is_missing(&path) { Ok(None) } else { Ok(Some(read_file(&path)?)) }
    }

    /// Keeps the certificate for `name`, both in PEM, and gives it back ready to be served. What
    /// was kept before is not touched if it is no good.
    pub fn write_certificate(
        &self,
        name: &CertificateName,
        key: &str,
        chain: &str,
    ) -> Result<(CertifiedKey, Life), KeepError> {
        let path = self.path(name)?;
        let new = path.with_extension("new");
        self.write(&new, format!("{key}\n{chain}").as_bytes())?;
        let good = self.read(&new);
        if good.is_ok() {
            self.rename(&new, &path)?;
        } else {
            let _ = fs::remove_file(&new);
        }
        Ok(good?)
    }

    /// The certificate for `name`; none if there is none yet.
    pub fn certificate(
        &self,
        name: &CertificateName,
    ) -> Result<Option<(CertifiedKey, Life)>, KeepError> {
        let path = self.path(name)?;
        if self.is_missing(&path) { Ok(None) } else { Ok(Some(self.read(&path)?)) }
    }

    fn read(&self, path: &Path) -> Result<(CertifiedKey, Life), LoadError> {
        let found = Certificate::read(path, path, &self.provider, None)?;
        let life = Life { not_before: found.not_before, not_after: found.not_after };
        Ok((found.key.as_ref().clone(), life))
    }

    fn path(&self, name: &CertificateName) -> Result<PathBuf, KeepError> {
        let host = name.host().ok_or_else(|| KeepError::Wildcard(name.clone()))?;
        // A host has no '/', and no label of it is empty: it can't lead out of the directory.
        Ok(self.directory.join(format!("{host}.pem")))
    }

    fn is_missing(&self, path: &Path) -> bool {
        matches!(fs::symlink_metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), KeepError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let written = || {
            // One that a crash has left may have another's mode.
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        written().map_err(|error| KeepError::Write { path: temporary.clone(), error })?;
        self.rename(&temporary, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), KeepError> {
        fs::rename(from, to)
            .and_then(|()| File::open(&self.directory)?.sync_all())
            .map_err(|error| KeepError::Write { path: to.to_owned(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pair(host: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        (made.signing_key.serialize_pem(), made.cert.pem())
    }

    fn files(directory: &Path) -> Vec<(String, u32)> {
        let mut found: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
                (entry.file_name().into_string().unwrap(), mode)
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn what_is_kept_comes_back_and_is_its_owners_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        let keep = Keep::new(&dir).unwrap();
        let name = "a.example".parse().unwrap();
        assert!(keep.certificate(&name).unwrap().is_none());
        assert_eq!(keep.account().unwrap(), None);
        keep.write_account(b"{}").unwrap();
        keep.write_account(b"{1}").unwrap();
        let (key, chain) = pair("a.example");
        let (written, life) = keep.write_certificate(&name, &key, &chain).unwrap();
        let (read, again) = Keep::new(&dir).unwrap().certificate(&name).unwrap().unwrap();
        assert_eq!(read.cert, written.cert);
        assert_eq!(again, life);
        assert!(life.not_before < life.not_after);
        assert_eq!(keep.account().unwrap().as_deref(), Some(&b"{1}"[..]));
        let expected = [("a.example.pem".to_owned(), 0o600), ("account.json".to_owned(), 0o600)];
        assert_eq!(files(&dir), expected);
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_no_good_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Keep::new(dir.path()).unwrap();
        let name = "a.example".parse().unwrap();
        let (key, chain) = pair("a.example");
        let (good, _) = keep.write_certificate(&name, &key, &chain).unwrap();
        let (other, _) = pair("a.example");
        for (key, chain) in [(&*other, &*chain), (&key, ""), ("", &chain), (&key, &chain[..99])] {
            assert!(keep.write_certificate(&name, key, chain).is_err());
            assert_eq!(keep.certificate(&name).unwrap().unwrap().0.cert, good.cert);
            assert_eq!(files(dir.path()).len(), 1);
        }
        // A crash left one behind, for all to read.
        let left = dir.path().join("a.example.new.tmp");
        fs::write(&left, "x").unwrap();
        keep.write_certificate(&name, &key, &chain).unwrap();
        assert_eq!(files(dir.path()), [("a.example.pem".to_owned(), 0o600)]);
        let wildcard = "*.a.example".parse().unwrap();
        assert!(matches!(keep.certificate(&wildcard), Err(KeepError::Wildcard(_))));
    }
}
