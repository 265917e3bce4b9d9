//! Kernel, programs, `/proc`.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// How long a program may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most that is read of a file in `/proc`, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// Where programs for root are, which others' `PATH` may lack.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

pub(in crate::doctor) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(in crate::doctor) fn kernel() -> io::Result<String> {
    read("/proc/sys/kernel/osrelease")
}

pub(in crate::doctor) fn meminfo() -> io::Result<String> {
    read("/proc/meminfo")
}

pub(in crate::doctor) fn pressure() -> io::Result<String> {
    read("/proc/pressure/memory")
}

/// The limits of the process `pid`, or our own.
pub(in crate::doctor) fn limits(pid: Option<i32>) -> io::Result<String> {
    let pid = pid.map_or("self".to_owned(), |pid| pid.to_string());
    read(&format!("/proc/{pid}/limits"))
}

pub(super) fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

pub(in crate::doctor) fn kvm() -> io::Result<()> {
    fs::File::options().read(true).write(true).open("/dev/kvm").map(drop)
}

/// The first line of `--version`.
pub(in crate::doctor) async fn qemu(binary: &Path) -> Result<String, String> {
    let said = ask(Command::new(binary).arg("--version")).await?;
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

/// Whether the kernel takes the clock for synchronized, by systemd's word.
pub(in crate::doctor) async fn clock() -> Result<String, String> {
    let mut command = Command::new("timedatectl");
    ask(command.args(["show", "-p", "NTPSynchronized", "--value"])).await
}

/// What a program says, if it ends well; else how it ended, and the first line of its complaint.
async fn ask(command: &mut Command) -> Result<String, String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(PATIENCE, run).await {
        Ok(output) => output.map_err(|error| format!("{program}: {error}"))?,
        Err(_) => return Err(format!("{program} has said nothing for {} s", PATIENCE.as_secs())),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or_default().trim();
    Err(format!("{program}: {}: {first}", output.status))
}

/// Where `mkfs.ext4` is.
pub(in crate::doctor) fn mkfs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    places.map(|place| place.join("mkfs.ext4")).find(|program| program.is_file())
}

/// Reads the first entry of a child's page map, as the waker does with a VMM's.
pub(in crate::doctor) async fn pagemap() -> io::Result<()> {
    // It waits for its input, which nobody gives it.
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().ok_or_else(|| io::Error::other("the child has ended"))?;
    let mut entry = [0; 8];
    let read = fs::File::open(format!("/proc/{pid}/pagemap"))
        .and_then(|mut file| file.read_exact(&mut entry));
    child.kill().await?;
    read
}
