//! What is done to the image.

use nix::errno::Errno;

use super::*;
use crate::sparsify::punch::punch_hole;

/// Sparsifies where holes are punched by `punch`.
fn by(path: &Path, punch: punch::Punch) -> Result<Sparsified, SparsifyError> {
    let image = ToPunch::open(path)?;
    image.punch_by(image.0.plan(&quick())?, &quick(), punch)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn bytes_stay_and_the_map_is_right(
        parts in any_image(),
        threads in 1_usize..4,
        window in any_window(),
        dry_run in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        let wanted = build(&path, &parts);
        let work = on_threads(threads);
        let options = SparsifyOptions { work, dry_run, window: Some(window), ..quick() };
        let found = sparsify(&path, &options).unwrap();

        prop_assert!(fs::read(&path).unwrap() == wanted, "the image's bytes changed");
        prop_assert_eq!(found.mem_size(), wanted.len() as u64);
        let states = states_of(&wanted);
        prop_assert_eq!(found_states(&found), states.clone());
        prop_assert_eq!(found_checksums(&found), checksums_of(&wanted, window));
        prop_assert!(!dry_run || found.punched_bytes == 0);

        let id = ImageId::random();
        let map = found.into_map(id);
        prop_assert_eq!((map.image_id(), map.window_size()), (id, window));
        for (page, state) in states.iter().enumerate() {
            prop_assert_eq!(map.state(page as u64), Ok(*state));
        }
        prop_assert!(map.state(states.len() as u64).is_err());

        // Nothing is left to punch.
        let again = sparsify(&path, &options).unwrap();
        prop_assert!(again.punching != Punching::Done || again.punched_bytes == 0);
        prop_assert_eq!(again.into_map(id), map);
    }
}

fn blocks_are_given_back_in(dir: &Path) {
    let dir = tempfile::tempdir_in(dir).unwrap();
    let pages = 3 * PIECE / PAGE + 1;
    let mut bytes = vec![0; (pages * PAGE) as usize - 100];
    for page in [0, 4095, 4096, 5000, pages - 2] {
        bytes[(page * PAGE) as usize] = 1;
    }
    let path = holder(&dir, &bytes);
    File::open(&path).unwrap().sync_all().unwrap();
    let found = sparsify(&path, &SparsifyOptions { sync: true, ..quick() }).unwrap();
    assert_eq!(found.data_pages(), 5);
    assert_eq!(found.zero_pages(), pages - 5);
    if found.punching == Punching::Done {
        assert_eq!(found.punched_bytes, (pages - 5) * PAGE - 100);
        assert!(found.allocated_before >= bytes.len() as u64);
        // 5 pages, and what the filesystem needs to know where they are.
        assert!(found.allocated_after < 64 * PAGE, "{}", found.allocated_after);
    }
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn blocks_of_zeros_are_given_back() {
    blocks_are_given_back_in(&std::env::temp_dir());
}

#[test]
fn blocks_of_zeros_are_given_back_in_memory() {
    // A tmpfs on every common Linux.
    let shm = Path::new("/dev/shm");
    if tempfile::tempfile_in(shm).is_err() {
        eprintln!("not tested: no file can be made in {shm:?}");
        return;
    }
    blocks_are_given_back_in(shm);
}

#[test]
fn without_punching_only_space_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = vec![0; 2 * PIECE as usize + 1];
    bytes[5] = 1;
    let path = holder(&dir, &bytes);
    for errno in [Errno::EOPNOTSUPP, Errno::ENOSYS] {
        let refuse: punch::Punch = match errno {
            Errno::ENOSYS => |_, _| Err(Errno::ENOSYS),
            _ => |_, _| Err(Errno::EOPNOTSUPP),
        };
        let found = by(&path, refuse).unwrap();
        assert_eq!((found.punching, found.punched_bytes), (Punching::Unsupported, 0));
        assert_eq!(found.allocated_after, found.allocated_before);
        assert_eq!(found_states(&found), states_of(&bytes));
        assert!(fs::read(&path).unwrap() == bytes);
    }
    // It is asked for once, not for every run of zeros.
    let file = File::open(&path).unwrap();
    let once: punch::Punch = |_, hole| {
        assert_eq!(hole, 0..PAGE, "asked for again");
        Err(Errno::EOPNOTSUPP)
    };
    let puncher = punch::Puncher::new(&file, 1 << 20, once);
    for hole in [0..PAGE, 1 << 16..1 << 17] {
        scan::Target::zeros(&puncher, hole).unwrap();
    }
    assert_eq!(puncher.outcome(), Punching::Unsupported);
}

#[test]
fn a_hole_that_fails_is_an_error_and_an_interrupted_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[0; 1 << 20]);
    let failed = by(&path, |_, _| Err(Errno::EIO)).unwrap_err();
    assert!(
        matches!(&failed, SparsifyError::Punch { offset: 0, source }
            if source.raw_os_error() == Some(Errno::EIO as i32)),
        "{failed}"
    );
    let interrupted: punch::Punch = |file, hole| {
        use std::sync::atomic::{AtomicBool, Ordering};
        static BEFORE: AtomicBool = AtomicBool::new(true);
        let before = BEFORE.swap(false, Ordering::Relaxed);
        if before { Err(Errno::EINTR) } else { punch_hole(file, hole) }
    };
    let found = by(&path, interrupted).unwrap();
    assert!(found.punching == Punching::Unsupported || found.punched_bytes == 1 << 20);
}

#[test]
fn an_image_that_anyone_has_locked_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[0; 1 << 20]);
    let vm = File::open(&path).unwrap();
    let before = vm.metadata().unwrap().blocks();
    for lock in [File::lock_shared, File::lock] {
        lock(&vm).unwrap();
        let refused = sparsify(&path, &quick()).unwrap_err();
        assert!(
            matches!(&refused, SparsifyError::Open(OpenImageError::InUse(p)) if *p == path),
            "{refused}"
        );
        assert_eq!(vm.metadata().unwrap().blocks(), before);
        vm.unlock().unwrap();
    }
    sparsify(&path, &quick()).unwrap();
    // Our own lock is gone with the call.
    vm.try_lock().unwrap();
}

#[test]
fn what_is_no_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = sparsify(&dir.path().join("none"), &quick()).unwrap_err();
    assert!(matches!(missing, SparsifyError::Open(OpenImageError::Open { .. })), "{missing}");
    for no_file in [dir.path(), Path::new("/dev/null")] {
        let refused = sparsify(no_file, &quick()).unwrap_err();
        assert!(matches!(refused, SparsifyError::Open(OpenImageError::NotAFile(_))), "{refused}");
    }

    let huge = dir.path().join("huge");
    File::create(&huge).unwrap().set_len(MAX_MEM_SIZE + 1).unwrap();
    let refused = sparsify(&huge, &quick()).unwrap_err();
    assert!(
        matches!(refused, SparsifyError::TooLarge { mem_size } if mem_size == MAX_MEM_SIZE + 1)
    );
}

#[test]
fn nobody_else_has_it_until_its_map_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[1; 10_000]);
    let image = ToPunch::open(&path).unwrap();
    assert_eq!(image.mem_size(), 10_000);
    let found = image.punch(&quick()).unwrap();
    let refused = sparsify(&path, &quick()).unwrap_err();
    assert!(matches!(refused, SparsifyError::Open(OpenImageError::InUse(_))), "{refused}");
    drop(image);
    assert_eq!(sparsify(&path, &quick()).unwrap().states(), found.states());
}
