//! The kernel's table of mounts, which is read without asking any file system.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// A mount, as far as we look at it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) minor: u32,
    pub(super) kind: String,
}

/// `dir` without links above its last part, which is not looked at: it may be dead.
pub(super) fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(dir),
    }
}

/// The topmost mount at `dir`, by the text of `/proc/self/mountinfo`.
pub(super) fn at(table: &str, dir: &Path) -> Option<Mount> {
    table.lines().filter_map(|line| mount(line, dir)).next_back()
}

fn mount(line: &str, dir: &Path) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(2);
    let minor = fields.next()?.split_once(':')?.1.parse().ok()?;
    let place = unescaped(fields.nth(1)?);
    let kind = after.split(' ').next()?.to_owned();
    (place == dir.as_os_str()).then_some(Mount { minor, kind })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(field: &str) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let escape = others.get(..3).filter(|_| *first == b'\\');
        let digits = escape.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &others[3..] } else { others };
    }
    debug_assert!(!OsStr::from_bytes(&bytes).is_empty());
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:52 / /tmp/a\\040b rw,nosuid shared:3 - fuse.rouse rouse rw,user_id=0
41 22 0:53 / /tmp/c rw - fuse.other x rw
42 22 0:54 / /tmp/c rw - fuse.rouse rouse rw
";

    #[test]
    fn the_topmost_mount_is_found_and_odd_names_are_read() {
        let found = |dir: &str| at(TABLE, Path::new(dir)).map(|mount| (mount.minor, mount.kind));
        assert_eq!(found("/tmp/a b"), Some((52, "fuse.rouse".into())));
        assert_eq!(found("/tmp/c"), Some((54, "fuse.rouse".into())));
        assert_eq!(found("/tmp"), None);
        assert_eq!(found("/"), Some((0, "ext4".into())));
    }
}
