//! Another server that the suite is to run against.

use std::fmt;

/// The environment's variable: `http://key:secret@host:port/bucket`.
pub const VARIABLE: &str = "ROUSE_TEST_S3";

/// The server that [`VARIABLE`] says.
#[derive(Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `http` or `https`.
    pub scheme: String,
    /// Its host and port.
    pub authority: String,
    /// The id of an access key.
    pub key: String,
    /// The key's secret.
    pub secret: String,
    /// A bucket that exists.
    pub bucket: String,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.authority, self.bucket)
    }
}

/// The variable is not what it should be. Its value is not told: it holds a secret.
#[derive(Debug, thiserror::Error)]
#[error("{VARIABLE} is not http://key:secret@host:port/bucket")]
pub struct WantedError;

impl Wanted {
    /// The server that the environment says, if any.
    pub fn from_env() -> Result<Option<Self>, WantedError> {
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => Self::parse(&text).map(Some),
            Err(std::env::VarError::NotUnicode(_)) => Err(WantedError),
            _ => Ok(None),
        }
    }

    /// The server that `url` says.
    pub fn parse(url: &str) -> Result<Self, WantedError> {
        let parse = || {
            let (scheme, rest) = url.split_once("://")?;
            // A secret may have slashes and at signs, a host has neither.
            let (user, rest) = rest.rsplit_once('@')?;
            let (key, secret) = user.split_once(':')?;
            let (authority, bucket) = rest.trim_end_matches('/').split_once('/')?;
            let whole = authority.contains(':') && !bucket.is_empty() && !bucket.contains('/');
            (matches!(scheme, "http" | "https") && whole).then(|| Self {
                scheme: scheme.to_owned(),
                authority: authority.to_owned(),
                key: key.to_owned(),
                secret: secret.to_owned(),
                bucket: bucket.to_owned(),
            })
        };
        parse().ok_or(WantedError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_may_have_slashes_and_is_not_shown() {
        let wanted = Wanted::parse("http://K:s/e@c@127.0.0.1:9000/b").unwrap();
        assert_eq!((&*wanted.key, &*wanted.secret, &*wanted.bucket), ("K", "s/e@c", "b"));
        assert_eq!(wanted.authority, "127.0.0.1:9000");
        assert_eq!(format!("{wanted:?}"), "http://127.0.0.1:9000/b");
        for url in ["", "http://h:1/b", "ftp://k:s@h:1/b", "http://k:s@h/b", "http://k:s@h:1/"] {
            assert!(Wanted::parse(url).is_err(), "{url}");
        }
    }
}
