//! systemd, as far as the proxy sees it: sockets that are there before it, and a socket to tell it all.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rouse_tests::{Binaries, Front, patience};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};

/// The other end of `NOTIFY_SOCKET`.
pub(crate) struct Notified {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notified {
    pub(crate) fn new(directory: &Path) -> Self {
        let path = directory.join("notify");
        Self { socket: UnixDatagram::bind(&path).expect("a socket of ours"), path }
    }

    pub(crate) fn path(&self) -> String {
        self.path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// The next message.
    pub(crate) async fn next(&self) -> String {
        let mut buffer = vec![0; 4096];
        let read = tokio::time::timeout(patience(), self.socket.recv(&mut buffer)).await;
        let read = read.expect("something is told").expect("our socket can be read");
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    }

    /// What has been told and nobody has read, without waiting.
    pub(crate) fn rest(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 4096];
        while let Ok(read) = self.socket.try_recv(&mut buffer) {
            all.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
        }
        all
    }
}

/// Starts the proxy as systemd would: with these sockets as its descriptors 3 and 4, by these names.
pub(crate) fn activate(front: &Front, sockets: [OwnedFd; 2], names: &str, notify: &str) -> Child {
    // A shell puts them where they belong and becomes the proxy, so that it knows its own number.
    let script = "exec 3<&0 4<&1 </dev/null >&2\nexport LISTEN_PID=$$\nexec \"$@\"";
    let [third, fourth] = sockets;
    let log = std::fs::File::create(front.directory().join("activated.log"));
    Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(Binaries::find().proxy())
        .arg("--config")
        .arg(front.file())
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", names)
        .env("NOTIFY_SOCKET", notify)
        .stdin(Stdio::from(third))
        .stdout(Stdio::from(fourth))
        .stderr(log.expect("a file of ours can be written"))
        .kill_on_drop(true)
        .spawn()
        .expect("there is a shell")
}
