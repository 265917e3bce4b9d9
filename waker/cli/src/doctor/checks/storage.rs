//! The state directory and the file system under it.

use std::io;

use crate::doctor::probe::storage::{Storage, There};
use crate::doctor::{Check, Needs};
use crate::text::size;

/// With less than this many free bytes the next sleep may already fail.
const LOW: u64 = 256 << 20;

/// File systems whose locks, holes and syncs are another machine's word.
const REMOTE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "fuse"];

/// File systems that a reboot empties.
const FLEETING: [&str; 3] = ["tmpfs", "ramfs", "overlay"];

/// `waker`: the user it runs as, if it does.
pub(in crate::doctor) fn all(facts: &Storage, needs: &Needs, waker: Option<u32>) -> Vec<Check> {
    vec![
        state_dir(facts, waker),
        writable(facts),
        file_system(facts),
        space(facts, needs),
        reflink(facts),
        holes(facts),
    ]
}

fn state_dir(facts: &Storage, waker: Option<u32>) -> Check {
    let path = facts.path.display();
    let make = format!("install -d -m 0700 -o WAKER_USER {path}");
    match &facts.there {
        There::No => Check::warn(
            "state-dir",
            format!("{path} is not there"),
            format!("the waker makes it if it may; else `{make}`"),
        ),
        There::Unseen(error) => {
            let todo = "run it as the waker's user or as root";
            Check::fail("state-dir", format!("{path}: {error}"), todo)
        }
        There::NoDirectory => {
            Check::fail("state-dir", format!("{path} is no directory"), "set state_dir")
        }
        There::Yes { uid, mode } => {
            let found = format!("{path}: mode {mode:04o}, owner {uid}");
            if let Some(waker) = waker.filter(|waker| waker != uid && *waker != 0) {
                let todo = format!("the waker runs as {waker}: chown -R {waker} {path}");
                return Check::fail("state-dir", found, todo);
            }
            if mode & 0o077 != 0 {
                let todo = format!("images hold what guests keep secret: chmod 0700 {path}");
                return Check::warn("state-dir", found, todo);
            }
            Check::ok("state-dir", found)
        }
    }
}

fn writable(facts: &Storage) -> Check {
    let place = facts.tried.display();
    match &facts.writable {
        Ok(()) => Check::ok("writable", format!("a file can be made in {place}")),
        Err(error) => {
            let todo = match error.kind() {
                io::ErrorKind::PermissionDenied => "give it to the waker's user: chown",
                io::ErrorKind::ReadOnlyFilesystem => {
                    "mount it rw, and look at the kernel's log for why"
                }
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room",
                _ => "look at the disk and at the kernel's log",
            };
            Check::fail("writable", format!("no file can be made in {place}: {error}"), todo)
        }
    }
}

fn file_system(facts: &Storage) -> Check {
    let Some(mount) = &facts.mount else {
        let todo = "see `df -T` for its file system";
        return Check::warn("file-system", "its mount is not found in /proc", todo);
    };
    let kind = mount.kind.as_str();
    let found = format!("{kind} at {}", mount.point.display());
    let remote = kind.split('.').next().is_some_and(|kind| REMOTE.contains(&kind));
    if remote {
        let todo = "take a local disk: one VM an app is kept by locks, and a sleep by fsync";
        return Check::warn("file-system", found, todo);
    }
    if FLEETING.contains(&kind) {
        let todo = "apps are lost with a reboot or with the container: take a disk";
        return Check::warn("file-system", found, todo);
    }
    if mount.options.iter().any(|option| option == "discard") {
        let todo = "every hole that is punched waits for the disk: mount without discard, and run \
                    fstrim.timer";
        return Check::warn("file-system", format!("{found}, mounted with discard"), todo);
    }
    Check::ok("file-system", found)
}

fn space(facts: &Storage, needs: &Needs) -> Check {
    let free = match &facts.free {
        Ok(free) => *free,
        Err(error) => {
            let todo = "look at the disk and at the kernel's log";
            return Check::fail("space", format!("it can't be asked for: {error}"), todo);
        }
    };
    let found = format!("{} are free; all apps' memory is {}", size(free), size(needs.memory));
    if free < LOW {
        return Check::fail("space", found, "make room: a sleep without room leaves its app awake");
    }
    // What images take already counts as used; so this asks for more than is needed at last.
    if free < needs.memory {
        let todo = "make room, unless images are there already: each grows up to its app's memory";
        return Check::warn("space", found, todo);
    }
    Check::ok("space", found)
}

fn reflink(facts: &Storage) -> Check {
    let Some(tried) = &facts.reflink else { return untried("reflink") };
    match tried {
        Ok(()) => Check::ok("reflink", "files share blocks; an app can be rolled back"),
        Err(error) => {
            let todo = "no rollback to an app's last sleep: take XFS or Btrfs for it";
            Check::warn("reflink", format!("files can't share blocks: {error}"), todo)
        }
    }
}

fn holes(facts: &Storage) -> Check {
    let Some(tried) = &facts.punch else { return untried("holes") };
    match tried {
        Ok(()) => Check::ok("holes", "holes can be punched; images stay small"),
        Err(error) => {
            let todo = "images keep the blocks of their zeros: take ext4, XFS or Btrfs";
            Check::warn("holes", format!("no holes can be punched: {error}"), todo)
        }
    }
}

fn untried(check: &'static str) -> Check {
    Check::warn(check, "not tried: no file can be made there", "see `writable`")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::assert_check;
    use super::*;
    use crate::doctor::Verdict::{Fail, Ok as Well, Warn};
    use crate::doctor::probe::mounts::Mount;

    fn good() -> Storage {
        Storage {
            path: "/state".into(),
            there: There::Yes { uid: 7, mode: 0o700 },
            tried: "/state".into(),
            writable: Ok(()),
            mount: Some(mount("xfs", &["rw"])),
            free: Ok(10 << 30),
            reflink: Some(Ok(())),
            punch: Some(Ok(())),
        }
    }

    fn mount(kind: &str, options: &[&str]) -> Mount {
        Mount {
            point: PathBuf::from("/"),
            kind: kind.to_owned(),
            options: options.iter().map(|&o| o.to_owned()).collect(),
        }
    }

    #[test]
    fn a_good_disk_is_well_in_everything() {
        for check in all(&good(), &Needs::default(), Some(7)) {
            assert_check(&check, Well, "");
        }
    }

    #[test]
    fn the_directory() {
        let yes = |uid, mode| There::Yes { uid, mode };
        for (there, waker, verdict, words) in [
            (yes(7, 0o700), None, Well, "mode 0700, owner 7"),
            (yes(7, 0o755), Some(7), Warn, "chmod 0700"),
            (yes(8, 0o700), Some(7), Fail, "chown -R 7"),
            (yes(8, 0o700), Some(0), Well, "owner 8"),
            (There::No, None, Warn, "install -d"),
            (There::NoDirectory, None, Fail, "no directory"),
            (There::Unseen(io::ErrorKind::PermissionDenied.into()), None, Fail, "root"),
        ] {
            assert_check(&state_dir(&Storage { there, ..good() }, waker), verdict, words);
        }
        for (kind, words) in [
            (io::ErrorKind::PermissionDenied, "chown"),
            (io::ErrorKind::ReadOnlyFilesystem, "mount it rw"),
            (io::ErrorKind::StorageFull, "make room"),
            (io::ErrorKind::Other, "kernel's log"),
        ] {
            let facts = Storage { writable: Err(kind.into()), ..good() };
            assert_check(&writable(&facts), Fail, words);
        }
    }

    #[test]
    fn file_systems() {
        for (kind, options, verdict, words) in [
            ("ext4", &["rw", "noexec"][..], Well, "ext4 at /"),
            ("ext4", &["rw", "discard"], Warn, "fstrim"),
            ("btrfs", &["discard=async"], Well, "btrfs"),
            ("nfs4", &[], Warn, "local disk"),
            ("fuse.sshfs", &[], Warn, "local disk"),
            ("tmpfs", &[], Warn, "reboot"),
        ] {
            let facts = Storage { mount: Some(mount(kind, options)), ..good() };
            assert_check(&file_system(&facts), verdict, words);
        }
        assert_check(&file_system(&Storage { mount: None, ..good() }), Warn, "df -T");
    }

    #[test]
    fn room_and_what_files_can_do() {
        let needs = Needs { memory: 1 << 30, largest: None };
        for (free, verdict, words) in [
            (Ok(1 << 30), Well, "1.0 GiB are free"),
            (Ok((1 << 30) - 1), Warn, "each grows"),
            (Ok(LOW - 1), Fail, "make room"),
            (Err(io::ErrorKind::Other.into()), Fail, "kernel's log"),
        ] {
            assert_check(&space(&Storage { free, ..good() }, &needs), verdict, words);
        }
        let no = || Some(Err(io::ErrorKind::Unsupported.into()));
        assert_check(&reflink(&Storage { reflink: no(), ..good() }), Warn, "no rollback");
        assert_check(&reflink(&Storage { reflink: None, ..good() }), Warn, "not tried");
        assert_check(&holes(&Storage { punch: no(), ..good() }), Warn, "keep the blocks");
        assert_check(&holes(&Storage { punch: None, ..good() }), Warn, "not tried");
    }
}
