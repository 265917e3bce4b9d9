//! What was measured on, and with what.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The crates' versions that this workspace is built with.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// The core for the program under test, and the one for load and origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    pub(crate) under_test: usize,
    pub(crate) load: usize,
}

impl Cores {
    /// The first two cores that we may run on; none when there is one only.
    pub(crate) fn find() -> Option<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
        let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
        Some(Self { under_test: cores.next()?, load: cores.next()? })
    }
}

/// Has every thread of this process run on `core`.
pub(crate) fn run_on(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    for task in std::fs::read_dir("/proc/self/task")? {
        if let Some(id) = task?.file_name().to_str().and_then(|id| id.parse().ok()) {
            sched_setaffinity(Pid::from_raw(id), &set)?;
        }
    }
    Ok(())
}

/// The path of a program of ours, which must lie beside this one.
pub(crate) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let program = bench_dir()?.join(name);
    if !program.is_file() {
        bail!("{} is missing; `./dev bench` builds it", program.display());
    }
    Ok(program)
}

/// Where this program lies.
pub(crate) fn bench_dir() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("where this program is")?;
    Ok(program.parent().unwrap_or(Path::new(".")).to_owned())
}

/// The path of a system's program. Debian keeps nginx where only root's `PATH` looks.
pub(crate) fn installed(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/bin".into()])
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
        .with_context(|| format!("{name} is not installed (apt install {name})"))
}

/// An error, which says what to do, unless `bytes` are free in `dir`.
pub(crate) fn ensure_space(dir: &Path, bytes: u64, what_to_do: &str) -> anyhow::Result<()> {
    let stat = statvfs(dir).with_context(|| dir.display().to_string())?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    ensure!(
        free >= bytes,
        "{} has {:.1} GiB free, and {:.1} GiB are needed; {what_to_do}",
        dir.display(),
        gib(free),
        gib(bytes)
    );
    Ok(())
}

/// The machine and the versions, for the report.
pub(crate) fn describe(programs: &[(&str, &Path, &str)]) -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut versions = json!({
        "rouse": env!("CARGO_PKG_VERSION"),
        "pingora": locked_version(LOCK, "pingora-core"),
    });
    for (name, program, flag) in programs {
        versions[*name] = version(program, flag).into();
    }
    json!({
        "cpu": cpu_model(&cpuinfo),
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "kernel": kernel.trim(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "versions": versions,
    })
}

/// One line of [`describe`].
pub(crate) fn print(machine: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    println!(
        "machine: {}, {} cores, Linux {}",
        text(&machine["cpu"]),
        machine["cores"],
        text(&machine["kernel"])
    );
    let versions = machine["versions"].as_object().into_iter().flatten();
    let versions: Vec<_> = versions.map(|(name, v)| format!("{name} {}", text(v))).collect();
    println!("versions: {}", versions.join(", "));
    if cfg!(debug_assertions) {
        println!("THIS IS A DEBUG BUILD: its figures mean nothing");
    }
}

/// What a program says of its version: the first word with a digit and a dot in it.
fn version(program: &Path, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    version_in(&String::from_utf8_lossy(&said))
}

fn version_in(text: &str) -> Option<String> {
    let starts = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    let word = text.split([' ', '/', '\n', '-', '+']).find(starts)?;
    Some(word.to_owned())
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

fn locked_version<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    rest.split_once('"').map(|(version, _)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_programs_tell_them() {
        assert_eq!(version_in("nginx version: nginx/1.22.1\n").as_deref(), Some("1.22.1"));
        let wrk = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\n";
        assert_eq!(version_in(wrk).as_deref(), Some("4.1.0"));
        let qemu = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\n";
        assert_eq!(version_in(qemu).as_deref(), Some("7.2.22"));
        assert_eq!(version_in("usage: x"), None);
    }

    #[test]
    fn the_lock_file_knows_pingora() {
        assert!(locked_version(LOCK, "pingora-core").is_some_and(|v| v.starts_with("0.9.")));
        assert_eq!(locked_version(LOCK, "no-such-crate"), None);
        assert_eq!(cpu_model("a: b\nmodel name\t: Fast CPU @ 3 GHz\n"), Some("Fast CPU @ 3 GHz"));
    }

    #[test]
    fn a_full_disk_is_told_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ensure_space(dir.path(), 1, "x").is_ok());
        let error = ensure_space(dir.path(), 1 << 62, "buy a disk").unwrap_err().to_string();
        assert!(error.contains("4294967296.0 GiB are needed; buy a disk"), "{error}");
        assert!(ensure_space(&dir.path().join("none"), 1, "x").is_err());
    }
}
