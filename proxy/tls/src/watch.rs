//! Reloading a store when its files change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::certificate::{LoadError, LoadFault, at};
use crate::config::Config;
use crate::store::{Reload, Store};

/// How long files have to stand still before they are read: a certificate and its key are written
/// one after the other.
const STILL: Duration = Duration::from_millis(250);
/// How long that is waited for where files change all the time.
const AT_MOST: Duration = Duration::from_secs(5);
/// How often files are read without a sign: behind a link or on a network they may change unseen.
const ANYWAY: Duration = Duration::from_secs(3600);

/// Why files can't be watched.
#[derive(Debug, thiserror::Error)]
#[error("{} can't be watched: {error}", path.display())]
pub struct WatchError {
    /// The directory.
    pub path: PathBuf,
    /// Why. Where it is a limit: see `fs.inotify.max_user_watches`.
    pub error: notify::Error,
}

/// Reloads `store` whenever its files change and once an hour, and tells `reloaded` how that went,
/// until `cancel`. It returns early only if watching can't begin.
pub async fn watch(
    store: Arc<Store>,
    cancel: CancellationToken,
    mut reloaded: impl FnMut(Reload),
) -> Result<(), WatchError> {
    let changed = Arc::new(Notify::new());
    // It watches as long as it lives.
    let mut watcher = begin(store.config(), changed.clone())?;
    // What changed between the store's loading and now was not seen.
    changed.notify_one();
    while cancel.run_until_cancelled(settled(&changed)).await.is_some() {
        let (store, changed) = (store.clone(), changed.clone());
        let again = move || {
            // What is watched is a directory, not its name, and that may lead to another one by
            // now. Before the reading, so that nothing changes unseen.
            let watcher = begin(store.config(), changed);
            (watcher, store.reload())
        };
        // Only a panic or the end of the runtime leaves it without a result.
        let Ok((again, mut reload)) = tokio::task::spawn_blocking(again).await else { continue };
        match again {
            Ok(again) => watcher = again,
            // What is left is watched on, and what is above it too: it will be seen to come back.
            Err(error) => reload.errors.extend(error.told_by(&reload)),
        }
        reloaded(reload);
    }
    drop(watcher);
    Ok(())
}

impl WatchError {
    /// The same as an error of a reload, unless that has one of this directory already: one that is
    /// gone can be neither watched nor read.
    fn told_by(self, reload: &Reload) -> Option<LoadError> {
        let told = reload.errors.iter().any(|error| error.file == self.path);
        (!told).then(|| at(&self.path)(LoadFault::Unwatched(self.error.to_string())))
    }
}

/// Waits for a change, and then for stillness.
async fn settled(changed: &Notify) {
    if tokio::time::timeout(ANYWAY, changed.notified()).await.is_err() {
        return;
    }
    let end = Instant::now() + AT_MOST;
    while Instant::now() < end {
        if tokio::time::timeout(STILL, changed.notified()).await.is_err() {
            return;
        }
    }
}

fn begin(config: &Config, changed: Arc<Notify>) -> Result<notify::RecommendedWatcher, WatchError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| WatchError { path, error }
    };
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Reading a file, as we do ourselves, is no change. An error may hide one.
        if event.map_or(true, |event| !event.kind.is_access()) {
            changed.notify_one();
        }
    })
    .map_err(at(Path::new("the file system")))?;
    if let Some(directory) = &config.directory {
        watcher.watch(directory, RecursiveMode::Recursive).map_err(at(directory))?;
    }
    let files = config.certificates.iter().flat_map(|files| [&files.cert, &files.key]);
    // A file is replaced by a rename, which only its directory sees; and so is a directory.
    let parents: BTreeSet<_> = files
        .chain(&config.client_ca)
        .chain(&config.directory)
        .filter_map(|file| file.parent())
        .collect();
    for parent in parents {
        // Watching a part of what is watched already would make it less.
        if config.directory.as_ref().is_none_or(|directory| !parent.starts_with(directory)) {
            watcher.watch(parent, RecursiveMode::NonRecursive).map_err(at(parent))?;
        }
    }
    Ok(watcher)
}
