//! `rouse-passthrough`: Pingora with nothing added. It passes every request on to one upstream
//! over kept-alive connections, and is what `rouse-bench hotpath` measures our proxy against.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use async_trait::async_trait;
use clap::Parser;
use pingora_core::Result;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server};
use pingora_core::upstreams::peer::{HttpPeer, PeerOptions, Scheme};
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

/// As in `rouse-proxy`: what is compared is what we add to Pingora, not the allocator. Without the feature it is
/// what one gets by Pingora's user guide.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Passes every request on to one upstream.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Where to pass requests on to.
    #[arg(long)]
    upstream: SocketAddr,
    /// Worker threads.
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
}

struct Passthrough {
    peer: HttpPeer,
}

#[async_trait]
impl ProxyHttp for Passthrough {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(self.peer.clone()))
    }
}

fn main() {
    let args = Args::parse();
    let conf = ServerConf { threads: args.threads.get(), ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let peer = HttpPeer {
        _address: PeerAddress::Inet(args.upstream),
        scheme: Scheme::HTTP,
        sni: String::new(),
        proxy: None,
        client_cert_key: None,
        group_key: 0,
        options: PeerOptions::new(),
    };
    let mut service = http_proxy_service(&server.configuration, Passthrough { peer });
    service.add_tcp(&args.listen.to_string());
    server.add_service(service);
    server.run(RunArgs::default());
}
