//! How it ends: unmounted while somebody waits, with its process, and for a QEMU.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use rouse_lazy::{CleanError, LazyFile, MountError, Owner, Windows, clean, serve};
use support::{Case, PATIENCE, Place, WINDOW, is_there, map, us};

const SIZE: u64 = 8 * WINDOW;

#[test]
fn an_unmount_ends_a_read_that_waits() {
    if !is_there() {
        return;
    }
    let mut case = Case::new(SIZE);
    // Who is not root ends a connection by a file there.
    if us().uid != 0 && fs::read_dir("/sys/fs/fuse/connections").unwrap().next().is_none() {
        eprintln!("skipped: fusectl is not mounted at /sys/fs/fuse/connections");
        return;
    }
    let file = case.open();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(file.read_exact_at(&mut [0; 64], WINDOW)).unwrap());
    case.gate.until_asked(1);
    // What somebody wrote who still has it mapped is not lost.
    case.gate.release(3);
    let other = case.open();
    let mut mapped = map(&other);
    mapped[3 * WINDOW as usize..][..4].copy_from_slice(b"late");
    case.unmount();
    assert_eq!(case.backed(3 * WINDOW, 4), b"late");
    told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(fs::read_dir(&case.place.dir).unwrap().count(), 0);
    assert_eq!(clean(&case.place.dir).unwrap(), 0);
}

#[test]
fn an_unmount_from_outside_ends_it() {
    if !is_there() {
        return;
    }
    let mut case = Case::new(SIZE);
    let status = Command::new("umount").arg("-l").arg(&case.place.dir).status().unwrap();
    assert!(status.success());
    case.file.as_ref().unwrap().wait().unwrap();
    case.unmount();
}

#[test]
fn two_are_mounted_and_dropping_one_leaves_the_other() {
    if !is_there() {
        return;
    }
    let (mut one, other) = (Case::new(SIZE), Case::new(SIZE));
    drop(one.file.take());
    other.gate.open();
    assert!(fs::read(other.path()).unwrap() == other.gate.bytes);
    assert_eq!(fs::read_dir(&one.place.dir).unwrap().count(), 0);
    let backing = other.place.backing();
    let again =
        LazyFile::mount(&other.place.dir, "memory.img", backing, SIZE, Arc::new(Zeros), us());
    assert!(matches!(again, Err(MountError::Refused { .. })), "{again:?}");
    assert!(matches!(clean(&other.place.dir), Err(CleanError::Alive { .. })));
    assert!(matches!(clean(Path::new("/proc")), Err(CleanError::NotOurs { .. })));
}

struct Zeros;
impl Windows for Zeros {
    fn window_bytes(&self) -> u64 {
        WINDOW
    }
    fn need(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// No test of its own: the process that the next one kills.
#[test]
fn serves_for_another_test() {
    let Some(root) = std::env::var_os("ROUSE_LAZY_SERVES") else { return };
    let root = Path::new(&root);
    let backing = File::options().read(true).write(true).open(root.join("backing.img")).unwrap();
    let ready = |_: &Arc<LazyFile>| {
        io::stderr().write_all(b"\nready\n").unwrap();
    };
    let dir = root.join("mount");
    serve(&dir, "memory.img", backing, SIZE, Arc::new(Zeros), us(), ready).unwrap();
}

#[test]
fn what_a_killed_process_left_is_cleaned() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    place.backing().set_len(SIZE).unwrap();
    let start = || {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_for_another_test", "--nocapture"])
            .env("ROUSE_LAZY_SERVES", place.root.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        (child, lines)
    };
    let (mut child, _lines) = start();
    let path = place.dir.join("memory.img");
    let file = File::open(&path).unwrap();
    let mut some = [1; 4096];
    file.read_exact_at(&mut some, 0).unwrap();
    assert!(matches!(clean(&place.dir), Err(CleanError::Alive { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    // What is cached is still had, and nothing else.
    file.read_exact_at(&mut some, 0).unwrap();
    file.read_exact_at(&mut some, 5 * WINDOW).unwrap_err();
    assert_eq!(clean(&place.dir).unwrap(), 1);
    assert_eq!(clean(&place.dir).unwrap(), 0);
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    // The same place serves again, until it is unmounted.
    let (mut child, _lines) = start();
    assert!(fs::read(&path).unwrap() == vec![0; SIZE as usize]);
    // Lazily, as a test beside this one may be starting a process, which has all that is open until it runs.
    assert!(Command::new("umount").arg("-l").arg(&place.dir).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_qemu_of_another_user_maps_it() {
    if !is_there() {
        return;
    }
    const MEMORY: u64 = 64 << 20;
    let owner = if us().uid == 0 { Owner { uid: 12345, gid: 12345 } } else { us() };
    let mut case = Case::owned(MEMORY, owner);
    let backend =
        format!("memory-backend-file,id=mem,size=64M,share=on,mem-path={}", case.path().display());
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-machine",
        "microvm,memory-backend=mem,accel=tcg",
        "-m",
        "64",
        "-S",
        "-nodefaults",
    ])
    .args(["-object", &backend, "-display", "none", "-qmp", "stdio"])
    .stdin(Stdio::piped())
    .stdout(Stdio::piped());
    if us().uid == 0 {
        qemu.uid(owner.uid).gid(owner.gid);
    }
    let mut qemu = match qemu.spawn() {
        Ok(qemu) => qemu,
        Err(error) => {
            eprintln!("skipped: qemu-system-x86_64: {error}");
            return;
        }
    };
    // Its firmware is written to memory at the start.
    case.gate.open();
    let mut said = BufReader::new(qemu.stdout.take().unwrap()).lines();
    let mut stdin = qemu.stdin.take().unwrap();
    let id = qemu.id();
    let mut ask = |command: &str, answer: &str| {
        // At once: it may be gone before a line's end that is sent on its own.
        stdin.write_all(format!("{command}\n").as_bytes()).unwrap();
        said.by_ref().map(Result::unwrap).find(|line| line.contains(answer)).unwrap()
    };
    ask(r#"{"execute":"qmp_capabilities"}"#, "return");
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    let ours = maps.lines().find(|line| line.contains("memory.img")).unwrap();
    assert!(ours.contains("rw-s"), "{ours}");
    // Guest memory by way of QEMU is what the file has.
    let dump = case.place.root.path().join("dump");
    File::create(&dump).unwrap();
    std::os::unix::fs::chown(&dump, Some(owner.uid), Some(owner.gid)).unwrap();
    let save = format!(
        r#"{{"execute":"pmemsave","arguments":{{"val":{},"size":{},"filename":"{}"}}}}"#,
        20 * WINDOW,
        4 * WINDOW,
        dump.display()
    );
    ask(&save, r#""return": {}"#);
    assert!(
        fs::read(&dump).unwrap() == case.gate.bytes[20 * WINDOW as usize..][..4 * WINDOW as usize]
    );
    ask(r#"{"execute":"quit"}"#, "return");
    assert!(qemu.wait().unwrap().success());
    case.unmount();
}
