//! Operations that are ended in their midst.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Dir;

/// Sends a signal and waits until it was taken.
fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, signal).unwrap();
    let pending = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("ShdPnd:")).unwrap().to_owned();
        u64::from_str_radix(line["ShdPnd:".len()..].trim(), 16).unwrap() != 0
    };
    while pending() {
        thread::yield_now();
    }
}

/// Starts what takes long and writes a file, and waits until it is at it.
fn started(dir: &Dir, line: &str) -> Child {
    let before = dir.names().len();
    let mut child = dir.command(line).stderr(Stdio::piped()).spawn().unwrap();
    while fs::read_dir(dir.path("")).unwrap().count() == before {
        assert!(child.try_wait().unwrap().is_none(), "{line} ended");
        thread::yield_now();
    }
    child
}

#[test]
fn nothing_half_made_is_left() {
    let dir = Dir::new();
    // At that level it takes seconds.
    dir.image("a.img", 4000, 0..4000);
    dir.good("sparsify a.img");
    let before = dir.names();
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut child = started(&dir, "pack a.img --level 15 --threads 1");
        send(&child, signal);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{said}");
        assert_eq!(said, "rouse-snapshot: a.img: cancelled\n");
        assert_eq!(dir.names(), before);
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = Dir::new();
    dir.image("a.img", 8000, 0..8000);
    dir.good("sparsify a.img");
    // Nobody reads on, so that it can't end otherwise.
    let mut child = dir.command("pack a.img -o -").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut start = [0; 16];
    out.read_exact(&mut start).unwrap();
    assert!(rouse_snapshot_format::is_archive(&start));
    send(&child, Signal::SIGTERM);
    // This one kills, so that nobody takes it.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
}
