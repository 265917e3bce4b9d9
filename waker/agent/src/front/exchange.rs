//! One request, from a visitor's connection to the app and back.

use std::io;
use std::sync::Arc;

use http::header::EXPECT;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::Either;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tracing::debug;

use super::answer::{self, Seal};
use super::body::{Answer, Downward, Upward};
use super::dial::{self, Kept};
use super::streams::{self, Streams};
use super::{Shared, busy, headers, probe};
use crate::state::Dial;

/// One visitor's connection.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    /// It comes from the guest itself.
    inside: bool,
    kept: Kept,
    streams: Streams,
}

/// Why the app gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection to the app: nothing of the request has reached it.
    #[error("the app can't be reached: {0}")]
    Connect(io::Error),
    /// The connection broke, or what came over it was not HTTP. The app may have seen the request.
    #[error("the exchange with the app broke: {0}")]
    Broke(hyper::Error),
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, inside: bool) -> Self {
        Self { shared, inside, kept: Kept::default(), streams: Streams::default() }
    }

    /// The answer to `request`: the app's, or ours when there is none. An error resets a stream, as
    /// the app has done.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Answer>, hyper::Error> {
        let (mut parts, incoming) = request.into_parts();
        let nonce = probe::nonce(&parts.headers);
        let seal: Seal = self.shared.life().zip(nonce);
        if seal.is_some()
            && probe::is_probe(&parts.method, &parts.uri, &self.shared.settings.gate_path)
        {
            return Ok(self.probe(&seal).await);
        }
        let front = parts.version;
        if self.inside && busy::is_word(&parts.method, &parts.uri) {
            return Ok(busy::take(&self.shared.settings.busy, incoming, front).await);
        }
        if parts.method == Method::CONNECT {
            let detail = "an app behind an agent is no proxy";
            return Ok(answer::problem(
                StatusCode::NOT_IMPLEMENTED,
                "no-tunnel",
                "CONNECT is not supported",
                detail,
                front,
            ));
        }
        let mut body = Upward::new(incoming, &self.shared.tasks);
        // A stream can be reset without a loss to others.
        if front == Version::HTTP_2 || parts.headers.contains_key(EXPECT) {
            body = body.not_drained();
        }
        let visitor =
            headers::upward(&mut parts).then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
        let sent = if front == Version::HTTP_2 {
            self.streams.send(&self.shared, Request::from_parts(parts, body)).await
        } else {
            self.send(parts, body).await
        };
        match sent {
            Ok(response) => Ok(self.pass(response, visitor, front)),
            Err(SendError::Broke(error)) if streams::was_reset(&error) => Err(error),
            Err(error) => Ok(self.fail(&error, &seal, front)),
        }
    }

    async fn probe(&self, seal: &Seal) -> Response<Answer> {
        let dialled = dial::connect(self.shared.settings.app).await;
        answer::probe(seal, self.shared.observe(Dial::of(&dialled)))
    }

    /// Sends the request, once. A request that may be repeated goes over the kept connection, and
    /// again over a fresh one if the app has hung up on that meanwhile; any other takes a fresh
    /// one, where hanging up can't be mistaken.
    async fn send(&self, parts: Parts, body: Upward) -> Result<Response<Incoming>, SendError> {
        let repeatable = parts.method.is_idempotent() && body.is_end_stream();
        if repeatable && let Some(mut kept) = self.kept.take() {
            let request = Request::from_parts(parts.clone(), Upward::empty());
            match kept.try_send_request(request).await {
                Ok(response) => {
                    self.keep(kept, &response);
                    return Ok(response);
                }
                Err(error) if hung_up(error.error()) => {}
                Err(error) => return Err(SendError::Broke(error.into_error())),
            }
        }
        let dialled = dial::connect(self.shared.settings.app).await;
        self.shared.observe(Dial::of(&dialled));
        let stream = dialled.map_err(SendError::Connect)?;
        let mut sender = dial::handshake(&self.shared, stream).await.map_err(SendError::Broke)?;
        let request = Request::from_parts(parts, body);
        let response = sender.send_request(request).await.map_err(SendError::Broke)?;
        self.keep(sender, &response);
        Ok(response)
    }

    fn keep(&self, sender: SendRequest<Upward>, response: &Response<Incoming>) {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.kept.put(sender);
        }
    }

    fn pass(
        &self,
        mut response: Response<Incoming>,
        visitor: Option<OnUpgrade>,
        front: Version,
    ) -> Response<Answer> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(visitor) = visitor else {
                let detail = "it switched protocols without being asked to";
                return broke(detail, front);
            };
            let app = hyper::upgrade::on(&mut response);
            let stop = self.shared.stop.clone();
            self.shared.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(tunnel(visitor, app)).await;
            });
        }
        let (mut parts, body) = response.into_parts();
        headers::downward(&mut parts, front);
        Response::from_parts(parts, Either::Left(Downward(body)))
    }

    fn fail(&self, error: &SendError, seal: &Seal, front: Version) -> Response<Answer> {
        match error {
            SendError::Connect(cause) => match Dial::of::<()>(&Err(cause.kind().into())) {
                Dial::Refused => {
                    answer::not_listening(seal, self.shared.observe(Dial::Refused), front)
                }
                Dial::Listens | Dial::Unclear => answer::failed(
                    StatusCode::BAD_GATEWAY,
                    "app-unreachable",
                    "the app can't be reached",
                    &error.to_string(),
                    front,
                ),
            },
            SendError::Broke(_) => broke(&error.to_string(), front),
        }
    }
}

fn broke(detail: &str, front: Version) -> Response<Answer> {
    answer::failed(
        StatusCode::BAD_GATEWAY,
        "app-broke",
        "the app broke off before it answered",
        detail,
        front,
    )
}

/// The connection ended before one byte of an answer, as it does when its time was up.
fn hung_up(error: &hyper::Error) -> bool {
    let io = std::error::Error::source(error).and_then(|s| s.downcast_ref::<io::Error>());
    error.is_canceled()
        || error.is_closed()
        || error.is_incomplete_message()
        || io.is_some_and(|e| {
            matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        })
}

async fn tunnel(visitor: OnUpgrade, app: OnUpgrade) {
    let both = tokio::try_join!(visitor, app);
    let result = match both {
        Ok((visitor, app)) => {
            copy_bidirectional(&mut TokioIo::new(visitor), &mut TokioIo::new(app)).await
        }
        Err(error) => Err(io::Error::other(error)),
    };
    if let Err(error) = result {
        debug!(%error, "a tunnel broke");
    }
}
