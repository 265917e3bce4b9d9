//! How Rouse reads its TOML files: a file is taken whole or refused with all that is wrong in it,
//! each mistake with file, line and what to do.
//!
//! A reader asks a [`Table`] for the keys it knows. What it asked for and could not be read, and
//! every key that it did not ask for, becomes a [`Mistake`].
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let file = dir.path().join("a.toml");
//! # std::fs::write(&file, "nmae = 'x'").unwrap();
//! let refused = rouse_conf::read(&file, |table| table.required::<String>("name")).unwrap_err();
//! assert!(refused.to_string().contains("a.toml:1: unknown key `nmae`; did you mean `name`?"));
//! ```
#![forbid(unsafe_code)]

pub mod check;
mod shown;

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use shown::shown;

/// The largest file that is read, in bytes: no configuration of ours comes near.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// One thing that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line, from 1; none when it is about the whole file.
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

/// A file that was refused, and why: all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refused {
    /// The file.
    pub path: PathBuf,
    /// What is wrong in it, by line. Never empty.
    pub mistakes: Vec<Mistake>,
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.path.display())?;
            if let Some(line) = mistake.line {
                write!(f, "{line}:")?;
            }
            write!(f, " {}", mistake.message)?;
        }
        Ok(())
    }
}

/// Reads the file at `path` by `parse`, which returns none only after it has met a mistake.
pub fn read<T>(path: &Path, parse: impl FnOnce(&mut Table<'_>) -> Option<T>) -> Result<T, Refused> {
    let whole = |message: String| Refused {
        path: path.to_owned(),
        mistakes: vec![Mistake { line: None, message }],
    };
    let size = std::fs::metadata(path).map_err(|e| whole(format!("can't be read: {e}")))?.len();
    if size > MAX_FILE {
        return Err(whole(format!("has {size} bytes; the limit is {MAX_FILE}")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| whole(format!("can't be read: {e}")))?;
    parse_text(path, &text, parse)
}

/// [`read`] of a text that was read from `path`.
pub fn parse_text<T>(
    path: &Path,
    text: &str,
    parse: impl FnOnce(&mut Table<'_>) -> Option<T>,
) -> Result<T, Refused> {
    let context = Context { text, mistakes: RefCell::default() };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        context.add(error.span(), error.message().to_owned());
    }
    // A text that is no TOML has no keys worth complaining about.
    let broken = !context.mistakes.borrow().is_empty();
    let value = if broken {
        None
    } else {
        let mut table = Table::new(&context, String::new(), document.into_inner(), 0..0);
        parse(&mut table)
    };
    let mut mistakes = context.mistakes.into_inner();
    mistakes.sort_by_key(|m| m.line);
    match value {
        Some(value) if mistakes.is_empty() => Ok(value),
        _ => Err(Refused { path: path.to_owned(), mistakes }),
    }
}

struct Context<'t> {
    text: &'t str,
    mistakes: RefCell<Vec<Mistake>>,
}

impl Context<'_> {
    fn add(&self, span: Option<Range<usize>>, message: String) {
        let line = span.map(|span| {
            let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
            before.iter().filter(|b| **b == b'\n').count() + 1
        });
        self.mistakes.borrow_mut().push(Mistake { line, message });
    }
}

/// A table being read. When it is dropped, the keys that nobody asked for are mistakes.
pub struct Table<'t> {
    context: &'t Context<'t>,
    /// `section.` or nothing: what stands before a key in a message.
    prefix: String,
    span: Range<usize>,
    entries: DeTable<'t>,
    asked: Vec<&'static str>,
}

impl<'t> Table<'t> {
    fn new(
        context: &'t Context<'t>,
        prefix: String,
        entries: DeTable<'t>,
        span: Range<usize>,
    ) -> Self {
        Self { context, prefix, span, entries, asked: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'t>>> {
        self.asked.push(key);
        self.entries.remove(key)
    }

    /// Whether `key` is there and was not read yet.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The value of `key`, which must be there.
    pub fn required<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        self.required_as(key, Ok::<T, String>)
    }

    /// The value of `key`, or `default`.
    pub fn optional<T: DeserializeOwned>(&mut self, key: &'static str, default: T) -> T {
        self.optional_as(key, default, Ok::<T, String>)
    }

    /// The value of `key`, which must be there and which `parse` must accept.
    pub fn required_as<T: DeserializeOwned, U, E: Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(T) -> Result<U, E>,
    ) -> Option<U> {
        match self.take(key) {
            Some(value) => self.parse(key, value, parse),
            None => {
                self.mistake(&format!("`{}{key}` is missing", self.prefix));
                None
            }
        }
    }

    /// The value of `key`, which `parse` must accept, or `default`.
    pub fn optional_as<T: DeserializeOwned, U, E: Display>(
        &mut self,
        key: &'static str,
        default: U,
        parse: impl FnOnce(T) -> Result<U, E>,
    ) -> U {
        let value = self.take(key);
        value.and_then(|value| self.parse(key, value, parse)).unwrap_or(default)
    }

    /// The table under `key`, read by `parse`; an empty one where there is none.
    pub fn table<U>(&mut self, key: &'static str, parse: impl FnOnce(&mut Table<'t>) -> U) -> U {
        let prefix = format!("{}{key}.", self.prefix);
        let (entries, span) = match self.take(key) {
            None => (DeTable::new(), self.span.clone()),
            Some(value) => {
                let span = value.span();
                match value.into_inner() {
                    DeValue::Table(entries) => (entries, span),
                    other => {
                        let message = format!(
                            "`{}{key}` is a table, not {}; write `[{}{key}]`",
                            self.prefix,
                            other.type_str(),
                            self.prefix
                        );
                        self.context.add(Some(span.clone()), message);
                        (DeTable::new(), span)
                    }
                }
            }
        };
        parse(&mut Table::new(self.context, prefix, entries, span))
    }

    /// The table under `key`, read by `parse`, if there is one.
    pub fn optional_table<U>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&mut Table<'t>) -> Option<U>,
    ) -> Option<U> {
        if self.entries.contains_key(key) {
            return self.table(key, parse);
        }
        self.asked.push(key);
        None
    }

    /// The tables of the array under `key`, each read by `parse`.
    pub fn tables<U>(
        &mut self,
        key: &'static str,
        mut parse: impl FnMut(&mut Table<'t>) -> Option<U>,
    ) -> Vec<U> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let span = value.span();
        let DeValue::Array(items) = value.into_inner() else {
            let message = format!("`{0}{key}` is an array; write `[[{0}{key}]]`", self.prefix);
            self.context.add(Some(span), message);
            return Vec::new();
        };
        let prefix = format!("{}{key}.", self.prefix);
        let mut read = Vec::new();
        for item in items {
            let span = item.span();
            match item.into_inner() {
                DeValue::Table(entries) => {
                    let mut table = Table::new(self.context, prefix.clone(), entries, span);
                    read.extend(parse(&mut table));
                }
                other => {
                    let message = format!("`{prefix}` holds tables, not {}", other.type_str());
                    self.context.add(Some(span), message);
                }
            }
        }
        read
    }

    /// The text of the whole file.
    pub fn text(&self) -> &'t str {
        self.context.text
    }

    /// Adds a mistake about this table as a whole.
    pub fn mistake(&self, message: &str) {
        // The top table has no line of its own.
        let span = (self.span != (0..0)).then(|| self.span.clone());
        self.context.add(span, message.to_owned());
    }

    fn parse<T: DeserializeOwned, U, E: Display>(
        &self,
        key: &str,
        value: Spanned<DeValue<'t>>,
        parse: impl FnOnce(T) -> Result<U, E>,
    ) -> Option<U> {
        let span = value.span();
        let parsed = T::deserialize(value.into_deserializer())
            .map_err(|error| error.message().to_owned())
            .and_then(|value| parse(value).map_err(|error| error.to_string()));
        match parsed {
            Ok(value) => Some(value),
            Err(message) => {
                self.context.add(Some(span), format!("`{}{key}`: {message}", self.prefix));
                None
            }
        }
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            // Closer than this is a slip of the finger, farther another word.
            let near = self
                .asked
                .iter()
                .map(|known| (strsim::damerau_levenshtein(name, known), known))
                .filter(|(distance, known)| *distance <= 1 + known.len() / 3)
                .min();
            let hint = match near {
                Some((_, known)) => format!("did you mean `{known}`?"),
                None => format!("known here: {}", self.asked.join(", ")),
            };
            let message = format!("unknown key `{}{name}`; {hint}", self.prefix);
            self.context.add(Some(key.span()), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, u16, Vec<bool>), Refused> {
        parse_text(Path::new("a.toml"), text, |table| {
            let name =
                table.required_as(
                    "name",
                    |name: String| {
                        if name == "bad" { Err("is bad") } else { Ok(name) }
                    },
                );
            let port = table.table("listen", |listen| listen.optional("port", 80));
            let origins = table.tables("origin", |origin| origin.required("fast"));
            Some((name?, port, origins))
        })
    }

    #[test]
    fn a_good_file_is_read() {
        let text = "name = 'x'\n[listen]\nport = 1\n[[origin]]\nfast = true\n";
        assert_eq!(parse(text).unwrap(), ("x".into(), 1, vec![true]));
        assert_eq!(parse("name = 'x'").unwrap(), ("x".into(), 80, vec![]));
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_line_and_hint() {
        let text = "name = 'bad'\nlisten.prot = 1\nx = 1\n[[origin]]\nfast = 3\n[[origin]]\n";
        assert_eq!(
            parse(text).unwrap_err().to_string(),
            "a.toml:1: `name`: is bad\n\
             a.toml:2: unknown key `listen.prot`; did you mean `port`?\n\
             a.toml:3: unknown key `x`; known here: name, listen, origin\n\
             a.toml:5: `origin.fast`: invalid type: integer `3`, expected a boolean\n\
             a.toml:6: `origin.fast` is missing"
        );
        assert_eq!(parse("").unwrap_err().to_string(), "a.toml: `name` is missing");
        let one = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            one("name = 'x'\nlisten = 1"),
            "a.toml:2: `listen` is a table, not integer; write `[listen]`"
        );
        assert_eq!(
            one("name = 'x'\norigin = 1"),
            "a.toml:2: `origin` is an array; write `[[origin]]`"
        );
        assert!(one("name = ").starts_with("a.toml:1: "));
    }

    #[test]
    fn a_table_may_be_missing_whole() {
        let parse = |text: &str| {
            parse_text(Path::new("a.toml"), text, |table| {
                Some(table.optional_table("a", |a| a.required::<u8>("b")))
            })
            .map_err(|refused| refused.to_string())
        };
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("a.b = 1"), Ok(Some(1)));
        assert_eq!(parse("[a]"), Err("a.toml:1: `a.b` is missing".to_owned()));
        let slip = "a.toml:1: unknown key `aa`; did you mean `a`?";
        assert_eq!(parse("[aa]"), Err(slip.to_owned()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let refused = read(Path::new("/nowhere/a.toml"), |_| Some(())).unwrap_err();
        assert!(refused.to_string().starts_with("/nowhere/a.toml: can't be read: "), "{refused}");
    }
}
