//! The waker's end of the agent's control channel: one Unix socket a VMM.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rouse_protocol::MAX_LINE;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::control::{FromAgent, MAX_BUSY_SECONDS, Patch, ToAgent};
use rouse_protocol::signature::AgentKey;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many questions to the agent may wait for being sent.
const QUESTIONS: usize = 16;

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
    questions: mpsc::Sender<ToAgent>,
    next: AtomicU64,
    _task: JoinSet<()>,
}

/// What the agent has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// How often it has started.
    pub hellos: u64,
    /// The newest life it has taken over.
    pub alive: Option<Alive>,
    /// How often it has said so.
    pub lives: u64,
    /// Until when the app is busy, as it says.
    pub busy_until: Option<Instant>,
}

/// A life that the agent has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Which.
    pub generation: Generation,
    /// Why the wall clock could not be set, if so.
    pub clock_error: Option<String>,
    /// Why fresh randomness could not be mixed in, if so.
    pub entropy_error: Option<String>,
}

/// Why the agent did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It says so.
    #[error("{0}")]
    Refused(String),
    /// It did not answer.
    #[error("the agent did not answer within {0:?}")]
    Timeout(Duration),
    /// The channel is closed, or the VMM has gone.
    #[error("the agent's control channel is closed")]
    Closed,
}

#[derive(Debug, Default)]
struct Shared {
    /// None until the VMM serves an app.
    identity: Mutex<Option<Identity>>,
    tell: Notify,
    /// Who waits for an answer, by the question's id.
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<String>>>>,
}

impl Control {
    /// Connects to the VMM's end of the channel.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let (read, write) = UnixStream::connect(socket).await?.into_split();
        let shared = Arc::new(Shared::default());
        let (say, heard) = watch::channel(Heard::default());
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let mut task = JoinSet::new();
        let theirs = Arc::clone(&shared);
        task.spawn(async move {
            let channel = Channel { shared: &theirs, write, say, questions: asked };
            if let Err(error) = channel.serve(BufReader::new(read)).await {
                tracing::debug!(%error, "the agent's control channel ended");
            }
            theirs.asked.lock().expect("no holder panics").clear();
        });
        // Not from 1: an answer to an earlier waker's question is none to ours.
        let next = AtomicU64::new(rand::random::<u64>() >> 16);
        Ok(Self { shared, heard, questions, next, _task: task })
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

    /// Has the guest write out its disk before it stands still.
    pub async fn flush(&self, within: Duration) -> Result<(), AskError> {
        let marker = hex::encode(rand::random::<[u8; 16]>());
        self.ask(within, |id| ToAgent::Flush { id, marker }).await
    }

    /// Has a patch carried out.
    pub async fn patch(&self, patch: Patch, within: Duration) -> Result<(), AskError> {
        self.ask(within, |id| ToAgent::Patch { id, patch }).await
    }

    async fn ask(
        &self,
        within: Duration,
        question: impl FnOnce(u64) -> ToAgent,
    ) -> Result<(), AskError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.shared.asked.lock().expect("no holder panics").insert(id, answer);
        let asked = Asked { shared: &self.shared, id };
        let both = async {
            self.questions.send(question(id)).await.map_err(|_| AskError::Closed)?;
            match answered.await {
                Ok(None) => Ok(()),
                Ok(Some(error)) => Err(AskError::Refused(error)),
                Err(_) => Err(AskError::Closed),
            }
        };
        let done = tokio::time::timeout(within, both).await;
        drop(asked);
        done.unwrap_or(Err(AskError::Timeout(within)))
    }
}

/// A question, forgotten when nobody waits for its answer any more.
struct Asked<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.shared.asked.lock().expect("no holder panics").remove(&self.id);
    }
}

struct Channel<'a> {
    shared: &'a Shared,
    write: OwnedWriteHalf,
    say: watch::Sender<Heard>,
    questions: mpsc::Receiver<ToAgent>,
}

impl Channel<'_> {
    async fn serve<R>(mut self, mut lines: BufReader<R>) -> io::Result<()>
    where
        R: tokio::io::AsyncRead + Unpin,
    {
        let mut line = Vec::new();
        loop {
            let mut bounded = (&mut lines).take((MAX_LINE - line.len()) as u64);
            tokio::select! {
                // Cancel-safe: what was read so far stays in `line`.
                read = bounded.read_until(b'\n', &mut line) => {
                    if read? == 0 {
                        let endless = line.len() == MAX_LINE;
                        let what = if endless { "sent an endless line" } else { "hung up" };
                        return Err(io::Error::other(format!("the guest {what}")));
                    }
                    if line.ends_with(b"\n") {
                        self.hear(&line).await?;
                        line.clear();
                    }
                }
                () = self.shared.tell.notified() => self.tell().await?,
                question = self.questions.recv() => match question {
                    Some(question) => self.send(&question).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn hear(&mut self, line: &[u8]) -> io::Result<()> {
        match serde_json::from_slice(line) {
            Ok(FromAgent::Hello { version }) => {
                tracing::debug!(version, "the agent has started");
                self.say.send_modify(|heard| heard.hellos += 1);
                self.tell().await?;
            }
            Ok(FromAgent::Alive { generation, stepped_ms, clock_error, entropy_error }) => {
                tracing::debug!(%generation, stepped_ms, "the agent has taken over its life");
                let alive = Alive { generation, clock_error, entropy_error };
                self.say.send_modify(|heard| {
                    heard.alive = Some(alive);
                    heard.lives += 1;
                });
            }
            Ok(FromAgent::Busy { seconds }) => {
                tracing::debug!(seconds, "the guest says that it is busy");
                let length = Duration::from_secs(seconds.min(MAX_BUSY_SECONDS));
                let until = (!length.is_zero()).then(|| Instant::now() + length);
                self.say.send_modify(|heard| heard.busy_until = until);
            }
            Ok(FromAgent::Flushed { id, error } | FromAgent::Patched { id, error }) => {
                let asked = self.shared.asked.lock().expect("no holder panics").remove(&id);
                // Whoever asked may have given up.
                asked.map(|asked| asked.send(error));
            }
            // The guest is not trusted: what it says wrongly is dropped.
            Err(error) => tracing::warn!(%error, "the guest sent no message of ours"),
        }
        Ok(())
    }

    async fn tell(&mut self) -> io::Result<()> {
        let Some(identity) = self.shared.identity.lock().expect("no holder panics").clone() else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.send(&ToAgent::Life {
            app: identity.app,
            generation: identity.generation,
            key: identity.key,
            unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            entropy: hex::encode(rand::random::<[u8; 32]>()),
        })
        .await
    }

    async fn send(&mut self, message: &ToAgent) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.write.write_all(&line).await
    }
}
