use super::*;

const ONE: &str = "00112233445566778899aabbccddeeff";
const TWO: &str = "ffeeddccbbaa99887766554433221100";

/// A directory in the place of a disk, with a table of mounts and a `/sys` of its own.
struct Guest {
    dir: tempfile::TempDir,
}

impl Guest {
    fn new() -> Self {
        let guest = Self { dir: tempfile::tempdir().unwrap() };
        for dir in ["data", "sys/fs/ext4/vda"] {
            std::fs::create_dir_all(guest.path(dir)).unwrap();
        }
        guest.mount("rw", "rw,errors=remount-ro");
        guest.errors("0\n");
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn mount(&self, options: &str, super_options: &str) {
        let data = self.path("data");
        let line =
            format!("30 22 254:0 / {} {options} - ext4 /dev/vda {super_options}\n", data.display());
        std::fs::write(self.path("mountinfo"), line).unwrap();
    }

    fn errors(&self, count: &str) {
        std::fs::write(self.path("sys/fs/ext4/vda/errors_count"), count).unwrap();
    }

    fn disk(&self) -> Disk {
        Disk::seen_through(self.path("data"), self.path("mountinfo"), self.path("sys"))
    }
}

fn wrong(disk: &Disk) -> String {
    disk.check().unwrap_err().to_string()
}

#[test]
fn a_disk_is_well_before_and_after_its_flushes() {
    let guest = Guest::new();
    let mut disk = guest.disk();
    disk.check().unwrap();
    for marker in [ONE, TWO, ONE] {
        disk.flush(marker).unwrap();
        disk.check().unwrap();
        disk.check().unwrap();
    }
    // An agent that has not flushed knows of no other disk.
    guest.disk().check().unwrap();
}

#[test]
fn a_disk_of_another_instant_is_found() {
    let guest = Guest::new();
    let mut disk = guest.disk();
    disk.flush(ONE).unwrap();
    guest.disk().flush(TWO).unwrap();
    let error = wrong(&disk);
    assert!(error.contains(ONE) && error.contains(TWO), "{error}");

    let file = guest.path("data").join(marker::FILE);
    std::fs::write(&file, ONE).unwrap();
    wrong(&disk);
    std::fs::write(&file, [0; 4096]).unwrap();
    assert!(wrong(&disk).contains("something else"));
    std::fs::remove_file(&file).unwrap();
    assert!(wrong(&disk).contains("the disk has none"));
    // Memory and disk agree again.
    disk.flush(TWO).unwrap();
    disk.check().unwrap();
}

#[test]
fn a_disk_that_takes_no_writes_is_found() {
    let guest = Guest::new();
    let disk = guest.disk();
    for (options, super_options) in [("ro", "rw"), ("rw", "ro,errors=remount-ro")] {
        guest.mount(options, super_options);
        assert!(matches!(disk.check(), Err(CheckError::ReadOnly(_))));
    }
}

#[test]
fn errors_that_ext4_has_counted_are_told() {
    let guest = Guest::new();
    let disk = guest.disk();
    guest.errors("3\n");
    assert!(wrong(&disk).contains("counted 3 errors"));
    guest.errors("x\n");
    assert!(matches!(disk.check(), Err(CheckError::Count { .. })));
    std::fs::remove_dir_all(guest.path("sys")).unwrap();
    disk.check().unwrap();
}

#[test]
fn without_its_mount_nothing_is_well() {
    let guest = Guest::new();
    let mut disk = guest.disk();
    std::fs::write(guest.path("mountinfo"), "").unwrap();
    assert!(wrong(&disk).contains("nothing is mounted at"));
    // The directory under the mount point must not get the marker.
    let error = disk.flush(ONE).unwrap_err();
    assert!(matches!(error, FlushError::Mount(MountError::Nothing(_))));
    assert!(!guest.path("data").join(marker::FILE).exists());
    std::fs::remove_file(guest.path("mountinfo")).unwrap();
    assert!(wrong(&disk).contains("mountinfo can't be read"));
}

#[test]
fn a_flush_that_fails_leaves_no_marker_in_memory() {
    let guest = Guest::new();
    let mut disk = guest.disk();
    disk.flush(ONE).unwrap();
    assert!(matches!(disk.flush("short"), Err(FlushError::Marker(_))));
    disk.check().unwrap();
    let file = guest.path("data").join(marker::FILE);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(matches!(disk.flush(TWO), Err(FlushError::Write { .. })));
    disk.check().unwrap();
}
