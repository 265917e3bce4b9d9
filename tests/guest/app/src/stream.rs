//! `/drip`, `/sse` and `/trailers`: answers that come bit by bit.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, TRAILER};
use http::{HeaderMap, HeaderValue, Response, Uri};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query::{self, Number};

/// How many bytes come at a time where no time passes between them.
const CHUNK: u64 = 16 * 1024;

fn body(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(frames.map(Ok::<_, Infallible>)).boxed_unsync()
}

/// `bytes` bytes: one every `every_ms`, or all at once when that is 0.
pub(crate) fn drip(uri: &Uri) -> Result<Response<Body>, Refusal> {
    let bytes = Number { name: "bytes", range: 0..=64 << 20, default: 10 };
    let every = Number { name: "every_ms", range: 0..=60_000, default: 100 };
    let [bytes, every] = query::numbers(uri, [bytes, every])?;
    let size = if every == 0 { CHUNK } else { 1 };
    let frames = stream::unfold(bytes, move |left| async move {
        if left == 0 {
            return None;
        }
        if every > 0 && left < bytes {
            tokio::time::sleep(Duration::from_millis(every)).await;
        }
        let now = left.min(size);
        // At most CHUNK.
        Some((Frame::data(Bytes::from(vec![b'.'; now as usize])), left - now))
    });
    let mut response = answer::of("application/octet-stream", Bytes::new());
    response.headers_mut().insert(CONTENT_LENGTH, bytes.into());
    Ok(response.map(|_| body(frames)))
}

/// `count` events, the first at once, the next every `every_ms`.
pub(crate) fn events(uri: &Uri) -> Result<Response<Body>, Refusal> {
    let count = Number { name: "count", range: 1..=1_000_000, default: 1_000_000 };
    let every = Number { name: "every_ms", range: 1..=60_000, default: 200 };
    let [count, every] = query::numbers(uri, [count, every])?;
    let frames = stream::unfold(1, move |n| async move {
        if n > count {
            return None;
        }
        if n > 1 {
            tokio::time::sleep(Duration::from_millis(every)).await;
        }
        Some((Frame::data(Bytes::from(format!("id: {n}\ndata: event {n}\n\n"))), n + 1))
    });
    let mut response = answer::of("text/event-stream", Bytes::new());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response.map(|_| body(frames)))
}

/// A body in two chunks and a trailer (which the visitor gets if it sent `TE: trailers`).
pub(crate) fn trailers() -> Response<Body> {
    let sum = HeaderValue::from_static("whole");
    let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("x-end"), sum)]);
    let frames = [
        Frame::data(Bytes::from_static(b"one\n")),
        Frame::data(Bytes::from_static(b"two\n")),
        Frame::trailers(trailers),
    ];
    let mut response = answer::of("text/plain; charset=utf-8", Bytes::new());
    response.headers_mut().insert(TRAILER, HeaderValue::from_static("x-end"));
    response.map(|_| body(stream::iter(frames)))
}
