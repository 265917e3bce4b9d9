//! Mounts, and what is left of them.

mod helper;
mod table;

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};

use crate::error::{CleanError, MountError, Unavailable};
use crate::file::Owner;

const DEVICE: &str = "/dev/fuse";
/// The type of our mounts, by which they are told from others'.
const KIND: &str = "fuse.rouse";

fn device() -> Result<OwnedFd, Unavailable> {
    match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => Ok(device.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unavailable::NoDevice),
        Err(error) => Err(Unavailable::Device(error)),
    }
}

/// Whether a lazy file can be had on this machine, as far as can be said without a mount.
pub fn available() -> Result<(), Unavailable> {
    // The helper opens it as who calls, too.
    device()?;
    if geteuid().is_root() || helper::is_there() { Ok(()) } else { Err(Unavailable::NoFusermount) }
}

/// Whether others than who mounts have to get in. Root gets in nowhere but by this, either.
pub(crate) fn for_others(owner: Owner) -> bool {
    owner.uid != geteuid().as_raw()
}

/// Mounts at `dir`: the connection to answer the kernel by.
pub(crate) fn mount(dir: &Path, owner: Owner) -> Result<OwnedFd, MountError> {
    let at = |source| MountError::Dir { dir: dir.into(), source };
    let mode = fs::metadata(dir).map_err(at)?.permissions().mode();
    let others = if for_others(owner) { ",allow_other" } else { "" };
    if !geteuid().is_root() {
        available()?;
        let options = format!("default_permissions,subtype=rouse,fsname=rouse{others}");
        return helper::mount(dir, &options);
    }
    let device = device()?;
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions{others}",
        device.as_fd().as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
    );
    let refused = |source| MountError::Refused { dir: dir.into(), source };
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount("rouse", dir, KIND, flags, data.as_c_str())
        .map_err(|error| refused(error.into()))?;
    Ok(device)
}

/// The number of the connection of our mount at `dir`.
pub(crate) fn connection(dir: &Path) -> io::Result<Option<u32>> {
    let found = table::at(&fs::read_to_string("/proc/self/mountinfo")?, dir);
    Ok(found.filter(|mount| mount.kind == KIND).map(|mount| mount.minor))
}

/// Unmounts what nobody has open, once what was written is through.
fn unmount(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => helper::unmount(dir, false),
        other => Ok(other?),
    }
}

/// Unmounts it as soon as nobody has it open, if that is within `patience`; says whether.
pub(crate) fn unmount_soon(dir: &Path, patience: Duration) -> bool {
    let begun = Instant::now();
    while unmount(dir).is_err() {
        if begun.elapsed() >= patience {
            return false;
        }
        // The system tells nobody when a file is closed.
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Detaches it from the tree, and ends the connection if we may.
pub(crate) fn detach(dir: &Path) -> io::Result<()> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) => helper::unmount(dir, true),
        other => Ok(other?),
    }
}

/// Ends a connection, whoever waits: who mounted it may.
pub(crate) fn abort(connection: u32) -> io::Result<()> {
    fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1")
}

/// Lets a guest's memory be as dirty as any file's may. By itself the kernel allows a FUSE file a hundredth of that, and
/// slows down who writes more. Root may change it; for others it stays.
pub(crate) fn allow_dirty(connection: u32) {
    let of = format!("/sys/class/bdi/0:{connection}");
    for (name, value) in [("strict_limit", "0"), ("max_ratio", "100")] {
        // Where it can't be had a guest is slower, and nothing else.
        if let Err(error) = fs::write(format!("{of}/{name}"), value) {
            tracing::debug!(%error, name, "how much may be dirty stays as it is");
        }
    }
}

/// Detaches mounts at `dir` whose process was killed; says how many.
///
/// Only this crate's mounts are touched, and none that answers. It waits for one that is alive and slow to answer.
pub fn clean(dir: &Path) -> Result<usize, CleanError> {
    let system = |source| CleanError::System { dir: dir.into(), source };
    for cleaned in 0.. {
        let table = fs::read_to_string("/proc/self/mountinfo").map_err(system)?;
        let Some(mount) = table::at(&table, &table::absolute(dir).map_err(system)?) else {
            return Ok(cleaned);
        };
        if mount.kind != KIND {
            return Err(CleanError::NotOurs { dir: dir.into(), kind: mount.kind });
        }
        // Attributes come from the kernel's cache; this is always asked.
        match rustix::fs::statvfs(dir) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => detach(dir).map_err(system)?,
            Ok(_) => return Err(CleanError::Alive { dir: dir.into() }),
            Err(error) => return Err(system(error.into())),
        }
    }
    Ok(0)
}
