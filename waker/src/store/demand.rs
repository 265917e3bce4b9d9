//! A wake that does not wait for all of the memory: the VM runs on what is there, and the rest comes behind.
//!
//! The disk is whole before: one with holes could not be booted from when the VM dies.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_transfer::{Asked, Layers};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::NodeStore;
use super::down::{Cost, FetchError, filled};
use super::manifest::StoredManifest;
use super::reference::{Stored, app_key};
use super::up::{open_layers, read_manifest};
use crate::app::blocking;
use crate::config::MachineConfig;
use crate::fault;
use crate::image::{AppDir, Draft, Live};
use crate::pager::{Job, Word};
use crate::vmm::VmmIdentity;

/// How pagers are started.
#[derive(Debug)]
pub struct Pagers {
    /// The configuration that tells them where the store is.
    pub config: PathBuf,
    /// What has to be fetched at the least for a wake to go on before it is there, in bytes.
    pub least: u64,
    /// Those that wait for their ends.
    pub tracker: TaskTracker,
}

/// How far a pager is, as it has told.
#[derive(Clone, Debug, Default)]
struct Told {
    mounted: bool,
    working_set: Option<Cost>,
    /// Why it failed, and whether what is in the store is spoilt.
    failed: Option<(String, bool)>,
}

/// A life whose memory is on its way.
#[derive(Debug)]
pub struct Demanded {
    /// Which generation it goes on from.
    pub generation: Generation,
    /// What its agent signs with.
    pub key: AgentKey,
    /// Its directory, consumed, until somebody takes it.
    pub live: Option<Live>,
    told: watch::Receiver<Told>,
}

impl Demanded {
    /// Returns what it cost when the working set is there.
    pub async fn working_set(&mut self) -> Result<Cost, FetchError> {
        let told = self.told.wait_for(|told| told.working_set.is_some() || told.failed.is_some());
        match told.await {
            Ok(told) => match (&told.working_set, &told.failed) {
                (Some(cost), _) => Ok(*cost),
                (None, failed) => Err(failure(failed.clone())),
            },
            Err(_) => Err(failure(None)),
        }
    }
}

async fn mounted(told: &mut watch::Receiver<Told>) -> Result<(), FetchError> {
    match told.wait_for(|told| told.mounted || told.failed.is_some()).await {
        Ok(told) if told.mounted => Ok(()),
        Ok(told) => Err(failure(told.failed.clone())),
        Err(_) => Err(failure(None)),
    }
}

fn failure(failed: Option<(String, bool)>) -> FetchError {
    let (why, spoilt) = failed.unwrap_or_else(|| ("it has ended".to_owned(), false));
    FetchError::Pager { why, spoilt }
}

impl NodeStore {
    /// Has pagers started for wakes from here on, where this machine can have any.
    pub fn with_pagers(mut self, pagers: Option<Pagers>) -> Self {
        self.pagers = pagers;
        self
    }

    /// Begins to fetch a generation whose memory need not be whole for its VM, this one, to run. None: it does not
    /// pay, or can't be, and [`Self::fetch`] is to be used.
    pub async fn demand(
        &self,
        app: &AppId,
        dir: &Arc<AppDir>,
        stored: &Stored,
        (machine, vmm): (&MachineConfig, &VmmIdentity),
        superseded: bool,
        asked: &Asked,
    ) -> Result<Option<Demanded>, FetchError> {
        let Some(pagers) = &self.pagers else { return Ok(None) };
        if self.is_cached(stored) {
            return Ok(None);
        }
        let at = app_key(app);
        let manifest = read_manifest(self, &at, stored, asked).await?;
        let bytes: u64 = manifest.memory.iter().map(|layer| layer.bytes).sum();
        // What can't be loaded here is refused with a reason by who looks at it whole.
        if bytes < pagers.least || manifest.image.fits(app, machine, vmm).is_err() {
            return Ok(None);
        }
        self.check(app, stored, &manifest)?;
        let file = || move |source| FetchError::File { path: dir.path().to_owned(), source };
        let place = Arc::clone(dir);
        let made =
            blocking(move || Ok::<_, io::Error>((place.make_draft()?, place.make_lazy_mount()?)));
        let (to, mount) = made.await.map_err(file())?;
        let draft = Draft::new(&to).map_err(file())?;
        let job = Job {
            at: at.as_str().to_owned(),
            memory: manifest.memory.clone(),
            image_id: manifest.image.image_id.clone(),
            app_dir: dir.path().to_owned(),
            draft: to.clone(),
            mount,
        };
        let mut told = pagers.start(app, &job).await.map_err(file())?;
        let disk = manifest.disk.as_ref().map(|disk| &*disk.layers).unwrap_or_default();
        let (state, ()) = futures_util::try_join!(self.state(&at, &manifest, asked), async {
            let layers = open_layers(self, &at, disk, asked).await?;
            if !layers.is_empty() {
                filled(Layers::new(layers)?, draft.disk()).await?;
            }
            Ok(())
        })?;
        mounted(&mut told).await?;
        fault::hit("store-mounted").map_err(file())?;
        let StoredManifest { image, key, .. } = manifest;
        let generation = image.generation;
        let (begun, theirs) = (Arc::clone(dir), key.clone());
        let live = blocking(move || {
            Draft::at(&to).finish(image, None, &state, &theirs)?;
            begun.begin_fetched(&to, superseded)
        });
        let live = live.await.map_err(file())?;
        fault::hit("store-begun").map_err(file())?;
        Ok(Some(Demanded { generation, key, live: Some(live), told }))
    }
}

impl Pagers {
    /// Starts one; it goes on when nobody listens to it any more.
    async fn start(&self, app: &AppId, job: &Job) -> io::Result<watch::Receiver<Told>> {
        // This very program, even if its file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--config").arg(&self.config).arg("pager");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut line = serde_json::to_vec(job)?;
        line.push(b'\n');
        input.write_all(&line).await?;
        drop(input);
        let (tell, told) = watch::channel(Told::default());
        let app = app.clone();
        self.tracker.spawn(listen(app, child, BufReader::new(output).lines(), tell));
        Ok(told)
    }
}

/// Until it has ended.
async fn listen(
    app: AppId,
    mut child: Child,
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    tell: watch::Sender<Told>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str::<Word>(&line) {
            Ok(Word::Mounted) => tell.send_modify(|told| told.mounted = true),
            Ok(Word::WorkingSet { cost, us }) => {
                tracing::debug!(%app, ?cost, us, "its working set is here");
                tell.send_modify(|told| told.working_set = Some(cost));
            }
            Ok(Word::Whole { cost, us }) => {
                tracing::info!(%app, ?cost, us, "all of its memory is here");
            }
            Ok(Word::Failed { error, spoilt }) => {
                tracing::error!(%app, error, spoilt, "its memory does not come");
                tell.send_modify(|told| told.failed = Some((error, spoilt)));
            }
            Err(error) => tracing::warn!(%app, %error, "a pager says what is not understood"),
        }
    }
    match child.wait().await {
        Ok(status) if status.success() => tracing::debug!(%app, "its pager has ended"),
        Ok(status) => tracing::warn!(%app, %status, "its pager has ended"),
        Err(error) => tracing::warn!(%app, %error, "its pager's end can't be seen"),
    }
}
