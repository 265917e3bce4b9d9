//! The files that people write.

use std::io;
use std::path::Path;

use rouse_conf::Refused;
use rouse_waker::config::{AppFiles, WakerConfig};

use crate::doctor::Check;

pub(in crate::doctor) fn configuration(path: &Path, read: &Result<WakerConfig, Refused>) -> Check {
    match read {
        Ok(_) => Check::ok("config", format!("{} is right", path.display())),
        Err(refused) => {
            let todo = "mend it, or name another with --config FILE; state and socket are not \
                        looked at without it";
            Check::fail("config", refused.to_string(), todo)
        }
    }
}

/// `unreadable` tells which of the apps' own files can't be opened.
pub(in crate::doctor) fn apps(
    directory: &Path,
    files: &io::Result<AppFiles>,
    unreadable: &[String],
) -> Check {
    let files = match files {
        Ok(files) => files,
        Err(error) => {
            let found = format!("{}: {error}", directory.display());
            return Check::fail("apps", found, "make it, readable for the waker, or set apps_dir");
        }
    };
    let refused = files.refused.iter().map(ToString::to_string);
    let problems: Vec<_> = refused.chain(unreadable.iter().cloned()).collect();
    if !problems.is_empty() {
        let todo = "mend them; they are read again as soon as they change";
        return Check::fail("apps", problems.join("\n"), todo);
    }
    let count = files.apps.len();
    let found =
        format!("{}: {count} app{}", directory.display(), if count == 1 { "" } else { "s" });
    if files.apps.is_empty() {
        return Check::warn("apps", found, "put a file for each app there");
    }
    Check::ok("apps", found)
}

#[cfg(test)]
mod tests {
    use rouse_waker::config::{read_apps, read_waker};

    use super::super::assert_check;
    use super::*;
    use crate::doctor::Verdict::{Fail, Ok as Well, Warn};

    #[test]
    fn mistakes_are_told_with_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waker.toml");
        let check = |text: &str| {
            std::fs::write(&file, text).unwrap();
            configuration(&file, &read_waker(&file))
        };
        assert_check(&check("state_dir = 's'\n[socket]\npath = 's'"), Well, "waker.toml is right");
        assert_check(
            &check("state_dir = 's'\n[socket]\npth = 's'"),
            Fail,
            "waker.toml:3: unknown key",
        );
        assert_check(&configuration(dir.path(), &read_waker(dir.path())), Fail, "--config");
    }

    #[test]
    fn apps_and_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let check = |unreadable: &[&str]| {
            let unreadable: Vec<_> = unreadable.iter().map(|&s| s.to_owned()).collect();
            apps(dir.path(), &read_apps(dir.path()), &unreadable)
        };
        assert_check(&check(&[]), Warn, "0 apps");
        let app = "id = 'a'\nhosts = ['a.test']\n[vm]\nkernel = 'k'\n";
        std::fs::write(dir.path().join("a.toml"), app).unwrap();
        assert_check(&check(&[]), Well, "1 app");
        assert_check(&check(&["app a: k: none"]), Fail, "app a: k: none");
        std::fs::write(dir.path().join("b.toml"), app).unwrap();
        assert_check(&check(&[]), Fail, "has an app `a` already");
        let nowhere = Path::new("/nowhere");
        assert_check(&apps(nowhere, &read_apps(nowhere), &[]), Fail, "apps_dir");
    }
}
