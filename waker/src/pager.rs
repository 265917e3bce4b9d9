//! `rouse-waker pager`: fills one guest's memory file from the store while the guest runs, and serves it by FUSE.
//!
//! A process of its own, since a waker that restarts must not take a guest's memory with it. It is told what to do by
//! one line of JSON on its standard input, tells how far it is by lines on its standard output, which nobody need
//! read, and in `lazy.json`; SIGTERM ends it.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rouse_lazy::{Owner, ServeError};
use rouse_snapshot_format::ImageId;
use rouse_store::Key;
use rouse_transfer::{Fill, FillError, FillOptions, Layers, LayersError, Patience, StartError};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::image::{Filled, LazyRecord};
use crate::store::{Archived, Cost, NodeStore, OpenLayersError};

/// What a pager is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The app's part of the store.
    pub at: String,
    /// The memory's archives, the bottommost first.
    pub memory: Vec<Archived>,
    /// What memory, state and disk have in common.
    pub image_id: String,
    /// The app's directory.
    pub app_dir: PathBuf,
    /// The directory with the empty memory file; its map is written beside it.
    pub draft: PathBuf,
    /// Where to mount: an empty directory.
    pub mount: PathBuf,
}

/// What a pager tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The file is there to be mapped.
    Mounted,
    /// The working set is in it.
    WorkingSet {
        /// What it took until then.
        cost: Cost,
        /// How long, in microseconds.
        us: u64,
    },
    /// All of it is.
    Whole {
        /// What it took.
        cost: Cost,
        /// How long, in microseconds.
        us: u64,
    },
    /// It is not, and will not be.
    Failed {
        /// Why.
        error: String,
        /// What is in the store is spoilt.
        spoilt: bool,
    },
}

/// Why a pager ends otherwise than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// Its job makes no sense.
    #[error("the job: {0}")]
    Job(String),
    /// The archives can't be opened.
    #[error(transparent)]
    Open(#[from] OpenLayersError),
    /// They do not fit each other.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// The map can't be written.
    #[error(transparent)]
    Map(#[from] rouse_snapshot_format::WriteMapError),
    /// The file can't be filled.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It can't be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A file of its own can't be opened or written.
    #[error("{0}")]
    File(#[from] std::io::Error),
}

impl PagerError {
    fn is_spoilt(&self) -> bool {
        match self {
            Self::Open(error) => error.is_spoilt(),
            Self::Layers(_) => true,
            _ => false,
        }
    }
}

/// A guest waits for its memory, and can do nothing without.
const PATIENCE: Patience = Patience {
    tries: u32::MAX,
    time: Duration::from_secs(u32::MAX as u64),
    first: Duration::from_millis(100),
    most: Duration::from_secs(5),
};

fn tell(word: &Word) {
    let Ok(mut line) = serde_json::to_vec(word) else { return };
    line.push(b'\n');
    // The waker that would read it may be gone; `lazy.json` says the same.
    let _ = std::io::stdout().write_all(&line);
}

/// Does `job`, and returns when it is told to end.
pub async fn run(node: &NodeStore, job: Job) -> Result<(), PagerError> {
    let outcome = serve(node, job).await;
    if let Err(error) = &outcome {
        tell(&Word::Failed { error: error.to_string(), spoilt: error.is_spoilt() });
    }
    outcome
}

async fn serve(node: &NodeStore, job: Job) -> Result<(), PagerError> {
    // From the start: whoever ends it may be early.
    let mut terminate = signal(SignalKind::terminate())?;
    let at = Key::new(&*job.at).map_err(|error| PagerError::Job(error.to_string()))?;
    let id = ImageId::from_hex(&job.image_id);
    let id = id.map_err(|error| PagerError::Job(error.to_string()))?;
    LazyRecord::own(Filled::Filling)?.write(&job.app_dir)?;
    let asked = rouse_transfer::Asked::default();
    let layers = Layers::new(node.open_layers(&at, &job.memory, &asked).await?)?;
    let map = layers.map().clone().with_image_id(id);
    map.write_unsynced(job.draft.join("memory.map"))?;
    let path = job.draft.join("memory.img");
    let file = File::options().read(true).write(true).open(path)?;
    let backing = file.try_clone()?;
    let size = map.mem_size();
    let options = FillOptions { patience: PATIENCE, ..FillOptions::default() };
    let fill = Arc::new(Fill::start(layers, file, options)?);
    let (windows, mount) = (Arc::clone(&fill), job.mount.clone());
    let (up, mounted) = tokio::sync::oneshot::channel();
    let owner = Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    let mut serving = tokio::task::spawn_blocking(move || {
        rouse_lazy::serve(&mount, "memory.img", backing, size, windows, owner, |file| {
            // Nobody waits for it any more: then it is ended soon.
            let _ = up.send(Arc::clone(file));
        })
    });
    let file = tokio::select! {
        served = &mut serving => return joined(served),
        file = mounted => file.map_err(|_| PagerError::Job("it broke off".to_owned()))?,
    };
    tell(&Word::Mounted);
    let filled = async {
        let cost = || {
            let metrics = fill.metrics();
            Cost {
                requests: asked.requests() + metrics.requests,
                retries: asked.retries() + metrics.retries,
                hedges: metrics.hedges,
                bytes: metrics.bytes,
            }
        };
        let us = |after: Option<Duration>| {
            u64::try_from(after.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
        };
        fill.working_set().await?;
        tell(&Word::WorkingSet { cost: cost(), us: us(fill.metrics().working_set_after) });
        fill.whole().await?;
        file.set_whole();
        tell(&Word::Whole { cost: cost(), us: us(fill.metrics().whole_after) });
        Ok::<_, FillError>(())
    };
    let watched = async {
        let state = match filled.await {
            Ok(()) => Filled::Whole,
            Err(error) => {
                let word = Word::Failed { error: error.to_string(), spoilt: is_spoilt(&error) };
                tell(&word);
                Filled::Failed(error.to_string())
            }
        };
        let written = LazyRecord::own(state).and_then(|record| record.write(&job.app_dir));
        if let Err(error) = written {
            tracing::error!(%error, "nobody will know that the memory is there");
        }
        // What is not there is an error to whoever touches it; what is, is served for as long as anybody wants.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = &mut serving => return joined(served),
        _ = terminate.recv() => {}
        () = watched => {}
    }
    fill.cancel();
    let ended = tokio::task::spawn_blocking(move || file.unmount()).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!(%error, "a memory file is not unmounted");
    }
    Ok(())
}

fn joined(
    served: Result<Result<(), ServeError>, tokio::task::JoinError>,
) -> Result<(), PagerError> {
    match served {
        Ok(served) => Ok(served?),
        Err(error) => Err(PagerError::Job(error.to_string())),
    }
}

fn is_spoilt(error: &FillError) -> bool {
    use rouse_store::StoreError as E;
    match error {
        FillError::Corrupt { .. } => true,
        FillError::Store { source, .. } => {
            matches!(source, E::NotFound { .. } | E::Changed { .. } | E::Corrupt { .. })
        }
        _ => false,
    }
}
