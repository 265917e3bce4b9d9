//! `/env`: what the agent has put in the environment file, as it is now.

use std::io::{ErrorKind, Read};
use std::path::Path;

use http::{Response, Uri};

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The value of the query's `name`.
pub(crate) fn answer(file: &Path, uri: &Uri) -> Result<Response<Body>, Refusal> {
    let name = query::text(uri, "name")?
        .ok_or_else(|| Refusal::parameter("name", "a variable's name is needed"))?;
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|f| f.take(MAX_FILE).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(Refusal::NotFound),
        Err(e) => return Err(Refusal::Machine(format!("{}: {e}", file.display()))),
    }
    let value = value(&text, &name).ok_or(Refusal::NotFound)?;
    Ok(answer::of("text/plain; charset=utf-8", value))
}

/// The last value that `text` gives `name`: lines `NAME=value`, quoted as a shell reads them.
fn value(text: &str, name: &str) -> Option<String> {
    let mut found = None;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
            continue;
        }
        let (key, after) = rest.split_once('=')?;
        let (value, after) = word(after)?;
        if key == name {
            found = Some(value);
        }
        rest = after.trim_start();
    }
    found
}

/// The shell's word at the start of `text`, and what follows it.
fn word(text: &str) -> Option<(String, &str)> {
    let mut word = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => loop {
                match chars.next()?.1 {
                    '\'' => break,
                    c => word.push(c),
                }
            },
            '"' => loop {
                match chars.next()?.1 {
                    '"' => break,
                    '\\' => match chars.next()?.1 {
                        c @ ('"' | '\\' | '$' | '`') => word.push(c),
                        c => word.extend(['\\', c]),
                    },
                    c => word.push(c),
                }
            },
            '\\' => word.push(chars.next()?.1),
            c if c.is_whitespace() => return Some((word, &text[at..])),
            c => word.push(c),
        }
    }
    Some((word, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_a_shell_does() {
        let text =
            "A='1'\n# B=no\nB=\"a \\\"b\\\" \\$c \\d\"\nC='it'\\''s'\nD='two\nlines'\nE=\nA=2\n";
        for (name, expected) in [
            ("A", Some("2")),
            ("B", Some("a \"b\" $c \\d")),
            ("C", Some("it's")),
            ("D", Some("two\nlines")),
            ("E", Some("")),
            ("lines'", None),
            ("F", None),
        ] {
            assert_eq!(value(text, name).as_deref(), expected, "{name}");
        }
        assert_eq!(value("A='1", "A"), None);
    }

    #[test]
    fn the_file_is_read_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("env");
        let ask = || answer(&file, &"/env?name=A".parse().unwrap());
        assert!(matches!(ask(), Err(Refusal::NotFound)));
        std::fs::write(&file, "A='1'\n").unwrap();
        assert!(ask().is_ok());
        std::fs::write(&file, "B='1'\n").unwrap();
        assert!(matches!(ask(), Err(Refusal::NotFound)));
        assert!(answer(&file, &"/env".parse().unwrap()).is_err());
    }
}
