//! What the configured files had in them when they were last good.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::certificate::{Certificate, LoadError, LoadFault, at};
use crate::config::Config;
use crate::trust::Trust;

/// How many certificates one directory may have. A hundred thousand would take some 500 MB.
const MAX_DIRECTORY: usize = 100_000;

/// What was read, the last good of each.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// By the path of the certificate's file.
    configured: BTreeMap<PathBuf, Arc<Certificate>>,
    directory: BTreeMap<PathBuf, Arc<Certificate>>,
    trust: Option<Arc<Trust>>,
}

/// How reading went.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) changed: usize,
    pub(crate) removed: usize,
    pub(crate) errors: Vec<LoadError>,
}

impl Files {
    /// Reads everything again. What can't be read stays what it was.
    pub(crate) fn reload(&mut self, config: &Config, provider: &Arc<CryptoProvider>) -> Outcome {
        let mut outcome = Outcome::default();
        for files in &config.certificates {
            let place = &mut self.configured;
            read_one(place, &files.cert, &files.key, provider, &mut outcome);
        }
        if let Some(directory) = &config.directory {
            match list(directory) {
                Ok(entries) => {
                    let before = self.directory.len();
                    // A directory that is gone was taken away; one that is broken was not.
                    self.directory.retain(|cert, _| {
                        cert.parent().is_some_and(|d| entries.binary_search(&d.to_owned()).is_ok())
                    });
                    outcome.removed = before - self.directory.len();
                    for entry in entries {
                        let (cert, key) = (entry.join("fullchain.pem"), entry.join("privkey.pem"));
                        read_one(&mut self.directory, &cert, &key, provider, &mut outcome);
                    }
                }
                Err(error) => outcome.errors.push(at(directory)(LoadFault::Unreadable(error))),
            }
        }
        if let Some(file) = &config.client_ca {
            match Trust::read(file, provider, self.trust.as_ref()) {
                Ok(trust) => {
                    if self.trust.as_ref().is_none_or(|old| !Arc::ptr_eq(old, &trust)) {
                        outcome.changed += 1;
                    }
                    self.trust = Some(trust);
                }
                Err(error) => outcome.errors.push(error),
            }
        }
        outcome
    }

    /// Every certificate with its file, those in the directory last, in the order of `config`.
    pub(crate) fn certificates<'a>(
        &'a self,
        config: &'a Config,
    ) -> impl Iterator<Item = (&'a PathBuf, &'a Arc<Certificate>)> {
        let configured = config.certificates.iter();
        configured
            .filter_map(|files| self.configured.get_key_value(&files.cert))
            .chain(&self.directory)
    }

    /// The CAs of clients.
    pub(crate) fn trust(&self) -> Option<&Arc<Trust>> {
        self.trust.as_ref()
    }
}

fn read_one(
    place: &mut BTreeMap<PathBuf, Arc<Certificate>>,
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
    outcome: &mut Outcome,
) {
    let old = place.get(cert);
    match Certificate::read(cert, key, provider, old) {
        Ok(new) => {
            if old.is_none_or(|old| !Arc::ptr_eq(old, &new)) {
                outcome.changed += 1;
                place.insert(cert.to_owned(), new);
            }
        }
        Err(error) => outcome.errors.push(error),
    }
}

/// The directories in `directory`, sorted. Hidden ones are not ours: a mounted secret keeps its
/// versions in them.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") || !path.is_dir() {
            continue;
        }
        if found.len() == MAX_DIRECTORY {
            return Err(io::Error::other(format!("has more than {MAX_DIRECTORY} certificates")));
        }
        found.push(path);
    }
    found.sort();
    Ok(found)
}
