//! The store as an operator configures it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use serde::Deserialize;

use crate::{Directory, Encryption, Key, OpenS3Error, S3, S3Options, Store};

/// The longest prefix in a bucket, in bytes: with the longest key it comes to S3's 1024.
const MAX_PREFIX: usize = 255;

/// How a store's objects are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Sse {
    /// With a key of the store's own.
    #[serde(rename = "AES256")]
    Aes256,
    /// With a key of its key service.
    #[serde(rename = "aws:kms")]
    Kms,
}

/// `[store]`: where objects are kept. All but `url` are for `s3://` only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// `file:///var/lib/rouse/store`, or `s3://bucket` or `s3://bucket/prefix`.
    pub url: String,
    /// The URL of an S3-compatible store; none: Amazon's.
    pub endpoint: Option<String>,
    /// The bucket's region; none: as the AWS tools find it, or `us-east-1` where there is an endpoint.
    pub region: Option<String>,
    /// Whether the bucket's name stands in the path; none: where there is an endpoint.
    pub path_style: Option<bool>,
    /// A PEM file of authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// A file of credentials as the AWS tools write it; none: wherever the AWS tools look.
    pub credentials_file: Option<PathBuf>,
    /// Which profile of the credentials; none: `default`.
    pub profile: Option<String>,
    /// How objects are encrypted; none: as the bucket says.
    pub sse: Option<Sse>,
    /// Which key of the key service; none: the service's own for S3.
    pub sse_kms_key_id: Option<String>,
}

/// A configuration that was refused, and why: all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct StoreConfigError {
    /// What is wrong and what to do, each with its key. Never empty.
    pub mistakes: Vec<String>,
}

impl fmt::Display for StoreConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mistakes.join("; "))
    }
}

/// Why a store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    /// Its configuration says no store.
    #[error("the store's configuration: {0}")]
    Config(#[from] StoreConfigError),
    /// Its directory can't be used.
    #[error("the store in {}: {source}; make the directory one that this user may write", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// It is in S3, and something that it needs is missing.
    #[error("the store {url}: {source}")]
    S3 {
        /// Its URL.
        url: String,
        /// What is missing.
        source: OpenS3Error,
    },
}

/// What a configuration comes to.
enum Plan {
    Directory(PathBuf),
    S3(Box<S3Options>),
}

impl StoreConfig {
    /// The store that `url` says, with everything else as it is by default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            endpoint: None,
            region: None,
            path_style: None,
            ca_file: None,
            credentials_file: None,
            profile: None,
            sse: None,
            sse_kms_key_id: None,
        }
    }

    /// The same, with the paths of its files relative to `base`.
    pub fn relative_to(mut self, base: &Path) -> Self {
        for path in [&mut self.ca_file, &mut self.credentials_file].into_iter().flatten() {
            *path = base.join(&*path);
        }
        self
    }

    /// Whether it says a store. No file and no store is looked at.
    pub fn check(&self) -> Result<(), StoreConfigError> {
        self.plan().map(drop)
    }

    fn plan(&self) -> Result<Plan, StoreConfigError> {
        let mut mistakes = Vec::new();
        let plan = if let Some(path) = self.url.strip_prefix("file://") {
            mistakes.extend(self.only_for_s3());
            if !path.starts_with('/') {
                mistakes.push("`url` has three slashes and a whole path: file:///PATH".to_owned());
            }
            Plan::Directory(path.into())
        } else if let Some(rest) = self.url.strip_prefix("s3://") {
            Plan::S3(Box::new(self.options(rest, &mut mistakes)))
        } else {
            mistakes.push("`url` is file:///PATH, s3://BUCKET or s3://BUCKET/PREFIX".to_owned());
            Plan::Directory(PathBuf::new())
        };
        if mistakes.is_empty() { Ok(plan) } else { Err(StoreConfigError { mistakes }) }
    }

    fn only_for_s3(&self) -> impl Iterator<Item = String> {
        [
            ("endpoint", self.endpoint.is_some()),
            ("region", self.region.is_some()),
            ("path_style", self.path_style.is_some()),
            ("ca_file", self.ca_file.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
            ("profile", self.profile.is_some()),
            ("sse", self.sse.is_some()),
            ("sse_kms_key_id", self.sse_kms_key_id.is_some()),
        ]
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(key, _)| format!("`{key}` is for s3:// only; take it out"))
    }

    fn options(&self, rest: &str, mistakes: &mut Vec<String>) -> S3Options {
        let (bucket, prefix) = match rest.trim_end_matches('/').split_once('/') {
            Some((bucket, prefix)) => (bucket, Some(prefix)),
            None => (rest.trim_end_matches('/'), None),
        };
        if !is_bucket(bucket) {
            let what = "3 to 63 lowercase letters, digits, dots and dashes";
            mistakes.push(format!("`url` begins with s3:// and a bucket's name: {what}"));
        }
        let prefix = prefix.and_then(|prefix| match Key::new(prefix) {
            Ok(key) if prefix.len() <= MAX_PREFIX => Some(key),
            Ok(_) => {
                mistakes.push(format!("`url` has a prefix of more than {MAX_PREFIX} bytes"));
                None
            }
            Err(e) => {
                mistakes.push(format!("`url` has a prefix that can't be: {e}"));
                None
            }
        });
        if self.endpoint.as_deref().is_some_and(|endpoint| !is_endpoint(endpoint)) {
            // Not told: it may hold a secret.
            mistakes.push("`endpoint` is http://HOST:PORT or https://HOST, and no more".to_owned());
        }
        for (key, text) in [
            ("region", &self.region),
            ("profile", &self.profile),
            ("sse_kms_key_id", &self.sse_kms_key_id),
        ] {
            let fits = |text: &String| {
                !text.is_empty() && text.len() <= 2048 && text.bytes().all(|b| b.is_ascii_graphic())
            };
            if text.as_ref().is_some_and(|text| !fits(text)) {
                mistakes.push(format!("`{key}` is empty or has a blank or a letter beyond ASCII"));
            }
        }
        if self.sse_kms_key_id.is_some() && self.sse != Some(Sse::Kms) {
            mistakes.push("`sse_kms_key_id` needs `sse = \"aws:kms\"`".to_owned());
        }
        S3Options {
            prefix,
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style.unwrap_or(self.endpoint.is_some()),
            ca_file: self.ca_file.clone(),
            credentials_file: self.credentials_file.clone(),
            profile: self.profile.clone(),
            encryption: match self.sse {
                None => Encryption::Bucket,
                Some(Sse::Aes256) => Encryption::Aes256,
                Some(Sse::Kms) => Encryption::Kms { key_id: self.sse_kms_key_id.clone() },
            },
            ..S3Options::new(bucket)
        }
    }
}

/// Amazon S3 user guide, "general purpose bucket naming rules", as far as they guard our requests.
fn is_bucket(text: &str) -> bool {
    let of_it = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (3..=63).contains(&text.len())
        && text.bytes().all(|b| of_it(b) || b == b'.' || b == b'-')
        && text.bytes().next().is_some_and(of_it)
        && text.bytes().last().is_some_and(of_it)
        && !text.contains("..")
}

fn is_endpoint(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|a| !a.as_str().contains('@') && !a.host().is_empty())
        && matches!(uri.path(), "" | "/")
        && uri.query().is_none()
}

/// Opens the store that `config` says. What is in S3 is not yet asked for anything: it may be away
/// just now.
pub async fn open(config: &StoreConfig) -> Result<Arc<dyn Store>, OpenStoreError> {
    match config.plan()? {
        Plan::Directory(path) => {
            let at = path.clone();
            let opened = tokio::task::spawn_blocking(move || Directory::open(at)).await;
            match opened.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
                Ok(store) => Ok(Arc::new(store)),
                Err(source) => Err(OpenStoreError::Directory { path, source }),
            }
        }
        Plan::S3(options) => match S3::open(*options).await {
            Ok(store) => Ok(Arc::new(store)),
            Err(source) => Err(OpenStoreError::S3 { url: config.url.clone(), source }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> StoreConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_store_is_a_directory_or_a_bucket() {
        assert!(of("url = 'file:///var/lib/rouse/store'").check().is_ok());
        let config = of("url = 's3://rouse/fleet/a'\nendpoint = 'http://127.0.0.1:9000'\n\
             sse = 'aws:kms'\nsse_kms_key_id = 'k'\nregion = 'eu-west-1'\nca_file = 'ca.pem'");
        let Ok(Plan::S3(options)) = config.relative_to(Path::new("/etc/rouse")).plan() else {
            panic!("no bucket")
        };
        assert_eq!(options.bucket, "rouse");
        assert_eq!(options.prefix.unwrap().as_str(), "fleet/a");
        assert!(options.path_style);
        assert_eq!(options.encryption, Encryption::Kms { key_id: Some("k".to_owned()) });
        assert_eq!(options.ca_file.unwrap(), Path::new("/etc/rouse/ca.pem"));
        let Ok(Plan::S3(options)) = of("url = 's3://rouse/'").plan() else { panic!("no bucket") };
        assert!(options.prefix.is_none() && !options.path_style);
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let config = of("url = 's3://Rouse/../a'\nendpoint = 'http://k:secret@h/x'\nregion = ''\n\
             sse = 'AES256'\nsse_kms_key_id = 'k'");
        let e = config.check().unwrap_err();
        assert_eq!(e.mistakes.len(), 5, "{e}");
        assert!(!e.to_string().contains("secret"), "{e}");
        for (text, mistakes) in [
            ("url = ''", 1),
            ("url = '/var/lib'", 1),
            ("url = 's3://'", 1),
            ("url = 'file://var/lib'", 1),
            ("url = 'file:///a'\nregion = 'x'\npath_style = true", 2),
            ("url = 's3://abc'\nendpoint = 'ftp://h'", 1),
            ("url = 's3://abc'\nendpoint = '127.0.0.1:9000'", 1),
        ] {
            assert_eq!(of(text).check().unwrap_err().mistakes.len(), mistakes, "{text}");
        }
    }

    #[test]
    fn a_key_that_is_not_known_is_refused() {
        let e = toml::from_str::<StoreConfig>("url = 's3://abc'\nsecret = 'x'").unwrap_err();
        assert!(e.to_string().contains("unknown field `secret`"), "{e}");
        let e = toml::from_str::<StoreConfig>("url = 's3://abc'\nsse = 'x'").unwrap_err();
        assert!(e.to_string().contains("AES256"), "{e}");
    }

    #[tokio::test]
    async fn a_directory_that_can_not_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let url = format!("file://{}/store", file.path().display());
        let e = open(&StoreConfig::new(url)).await.unwrap_err();
        assert!(e.to_string().contains(&*file.path().to_string_lossy()), "{e}");
    }
}
