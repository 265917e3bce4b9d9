//! `rouse.test.Words`: a gRPC service, on the same port as everything else. Only what came by
//! HTTP/2 is gRPC. Its messages are written down here, so that building it takes no protoc.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{Stream, stream};
use http::header::CONTENT_TYPE;
use http::{Request, Version};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Code, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The name of the service, with the slashes around it.
const SERVICE: &str = "/rouse.test.Words/";

/// What a visitor says.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Say {
    #[prost(string, tag = "1")]
    text: String,
    /// `Repeat`: how often, 0 for no end. `Fail`: the code.
    #[prost(uint32, tag = "2")]
    number: u32,
    /// `Repeat`: the time between two.
    #[prost(uint32, tag = "3")]
    every_ms: u32,
}

/// What the app says.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Said {
    #[prost(string, tag = "1")]
    text: String,
    /// The how manieth of this stream; `Left`: how many streams were left before their end.
    #[prost(uint32, tag = "2")]
    number: u32,
}

type Words = Pin<Box<dyn Stream<Item = Result<Said, Status>> + Send>>;
type Answered<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// How many streams were left before their end.
pub(crate) type Left = Arc<AtomicU32>;

/// Whether `request` is for this service.
pub(crate) fn is_for(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    request.version() == Version::HTTP_2 && kind.is_some_and(|k| k.starts_with("application/grpc"))
}

/// The answer to `request`.
pub(crate) async fn answer(left: Left, request: Request<Incoming>) -> http::Response<Body> {
    let mut grpc = Grpc::new(ProstCodec::<Said, Say>::default());
    match request.uri().path().strip_prefix(SERVICE) {
        Some("Say") => grpc.unary(Once(say), request).await,
        Some("Fail") => grpc.unary(Once(fail), request).await,
        Some("Left") => grpc.unary(Once(move |_| count(&left)), request).await,
        Some("Repeat") => grpc.server_streaming(Repeat(left), request).await,
        Some("Talk") => grpc.streaming(Talk(left), request).await,
        _ => Status::unimplemented("the test app has no such method").into_http(),
    }
}

fn say(said: Say) -> Result<Said, Status> {
    Ok(Said { text: said.text, number: 1 })
}

fn fail(said: Say) -> Result<Said, Status> {
    let code = Code::from_i32(i32::try_from(said.number).unwrap_or(-1));
    Err(Status::with_details(code, said.text, b"\x00the app's own details\xff"[..].into()))
}

fn count(left: &Left) -> Result<Said, Status> {
    Ok(Said { text: String::new(), number: left.load(Ordering::Relaxed) })
}

struct Once<F>(F);

impl<F: FnMut(Say) -> Result<Said, Status>> UnaryService<Say> for Once<F> {
    type Response = Said;
    type Future = std::future::Ready<Result<Response<Said>, Status>>;

    fn call(&mut self, request: tonic::Request<Say>) -> Self::Future {
        std::future::ready((self.0)(request.into_inner()).map(Response::new))
    }
}

struct Repeat(Left);

impl ServerStreamingService<Say> for Repeat {
    type Response = Said;
    type ResponseStream = Words;
    type Future = Answered<Words>;

    fn call(&mut self, request: tonic::Request<Say>) -> Self::Future {
        let Say { text, number: times, every_ms } = request.into_inner();
        let pause = Duration::from_millis(every_ms.into());
        let start = (1, Ending::of(&self.0));
        let words = stream::unfold(start, move |(number, ending)| {
            let text = text.clone();
            async move {
                if times > 0 && number > times {
                    ending.reach();
                    return None;
                }
                if number > 1 {
                    tokio::time::sleep(pause).await;
                }
                Some((Ok(Said { text, number }), (number + 1, ending)))
            }
        });
        Box::pin(async { Ok(Response::new(Box::pin(words) as Words)) })
    }
}

struct Talk(Left);

impl StreamingService<Say> for Talk {
    type Response = Said;
    type ResponseStream = Words;
    type Future = Answered<Words>;

    fn call(&mut self, request: tonic::Request<Streaming<Say>>) -> Self::Future {
        let start = (1, request.into_inner(), Ending::of(&self.0));
        let words = stream::unfold(start, |(number, mut heard, ending)| async move {
            let said = match heard.message().await {
                Ok(Some(Say { text, .. })) => Ok(Said { text, number }),
                Ok(None) => {
                    ending.reach();
                    return None;
                }
                Err(status) => Err(status),
            };
            Some((said, (number + 1, heard, ending)))
        });
        Box::pin(async { Ok(Response::new(Box::pin(words) as Words)) })
    }
}

/// Counts a stream that is dropped before its end.
struct Ending {
    left: Left,
    reached: bool,
}

impl Ending {
    fn of(left: &Left) -> Self {
        Self { left: left.clone(), reached: false }
    }

    fn reach(mut self) {
        self.reached = true;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.reached {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }
}
