//! Where accounts and certificates are kept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

use super::plan::Life;
use crate::certificate::{Certificate, LoadError, LoadFault, at, read_file};
use crate::names::CertificateName;

/// A directory for accounts, one for each CA, and certificates. Only its owner can read what is in
/// it.
///
/// A certificate, its key and the CA that it is from are one file, so that they change together.
#[derive(Debug)]
pub(crate) struct Keep {
    directory: PathBuf,
    ca: String,
    account: PathBuf,
    provider: Arc<CryptoProvider>,
}

/// A certificate that was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) key: CertifiedKey,
    pub(crate) life: Life,
    /// Whether it is from another CA than those that are ordered now.
    pub(crate) elsewhere: bool,
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
    /// Makes the directory if it is not there. `ca` is the URL of the CA's directory.
    pub(crate) fn new(directory: &Path, ca: &str) -> Result<Self, KeepError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| KeepError::Write { path: directory.to_owned(), error })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let digest = <[u8; 32]>::from(Sha256::digest(ca));
        let [a, b, c, d, ..] = digest;
        // A host has no '@', so no certificate has this name.
        let account = directory.join(format!("account@{a:02x}{b:02x}{c:02x}{d:02x}.json"));
        Ok(Self { directory: directory.to_owned(), ca: ca.to_owned(), account, provider })
    }

    /// Keeps the account's credentials.
    pub(crate) fn write_account(&self, credentials: &[u8]) -> Result<(), KeepError> {
        self.write(&self.account, credentials)
    }

    /// The account's credentials; none if there is no account yet.
    pub(crate) fn account(&self) -> Result<Option<Vec<u8>>, KeepError> {
        let path = &self.account;
        if self.is_missing(path) { Ok(None) } else { Ok(Some(read_file(path)?)) }
    }

    /// Forgets the account.
    pub(crate) fn remove_account(&self) -> Result<(), KeepError> {
        match fs::remove_file(&self.account) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(KeepError::Write { path: self.account.clone(), error })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the certificate for `name`, both in PEM, and gives it back ready to be served. What
    /// was kept before is not touched if it is no good.
    pub(crate) fn write_certificate(
        &self,
        name: &CertificateName,
        key: &str,
        chain: &str,
    ) -> Result<Kept, KeepError> {
        let path = self.path(name)?;
        let new = path.with_extension("new");
        // What is before the first `BEGIN` is a comment (RFC 7468, section 2).
        self.write(&new, format!("{}\n{key}\n{chain}", self.origin()).as_bytes())?;
        let good = self.read(name, &new);
        if good.is_ok() {
            self.rename(&new, &path)?;
        } else {
            let _ = fs::remove_file(&new);
        }
        Ok(good?)
    }

    /// The certificate for `name`; none if there is none yet.
    pub(crate) fn certificate(&self, name: &CertificateName) -> Result<Option<Kept>, KeepError> {
        let path = self.path(name)?;
        if self.is_missing(&path) { Ok(None) } else { Ok(Some(self.read(name, &path)?)) }
    }

    fn read(&self, name: &CertificateName, path: &Path) -> Result<Kept, LoadError> {
        let found = Certificate::read(path, path, &self.provider, None)?;
        if !found.names.contains(name) {
            return Err(at(path)(LoadFault::OtherName(name.clone())));
        }
        let life = Life { not_before: found.not_before, not_after: found.not_after };
        let origin = self.origin();
        let elsewhere =
            read_file(path)?.split(|byte| *byte == b'\n').next() != Some(origin.as_bytes());
        Ok(Kept { key: found.key.as_ref().clone(), life, elsewhere })
    }

    fn origin(&self) -> String {
        format!("CA: {}", self.ca)
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

    const CA: &str = "https://ca.example/dir";

    #[test]
    fn what_is_kept_comes_back_and_is_its_owners_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        let keep = Keep::new(&dir, CA).unwrap();
        let name = "a.example".parse().unwrap();
        assert!(keep.certificate(&name).unwrap().is_none());
        assert_eq!(keep.account().unwrap(), None);
        keep.write_account(b"{}").unwrap();
        keep.write_account(b"{1}").unwrap();
        let (key, chain) = pair("a.example");
        let written = keep.write_certificate(&name, &key, &chain).unwrap();
        let read = Keep::new(&dir, CA).unwrap().certificate(&name).unwrap().unwrap();
        assert_eq!((read.key.cert, read.life), (written.key.cert, written.life));
        assert!(!read.elsewhere && !written.elsewhere);
        assert!(read.life.not_before < read.life.not_after);
        assert_eq!(keep.account().unwrap().as_deref(), Some(&b"{1}"[..]));
        let found = files(&dir);
        assert_eq!(found[0], ("a.example.pem".to_owned(), 0o600));
        assert!(found[1].0.starts_with("account@") && found[1].1 == 0o600, "{found:?}");
        assert_eq!(found.len(), 2);
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        keep.remove_account().unwrap();
        keep.remove_account().unwrap();
        assert_eq!(keep.account().unwrap(), None);
    }

    #[test]
    fn another_ca_has_another_account_and_the_same_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Keep::new(dir.path(), CA).unwrap();
        let name = "a.example".parse().unwrap();
        let (key, chain) = pair("a.example");
        keep.write_account(b"{}").unwrap();
        keep.write_certificate(&name, &key, &chain).unwrap();
        let other = Keep::new(dir.path(), "https://other.example/dir").unwrap();
        assert_eq!(other.account().unwrap(), None);
        assert!(other.certificate(&name).unwrap().unwrap().elsewhere);
        other.write_certificate(&name, &key, &chain).unwrap();
        assert!(!other.certificate(&name).unwrap().unwrap().elsewhere);
        assert!(keep.certificate(&name).unwrap().unwrap().elsewhere);
    }

    #[test]
    fn what_is_no_good_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let keep = Keep::new(dir.path(), CA).unwrap();
        let name = "a.example".parse().unwrap();
        let (key, chain) = pair("a.example");
        let good = keep.write_certificate(&name, &key, &chain).unwrap().key;
        let (other, _) = pair("a.example");
        let (b_key, b_chain) = pair("b.example");
        for (key, chain) in
            [(&*other, &*chain), (&key, ""), ("", &chain), (&key, &chain[..99]), (&b_key, &b_chain)]
        {
            assert!(keep.write_certificate(&name, key, chain).is_err());
            assert_eq!(keep.certificate(&name).unwrap().unwrap().key.cert, good.cert);
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
