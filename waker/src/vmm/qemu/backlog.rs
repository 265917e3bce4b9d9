//! A longer queue in front of a guest's forwarded port.
//!
//! QEMU's user-mode network listens with a backlog of 1 (libslirp, `tcpx_listen`). When a crowd is let
//! go at once the queue overflows, and the kernel drops the last step of most handshakes: those
//! visitors take themselves for connected, wait for half a minute and more, or are reset (of 200
//! connections at once 61 had no answer, after 109 s; with a longer queue all had one within 1.4 s).
//! A second listen(2) on a listening socket does nothing but change the length of its queue, so the
//! socket is borrowed from QEMU (pidfd_getfd(2), as a debugger would) and listened on again.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, RawFd};

use nix::sys::socket::{Backlog, getsockopt, listen, sockopt};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

/// As many as the most visitors that are held for one app by default. The kernel's own limit
/// (`net.core.somaxconn`, 4096) is above it.
const QUEUE: i32 = 1024;

/// Lengthens the queue of every TCP port that the process `pid`, which `pidfd` holds, listens on.
/// Gives their number. Where borrowing is forbidden (a seccomp filter, ptrace_scope 2 or 3) the
/// guest works on with the short queue.
pub(crate) fn lengthen(pid: i32, pidfd: impl AsFd) -> io::Result<usize> {
    let mut ports = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let is_socket = target.as_os_str().as_encoded_bytes().starts_with(b"socket:");
        let Some(number) = number.filter(|_| is_socket) else { continue };
        let socket = TcpListener::from(pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?);
        // A socket of another family has no such address, and one that is connected does not accept.
        let accepts = getsockopt(&socket, sockopt::AcceptConn).unwrap_or(false);
        if accepts && socket.local_addr().is_ok() {
            listen(&socket, Backlog::new(QUEUE)?)?;
            ports += 1;
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn a_short_queue_grows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(lengthen(pid, &pidfd).unwrap() >= 1);

        // Nobody accepts: in a queue of 1 the third would find no place.
        let address = listener.local_addr().unwrap();
        let join = |_| TcpStream::connect_timeout(&address, Duration::from_secs(60)).unwrap();
        let crowd: Vec<_> = (0..64).map(join).collect();
        assert_eq!(crowd.len(), 64);
    }
}
