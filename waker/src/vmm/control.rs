//! The waker's end of the agent's control channel: one Unix socket a VMM.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::MAX_LINE;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::control::{FromAgent, ToAgent};
use rouse_protocol::signature::AgentKey;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Who the guest is told to be.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The app.
    pub app: AppId,
    /// The life.
    pub generation: Generation,
    /// The agent's key.
    pub key: AgentKey,
}

/// A control channel and the task that serves it.
///
/// The agent is told its life when it says hello, and whenever [`Control::tell`] is called.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    heard: watch::Receiver<Heard>,
    _task: JoinSet<()>,
}

/// What the agent has said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// It has started.
    pub hello: bool,
    /// The newest life it has taken over.
    pub alive: Option<Generation>,
}

#[derive(Debug, Default)]
struct Shared {
    /// None until the VMM serves an app.
    identity: Mutex<Option<Identity>>,
    tell: Notify,
}

impl Control {
    /// Connects to the VMM's end of the channel.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let (read, write) = UnixStream::connect(socket).await?.into_split();
        let shared = Arc::new(Shared::default());
        let (say, heard) = watch::channel(Heard::default());
        let mut task = JoinSet::new();
        let theirs = Arc::clone(&shared);
        task.spawn(async move {
            let mut lines = BufReader::new(read);
            let mut write = write;
            if let Err(error) = serve(&theirs, &mut lines, &mut write, &say).await {
                tracing::debug!(%error, "the agent's control channel ended");
            }
        });
        Ok(Self { shared, heard, _task: task })
    }

    /// Sets who the guest is from now on, without telling it yet.
    pub fn set(&self, identity: Identity) {
        *self.shared.identity.lock().expect("no holder panics") = Some(identity);
    }

    /// Tells the agent who it is, what time it is, and gives it entropy. Nobody waits for it.
    pub fn tell(&self) {
        self.shared.tell.notify_one();
    }

    /// What the agent has said.
    pub fn heard(&self) -> watch::Receiver<Heard> {
        self.heard.clone()
    }
}

async fn serve<R: tokio::io::AsyncRead + Unpin>(
    shared: &Shared,
    lines: &mut BufReader<R>,
    write: &mut OwnedWriteHalf,
    say: &watch::Sender<Heard>,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let mut bounded = lines.take((MAX_LINE - line.len()) as u64);
        tokio::select! {
            // Cancel-safe: what was read so far stays in `line`.
            read = bounded.read_until(b'\n', &mut line) => {
                if read? == 0 {
                    let what = if line.len() == MAX_LINE { "sent an endless line" } else { "hung up" };
                    return Err(io::Error::other(format!("the guest {what}")));
                }
                if !line.ends_with(b"\n") {
                    continue;
                }
                match serde_json::from_slice(&line) {
                    Ok(FromAgent::Hello { version }) => {
                        tracing::debug!(version, "the agent has started");
                        say.send_modify(|heard| heard.hello = true);
                        tell(shared, write).await?;
                    }
                    Ok(FromAgent::Alive { generation, stepped_ms, .. }) => {
                        tracing::debug!(%generation, stepped_ms, "the agent has taken over its life");
                        say.send_modify(|heard| heard.alive = Some(generation));
                    }
                    Ok(other) => tracing::debug!(?other, "the agent says"),
                    // The guest is not trusted: what it says wrongly is dropped.
                    Err(error) => tracing::warn!(%error, "the guest sent no message of ours"),
                }
                line.clear();
            }
            () = shared.tell.notified() => tell(shared, write).await?,
        }
    }
}

async fn tell(shared: &Shared, write: &mut OwnedWriteHalf) -> io::Result<()> {
    let Some(identity) = shared.identity.lock().expect("no holder panics").clone() else {
        return Ok(());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let message = ToAgent::Life {
        app: identity.app,
        generation: identity.generation,
        key: identity.key,
        unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        entropy: hex::encode(rand::random::<[u8; 32]>()),
    };
    let mut line = serde_json::to_vec(&message)?;
    line.push(b'\n');
    write.write_all(&line).await
}
