//! Visitors who are held, and those of another app meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many of them come from one address: there are some 28,000 ports to one.
const PER_ADDRESS: usize = 5_000;
/// How many connect at once: fewer than wait in a socket's queue.
const AT_ONCE: usize = 256;

/// Connects `count` visitors and has each ask; nobody is answered yet.
pub(super) async fn come(
    to: SocketAddr,
    host: &str,
    count: usize,
) -> anyhow::Result<Vec<TcpStream>> {
    let mut there = Vec::with_capacity(count);
    let mut coming = JoinSet::new();
    for n in 0..count {
        if coming.len() == AT_ONCE {
            there.push(coming.join_next().await.context("somebody comes")???);
        }
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n");
        let last = u8::try_from(2 + n / PER_ADDRESS).context("too many visitors")?;
        coming.spawn(async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
            let mut stream = socket.connect(to).await?;
            stream.write_all(head.as_bytes()).await?;
            anyhow::Ok(stream)
        });
    }
    while let Some(came) = coming.join_next().await {
        there.push(came??);
    }
    Ok(there)
}

/// When each of them has its answer, after `since`, in milliseconds, in order; each stays connected.
pub(super) async fn answered(
    visitors: Vec<TcpStream>,
    since: Instant,
) -> anyhow::Result<(Vec<f64>, Vec<TcpStream>)> {
    let mut waiting = JoinSet::new();
    for mut stream in visitors {
        waiting.spawn(async move {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await?;
            anyhow::ensure!(bytes[..n].starts_with(b"HTTP/1.1 200 "), "a visitor was not served");
            anyhow::Ok((since.elapsed().as_secs_f64() * 1e3, stream))
        });
    }
    let (mut times, mut streams) = (Vec::new(), Vec::new());
    while let Some(done) = waiting.join_next().await {
        let (time, stream) = done??;
        times.push(time);
        streams.push(stream);
    }
    times.sort_by(f64::total_cmp);
    Ok((times, streams))
}

/// Visits an app that is awake, so many times a second whatever becomes of those before (an open
/// model), for so long. How long each took from when it was due, in milliseconds, in order.
pub(super) async fn visit_steadily(
    to: SocketAddr,
    host: &str,
    per_second: usize,
    time: Duration,
) -> anyhow::Result<Vec<f64>> {
    const WORKERS: usize = 25;
    let begin = Instant::now() + Duration::from_millis(50);
    let total = per_second * usize::try_from(time.as_secs())?;
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        workers.spawn(async move {
            let mut stream = TcpStream::connect(to).await?;
            let mut took = Vec::new();
            for n in (worker..total).step_by(WORKERS) {
                let due = begin + Duration::from_secs_f64(n as f64 / per_second as f64);
                tokio::time::sleep_until(due).await;
                stream.write_all(head.as_bytes()).await?;
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).await?;
                anyhow::ensure!(bytes[..read].starts_with(b"HTTP/1.1 200 "), "not served");
                took.push(due.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(took)
        });
    }
    let mut all = Vec::with_capacity(total);
    while let Some(took) = workers.join_next().await {
        all.extend(took??);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// The value below which this part of them is; 0 of none.
pub(super) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(at - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let hundred: Vec<_> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), 99.0);
        assert_eq!(quantile(&hundred, 1.0), 100.0);
        assert_eq!(quantile(&hundred, 0.0), 1.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
