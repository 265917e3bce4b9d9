//! What values are often checked for, to be given to [`Table::optional_as`](crate::Table::optional_as)
//! and its like.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A number in a range, both ends included.
pub fn between<T: PartialOrd + Display>(low: T, high: T) -> impl FnOnce(T) -> Result<T, String> {
    move |n| {
        if n >= low && n <= high { Ok(n) } else { Err(format!("is between {low} and {high}")) }
    }
}

/// A whole number of seconds in a range, both ends included.
pub fn seconds(low: u64, high: u64) -> impl FnOnce(u64) -> Result<Duration, String> {
    move |n| between(low, high)(n).map(Duration::from_secs)
}

/// A whole number of milliseconds in a range, both ends included.
pub fn millis(low: u64, high: u64) -> impl FnOnce(u64) -> Result<Duration, String> {
    move |n| between(low, high)(n).map(Duration::from_millis)
}

/// One of a few words, each with what it means.
pub fn word<T: Copy>(meanings: &[(&str, T)]) -> impl FnOnce(String) -> Result<T, String> {
    move |text| match meanings.iter().find(|(word, _)| *word == text) {
        Some((_, meaning)) => Ok(*meaning),
        None => {
            let words: Vec<_> = meanings.iter().map(|(word, _)| format!("`{word}`")).collect();
            Err(format!("is one of {}", words.join(", ")))
        }
    }
}

/// The longest path of a Unix socket, in bytes (unix(7): `sun_path` has 108 with the final NUL).
pub const SUN_PATH: usize = 107;

/// The path of a Unix socket, relative to `base`.
pub fn socket(base: &Path) -> impl FnOnce(PathBuf) -> Result<PathBuf, String> {
    move |path| {
        let path = base.join(path);
        match path.as_os_str().len() {
            n if n > SUN_PATH => Err(format!("has {n} characters; a socket's limit is {SUN_PATH}")),
            _ => Ok(path),
        }
    }
}

/// The directory that relative paths in the file at `path` start from: its own, absolute.
pub fn base(path: &Path) -> PathBuf {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(base(Path::new("a.toml")), here);
        assert_eq!(base(Path::new("b/a.toml")), here.join("b"));
        assert_eq!(base(Path::new("/b/a.toml")), Path::new("/b"));
    }
}
