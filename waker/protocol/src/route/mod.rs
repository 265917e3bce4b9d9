//! Which requests are an app's, as its file and the waker's messages say it.
//!
//! A [`Rule`] is a [`HostPattern`], below it a [`PathPrefix`], and headers that a request must have. Which of
//! several that match holds is the business of whoever routes by them.

mod header;
mod host;
mod normal;
mod path;
#[cfg(feature = "conf")]
mod read;
mod rule;

pub use header::{HeaderError, HeaderMatch, HeaderMatches, MAX_HEADERS, MAX_VALUE, Want};
pub use host::{HostPattern, HostPatternError};
pub use normal::{NormalPath, normalize};
pub use path::{MAX_DEPTH, MAX_PATH, PathPrefix, PathPrefixError};
#[cfg(feature = "conf")]
pub use read::{MAX_RULES, MAX_WRITTEN, read};
pub use rule::Rule;
