//! Our way, in a process of its own, so that its memory is its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use rouse_store::{Key, S3, Store};
use rouse_transfer::{Fill, FillOptions, Layers, Patience, Remote};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::server::At;

/// An archive in the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ours {
    pub(super) at: At,
    pub(super) size: u64,
    pub(super) index: [u8; 32],
}

/// One restore.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// Seconds until the working set was in the file.
    pub(super) working_set: f64,
    /// Seconds until all was.
    pub(super) whole: f64,
    /// The most memory that the process had, in MiB.
    pub(super) peak_mib: f64,
    pub(super) requests: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OursArgs {
    /// What to restore, as JSON.
    what: String,
    /// Where to.
    to: PathBuf,
}

impl Ours {
    pub(super) async fn run(&self, to: &Path) -> anyhow::Result<Run> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("restore-ours").arg(serde_json::to_string(self)?).arg(to);
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
        let output = command.output().await?;
        ensure!(output.status.success(), "our restore failed: {}", output.status);
        serde_json::from_slice(&output.stdout).context("what our restore said")
    }
}

/// `rouse-bench restore-ours`: restores once, and tells how that went.
pub(crate) async fn run_ours(args: &OursArgs) -> anyhow::Result<()> {
    let what: Ours = serde_json::from_str(&args.what)?;
    // A waker has it open all the time.
    let store: Arc<dyn Store> = Arc::new(S3::open(what.at.options()?).await?);
    let file = File::options().read(true).write(true).create_new(true).open(&args.to)?;
    let begun = Instant::now();
    let key = Key::new("image.rsz")?;
    let remote = Remote::open(store, key, what.index, what.size, &Patience::default()).await?;
    let opened = remote.requests();
    let fill = Fill::start(Layers::new(vec![remote])?, file, FillOptions::default())?;
    fill.working_set().await?;
    let working_set = begun.elapsed().as_secs_f64();
    fill.whole().await?;
    let whole = begun.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    let peak: f64 = peak.context("the kernel tells the most memory")?.parse()?;
    let requests = (opened + fill.metrics().requests) as f64;
    let run = Run { working_set, whole, peak_mib: peak / 1024.0, requests };
    println!("{}", serde_json::to_string(&run)?);
    Ok(())
}
