//! The name of an entry.

use std::fmt;
use std::str::FromStr;

/// The BLAKE3 of what an entry holds, as its maker reckons it: the cache compares ids and hashes nothing.
/// As text 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId([u8; 32]);

/// A text that is no [`ContentId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a content id is 64 digits of 0-9 and a-f")]
pub struct ContentIdError;

impl ContentId {
    /// The id of these 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for ContentId {
    type Err = ContentIdError;

    fn from_str(text: &str) -> Result<Self, ContentIdError> {
        // One content has one name, so capitals are no digits here.
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ContentIdError);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ContentIdError)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_come_back() {
        let id = ContentId::from_bytes(std::array::from_fn(|i| i as u8));
        assert_eq!(id.to_string().len(), 64);
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "00", &"A".repeat(64), &"1".repeat(63), &"1".repeat(65), &"é".repeat(32)] {
            assert_eq!(bad.parse::<ContentId>(), Err(ContentIdError), "{bad:?}");
        }
    }
}
