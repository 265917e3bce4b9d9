//! The QEMU Machine Protocol on a Unix socket, with passing of file descriptors.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use qapi::ExecuteError;
use qapi::futures::{QapiService, QmpStreamTokio};
use qapi::qmp::{self, Event, MigrationStatus, QmpCommand};
use tokio::io::{Interest, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long QEMU may take for one command. All of ours take milliseconds; a machine whose two
/// cores are busy with other guests takes longer.
pub(super) const COMMAND: Duration = Duration::from_secs(20);

/// Why QEMU did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket can't be connected to, or was closed.
    #[error("QEMU's socket {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It answered with an error.
    #[error("QEMU refused {command}: {detail}")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's words.
        detail: String,
    },
    /// It did not answer.
    #[error("QEMU did not answer {command} within {COMMAND:?}")]
    Timeout {
        /// The command.
        command: &'static str,
    },
    /// It answered something that makes no sense to us.
    #[error("QEMU's answer to {command} is not understood: {detail}")]
    Answer {
        /// The command.
        command: &'static str,
        /// What it answered.
        detail: String,
    },
}

/// A connection to one QEMU.
pub struct Qmp {
    path: PathBuf,
    service: QapiService<QmpStreamTokio<WriteHalf<UnixStream>>>,
    /// The same socket once more, for messages with a file descriptor.
    raw: UnixStream,
    migration: watch::Receiver<Option<MigrationStatus>>,
    stalled: watch::Receiver<bool>,
    stall: watch::Sender<bool>,
    _events: JoinSet<()>,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Qmp {
    /// Connects and leaves the negotiation behind, which may take `patience`.
    pub async fn connect(path: &Path, patience: Duration) -> Result<Self, QmpError> {
        let socket = |source| QmpError::Socket { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(socket)?;
        let stream = stream.into_std().map_err(socket)?;
        let raw = stream.try_clone().and_then(UnixStream::from_std).map_err(socket)?;
        let stream = UnixStream::from_std(stream).map_err(socket)?;
        let hello = async {
            let (read, write) = tokio::io::split(stream);
            QmpStreamTokio::open_split(read, write).await?.negotiate().await
        };
        let (service, mut events) = tokio::time::timeout(patience, hello)
            .await
            .map_err(|_| QmpError::Timeout { command: "qmp_capabilities" })?
            .map_err(socket)?
            .into_parts();
        let (tell, migration) = watch::channel(None);
        let (stall, stalled) = watch::channel(false);
        let found = stall.clone();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Reading events is also what lets commands be answered.
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::MIGRATION { data, .. }) => {
                        tell.send_replace(Some(data.status));
                    }
                    Ok(Event::BLOCK_IO_ERROR { data, .. }) => {
                        let stops = data.action == qmp::BlockErrorAction::stop;
                        tracing::warn!(
                            reason = data.reason,
                            stops,
                            "the disk's file can't be used"
                        );
                        // One that is only reported takes nothing back.
                        if stops {
                            stall.send_replace(true);
                        }
                    }
                    Ok(Event::RESUME { .. }) => {
                        stall.send_replace(false);
                    }
                    Ok(event) => tracing::trace!(?event, "QEMU says"),
                    Err(error) => {
                        tracing::debug!(%error, "QEMU's socket ended");
                        return;
                    }
                }
            }
        });
        Ok(Self {
            path: path.to_owned(),
            service,
            raw,
            migration,
            stalled,
            stall: found,
            _events: driver,
        })
    }

    /// Runs one command.
    pub async fn execute<C: QmpCommand>(&self, command: C) -> Result<C::Ok, QmpError> {
        match tokio::time::timeout(COMMAND, self.service.execute(command)).await {
            Ok(Ok(ok)) => Ok(ok),
            Ok(Err(ExecuteError::Qapi(error))) => {
                Err(QmpError::Refused { command: C::NAME, detail: error.desc })
            }
            Ok(Err(ExecuteError::Io(source))) => {
                Err(QmpError::Socket { path: self.path.clone(), source })
            }
            Err(_) => Err(QmpError::Timeout { command: C::NAME }),
        }
    }

    /// Gives QEMU a file descriptor under `name`. Not to be called twice at once: the socket keeps
    /// only the newest descriptor until `getfd` takes it.
    pub async fn give_fd(&self, name: &str, fd: BorrowedFd<'_>) -> Result<(), QmpError> {
        // A space between two commands means nothing in JSON and carries the descriptor.
        let send = || {
            let fds = [fd.as_raw_fd()];
            let space = [IoSlice::new(b" ")];
            let control = [ControlMessage::ScmRights(&fds)];
            sendmsg::<()>(self.raw.as_raw_fd(), &space, &control, MsgFlags::empty(), None)
                .map_err(io::Error::from)
        };
        self.raw
            .async_io(Interest::WRITABLE, send)
            .await
            .map_err(|source| QmpError::Socket { path: self.path.clone(), source })?;
        self.execute(qmp::getfd { fdname: name.to_owned() }).await.map(drop)
    }

    /// The guest was found as [`Self::stalled`] tells: the event came before this connection.
    pub fn found_stalled(&self) {
        self.stall.send_replace(true);
    }

    /// Whether QEMU has stopped the guest since its disk's file could not be written.
    pub fn stalled(&self) -> watch::Receiver<bool> {
        self.stalled.clone()
    }

    /// How migrations (saves and loads) go on from here.
    pub fn migration(&self) -> watch::Receiver<Option<MigrationStatus>> {
        let mut migration = self.migration.clone();
        migration.mark_unchanged();
        migration
    }
}
