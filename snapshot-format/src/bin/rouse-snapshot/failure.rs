//! What goes wrong, as a sentence and as an exit code.

use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// How the program ends when it fails. The numbers are those of `sysexits.h` where that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The system refused: no such file, no space, a broken disk.
    Failed,
    /// The command line makes no sense. The number is clap's.
    Usage,
    /// An input is damaged, of another version, or not what the other inputs need (`EX_DATAERR`).
    BadInput,
    /// An output is there already or can't be made (`EX_CANTCREAT`).
    CantCreate,
    /// Somebody else has the file (`EX_TEMPFAIL`).
    InUse,
    /// The operation was told to end.
    Cancelled,
}

impl Exit {
    /// The exit code; `signal` is the one that came, if one did.
    pub(crate) fn code(self, signal: Option<u8>) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::BadInput => 65,
            Self::CantCreate => 73,
            Self::InUse => 75,
            // As a shell reports a program that a signal ended.
            Self::Cancelled => 128 + signal.unwrap_or(0),
        })
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    /// None when it was said already.
    message: Option<String>,
}

/// An error of which it is known what it means to whoever runs the program.
pub(crate) trait Judged: Error {
    /// How the program is to end.
    fn exit(&self) -> Exit;

    /// What to do about it, where that can be said.
    fn hint(&self) -> Option<&'static str> {
        None
    }
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()) }
    }

    /// What went wrong was said already; this is how the program is to end.
    pub(crate) fn said(exit: Exit) -> Self {
        Self { exit, message: None }
    }

    /// Says which file it is about: at the start, and only there.
    fn about(mut self, path: &Path) -> Self {
        let named = format!("{path:?}");
        self.message = self.message.map(|message| {
            let rest = match message.split_once(&named) {
                Some((before, after)) => {
                    let after = after.strip_prefix(':').unwrap_or(after);
                    format!("{}{}", before, after.trim_start())
                }
                None => message,
            };
            format!("{}: {rest}", path.display())
        });
        self
    }

    /// Says what else is to be known.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message = self.message.map(|message| format!("{message}; {more}"));
        self
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// What to tell whoever runs the program; none when that was done already.
    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl<E: Judged> From<E> for Failure {
    fn from(error: E) -> Self {
        let message = match error.hint() {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        };
        Self::new(error.exit(), message)
    }
}

impl Judged for io::Error {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// For what fails and is about one file.
pub(crate) trait About<T> {
    /// Says which file.
    fn about(self, path: &Path) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> About<T> for Result<T, E> {
    fn about(self, path: &Path) -> Result<T, Failure> {
        self.map_err(|error| error.into().about(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_once() {
        let path = Path::new("a b");
        let plain: Result<(), _> = Err(Failure::new(Exit::Failed, "no space"));
        assert_eq!(plain.about(path).unwrap_err().message(), Some("a b: no space"));
        for (message, said) in [
            ("the image \"a b\" is in use", "a b: the image is in use"),
            ("\"a b\": this is no map", "a b: this is no map"),
            ("\"a b\" can't be written", "a b: can't be written"),
            ("\"c\" is no file", "a b: \"c\" is no file"),
        ] {
            let named: Result<(), _> = Err(Failure::new(Exit::InUse, message));
            let named = named.about(path).unwrap_err();
            assert_eq!((named.message(), named.exit()), (Some(said), Exit::InUse));
        }
    }
}
