//! Bodies on their way through: streamed, their trailers cleaned of ours.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::headers::strip_ours;

/// What goes down: the app's body or one of ours.
pub(super) type Answer = Either<Downward, Full<Bytes>>;

/// How much of a body that nobody wants is read, in bytes, and for how long: so that a visitor
/// who is still sending gets to read the answer instead of a reset.
const DRAIN_BYTES: usize = 16 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);

fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            strip_ours(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// The app's body.
#[derive(Debug)]
pub(super) struct Downward(pub(super) Incoming);

impl Body for Downward {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx).map_ok(clean)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A visitor's body. What is left of it when it is dropped is drained, within bounds.
#[derive(Debug)]
pub(super) struct Upward {
    incoming: Option<Incoming>,
    drain: Option<(TaskTracker, Handle)>,
}

impl Upward {
    /// No body.
    pub(super) fn empty() -> Self {
        Self { incoming: None, drain: None }
    }

    /// `incoming`, drained by a task of `tasks`. To be called within a runtime.
    pub(super) fn new(incoming: Incoming, tasks: &TaskTracker) -> Self {
        Self { incoming: Some(incoming), drain: Some((tasks.clone(), Handle::current())) }
    }

    /// Not drained: a visitor who waits for `100 Continue` has sent nothing, and reading would
    /// ask for it.
    pub(super) fn not_drained(self) -> Self {
        let mut body = self;
        body.drain = None;
        body
    }
}

impl Drop for Upward {
    fn drop(&mut self) {
        let (Some(incoming), Some((tasks, runtime))) = (self.incoming.take(), self.drain.take())
        else {
            return;
        };
        if !incoming.is_end_stream() {
            tasks.spawn_on(drain(incoming), &runtime);
        }
    }
}

async fn drain(mut incoming: Incoming) {
    let read = async {
        let mut left = DRAIN_BYTES;
        while let Some(Ok(frame)) = incoming.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whether it ends or not, nobody asks.
    let _ = tokio::time::timeout(DRAIN_TIME, read).await;
}

impl Body for Upward {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(cx).map_ok(clean),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
