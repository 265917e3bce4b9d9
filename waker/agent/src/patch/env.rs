//! The app's environment, as a file of `NAME='value'` lines that both a shell and systemd's
//! `EnvironmentFile=` (systemd.exec(5)) read alike.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Who may read the file: root, and the group that its directory gives it.
const MODE: u32 = 0o640;

/// Why the environment was not delivered. The file is what it was.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A name that a shell does not take.
    #[error("{0:?} is no name of a variable: letters, digits and underscores, no digit first")]
    Name(String),
    /// A value that can't be written so that everyone reads the same. It may be a secret.
    #[error("the value of {0} has a control character; systemd takes none but tab and line feed")]
    Value(String),
    /// The file can't be written.
    #[error("{} can't be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
}

/// Writes `vars`, whole and by a rename, to the file at `path`. Its directory is made if missing.
pub fn write(path: &Path, vars: &BTreeMap<String, String>) -> Result<(), EnvError> {
    let text = text(vars)?;
    replace(path, &text).map_err(|source| EnvError::Write { path: path.to_owned(), source })
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(".new");
    let draft = dir.join(draft);
    // One that was left half-written.
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&draft)?;
    // The umask may have taken the group's part.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(text.as_bytes())?;
    // On a disk, a file of zeros would else be possible after a crash.
    file.sync_data()?;
    std::fs::rename(&draft, path)
}

fn text(vars: &BTreeMap<String, String>) -> Result<String, EnvError> {
    let mut text = String::new();
    for (name, value) in vars {
        if !is_name(name) {
            return Err(EnvError::Name(name.clone()));
        }
        if value.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n')) {
            return Err(EnvError::Value(name.clone()));
        }
        // A quote ends the quotes, stands in quotes of the other kind, and begins them again. After
        // a backslash outside of quotes, systemd takes the next quote for a part of the value.
        let value = value.replace('\'', r#"'"'"'"#);
        text.push_str(&format!("{name}='{value}'\n"));
    }
    Ok(text)
}

/// The portable names of POSIX (XBD 8.1), lower case allowed.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn quotes_are_written_as_both_read_them() {
        let vars = vars(&[("B", "it's"), ("A", "$x `y` \"z\" \\ #"), ("_", "")]);
        let lines = ["A='$x `y` \"z\" \\ #'\n", "B='it'\"'\"'s'\n", "_=''\n"];
        assert_eq!(text(&vars).unwrap(), lines.concat());
    }

    #[test]
    fn bad_names_and_values_are_refused() {
        for name in ["", "1A", "A-B", "A B", "A=", "É", "A\n"] {
            assert!(matches!(text(&vars(&[(name, "")])), Err(EnvError::Name(_))), "{name}");
        }
        for value in ["a\0", "\x1b[m", "a\r\n", "\u{85}"] {
            let error = text(&vars(&[("SECRET", value)])).unwrap_err().to_string();
            assert!(error.contains("SECRET") && !error.contains(value), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_what_was_told(value in r#"[ -~\t\n'"\\é]{0,40}"#) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("env");
            write(&path, &vars(&[("X", &value)])).unwrap();
            let script = r#". "$1"; printf %s. "$X""#;
            let shell = Command::new("sh").args(["-c", script, "sh"]).arg(&path).output().unwrap();
            prop_assert_eq!(String::from_utf8(shell.stdout).unwrap(), format!("{value}."));
        }
    }

    #[test]
    fn the_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/rouse/env");
        write(&path, &vars(&[("A", "1"), ("B", "2")])).unwrap();
        // A draft that somebody was killed over.
        std::fs::write(path.with_file_name(".env.new"), "half").unwrap();
        write(&path, &vars(&[("C", "3")])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "C='3'\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        write(&path, &vars(&[("D", "4"), ("1", "")])).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "C='3'\n");
        let names = path.parent().unwrap().read_dir().unwrap().count();
        assert_eq!(names, 1);
    }
}
