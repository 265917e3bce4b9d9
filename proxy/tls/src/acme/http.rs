//! How a CA is spoken to.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::{ClientConfig, RootCertStore};

/// The longest answer that is read, in bytes. A chain of certificates has a few KiB.
const MAX_ANSWER: usize = 1024 * 1024;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// A client of one CA: by TLS only, and with bounds on what an answer takes.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>);

/// A request that failed, with all that led to it: the outermost reason alone says "connect".
#[derive(Debug)]
struct Failed(String);

impl Http {
    /// Trusts a CA's server that `roots` sign for; by default whom the system trusts.
    pub(crate) fn new(roots: Option<RootCertStore>) -> Result<Self, std::io::Error> {
        // Not the process' default provider, which may be none.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = HttpsConnectorBuilder::new();
        let builder = match roots {
            None => builder.with_provider_and_native_roots(provider)?,
            Some(roots) => {
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(std::io::Error::other)?;
                builder.with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
            }
        };
        let connector = builder.https_only().enable_http1().build();
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let answer = self.0.request(request);
        Box::pin(async move {
            let read = async {
                let (parts, body) = answer.await.map_err(|error| Failed::of(&error))?.into_parts();
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                let body = body.map_err(|error| Failed::of(error.as_ref()))?.to_bytes();
                Ok(BytesResponse { parts, body: Box::new(body) })
            };
            let late = || Failed(format!("no answer within {} s", ANSWER.as_secs()));
            let read = tokio::time::timeout(ANSWER, read).await.unwrap_or_else(|_| Err(late()));
            read.map_err(|failed| Error::Other(Box::new(failed)))
        })
    }
}

impl Failed {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            let _ = write!(text, ": {error}");
            source = error.source();
        }
        Self(text)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

/// One client for each builder of an account.
pub(crate) struct Shared(pub(crate) Arc<dyn HttpClient>);

impl HttpClient for Shared {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        self.0.request(request)
    }
}
