//! HTTP/2 to the app: the streams of one visitor's connection, on one of ours.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::body::Upward;
use super::exchange::SendError;
use super::{Shared, dial};
use crate::state::Dial;

/// How many streams one connection has at once: more than a proxy opens on one.
pub(super) const MAX_STREAMS: u32 = 128;
/// How much of one stream may be on its way unread, in bytes. Between guest and host it is on its
/// way for microseconds only.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;
/// All streams at their bound: so a stream that nobody reads holds up no other.
pub(super) const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;

/// Runs what hyper does for one stream as a task of the front.
#[derive(Clone, Debug)]
pub(super) struct Tasks(pub(super) TaskTracker);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// The connection to the app that takes all streams of one visitor's connection. It is made by the
/// first of them, and anew by the next one after it broke.
///
/// One for each of the visitor's rather than one for all: then the proxy's bounds are the app's, and
/// no visitor's connection can use up the windows of another.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Arc<OnceCell<Opened>>>);

#[derive(Clone, Debug)]
struct Opened {
    sender: SendRequest<Upward>,
    /// How often nobody listened before it was opened.
    refusals: u64,
}

impl Opened {
    /// The app had hung up on it, or has been away since.
    fn is_over(&self, refusals: u64) -> bool {
        self.sender.is_closed() || self.refusals != refusals
    }
}

impl Streams {
    /// Sends `request`, once. When the connection has just ended, and nothing of the request went
    /// over it, a new one takes it.
    pub(super) async fn send(
        &self,
        shared: &Shared,
        request: Request<Upward>,
    ) -> Result<Response<Incoming>, SendError> {
        let mut sender = self.sender(shared).await?;
        let mut error = match sender.try_send_request(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let Some(unsent) = error.take_message() else {
            return Err(SendError::Broke(error.into_error()));
        };
        let mut sender = self.sender(shared).await?;
        sender.send_request(unsent).await.map_err(SendError::Broke)
    }

    async fn sender(&self, shared: &Shared) -> Result<SendRequest<Upward>, SendError> {
        let refusals = shared.refusals.load(Ordering::Relaxed);
        let cell = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if current.get().is_some_and(|opened| opened.is_over(refusals)) {
                *current = Arc::default();
            }
            current.clone()
        };
        // The first stream connects, and the others wait for it.
        let opened = cell.get_or_try_init(|| open(shared)).await?;
        Ok(opened.sender.clone())
    }
}

async fn open(shared: &Shared) -> Result<Opened, SendError> {
    let refusals = shared.refusals.load(Ordering::Relaxed);
    let dialled = dial::connect(shared.settings.app).await;
    shared.observe(Dial::of(&dialled));
    let stream = dialled.map_err(SendError::Connect)?;
    let (sender, connection) = http2::Builder::new(Tasks(shared.tasks.clone()))
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(SendError::Broke)?;
    let stop = shared.stop.clone();
    shared.tasks.spawn(async move {
        // A broken connection is seen by the streams on it.
        let _ = stop.run_until_cancelled(connection).await;
    });
    Ok(Opened { sender, refusals })
}

/// Whether the app reset this stream, as opposed to the connection's end. The visitor's stream is
/// then reset for the same reason.
pub(super) fn was_reset(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(h2::Error::is_reset)
}
