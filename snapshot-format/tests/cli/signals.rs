//! Operations that are ended in their midst.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
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
        // Who is dead takes none.
        if status.lines().any(|line| line.starts_with("State:") && line.contains("zombie")) {
            return false;
        }
        let line = status.lines().find(|line| line.starts_with("ShdPnd:")).unwrap().to_owned();
        u64::from_str_radix(line["ShdPnd:".len()..].trim(), 16).unwrap() != 0
    };
    while pending() {
        thread::yield_now();
    }
}

/// At that level it takes seconds.
const LONG: &str = "pack a.img --level 15 --threads 1";

/// Starts what takes long and writes a file, by way of the program in `by`, and waits until it is at
/// it. Which signals are ignored is inherited: who starts the tests may ignore some.
fn started(dir: &Dir, by: &[&str], line: &str) -> Child {
    let before = dir.names().len();
    let program = dir.command(line);
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg(program.get_program()).args(program.get_args());
    command.current_dir(dir.path("")).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while fs::read_dir(dir.path("")).unwrap().count() == before {
        assert!(child.try_wait().unwrap().is_none(), "{line} ended");
        thread::yield_now();
    }
    child
}

#[test]
fn nothing_half_made_is_left() {
    let dir = Dir::new();
    dir.image("a.img", 4000, 0..4000);
    dir.good("sparsify a.img");
    let before = dir.names();
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let mut child = started(&dir, &["env", "--default-signal"], LONG);
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

#[test]
fn a_signal_that_it_was_told_to_ignore_is_no_signal() {
    let dir = Dir::new();
    dir.image("a.img", 4000, 0..4000);
    dir.good("sparsify a.img");
    let mut child = started(&dir, &["env", "--default-signal", "--ignore-signal=HUP"], LONG);
    send(&child, Signal::SIGHUP);
    // The other is what ends it, and would be the second if that one had counted.
    send(&child, Signal::SIGTERM);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143), "{said}");
}
