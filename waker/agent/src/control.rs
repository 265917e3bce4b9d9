//! The agent's end of the control channel: JSON objects, one a line, over a virtio-serial port
//! (or, in tests, a Unix socket).
//!
//! The port outlives whoever is at its other end: the waker may restart, and after a sleep it
//! is another process on another VMM. A virtio-serial port shows that as reads of zero bytes.
//!
//! This loop only takes over lives. What takes time goes to the [`Lanes`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rouse_protocol::control::{FromAgent, PORT_NAME, ToAgent};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::busy::Busy;
use crate::lanes::Lanes;
use crate::life::Life;
use crate::lines::LineBuffer;
use crate::voice::Voice;
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
/// reads `lives` any more. Flushes and patches go to `lanes`. Blocks: give it a thread of its own.
pub fn run(
    path: &Path,
    patch: &impl Patch,
    lanes: &Lanes,
    busy: &Busy,
    lives: &watch::Sender<Option<Arc<Life>>>,
) {
    while !lives.is_closed() {
        match open(path).and_then(|port| serve(port, patch, lanes, busy, lives)) {
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
    lanes: &Lanes,
    busy: &Busy,
    lives: &watch::Sender<Option<Arc<Life>>>,
) -> io::Result<()> {
    let mut voice = Voice::new(port.file.try_clone()?);
    let mut lines = LineBuffer::default();
    let mut chunk = [0; 4096];
    // Only a guest that does not know who it is asks. One that was restored is told unasked.
    let mut unasked = lives.borrow().is_none();
    loop {
        if unasked {
            // A virtio-serial port takes this only once the host has opened its end.
            voice.say(&FromAgent::Hello { version: env!("CARGO_PKG_VERSION").into() })?;
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
            voice = voice.for_another_host();
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
            match parse(&line) {
                Some(ToAgent::Life { app, generation, key, unix_ns, entropy }) => {
                    let life = Life { app, generation, key };
                    voice.say(&take_over(life, unix_ns, &entropy, patch, lives))?;
                    busy.told_by(&voice);
                }
                Some(ToAgent::Flush { id, marker }) => lanes.flush(id, marker, &voice)?,
                Some(ToAgent::Patch { id, patch }) => lanes.patch(id, patch, &voice)?,
                None => {}
            }
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
    life: Life,
    unix_ns: u64,
    entropy: &str,
    patch: &impl Patch,
    lives: &watch::Sender<Option<Arc<Life>>>,
) -> FromAgent {
    let generation = life.generation;
    // The clock comes first: the message is ageing. A patch that fails must not keep the app
    // from its visitors, so it is told and we go on.
    let (stepped_ms, clock_error) = match patch.clock(unix_ns) {
        Ok(stepped_ms) => (stepped_ms, None),
        Err(error) => {
            warn!(%error, "the wall clock can't be set");
            (0, Some(error.to_string()))
        }
    };
    lives.send_replace(Some(Arc::new(life)));
    let mixed = hex::decode(entropy).map_err(io::Error::other).and_then(|e| patch.entropy(&e));
    let entropy_error = mixed.err().map(|error| {
        warn!(%error, "no fresh entropy");
        error.to_string()
    });
    info!(%generation, stepped_ms, "a life has begun");
    FromAgent::Alive { generation, stepped_ms, clock_error, entropy_error }
}

#[cfg(test)]
mod tests {
    use super::*;

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
