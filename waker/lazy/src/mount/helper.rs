//! `fusermount3`, which mounts for those who are not root.

use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use crate::error::{MountError, Unavailable};

const PROGRAM: &str = "fusermount3";

pub(super) fn is_there() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(PROGRAM).is_file())
}

/// Mounts at `dir`; the helper sends the connection over a socket.
pub(super) fn mount(dir: &Path, options: &str) -> Result<OwnedFd, MountError> {
    let fusermount = |said: String| MountError::Fusermount { dir: dir.into(), said };
    let system = |error: rustix::io::Errno| fusermount(error.to_string());
    // Inherited: what another child of ours gets at the same moment, it can't use.
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)
            .map_err(system)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(system)?;
    let mut child = Command::new(PROGRAM)
        .args(["-o", options, "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|_| Unavailable::NoFusermount)?;
    drop(theirs);
    let sent = received(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What it says is only told.
        let _ = stderr.read_to_string(&mut said);
    }
    let ended = child.wait().map_err(|error| fusermount(error.to_string()))?;
    match sent {
        Ok(Some(connection)) if ended.success() => Ok(connection),
        Err(error) if said.is_empty() => Err(fusermount(error.to_string())),
        _ => Err(fusermount(said.trim().to_owned())),
    }
}

fn received(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    let message = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if message.bytes == 0 {
        return Ok(None);
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    }))
}

/// Unmounts it, or detaches it at once when `lazily`.
pub(super) fn unmount(dir: &Path, lazily: bool) -> io::Result<()> {
    let how = if lazily { "-uz" } else { "-u" };
    let output = Command::new(PROGRAM).args([how, "--"]).arg(dir).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
