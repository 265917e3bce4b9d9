//! The file as whoever has it open sees it.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Arc, mpsc};
use std::thread;

use rouse_lazy::{LazyFile, MountError, Owner};
use rustix::fs::{FallocateFlags, fallocate};
use support::{Case, PATIENCE, WINDOW, is_there, map, us};

/// Not a whole number of windows.
const SIZE: u64 = 16 * WINDOW + 3 * 4096;

#[test]
fn bytes_are_the_same_by_read_and_by_mapping() {
    if !is_there() {
        return;
    }
    let mut case = Case::new(SIZE);
    case.gate.open();
    let file = case.open();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (SIZE, 0o600));
    let mapped = map(&file);
    // Backwards, as read-ahead is for those who go forwards.
    for window in (0..=16).rev() {
        let there = window * WINDOW..((window + 1) * WINDOW).min(SIZE);
        let there = there.start as usize..there.end as usize;
        assert!(mapped[there.clone()] == case.gate.bytes[there], "window {window}");
    }
    drop(mapped);
    drop(file);
    case.unmount();

    let case = Case::new(SIZE);
    case.gate.open();
    assert!(fs::read(case.path()).unwrap() == case.gate.bytes);
    let mut asked = case.gate.asked();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, (0..=16).collect::<Vec<_>>());
    let names: Vec<_> =
        fs::read_dir(&case.place.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["memory.img"]);
}

#[test]
fn a_fault_waits_for_its_window_only_and_others_go_on() {
    if !is_there() {
        return;
    }
    let case = Case::new(SIZE);
    case.gate.release(3);
    let file = case.open();
    let (tell, told) = mpsc::channel();
    // The last page of one window and the first of the next are read around by the kernel.
    let places = [(5, 6 * WINDOW - 4096), (7, 7 * WINDOW), (9, 9 * WINDOW + WINDOW / 2)];
    thread::scope(|scope| {
        for (window, place) in places {
            let (tell, case, file) = (tell.clone(), &case, file.try_clone().unwrap());
            scope.spawn(move || {
                let mapped = map(&file);
                let place = place as usize;
                assert!(mapped[place..place + 8] == case.gate.bytes[place..place + 8]);
                tell.send(window).unwrap();
            });
            case.gate.until_asked(window);
        }
        // Meanwhile, in a window that is there, and of the file itself. Not to its end: going forwards, the
        // kernel would read the next one ahead, for which nobody waits.
        let mapped = map(&file);
        let there = 3 * WINDOW as usize..3 * WINDOW as usize + WINDOW as usize / 2;
        assert!(mapped[there.clone()] == case.gate.bytes[there]);
        assert_eq!(fs::metadata(case.path()).unwrap().len(), SIZE);
        assert!(told.try_recv().is_err());
        for window in [9, 5, 7] {
            case.gate.release(window);
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), window);
        }
    });
    let mut asked = case.gate.asked();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, [3, 5, 7, 9]);
}

#[test]
fn nothing_is_asked_for_once_it_is_whole() {
    if !is_there() {
        return;
    }
    let case = Case::new(SIZE);
    for window in 0..=16 {
        case.gate.release(window);
    }
    case.file.as_ref().unwrap().set_whole();
    assert!(fs::read(case.path()).unwrap() == case.gate.bytes);
    assert_eq!(case.gate.asked(), []);
    case.place.backing().sync_data().unwrap();
    case.file.as_ref().unwrap().drop_backing_cache().unwrap();
}

#[test]
fn what_a_mapping_writes_is_in_the_backing_file_when_it_is_synced_or_unmounted() {
    if !is_there() {
        return;
    }
    let mut case = Case::new(SIZE);
    case.gate.open();
    let file = case.open();
    let mut mapped = map(&file);
    mapped[5..9].copy_from_slice(b"here");
    mapped.flush().unwrap();
    assert_eq!(case.backed(5, 4), b"here");
    file.write_all_at(b"written", WINDOW - 3).unwrap();
    assert_eq!(case.backed(WINDOW - 3, 7), b"written");
    assert_eq!(mapped[WINDOW as usize - 3..][..7], *b"written");
    // It is opened again while it is mapped and dirty.
    mapped[3 * WINDOW as usize] ^= 1;
    let changed = mapped[3 * WINDOW as usize];
    let again = case.open();
    assert_eq!(mapped[3 * WINDOW as usize], changed);
    drop((file, again, mapped));
    case.unmount();
    assert_eq!(case.backed(3 * WINDOW, 1), [changed]);
    assert!(case.backed(3 * WINDOW + 1, 99) == case.gate.bytes[3 * WINDOW as usize + 1..][..99]);
}

#[test]
fn a_hole_is_punched_when_its_windows_are_there() {
    if !is_there() {
        return;
    }
    let case = Case::new(SIZE);
    let file = case.open();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let ours = &file;
        scope.spawn(move || {
            fallocate(ours, punch, WINDOW - 8192, 3 * 8192).unwrap();
            tell.send(()).unwrap();
        });
        case.gate.until_asked(0);
        case.gate.release(0);
        case.gate.until_asked(1);
        assert!(told.try_recv().is_err());
        case.gate.release(1);
        told.recv_timeout(PATIENCE).unwrap();
    });
    let mut wanted = case.gate.bytes[..2 * WINDOW as usize].to_vec();
    wanted[WINDOW as usize - 8192..][..3 * 8192].fill(0);
    assert!(case.backed(0, wanted.len()) == wanted);
    assert!(map(&file)[..wanted.len()] == wanted);
    let refused = fallocate(&file, FallocateFlags::empty(), 0, SIZE).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::OPNOTSUPP);
}

#[test]
fn a_window_that_cannot_be_had_is_an_error_and_never_zeros() {
    if !is_there() {
        return;
    }
    let case = Case::new(SIZE);
    case.gate.lose(2);
    case.gate.release(4);
    let file = case.open();
    let mut some = [0; 4096];
    for _ in 0..2 {
        let error = file.read_exact_at(&mut some, 2 * WINDOW + 4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    }
    let error = file.write_all_at(&some, 2 * WINDOW).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    file.read_exact_at(&mut some, 4 * WINDOW + 4096).unwrap();
    assert!(some == case.gate.bytes[4 * WINDOW as usize + 4096..][..4096]);
}

#[test]
fn the_file_stays_as_large_as_it_is_and_alone() {
    if !is_there() {
        return;
    }
    let case = Case::new(SIZE);
    let file = case.open();
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    file.set_len(SIZE).unwrap();
    assert!(denied(file.set_len(SIZE - 4096).unwrap_err()));
    assert!(denied(File::create(case.path()).unwrap_err()));
    assert!(denied(File::create(case.place.dir.join("other")).unwrap_err()));
    assert!(denied(fs::remove_file(case.path()).unwrap_err()));
    assert!(denied(fs::rename(case.path(), case.place.dir.join("other")).unwrap_err()));
    assert!(file.write_all_at(b"x", SIZE).is_err());
    assert_eq!(case.gate.asked(), []);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_mounted() {
    let place = support::Place::new();
    let mount = |name: &str, size| {
        let backing = place.backing();
        backing.set_len(8192).unwrap();
        LazyFile::mount(&place.dir, name, backing, size, Arc::new(Odd), us()).unwrap_err()
    };
    for name in ["", ".", "..", "a/b", "/a", "a/"] {
        assert!(matches!(mount(name, 8192), MountError::Name(_)), "{name}");
    }
    assert!(matches!(mount("a", 4096), MountError::Size { there: 8192, wanted: 4096 }));
    assert!(matches!(mount("a", 8192), MountError::Window(5)));
    struct Odd;
    impl rouse_lazy::Windows for Odd {
        fn window_bytes(&self) -> u64 {
            5
        }
        fn need(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }
}

#[test]
fn another_user_who_owns_it_opens_it_and_others_do_not() {
    if !is_there() || us().uid != 0 {
        return;
    }
    let case = Case::owned(SIZE, Owner { uid: 12345, gid: 12345 });
    case.gate.open();
    let read = |uid: u32| {
        use std::os::unix::process::CommandExt as _;
        let mut head = std::process::Command::new("head");
        head.args(["-c", "4096"]).arg(case.path()).uid(uid).gid(uid).output().unwrap()
    };
    assert!(read(12345).stdout == case.gate.bytes[..4096]);
    assert!(!read(12346).status.success());
}
