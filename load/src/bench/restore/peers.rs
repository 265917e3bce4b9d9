//! What one would script.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::ours::Ours;
use super::server::Server;

/// How many requests at once the copy is tried with, besides one.
const AT_ONCE: u64 = 4;

pub(super) struct Peers<'a> {
    pub(super) server: &'a Server,
    pub(super) dir: &'a Path,
}

impl Peers<'_> {
    /// A request as curl makes it, for a shell.
    fn get(&self, key: &str) -> anyhow::Result<String> {
        let at = &self.server.at;
        let file = std::fs::read_to_string(&at.credentials_file)?;
        let value = |name: &str| {
            let mut lines = file.lines().filter_map(|line| line.split_once('='));
            let found = lines.find(|(key, _)| key.trim() == name);
            found.map(|(_, value)| value.trim().to_owned()).context("the server's credentials")
        };
        let (key_id, secret) = (value("aws_access_key_id")?, value("aws_secret_access_key")?);
        Ok(format!(
            "curl -sSf --aws-sigv4 aws:amz:us-east-1:s3 --user '{key_id}:{secret}' \
             -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' '{}'",
            at.url(key)
        ))
    }

    /// Seconds for a script of the shell.
    async fn timed(&self, script: &str) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", script]).current_dir(self.dir).kill_on_drop(true);
        let status = shell.status().await?;
        ensure!(status.success(), "a peer failed: {status}");
        Ok(begun.elapsed().as_secs_f64())
    }

    pub(super) async fn pipe(&self, to: &Path) -> anyhow::Result<f64> {
        let get = self.get("image.zst")?;
        self.timed(&format!("{get} | zstd -q -d --sparse -o '{}'", to.display())).await
    }

    pub(super) async fn script(&self, to: &Path) -> anyhow::Result<f64> {
        let get = self.get("image.zst")?;
        let script =
            format!("{get} -o image.zst; zstd -q -d --sparse image.zst -o '{}'", to.display());
        let took = self.timed(&script).await?;
        std::fs::remove_file(self.dir.join("image.zst"))?;
        Ok(took)
    }

    /// The bytes of our archive to nowhere, by one request or by some at once, whichever is faster.
    pub(super) async fn copy(&self, ours: &Ours) -> anyhow::Result<f64> {
        let get = self.get("image.rsz")?;
        let alone = self.timed(&format!("{get} -o /dev/null")).await?;
        let each = ours.size.div_ceil(AT_ONCE);
        let ranges = (0..AT_ONCE).map(|n| {
            let end = ((n + 1) * each).min(ours.size) - 1;
            format!("{get} -r {}-{end} -o /dev/null & all+=($!)", n * each)
        });
        let ranges = ranges.collect::<Vec<_>>().join("\n");
        let script =
            format!("all=()\n{ranges}\nfor one in \"${{all[@]}}\"; do wait \"$one\"; done");
        Ok(alone.min(self.timed(&script).await?))
    }
}
