//! The S3 server, in a process of its own.

use std::io::BufRead as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rouse_store::{Condition, Key, S3, S3Options, Store};
use rouse_transfer::{UpOptions, up};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::image::Image;
use super::ours::Ours;

/// What a link to an object store is like, from one machine: a gigabit, and what S3 takes to the first byte.
const BANDWIDTH: u64 = 100_000_000;
const LATENCY: Duration = Duration::from_millis(30);
const PART: usize = 16 << 20;

/// Where the server is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct At {
    pub(super) endpoint: String,
    pub(super) bucket: String,
    pub(super) prefix: String,
    pub(super) credentials_file: std::path::PathBuf,
}

impl At {
    pub(super) fn options(&self) -> anyhow::Result<S3Options> {
        Ok(S3Options {
            prefix: Some(Key::new(&*self.prefix)?),
            endpoint: Some(self.endpoint.clone()),
            path_style: true,
            credentials_file: Some(self.credentials_file.clone()),
            ..S3Options::new(&*self.bucket)
        })
    }

    pub(super) fn url(&self, key: &str) -> String {
        format!("{}/{}/{}/{key}", self.endpoint, self.bucket, self.prefix)
    }
}

/// What is between us and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// All requests share the bandwidth: a machine's own link.
    Shared,
    /// Each request has it: a store that gives no connection more.
    Each,
    /// Loopback as it is.
    Bare,
}

impl Link {
    pub(super) const ALL: [Self; 3] = [Self::Shared, Self::Each, Self::Bare];

    fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Each => "each",
            Self::Bare => "bare",
        }
    }

    /// As it is told.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "100 MB/s in all, 30 ms",
            Self::Each => "100 MB/s each, 30 ms",
            Self::Bare => "not shaped",
        }
    }
}

/// The child that serves; it ends with its standard input.
pub(super) struct Server {
    pub(super) at: At,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Server {
    pub(super) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Where its objects are kept.
        command.arg("restore-server").env("TMPDIR", dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let orders = child.stdin.take().context("its standard input")?;
        let mut answers = BufReader::new(child.stdout.take().context("its output")?).lines();
        let line = answers.next_line().await?.context("the S3 server did not start")?;
        Ok(Self { at: serde_json::from_str(&line)?, orders, answers, _child: child })
    }

    pub(super) async fn shape(&mut self, link: Link) -> anyhow::Result<()> {
        self.orders.write_all(format!("{}\n", link.word()).as_bytes()).await?;
        let answer = self.answers.next_line().await?;
        ensure!(answer.as_deref() == Some("done"), "the S3 server has ended");
        Ok(())
    }

    /// Sends the image as ours, and as one stream of zstd for the peers; what ours has in the store.
    pub(super) async fn upload(&mut self, image: &Image) -> anyhow::Result<(Ours, u64)> {
        self.shape(Link::Bare).await?;
        let store: Arc<dyn Store> = Arc::new(S3::open(self.at.options()?).await?);
        let key = Key::new("image.rsz")?;
        let sent = Box::pin(up(&store, &key, image.open()?, UpOptions::default())).await?;
        let plain = Key::new("image.zst")?;
        let upload = store.begin(&plain).await?;
        let mut zstd = Command::new("zstd");
        // As fast as ours, and as small.
        zstd.args(["-q", "-1", "-T0", "-c"]).arg(image.path());
        let mut zstd = zstd.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut output = zstd.stdout.take().context("zstd's output")?;
        let mut parts = Vec::new();
        loop {
            let mut part = Vec::with_capacity(PART);
            (&mut output).take(PART as u64).read_to_end(&mut part).await?;
            if part.is_empty() {
                break;
            }
            let number = u32::try_from(parts.len())? + 1;
            parts.push(store.put_part(&upload, number, part.into()).await?);
        }
        ensure!(zstd.wait().await?.success(), "zstd failed");
        store.complete(&upload, &parts, Condition::Always).await?;
        let ours = Ours { at: self.at.clone(), size: sent.size, index: sent.index_blake3 };
        Ok((ours, sent.size))
    }
}

/// `rouse-bench restore-server`: serves until its standard input ends, and does what its lines say.
pub(crate) async fn run_server() -> anyhow::Result<()> {
    let server = rouse_s3::Server::start().await?;
    let faults = server.faults().context("our own server has faults")?;
    let at = At {
        endpoint: server.endpoint().to_owned(),
        bucket: server.bucket().to_owned(),
        prefix: server.prefix().to_owned(),
        credentials_file: server.credentials_file().to_owned(),
    };
    println!("{}", serde_json::to_string(&at)?);
    let (orders, mut order) = tokio::sync::mpsc::channel(1);
    // Reading blocks until there is a line; it ends with the process.
    let reader = std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if orders.blocking_send(line).is_err() {
                break;
            }
        }
    });
    while let Some(line) = order.recv().await {
        faults.clear();
        if line != Link::Bare.word() {
            faults.latency(LATENCY);
        }
        if line == Link::Shared.word() {
            faults.bandwidth(Some(BANDWIDTH));
        } else if line == Link::Each.word() {
            faults.bandwidth_each(Some(BANDWIDTH));
        }
        println!("done");
    }
    drop(reader);
    Ok(())
}
