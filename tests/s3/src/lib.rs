//! An S3 server in the process of a test, and faults before it.
//!
//! [`Server::start`] is a bucket on loopback, reached through a [proxy](Faults) in which requests
//! can be made slow, fail, or come to harm. Nothing of it is left when it is dropped.
#![forbid(unsafe_code)]

mod backend;
mod faults;
mod layer;
mod protocol;
mod shape;
mod tls;
mod wanted;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper_util::rt::TokioIo;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use backend::Backend;
pub use faults::{Fault, Faults};
use layer::Layer;
use protocol::Protocol;
pub use wanted::{VARIABLE, Wanted, WantedError};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket or a file could not be had.
    #[error("the S3 server of the test: {0}")]
    Io(#[from] std::io::Error),
    /// The environment says another server, but not as it should.
    #[error(transparent)]
    Wanted(#[from] WantedError),
    /// No certificate could be made.
    #[error("the S3 server's certificate: {0}")]
    Certificate(String),
}

/// An S3 server with one bucket, or the one that the environment says.
pub struct Server {
    endpoint: String,
    bucket: String,
    prefix: String,
    credentials: PathBuf,
    ca: Option<PathBuf>,
    faults: Option<Arc<Faults>>,
    backend: Option<Arc<Backend>>,
    // The tasks end before their directory goes.
    _tasks: JoinSet<()>,
    dir: TempDir,
}

const ACCESS: &str = "ROUSETESTKEY";
const SECRET: &str = "rouse/test+secret";
const BUCKET: &str = "rouse-test";

impl Server {
    /// Starts a server on loopback.
    pub async fn start() -> Result<Self, StartError> {
        Self::own(false).await
    }

    /// The same, with TLS by a certificate of an authority made for it ([`Self::ca_file`]).
    pub async fn start_tls() -> Result<Self, StartError> {
        Self::own(true).await
    }

    /// The server that [`VARIABLE`] says, or else one of our own.
    pub async fn wanted() -> Result<Self, StartError> {
        match Wanted::from_env()? {
            None => Self::start().await,
            Some(wanted) => Self::at(wanted).await,
        }
    }

    async fn own(secure: bool) -> Result<Self, StartError> {
        let dir = tempfile::tempdir()?;
        let backend = Arc::new(Backend::new(BUCKET, dir.path()));
        let mut service = S3ServiceBuilder::new(Protocol(backend.clone()));
        service.set_auth(s3s::auth::SimpleAuth::from_single(ACCESS, SECRET));
        let (upstream, address) = listen().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(upstream, service.build()));
        let tls = if secure { Some(tls::acceptor(dir.path())?) } else { None };
        let (ca, acceptor) = tls.unzip();
        let (faults, front) = before(address, acceptor, &mut tasks).await?;
        let scheme = if secure { "https" } else { "http" };
        let mut server = Self {
            endpoint: format!("{scheme}://{front}"),
            bucket: BUCKET.to_owned(),
            prefix: unique(),
            credentials: PathBuf::new(),
            ca,
            faults: Some(faults),
            backend: Some(backend),
            _tasks: tasks,
            dir,
        };
        server.credentials = server.credentials_of(ACCESS, SECRET)?;
        Ok(server)
    }

    async fn at(wanted: Wanted) -> Result<Self, StartError> {
        let mut tasks = JoinSet::new();
        let mut endpoint = format!("{}://{}", wanted.scheme, wanted.authority);
        let mut faults = None;
        // Before TLS the proxy can't stand: it has no certificate of that name.
        if wanted.scheme == "http"
            && let Some(address) = tokio::net::lookup_host(&wanted.authority).await?.next()
        {
            let (before, front) = before(address, None, &mut tasks).await?;
            (faults, endpoint) = (Some(before), format!("http://{front}"));
        }
        let mut server = Self {
            endpoint,
            bucket: wanted.bucket,
            prefix: unique(),
            credentials: PathBuf::new(),
            ca: None,
            faults,
            backend: None,
            _tasks: tasks,
            dir: tempfile::tempdir()?,
        };
        server.credentials = server.credentials_of(&wanted.key, &wanted.secret)?;
        Ok(server)
    }

    /// The URL to reach it at, through the faults.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The bucket, which exists.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// A prefix in the bucket that no other server of ours has.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A file with the server's credentials, as the AWS tools write it, profile `default`.
    pub fn credentials_file(&self) -> &Path {
        &self.credentials
    }

    /// Writes such a file with other credentials; it goes with the server.
    pub fn credentials_of(&self, key: &str, secret: &str) -> std::io::Result<PathBuf> {
        let path = self.dir.path().join(format!("credentials-{}", unique()));
        let text =
            format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The PEM file of the authority that its certificate is from, where it has one.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// The faults before it; none where the environment's server can't have them.
    pub fn faults(&self) -> Option<&Faults> {
        self.faults.as_deref()
    }

    /// Whether it is our own, which can do what is below.
    pub fn is_own(&self) -> bool {
        self.backend.is_some()
    }

    /// Makes it write as if there were no `If-Match` and no `If-None-Match`, or no longer.
    pub fn ignore_conditions(&self, ignore: bool) {
        if let Some(backend) = &self.backend {
            backend.quirks.ignores_conditions.store(ignore, Ordering::Relaxed);
        }
    }

    /// Makes it do so at the end of uploads only, or no longer.
    pub fn ignore_conditions_of_uploads(&self, ignore: bool) {
        if let Some(backend) = &self.backend {
            backend.quirks.ignores_conditions_of_uploads.store(ignore, Ordering::Relaxed);
        }
    }

    /// Makes it answer such writes with `NotImplemented`, or no longer.
    pub fn refuse_conditions(&self, refuse: bool) {
        if let Some(backend) = &self.backend {
            backend.quirks.refuses_conditions.store(refuse, Ordering::Relaxed);
        }
    }

    /// Makes listings of objects tell what there is now, whatever is written later, or no longer.
    pub fn freeze_listings(&self, frozen: bool) {
        if let Some(backend) = &self.backend {
            backend.freeze_listings(frozen);
        }
    }

    /// Puts an empty object under `key` of the bucket, whatever that is.
    pub async fn plant(&self, key: &str) -> Result<(), StartError> {
        if let Some(backend) = &self.backend {
            let kept = backend.keep(None, None).await;
            let piece = kept.map_err(|e| std::io::Error::other(e.to_string()))?;
            let object = backend::Object::new(vec![piece], false);
            backend.state().objects.insert(key.to_owned(), object);
        }
        Ok(())
    }

    /// The objects' keys in the bucket, in order; none where it is not our own.
    pub fn keys(&self) -> Option<Vec<String>> {
        self.backend.as_ref().map(|b| b.state().objects.keys().cloned().collect())
    }
}

/// A name that no other has, in this process or another.
fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |d| d.as_nanos());
    format!("t-{now:x}-{:x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

async fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn before(
    upstream: SocketAddr,
    tls: Option<TlsAcceptor>,
    tasks: &mut JoinSet<()>,
) -> std::io::Result<(Arc<Faults>, SocketAddr)> {
    let faults = Arc::new(Faults::default());
    let (listener, address) = listen().await?;
    tasks.spawn(Arc::new(Layer::new(upstream, faults.clone())).serve(listener, tls));
    Ok((faults, address))
}

async fn serve(listener: TcpListener, service: S3Service) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let _ = stream.set_nodelay(true);
                let service = service.clone();
                connections.spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
