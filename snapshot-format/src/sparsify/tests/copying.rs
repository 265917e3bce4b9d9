//! What is written instead.

use std::os::unix::fs::PermissionsExt;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_copy_has_the_bytes_and_the_same_map(
        parts in any_image(),
        threads in 1_usize..4,
        window in any_window(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        let out = dir.path().join("copy.img");
        let wanted = build(&path, &parts);
        let before = fs::metadata(&path).unwrap();
        let options =
            SparsifyOptions { work: on_threads(threads), window: Some(window), ..quick() };
        let found = sparsify_to(&path, &out, &options).unwrap();

        prop_assert!(fs::read(&out).unwrap() == wanted, "the copy has other bytes");
        prop_assert!(fs::read(&path).unwrap() == wanted, "the image's bytes changed");
        let after = fs::metadata(&path).unwrap();
        prop_assert_eq!(
            (before.mtime_nsec(), before.ctime_nsec(), before.blocks()),
            (after.mtime_nsec(), after.ctime_nsec(), after.blocks())
        );
        prop_assert_eq!((found.punching, found.punched_bytes), (Punching::Off, 0));
        prop_assert_eq!(found_states(&found), states_of(&wanted));
        prop_assert_eq!(found_checksums(&found), checksums_of(&wanted, window));

        // Nothing is left to punch out of the copy, and it is the same image.
        let id = ImageId::random();
        let again = sparsify(&out, &options).unwrap();
        prop_assert_eq!(again.punched_bytes, 0);
        prop_assert_eq!(again.into_map(id), found.into_map(id));
    }
}

#[test]
fn the_copy_is_sparse_private_and_takes_its_name_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = vec![0; 3 * PIECE as usize - 5];
    bytes[PIECE as usize] = 1;
    let path = holder(&dir, &bytes);
    let out = dir.path().join("copy.img");
    fs::write(&out, "what was there").unwrap();

    let looked = sparsify_to(&path, &out, &SparsifyOptions { dry_run: true, ..quick() }).unwrap();
    assert_eq!(looked.allocated_after, looked.allocated_before);
    assert_eq!(fs::read(&out).unwrap(), b"what was there");

    // Others may read the image meanwhile, and nobody may be changing it.
    let other = File::open(&path).unwrap();
    other.lock().unwrap();
    let refused = sparsify_to(&path, &out, &quick()).unwrap_err();
    assert!(matches!(refused, SparsifyError::Open(OpenImageError::InUse(_))), "{refused}");
    assert_eq!(fs::read(&out).unwrap(), b"what was there");
    other.lock_shared().unwrap();

    let refused = sparsify_to(&path, &out, &quick()).unwrap_err();
    assert!(
        matches!(&refused, SparsifyError::File(WriteFileError::Exists(p)) if *p == out),
        "{refused}"
    );
    assert_eq!(fs::read(&out).unwrap(), b"what was there");
    let options = SparsifyOptions { sync: true, replace: true, ..quick() };
    let found = sparsify_to(&path, &out, &options).unwrap();
    assert_eq!(found.states(), looked.states());
    assert!(fs::read(&out).unwrap() == bytes);
    let meta = fs::metadata(&out).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert!(meta.blocks() * 512 < 64 * PAGE, "{} blocks", meta.blocks());
    // Two files, and no draft.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn what_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[1; 10_000]);
    let link = dir.path().join("link.img");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for itself in [&path, &link] {
        let refused = sparsify_to(&path, itself, &quick()).unwrap_err();
        assert!(matches!(&refused, SparsifyError::OntoItself(p) if *p == path), "{refused}");
    }
    // Also when it is opened already.
    let itself = File::options().read(true).write(true).open(&link).unwrap();
    let refused = ToCopy::open(&path).unwrap().copy_to(&itself, &quick()).unwrap_err();
    assert!(matches!(&refused, SparsifyError::OntoItself(p) if *p == path), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), [1; 10_000]);
    let nowhere = dir.path().join("none/copy.img");
    let refused = sparsify_to(&path, &nowhere, &quick()).unwrap_err();
    assert!(matches!(refused, SparsifyError::File(WriteFileError::Io { .. })), "{refused}");

    let out = dir.path().join("copy.img");
    let progress = Progress::new();
    progress.cancel();
    let work = Work { progress: Some(&progress), ..Work::default() };
    let ended = sparsify_to(&path, &out, &SparsifyOptions { work, ..quick() }).unwrap_err();
    assert!(matches!(ended, SparsifyError::Cancelled(_)), "{ended}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    assert_eq!(fs::read(&path).unwrap(), [1; 10_000]);

    // A file that can't be written to says where.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let failed = scan::Target::data(&copy::Copier(&full), 4096, &[1; 4096]).unwrap_err();
    assert!(matches!(failed, SparsifyError::Write { offset: 4096, .. }), "{failed}");
}
