//! The number that binds the parts of an image.

use std::fmt;
use std::num::NonZeroU128;
use std::str::FromStr;

/// 128 random bits that memory, VM state and disk of one generation have in common. As text 32
/// lower-case hexadecimal digits. Never zero, so that zero can stand for "none" in a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId(NonZeroU128);

/// A text that is no [`ImageId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an image id is 32 digits of 0-9 and a-f, not all of them 0")]
pub struct ImageIdError;

impl ImageId {
    /// A new one from the system's random source.
    pub fn random() -> Self {
        loop {
            // Zero comes up once in 2^128 draws.
            if let Some(id) = NonZeroU128::new(rand::random()) {
                return Self(id);
            }
        }
    }

    /// The id in the 16 bytes that files hold; none when all are zero.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        NonZeroU128::new(u128::from_be_bytes(bytes)).map(Self)
    }

    /// The 16 bytes that files hold, in the order of the text.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }

    /// The id that 32 hexadecimal digits spell.
    pub fn from_hex(text: &str) -> Result<Self, ImageIdError> {
        let digits = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(digits) {
            return Err(ImageIdError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| ImageIdError)?;
        NonZeroU128::new(number).map(Self).ok_or(ImageIdError)
    }

    /// 32 hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.to_string()
    }
}

impl FromStr for ImageId {
    type Err = ImageIdError;

    fn from_str(text: &str) -> Result<Self, ImageIdError> {
        Self::from_hex(text)
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_come_back() {
        let text = "000102030405060708090a0b0c0d0eff";
        let id = ImageId::from_hex(text).unwrap();
        assert_eq!(id.to_hex(), text);
        assert_eq!(id.to_bytes()[15], 0xff);
        assert_eq!(ImageId::from_bytes(id.to_bytes()), Some(id));
        let random = ImageId::random();
        assert_eq!(random.to_string().parse(), Ok(random));
        assert_ne!(random, ImageId::random());
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "0",
            &"0".repeat(32),
            &"1".repeat(31),
            &"1".repeat(33),
            &"A".repeat(32),
            &format!("+{}", "1".repeat(31)),
            &"é".repeat(16),
        ] {
            assert_eq!(ImageId::from_hex(bad), Err(ImageIdError), "{bad:?}");
        }
        assert_eq!(ImageId::from_bytes([0; 16]), None);
    }
}
