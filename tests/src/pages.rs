//! What the test app's pages say.

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// `/counter`: a number in the app's memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Counter {
    /// How often this process was asked.
    pub counter: u64,
    /// Drawn at random when the process began: the same one, the same process.
    pub boot: String,
}

/// `/echo`: the request as the app received it.
#[derive(Clone, Debug, Deserialize)]
pub struct Echo {
    /// The method.
    pub method: String,
    /// Path and query, as they came.
    pub path: String,
    /// The headers, with their names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// The body's length in bytes.
    pub body_bytes: u64,
    /// The body's SHA-256, hexadecimal.
    pub body_sha256: String,
    /// How many requests with this `X-Request-Id` reached `/echo`, this one included.
    pub seen: u64,
}

impl Echo {
    /// The first header of that name, or nothing.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| &**value).unwrap_or_default()
    }
}

/// The SHA-256 of `bytes`, hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
