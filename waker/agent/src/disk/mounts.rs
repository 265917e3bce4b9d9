//! What is mounted where, as `/proc/self/mountinfo` tells (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device's numbers, `major:minor`.
    device: String,
    /// The kind of file system.
    kind: String,
    /// The device's file, most often.
    source: String,
    /// By the mount's own options or the file system's.
    pub(super) read_only: bool,
}

/// What is mounted at `dir`: the last line wins, it lies over those before it.
pub(super) fn find(table: &str, dir: &Path) -> Option<Mount> {
    table.lines().filter_map(|line| of_line(line, dir)).next_back()
}

fn of_line(line: &str, dir: &Path) -> Option<Mount> {
    let (own, of_file_system) = line.split_once(" - ")?;
    let mut own = own.split(' ').skip(2);
    let (device, _root, point, options) = (own.next()?, own.next()?, own.next()?, own.next()?);
    if unescape(point) != dir {
        return None;
    }
    let mut rest = of_file_system.split(' ');
    let (kind, source, super_options) = (rest.next()?, rest.next()?, rest.next()?);
    // Newer kernels leave `rw` in place after an error, and add the second word.
    let read_only = options
        .split(',')
        .chain(super_options.split(','))
        .any(|option| matches!(option, "ro" | "emergency_ro"));
    Some(Mount { device: device.into(), kind: kind.into(), source: source.into(), read_only })
}

/// Space, tab, line feed and backslash are written as three octal digits.
fn unescape(point: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(point.len());
    let mut rest = point.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

impl Mount {
    /// The file in which ext4 counts its errors, if this is an ext4 that has one.
    pub(super) fn error_count(&self, sys: &Path) -> Option<PathBuf> {
        if self.kind != "ext4" {
            return None;
        }
        // The kernel's own name of the device: the source may be any link to it.
        let link = std::fs::read_link(sys.join("dev/block").join(&self.device));
        let name = link.as_deref().unwrap_or(Path::new(&self.source)).file_name()?;
        let path = sys.join("fs/ext4").join(name).join("errors_count");
        path.exists().then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        22 1 0:2 / / rw shared:1 - rootfs none rw\n\
        30 22 254:0 / /data rw,relatime - ext4 /dev/vda rw,errors=remount-ro\n\
        31 22 254:16 / /with\\040space\\134 ro,noatime master:1 shared:2 - xfs /dev/vdb rw\n\
        32 22 254:32 / /after rw - ext4 /dev/vdc ro\n\
        33 22 254:32 / /newer rw - ext4 /dev/vdc rw,emergency_ro\n\
        34 22 254:48 / /over rw - ext4 /dev/vdd rw\n\
        35 34 0:30 / /over ro - tmpfs run rw\n\
        a line of another kind\n";

    #[test]
    fn mounts_are_found_with_whether_they_take_writes() {
        for (dir, kind, read_only) in [
            ("/", "rootfs", false),
            ("/data", "ext4", false),
            ("/data/", "ext4", false),
            ("/with space\\", "xfs", true),
            ("/after", "ext4", true),
            ("/newer", "ext4", true),
            ("/over", "tmpfs", true),
        ] {
            let mount = find(TABLE, Path::new(dir)).unwrap();
            assert_eq!((&*mount.kind, mount.read_only), (kind, read_only), "{dir}");
        }
        for dir in ["/dat", "/data/app", "data", ""] {
            assert_eq!(find(TABLE, Path::new(dir)), None, "{dir}");
        }
    }

    #[test]
    fn the_count_is_that_of_the_devices_own_name() {
        let sys = tempfile::tempdir().unwrap();
        let data = find(TABLE, Path::new("/data")).unwrap();
        assert_eq!(data.error_count(sys.path()), None);
        for name in ["vda", "vdz"] {
            let dir = sys.path().join("fs/ext4").join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("errors_count"), "0\n").unwrap();
        }
        let of = |name: &str| Some(sys.path().join("fs/ext4").join(name).join("errors_count"));
        assert_eq!(data.error_count(sys.path()), of("vda"));
        let links = sys.path().join("dev/block");
        std::fs::create_dir_all(&links).unwrap();
        let device = "../../devices/virtio0/block/vdz";
        std::os::unix::fs::symlink(device, links.join("254:0")).unwrap();
        assert_eq!(data.error_count(sys.path()), of("vdz"));
        let other = find(TABLE, Path::new("/over")).unwrap();
        assert_eq!(other.error_count(sys.path()), None);
    }
}
