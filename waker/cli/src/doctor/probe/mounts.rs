//! Which file system a path is on, by `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::doctor) struct Mount {
    /// Where.
    pub(in crate::doctor) point: PathBuf,
    /// `ext4`, `xfs`, …
    pub(in crate::doctor) kind: String,
    /// The mount's options and the file system's.
    pub(in crate::doctor) options: Vec<String>,
}

/// The mount that `path`, which is absolute and without links, is on. Of several at one point the
/// last hides the others.
pub(super) fn of(path: &Path, mountinfo: &str) -> Option<Mount> {
    let on = |mount: &Mount| path.starts_with(&mount.point);
    let depth = |mount: &Mount| mount.point.components().count();
    mountinfo.lines().filter_map(parse).filter(on).max_by_key(depth)
}

fn parse(line: &str) -> Option<Mount> {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD…] - TYPE SOURCE OPTIONS
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let mut system = system.split(' ');
    let (point, of_mount) = (mount.next()?, mount.next()?);
    let (kind, of_system) = (system.next()?, system.nth(1)?);
    let options = of_mount.split(',').chain(of_system.split(','));
    Some(Mount {
        point: PathBuf::from(unescape(point)),
        kind: kind.to_owned(),
        options: options.map(str::to_owned).collect(),
    })
}

/// Blanks, tabs, line ends and backslashes are written as `\` and three octal digits.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_and_the_last_of_its_place() {
        let table = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
22 21 0:20 / /proc rw - proc proc rw
30 21 254:1 / /var/lib rw,noatime - xfs /dev/vdb rw
31 21 254:2 / /var/lib/rouse rw - ext4 /dev/vdc rw
32 31 254:3 / /var/lib/rouse rw master:1 - btrfs /dev/vdd rw,ssd
33 21 254:4 / /mnt/a\\040b rw - xfs /dev/vde rw
broken
";
        let kind = |path: &str| of(Path::new(path), table).map(|mount| mount.kind);
        for (path, expected) in [
            ("/", "ext4"),
            ("/var/library", "ext4"),
            ("/var/lib/x", "xfs"),
            ("/var/lib/rouse/apps", "btrfs"),
            ("/mnt/a b/c", "xfs"),
        ] {
            assert_eq!(kind(path).as_deref(), Some(expected), "{path}");
        }
        let root = of(Path::new("/etc"), table).unwrap();
        assert!(root.options.contains(&"discard".to_owned()), "{root:?}");
        assert_eq!(of(Path::new("relative"), table), None);
        assert_eq!(of(Path::new("/"), ""), None);
    }
}
