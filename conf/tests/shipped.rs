//! What is shipped besides programs and configuration: units, users, the container's recipe.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const SERVICES: [&str; 2] = ["rouse-proxy.service", "rouse-waker.service"];

fn conf() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn shipped(name: &str) -> String {
    let path = conf().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let output =
        Command::new(program).args(arguments).env("SYSTEMD_LOG_TARGET", "console").output();
    output.unwrap_or_else(|error| panic!("{program} (Debian's package systemd): {error}"))
}

/// The units with a program in the place of ours, which are not installed where they will be.
fn units() -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for name in SERVICES.into_iter().chain(["rouse-proxy.socket"]) {
        let text = shipped(&format!("systemd/{name}"));
        let text = text.replace("/usr/bin/rouse-proxy", "/bin/true");
        let text = text.replace("/usr/bin/rouse-waker", "/bin/true");
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        all.push(path);
    }
    (dir, all)
}

/// The values of `key` in a unit.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = shipped(&format!("systemd/{unit}"));
    let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
    text.lines().filter_map(of).collect()
}

#[test]
fn systemd_understands_the_units() {
    let (_dir, units) = units();
    let mut arguments = vec!["verify", "--man=no"];
    arguments.extend(units.iter().map(|unit| unit.to_str().unwrap()));
    let output = run("systemd-analyze", &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Keys and values that it does not know are told, and no failure.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("rouse")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

#[test]
fn services_are_as_shut_in_as_they_can_be() {
    let (_dir, units) = units();
    for unit in units.iter().filter(|unit| unit.extension().is_some_and(|e| e == "service")) {
        // Of 100; what is unconfined has 96.
        let limit = ["security", "--offline=yes", "--no-pager", "--threshold=20"];
        let mut arguments = limit.to_vec();
        arguments.push(unit.to_str().unwrap());
        let output = run("systemd-analyze", &arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn units_name_files_and_users_that_are_shipped() {
    for unit in SERVICES {
        for line in values(unit, "ExecStart").iter().chain(&values(unit, "ExecStartPre")) {
            let file = line.split(' ').find_map(|word| word.strip_prefix("/etc/rouse/")).unwrap();
            assert!(conf().join(file).is_file(), "{line}");
        }
    }
    let users = conf().join("systemd/rouse.conf");
    let root = tempfile::tempdir().unwrap();
    let root = format!("--root={}", root.path().display());
    let output = run("systemd-sysusers", &["--dry-run", &root, users.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for unit in SERVICES {
        for name in values(unit, "User").iter().chain(&values(unit, "Group")) {
            assert!(said.contains(&format!("'{name}'")), "{name} is not made: {said}");
        }
    }
}

#[test]
fn a_stop_is_given_its_time() {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    };
    let config = shipped("rouse.toml");
    let grace = config.lines().find_map(|line| line.strip_prefix("grace_seconds = ")).unwrap();
    let stop = &values("rouse-proxy.service", "TimeoutStopSec")[0];
    assert!(number(stop) > number(grace), "{stop} s for {grace}");
}

#[test]
fn the_container_is_built_of_what_there_is() {
    let text = shipped("Dockerfile").replace("\\\n", " ");
    let root = conf().join("..");
    let (mut stages, mut copied) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["FROM", _, "AS", stage] => drop(stages.insert(stage)),
            ["COPY", from, .., _] if from.starts_with("--from=") => {
                assert!(stages.contains(&from["--from=".len()..]), "{line}");
            }
            ["COPY", ref sources @ .., _] => {
                for source in sources {
                    assert!(root.join(source).exists(), "{line}: there is no {source}");
                    copied.insert(*source);
                }
            }
            _ => {}
        }
    }
    assert_eq!(stages.len(), 3);
    // Cargo wants every member of the workspace, built or not.
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = workspace.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split('"').skip(1).step_by(2) {
        let top = member.split('/').next().unwrap();
        assert!(copied.contains(top), "{member} is not copied");
    }
    // Nobody's root, and told to stop as we listen.
    assert_eq!(text.matches("\nUSER 1").count(), 2);
    assert_eq!(text.matches("\nSTOPSIGNAL SIGTERM").count(), 2);
    assert_eq!(text.matches("\nHEALTHCHECK ").count(), 2);
}
