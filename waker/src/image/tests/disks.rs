//! Is an app given its disk once, and is it always the same?

use super::disk::provide;
use super::*;

fn ext4(mib: u32) -> DiskConfig {
    DiskConfig { size_mib: mib, template: None, mkfs: "mkfs.ext4".into() }
}

fn id_of(directory: &Path) -> DiskId {
    serde_json::from_slice(&fs::read(directory.join(DISK_ID)).unwrap()).unwrap()
}

#[test]
fn an_empty_ext4_is_made_once() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    let dir = dir.path();
    provide(dir, &ext4(8)).unwrap();
    let disk = dir.join(DISK);
    assert_eq!(fs::metadata(&disk).unwrap().len(), 8 << 20);
    assert_eq!(fs::metadata(&disk).unwrap().mode() & 0o077, 0);
    // The superblock's magic and label: Linux, Documentation/filesystems/ext4/super.rst.
    assert_eq!(read(&disk, 1024 + 0x38, 2), [0x53, 0xef]);
    assert_eq!(read(&disk, 1024 + 0x78, 6), b"rouse\0");
    assert_eq!(names(dir), [DISK, DISK_ID]);

    write(&disk, 1 << 20, b"the app's");
    let (id, was) = (id_of(dir), inode(&disk));
    provide(dir, &ext4(16)).unwrap();
    assert_eq!((id_of(dir), inode(&disk)), (id, was));
    assert_eq!(fs::metadata(&disk).unwrap().len(), 8 << 20, "what is the app's has grown");
    assert_eq!(read(&disk, 1 << 20, 9), b"the app's");
}

#[test]
fn a_template_is_copied_and_grows_to_the_size() {
    let _place = Place::new();
    // Sizes of the template and of what comes of it; one is no whole number of pages.
    for (size, mib, made) in [(DISK_BYTES, 0, DISK_BYTES), (5000, 0, 5000), (5000, 1, 1 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let (template, here) = (dir.path().join("template"), dir.path().join("app"));
        let bytes: Vec<u8> = (0..size).map(|i| (i / 700) as u8).collect();
        fs::write(&template, &bytes).unwrap();
        fs::create_dir(&here).unwrap();
        let config = DiskConfig { template: Some(template.clone()), ..ext4(mib) };
        provide(&here, &config).unwrap();
        let disk = fs::read(here.join(DISK)).unwrap();
        assert_eq!(disk.len(), made);
        assert!(disk[..size] == bytes && disk[size..].iter().all(|&b| b == 0), "{size} bytes");
        assert_eq!(names(&here), [DISK, DISK_ID]);
        // It is a copy.
        write(&here.join(DISK), 0, b"ours");
        assert!(fs::read(&template).unwrap() == bytes);
    }
}

#[test]
fn a_sparse_template_stays_sparse() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    let template = dir.path().join("template");
    File::create(&template).unwrap().set_len(64 << 20).unwrap();
    write(&template, 3 << 20, b"data");
    provide(dir.path(), &DiskConfig { template: Some(template), ..ext4(0) }).unwrap();
    let disk = fs::metadata(dir.path().join(DISK)).unwrap();
    assert!(disk.len() == 64 << 20 && disk.blocks() * 512 < 1 << 20, "{disk:?}");
    assert_eq!(read(&dir.path().join(DISK), 3 << 20, 4), b"data");
}

#[test]
fn two_disks_have_two_ids_and_a_life_changes_none() {
    let mut place = Place::new();
    place.sleep_once();
    let id = id_of(&place.path("gen-1"));
    place.sleep(place.wake().unwrap());
    assert_eq!(id_of(&place.path("gen-2")), id);
    drop(place.wake().unwrap());
    place.crash();
    assert_eq!(id_of(place.boot().path()), id);

    let other = tempfile::tempdir().unwrap();
    provide(other.path(), place.machine.disk.as_ref().unwrap()).unwrap();
    assert_ne!(id_of(other.path()), id);
}

#[test]
fn a_disk_that_is_gone_is_not_replaced_by_an_empty_one() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    provide(dir.path(), &ext4(4)).unwrap();
    fs::remove_file(dir.path().join(DISK)).unwrap();
    let refused = provide(dir.path(), &ext4(4)).unwrap_err();
    assert!(matches!(&refused, DiskError::Missing(path) if *path == dir.path().join(DISK)));
    assert!(refused.to_string().contains(DISK_ID), "{refused}");
    // As it says.
    fs::remove_file(dir.path().join(DISK_ID)).unwrap();
    provide(dir.path(), &ext4(4)).unwrap();
}

#[test]
fn a_disk_without_its_name_is_told() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    provide(dir.path(), &ext4(4)).unwrap();
    fs::remove_file(dir.path().join(DISK_ID)).unwrap();
    let refused = provide(dir.path(), &ext4(4)).unwrap_err();
    assert!(matches!(&refused, DiskError::Nameless(_)), "{refused}");
    assert!(dir.path().join(DISK).exists());
}

#[test]
fn one_that_was_cut_off_between_its_two_names_is_completed() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    provide(dir.path(), &ext4(4)).unwrap();
    let id = id_of(dir.path());
    fs::rename(dir.path().join(DISK_ID), dir.path().join(".disk.id")).unwrap();
    provide(dir.path(), &ext4(4)).unwrap();
    assert_eq!(id_of(dir.path()), id);
    assert_eq!(names(dir.path()), [DISK, DISK_ID]);
}

#[test]
fn drafts_of_one_that_was_cut_off_make_way() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join(".disk.img"), b"half").unwrap();
    fs::write(dir.path().join(".disk.id"), b"half").unwrap();
    provide(dir.path(), &ext4(4)).unwrap();
    assert_eq!(names(dir.path()), [DISK, DISK_ID]);
}

#[test]
fn what_can_not_make_one_says_so() {
    let (_place, dir) = (Place::new(), tempfile::tempdir().unwrap());
    let absent = DiskConfig { mkfs: dir.path().join("mkfs"), ..ext4(4) };
    let refused = provide(dir.path(), &absent).unwrap_err();
    assert!(refused.to_string().contains("e2fsprogs"), "{refused}");
    // mkfs.ext4 finds no room for a file system in this.
    let refused = provide(dir.path(), &ext4(0)).unwrap_err();
    assert!(matches!(&refused, DiskError::MakeFs { detail, .. } if !detail.is_empty()));
    let template = dir.path().join("template");
    let refused = provide(dir.path(), &DiskConfig { template: Some(template.clone()), ..ext4(4) });
    let refused = refused.unwrap_err();
    assert!(matches!(&refused, DiskError::File { path, .. } if *path == template), "{refused}");
    for name in [DISK, DISK_ID] {
        assert!(!dir.path().join(name).exists(), "{name} after nothing but mistakes");
    }
}
