use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::units::PageState;

fn quick() -> SparsifyOptions {
    SparsifyOptions::default()
}

fn holder(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("memory.img");
    fs::write(&path, bytes).unwrap();
    path
}

/// What the states of `bytes` are, computed the plain way.
fn states_of(bytes: &[u8]) -> Vec<PageState> {
    let state = |page: &[u8]| match page.iter().all(|b| *b == 0) {
        true => PageState::Zero,
        false => PageState::Data,
    };
    bytes.chunks(PAGE as usize).map(state).collect()
}

fn found_states(found: &Sparsified) -> Vec<PageState> {
    found.states().runs().flat_map(|run| run.pages.map(move |_| run.state)).collect()
}

#[derive(Clone, Debug)]
enum Part {
    /// Zeros that are written, so that they occupy blocks.
    Zeros,
    /// Never written.
    Hole,
    /// Zeros but for one byte.
    Byte(u8, usize),
    Noise(u8),
}

fn any_image() -> impl Strategy<Value = Vec<(Part, usize)>> {
    let part = prop_oneof![
        Just(Part::Zeros),
        Just(Part::Hole),
        (1..=u8::MAX, any::<usize>()).prop_map(|(byte, at)| Part::Byte(byte, at)),
        (1..=u8::MAX).prop_map(Part::Noise),
    ];
    // Lengths around pages and buffers, and any between.
    let length = prop_oneof![
        0_usize..20,
        1_usize..30_000,
        (1_usize..40).prop_map(|pages| pages * PAGE as usize),
        (0_usize..3).prop_map(|n| BUFFER + n - 1),
    ];
    prop::collection::vec((part, length), 0..12)
}

fn build(path: &Path, parts: &[(Part, usize)]) -> Vec<u8> {
    let mut file = File::create(path).unwrap();
    let mut wanted = Vec::new();
    for (part, length) in parts {
        let mut bytes = vec![0; *length];
        match part {
            Part::Zeros | Part::Hole => {}
            Part::Byte(byte, at) => {
                if let Some(len) = NonZeroUsize::new(*length) {
                    bytes[*at % len] = *byte;
                }
            }
            Part::Noise(byte) => bytes.fill(*byte),
        }
        match part {
            Part::Hole => drop(file.seek(SeekFrom::Current(*length as i64)).unwrap()),
            _ => file.write_all(&bytes).unwrap(),
        }
        wanted.extend(bytes);
    }
    file.set_len(wanted.len() as u64).unwrap();
    wanted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn bytes_stay_and_the_map_is_right(
        parts in any_image(),
        threads in 1_usize..4,
        dry_run in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        let wanted = build(&path, &parts);
        let options = SparsifyOptions { threads: NonZeroUsize::new(threads), dry_run };
        let found = sparsify(&path, &options).unwrap();

        prop_assert!(fs::read(&path).unwrap() == wanted, "the image's bytes changed");
        prop_assert_eq!(found.mem_size(), wanted.len() as u64);
        let states = states_of(&wanted);
        prop_assert_eq!(found_states(&found), states.clone());
        prop_assert!(!dry_run || found.punched_bytes == 0);

        let id = ImageId::random();
        let map = found.into_map(id);
        prop_assert_eq!(map.image_id(), id);
        for (page, state) in states.iter().enumerate() {
            prop_assert_eq!(map.state(page as u64), Ok(*state));
        }
        prop_assert!(map.state(states.len() as u64).is_err());

        // Nothing is left to punch.
        let again = sparsify(&path, &options).unwrap();
        prop_assert!(again.punching != Punching::Done || again.punched_bytes == 0);
        prop_assert_eq!(again.states(), map.states());
    }
}

#[test]
fn blocks_of_zeros_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let pages = 3 * PIECE / PAGE + 1;
    let mut bytes = vec![0; (pages * PAGE) as usize - 100];
    let data: Vec<u64> = vec![0, 4095, 4096, 5000, pages - 2];
    for page in &data {
        bytes[(page * PAGE) as usize] = 1;
    }
    let path = holder(&dir, &bytes);
    File::open(&path).unwrap().sync_all().unwrap();
    let found = sparsify(&path, &quick()).unwrap();
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
fn an_image_that_anyone_has_locked_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[0; 1 << 20]);
    let vm = File::open(&path).unwrap();
    let before = vm.metadata().unwrap().blocks();
    for lock in [File::lock_shared, File::lock] {
        lock(&vm).unwrap();
        let refused = sparsify(&path, &quick()).unwrap_err();
        assert!(matches!(&refused, SparsifyError::InUse(p) if *p == path), "{refused}");
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
    assert!(matches!(missing, SparsifyError::Open { .. }), "{missing}");
    let directory = sparsify(dir.path(), &quick()).unwrap_err();
    assert!(matches!(directory, SparsifyError::Open { .. }), "{directory}");
    let device = sparsify(Path::new("/dev/null"), &quick()).unwrap_err();
    assert!(matches!(device, SparsifyError::NotAFile(_)), "{device}");

    let huge = dir.path().join("huge");
    File::create(&huge).unwrap().set_len(MAX_MEM_SIZE + 1).unwrap();
    let refused = sparsify(&huge, &quick()).unwrap_err();
    assert!(
        matches!(refused, SparsifyError::TooLarge { mem_size } if mem_size == MAX_MEM_SIZE + 1)
    );
}

#[test]
fn holes_are_not_read() {
    // 64 GiB would take a reader of holes many seconds; a walker of extents looks at three pages.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    let file = File::create(&path).unwrap();
    let size: u64 = 64 << 30;
    file.set_len(size + 1).unwrap();
    for at in [0, 5 << 30, size] {
        file.write_all_at(&[7], at).unwrap();
    }
    let found = sparsify(&path, &quick()).unwrap();
    let data: Vec<_> = found.states().runs().filter(|r| r.state == PageState::Data).collect();
    let starts: Vec<_> = data.iter().map(|run| run.pages.start * PAGE).collect();
    assert_eq!(starts, [0, 5 << 30, size]);
    assert_eq!(found.data_pages(), 3);
}
