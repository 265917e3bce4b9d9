//! `rouse-bench visit`: one visit, and the wake that it caused.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hyper::Uri;
use rouse_tests::{Reply, Visit};

use crate::timing::Timing;
use crate::waterfall;

/// How much of an error's body is shown, in bytes.
const SHOWN: usize = 1000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The page, at the proxy's address.
    #[arg(long)]
    url: Uri,
    /// The host that the request is for; the URL's unless given.
    #[arg(long)]
    host: Option<String>,
}

/// A page that a wake was made for.
#[derive(Debug)]
pub(crate) struct Woken {
    /// `resumed`, `cold` or `joined`.
    pub(crate) how: String,
    /// Where the time went, as the proxy saw it.
    pub(crate) timing: Timing,
    /// From the connection's beginning to the page's last byte, as the visitor saw it.
    pub(crate) took: Duration,
    /// The page.
    pub(crate) page: Reply,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let host = args.url.host().context("the URL names no host")?;
    ensure!(args.url.scheme_str() == Some("http"), "only http:// URLs can be visited");
    let port = args.url.port_u16().unwrap_or(80);
    let path = args.url.path_and_query().map_or("/", |path| path.as_str());
    let address = resolve(host, port).await?;

    let woken = visit(address, args.host.as_deref().unwrap_or(host), path).await?;
    let kind = woken.page.header("content-type");
    println!(
        "{}, {} bytes of {kind}, woken: {}",
        woken.page.status,
        woken.page.body.len(),
        woken.how
    );
    println!("{:.1} ms from click to page\n", woken.took.as_secs_f64() * 1e3);
    println!("{}", waterfall::draw(&woken.timing));
    Ok(())
}

/// Visits a sleeping app. Anything but a page and the news of its wake is an error.
pub(crate) async fn visit(to: SocketAddr, host: &str, path: &str) -> anyhow::Result<Woken> {
    let start = Instant::now();
    let page = Visit::get(path).host(host).send(to).await.context("the page did not come")?;
    let took = start.elapsed();
    if page.status != 200 {
        bail!(
            "the page did not come: {} {}\n{}",
            page.status,
            page.header("rouse-error"),
            String::from_utf8_lossy(&page.body[..page.body.len().min(SHOWN)])
        );
    }
    ensure!(!page.body.is_empty(), "the page is empty");
    let how = page.header("rouse-wake").to_owned();
    ensure!(!how.is_empty(), "the page came, but not from a wake: there is no Rouse-Wake header");
    let timing = Timing::parse(page.header("server-timing"));
    ensure!(!timing.is_empty(), "the page came without Server-Timing");
    Ok(Woken { how, timing, took, page })
}

/// Names below `localhost` are this machine's (RFC 6761), whatever its resolver knows of them.
async fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if host == "localhost" || host.ends_with(".localhost") {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = tokio::net::lookup_host((bare, port)).await.with_context(|| host.to_owned())?;
    found.next().with_context(|| format!("{host} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_this_machine() {
        for host in ["localhost", "hello.localhost", "127.0.0.1"] {
            assert_eq!(resolve(host, 80).await.unwrap(), ([127, 0, 0, 1], 80).into());
        }
        assert_eq!(resolve("[::1]", 8080).await.unwrap().to_string(), "[::1]:8080");
    }
}
