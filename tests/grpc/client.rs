//! A gRPC client of the test app's service, through the proxy.

use std::net::SocketAddr;

use futures_util::Stream;
use http::uri::PathAndQuery;
use rouse_tests::{DEFAULT_HOST, eventually};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// What a visitor says; the app's own `grpc.rs` tells what is what.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Say {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
    #[prost(uint32, tag = "2")]
    pub(crate) number: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) every_ms: u32,
}

/// What the app says.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Said {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
    #[prost(uint32, tag = "2")]
    pub(crate) number: u32,
}

/// `text`, once.
pub(crate) fn say(text: &str) -> Say {
    Say { text: text.to_owned(), number: 1, every_ms: 0 }
}

/// All of a client's calls go over one connection.
#[derive(Clone, Debug)]
pub(crate) struct Client(Grpc<Channel>);

type Answer<T> = Result<Response<T>, Status>;

impl Client {
    /// Connects to the proxy.
    pub(crate) async fn of(proxy: SocketAddr) -> Self {
        let origin = format!("http://{DEFAULT_HOST}").parse().expect("a host makes an origin");
        let endpoint = Endpoint::from_shared(format!("http://{proxy}"))
            .expect("an address makes an endpoint")
            .origin(origin);
        let connected = async || endpoint.connect().await.ok();
        Self(Grpc::new(eventually("the proxy takes HTTP/2 without TLS", connected).await))
    }

    /// One message for one, by `Say`, `Fail` or `Left`.
    pub(crate) async fn unary(&self, method: &str, say: Say) -> Answer<Said> {
        let mut grpc = self.ready().await;
        grpc.unary(Request::new(say), path(method), ProstCodec::default()).await
    }

    /// A stream of the app's.
    pub(crate) async fn repeat(&self, say: Say) -> Answer<Streaming<Said>> {
        let mut grpc = self.ready().await;
        grpc.server_streaming(Request::new(say), path("Repeat"), ProstCodec::default()).await
    }

    /// A stream each way.
    pub(crate) async fn talk(
        &self,
        says: impl Stream<Item = Say> + Send + 'static,
    ) -> Answer<Streaming<Said>> {
        let mut grpc = self.ready().await;
        grpc.streaming(Request::new(says), path("Talk"), ProstCodec::default()).await
    }

    async fn ready(&self) -> Grpc<Channel> {
        let mut grpc = self.0.clone();
        grpc.ready().await.expect("the client is connected");
        grpc
    }
}

fn path(method: &str) -> PathAndQuery {
    format!("/rouse.test.Words/{method}").parse().expect("a method makes a path")
}
