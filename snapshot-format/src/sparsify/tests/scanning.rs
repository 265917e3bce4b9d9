//! How the image is gone through.

use std::os::unix::fs::FileExt;

use super::*;

/// A file of `size` bytes with one byte of data at each of `places`.
fn sparse(path: &Path, size: u64, places: &[u64]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for at in places {
        file.write_all_at(&[7], *at).unwrap();
    }
}

fn data_starts(found: &Sparsified) -> Vec<u64> {
    let data = found.states().runs().filter(|run| run.state == PageState::Data);
    data.map(|run| run.pages.start * PAGE).collect()
}

#[test]
fn holes_are_not_read() {
    // 1 TiB would take a reader of holes minutes; a walker of extents looks at four pages.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    let places = [0, 5 << 30, (1 << 40) - PIECE, (1 << 40) - PAGE];
    sparse(&path, 1 << 40, &places);
    let progress = Progress::new();
    let work = Work { progress: Some(&progress), ..Work::default() };
    let found = sparsify(&path, &SparsifyOptions { work, ..quick() }).unwrap();
    assert_eq!(data_starts(&found), places);
    assert_eq!(found.data_pages(), 4);
    assert_eq!((progress.done(), progress.total()), (1 << 40, 1 << 40));

    let out = dir.path().join("copy.img");
    let copied = sparsify_to(&path, &out, &quick()).unwrap();
    let id = ImageId::random();
    assert_eq!(copied.into_map(id), found.into_map(id));
    assert!(fs::metadata(&out).unwrap().blocks() * 512 < 64 * PAGE);
}

#[test]
fn sizes_around_pages_and_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, PIECE - 1, PIECE, PIECE + 1, (5 << 30) + 1] {
        // All hole; a byte at the end; one before the last piece, which is all hole.
        let before = size.saturating_sub(PIECE + 1);
        for places in [vec![], vec![size.saturating_sub(1)], vec![before]] {
            let places = if size == 0 { vec![] } else { places };
            sparse(&path, size, &places);
            let progress = Progress::new();
            let work = Work { progress: Some(&progress), ..on_threads(2) };
            let found = sparsify(&path, &SparsifyOptions { work, ..quick() }).unwrap();
            let wanted: Vec<_> = places.iter().map(|at| at & !(PAGE - 1)).collect();
            assert_eq!(data_starts(&found), wanted, "{places:?} of {size}");
            assert_eq!(found.states().pages(), size.div_ceil(PAGE));
            assert_eq!((progress.done(), progress.total()), (size, size));
        }
    }
}

#[test]
fn holes_between_the_pages_of_one_window_do_not_break_its_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    let places: Vec<_> = (0..2 * PIECE / PAGE).step_by(3).map(|page| page * PAGE + page).collect();
    sparse(&path, 2 * PIECE, &places);
    let bytes = fs::read(&path).unwrap();
    for window in [WindowSize::MIN, WindowSize::DEFAULT, WindowSize::MAX] {
        let options = SparsifyOptions { window: Some(window), ..quick() };
        let found = sparsify(&path, &options).unwrap();
        assert_eq!(found_checksums(&found), checksums_of(&bytes, window));
    }
}

#[test]
fn windows_are_chosen_by_the_image_and_no_more_than_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    sparse(&path, 1 << 40, &[]);
    let found = sparsify(&path, &quick()).unwrap();
    assert_eq!(found.into_map(ImageId::random()).window_size(), WindowSize::for_image(1 << 40));
    let options = SparsifyOptions { window: Some(WindowSize::DEFAULT), ..quick() };
    let refused = sparsify(&path, &options).unwrap_err();
    assert!(
        matches!(refused, SparsifyError::TooManyWindows(TooManyWindows { windows })
            if windows == 1 << 22),
        "{refused}"
    );
}

#[test]
fn it_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![1; 3 * PIECE as usize];
    let path = holder(&dir, &bytes);
    let progress = Progress::new();
    progress.cancel();
    let work = Work { progress: Some(&progress), ..on_threads(1) };
    let ended = sparsify(&path, &SparsifyOptions { work, ..quick() }).unwrap_err();
    assert!(matches!(ended, SparsifyError::Cancelled(_)), "{ended}");
    assert!(progress.done() < progress.total(), "all of it was done");
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn an_image_that_shrinks_meanwhile_is_an_error() {
    struct Shrinker<'a>(&'a File);
    impl scan::Target for Shrinker<'_> {
        fn data(&self, _: u64, _: &[u8]) -> Result<(), SparsifyError> {
            self.0.set_len(PAGE).unwrap();
            Ok(())
        }
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![1; PIECE as usize]).unwrap();
    let plan = Plan::all(PIECE, WindowSize::DEFAULT).unwrap();
    let scanned = scan::image(&file, plan, on_threads(1), &Shrinker(&file));
    let failed = scanned.unwrap_err();
    assert!(
        matches!(&failed, SparsifyError::Read { offset, source }
            if *offset == BUFFER as u64 && source.kind() == io::ErrorKind::UnexpectedEof),
        "{failed}"
    );
}
