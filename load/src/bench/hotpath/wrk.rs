//! wrk, and reading what it prints.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tokio::process::Command;

use super::peer::Peer;
use crate::machine::{self, Cores};
use crate::server::pinned;

/// How to load a server.
#[derive(Debug)]
pub(super) struct Wrk {
    program: PathBuf,
    core: Option<usize>,
    connections: NonZeroUsize,
}

/// What one run of wrk did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) requests_per_second: f64,
}

impl Wrk {
    pub(super) fn find(cores: Option<Cores>, connections: NonZeroUsize) -> anyhow::Result<Self> {
        let program = machine::installed("wrk")?;
        Ok(Self { program, core: cores.map(|cores| cores.load), connections })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Loads `peer`. Any request that fails is an error: a server that refuses is
    /// quick.
    pub(super) async fn load(&self, peer: &Peer, seconds: NonZeroUsize) -> anyhow::Result<Load> {
        let mut command = Command::from(pinned(&self.program, self.core));
        command
            .arg("-t1")
            .arg(format!("-c{}", self.connections))
            .arg(format!("-d{seconds}s"))
            .args(["-H", &format!("Host: {}", peer.host)])
            .arg(format!("http://{}/", peer.address))
            .kill_on_drop(true);
        let output = command.output().await.context("wrk")?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("wrk: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Load::parse(&said)
    }
}

impl Load {
    fn parse(said: &str) -> anyhow::Result<Self> {
        for trouble in ["Socket errors:", "Non-2xx or 3xx responses:"] {
            let line = said.lines().find(|line| line.trim().starts_with(trouble));
            ensure!(
                line.is_none(),
                "not every request was served: {}",
                line.unwrap_or_default().trim()
            );
        }
        let requests = said
            .lines()
            .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
            .with_context(|| format!("wrk does not say how many requests it made:\n{said}"))?;
        let rate: f64 = said
            .lines()
            .find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok())
            .with_context(|| format!("wrk does not say how fast it was:\n{said}"))?;
        ensure!(requests > 0 && rate > 0.0, "not one request was served");
        // wrk prints the time rounded; what it divided by is in the rate.
        Ok(Self { requests, seconds: requests as f64 / rate, requests_per_second: rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Running 4s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.41ms  302.11us  12.20ms   91.16%
    Req/Sec    45.30k     2.30k   50.00k    75.00%
  181200 requests in 4.03s, 30.00MB read
Requests/sec:  44962.78
Transfer/sec:      7.50MB
";

    #[test]
    fn a_good_run() {
        let load = Load::parse(SAID).unwrap();
        assert_eq!(load.requests, 181_200);
        assert_eq!(load.requests_per_second, 44_962.78);
        assert!((load.seconds - 4.03).abs() < 0.001);
    }

    #[test]
    fn runs_with_errors_do_not_count() {
        let with = |line: &str| SAID.replace("Requests/sec", &format!("{line}\nRequests/sec"));
        for line in [
            "  Socket errors: connect 0, read 3, write 0, timeout 0",
            "  Non-2xx or 3xx responses: 12",
        ] {
            let error = Load::parse(&with(line)).unwrap_err().to_string();
            assert!(error.contains(line.trim()), "{error}");
        }
        assert!(Load::parse("").is_err());
        assert!(Load::parse(&SAID.replace("181200 requests", "0 requests")).is_err());
        assert!(Load::parse(&SAID.replace("Requests/sec", "x")).is_err());
    }
}
