//! The agent's end of the control channel: JSON objects, one a line, over a virtio-serial port
//! (or, in tests, a Unix socket).
//!
//! The port outlives whoever is at its other end: the waker may restart, and after a sleep it
//! is another process on another VMM. A virtio-serial port shows that as reads of zero bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rouse_protocol::MAX_LINE;
use rouse_protocol::control::{FromAgent, PORT_NAME, ToAgent};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::life::Life;
use crate::{clock, entropy};

/// How long to wait before looking again for a host that has gone, or a port that is not there.
/// Nobody waits for us, and a guest must idle.
const PAUSE: Duration = Duration::from_millis(50);

/// What taking over a life does to the machine.
pub trait Patch {
    /// Sets the wall clock to `unix_ns` nanoseconds of Unix time. Returns by how many
    /// milliseconds it was stepped.
    fn clock(&self, unix_ns: u64) -> io::Result<i64>;
    /// Mixes fresh randomness into the kernel's pool.
    fn entropy(&self, fresh: &[u8]) -> io::Result<()>;
}

/// Patches this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine;

impl Patch for Machine {
    fn clock(&self, unix_ns: u64) -> io::Result<i64> {
        clock::set(unix_ns)
    }

    fn entropy(&self, fresh: &[u8]) -> io::Result<()> {
        entropy::mix(fresh)
    }
}

/// The device of the virtio-serial port called [`PORT_NAME`], as `sys_class` (normally
/// `/sys/class/virtio-ports`) tells; none when there is no such port.
pub fn find_port(sys_class: &Path) -> Option<PathBuf> {
    let named = |entry: &std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("name")).is_ok_and(|n| n.trim() == PORT_NAME)
    };
    let entry = sys_class.read_dir().ok()?.flatten().find(named)?;
    Some(Path::new("/dev").join(entry.file_name()))
}

/// Says hello on the port at `path` and takes over each life that the waker tells, until nobody
/// reads `lives` any more. Blocks: give it a thread of its own.
pub fn run(path: &Path, patch: &impl Patch, lives: &watch::Sender<Option<Arc<Life>>>) {
    while !lives.is_closed() {
        match open(path).and_then(|port| serve(port, patch, lives)) {
            Ok(()) => {}
            Err(error) => warn!(path = %path.display(), %error, "the control port broke"),
        }
        thread::sleep(PAUSE);
    }
}

fn open(path: &Path) -> io::Result<Port> {
    if std::fs::metadata(path)?.file_type().is_socket() {
        let stream = UnixStream::connect(path)?;
        return Ok(Port { file: OwnedFd::from(stream).into(), reopen: true });
    }
    // The kernel lets a virtio-serial port be open only once, and the host's data would be lost
    // between two openings: this one is kept while the host comes and goes.
    Ok(Port { file: OpenOptions::new().read(true).write(true).open(path)?, reopen: false })
}

struct Port {
    file: File,
    /// The other end's going ends this file too.
    reopen: bool,
}

fn serve(
    mut port: Port,
    patch: &impl Patch,
    lives: &watch::Sender<Option<Arc<Life>>>,
) -> io::Result<()> {
    let mut lines = LineBuffer::default();
    let mut chunk = [0; 4096];
    // Only a guest that does not know who it is asks. One that was restored is told unasked.
    let mut unasked = lives.borrow().is_none();
    loop {
        if unasked {
            // A virtio-serial port takes this only once the host has opened its end.
            say(&mut port.file, &FromAgent::Hello { version: env!("CARGO_PKG_VERSION").into() })?;
            unasked = false;
        }
        let read = match port.file.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if lives.is_closed() {
            return Ok(());
        }
        if read == 0 {
            if port.reopen {
                return Ok(());
            }
            // Half a line of a host that has gone is no part of what the next one says.
            lines = LineBuffer::default();
            unasked = lives.borrow().is_none();
            thread::sleep(PAUSE);
            continue;
        }
        lines.push(&chunk[..read]);
        while let Some(line) = lines.next() {
            let Some(told) = parse(&line) else { continue };
            let answer = take_over(told, patch, lives);
            say(&mut port.file, &answer)?;
        }
    }
}

fn parse(line: &[u8]) -> Option<ToAgent> {
    // A line may hold a key, and an error may quote it: only the kind of error is told.
    serde_json::from_slice(line)
        .map_err(|e| warn!(bytes = line.len(), kind = ?e.classify(), "a line that can't be read"))
        .ok()
}

fn take_over(
    told: ToAgent,
    patch: &impl Patch,
    lives: &watch::Sender<Option<Arc<Life>>>,
) -> FromAgent {
    let (app, generation, key, unix_ns, entropy) = match told {
        ToAgent::Life { app, generation, key, unix_ns, entropy } => {
            (app, generation, key, unix_ns, entropy)
        }
        ToAgent::Flush { id, .. } => {
            return FromAgent::Flushed { id, error: Some("not yet".to_owned()) };
        }
        ToAgent::Patch { id, .. } => {
            return FromAgent::Patched { id, error: Some("not yet".to_owned()) };
        }
    };
    // The clock comes first: the message is ageing. A patch that fails must not keep the app
    // from its visitors, so it is told and we go on.
    let (stepped_ms, clock_error) = match patch.clock(unix_ns) {
        Ok(stepped_ms) => (stepped_ms, None),
        Err(error) => {
            warn!(%error, "the wall clock can't be set");
            (0, Some(error.to_string()))
        }
    };
    lives.send_replace(Some(Arc::new(Life { app, generation, key })));
    let mixed = hex::decode(&entropy).map_err(io::Error::other).and_then(|e| patch.entropy(&e));
    let entropy_error = mixed.err().map(|error| {
        warn!(%error, "no fresh entropy");
        error.to_string()
    });
    info!(%generation, stepped_ms, "a life has begun");
    FromAgent::Alive { generation, stepped_ms, clock_error, entropy_error }
}

fn say(port: &mut File, message: &FromAgent) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    port.write_all(&line)
}

/// Cuts what arrives into lines, and drops those longer than [`MAX_LINE`] without keeping them.
#[derive(Debug, Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// In a line that is too long, up to its end.
    dropping: bool,
}

impl LineBuffer {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(end) = self.bytes.iter().position(|b| *b == b'\n') else {
                if self.bytes.len() > MAX_LINE {
                    self.dropping = true;
                }
                if self.dropping {
                    self.bytes.clear();
                }
                return None;
            };
            let rest = self.bytes.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.bytes, rest);
            line.pop();
            if std::mem::take(&mut self.dropping) || line.len() > MAX_LINE {
                warn!("a line longer than {MAX_LINE} bytes was dropped");
                continue;
            }
            return Some(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for part in parts {
            buffer.push(part);
            lines.extend(std::iter::from_fn(|| buffer.next()));
            assert!(buffer.bytes.len() <= MAX_LINE);
        }
        lines
    }

    #[test]
    fn a_line_too_long_is_dropped_and_the_next_is_read() {
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(cut(&[&long, b"y\nz\n"]), [b"z"]);
        assert_eq!(cut(&[&long, &long, b"\nz\n"]), [b"z"]);
        assert_eq!(cut(&[&[&long[..], b"\nz\n"].concat()]), [b"z"]);
        let most = &long[..MAX_LINE];
        assert_eq!(cut(&[most, b"\n"]), [most]);
    }

    proptest! {
        #[test]
        fn where_the_reads_end_makes_no_difference(
            lines in prop::collection::vec("[^\n]{0,20}", 0..8),
            at in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|l| format!("{l}\n").into_bytes()).collect();
            let mut ends: Vec<usize> = at.iter().map(|i| i.index(text.len() + 1)).collect();
            ends.extend([0, text.len()]);
            ends.sort_unstable();
            let parts: Vec<&[u8]> = ends.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let expected: Vec<Vec<u8>> = lines.iter().map(|l| l.clone().into_bytes()).collect();
            prop_assert_eq!(cut(&parts), expected);
        }
    }

    #[test]
    fn the_port_is_found_by_name() {
        let class = tempfile::tempdir().unwrap();
        assert_eq!(find_port(class.path()), None);
        for (port, name) in [("vport0p1", "other\n"), ("vport1p1", "rouse.agent\n")] {
            std::fs::create_dir(class.path().join(port)).unwrap();
            std::fs::write(class.path().join(port).join("name"), name).unwrap();
        }
        assert_eq!(find_port(class.path()), Some("/dev/vport1p1".into()));
        assert_eq!(find_port(Path::new("/nonexistent")), None);
    }
}
