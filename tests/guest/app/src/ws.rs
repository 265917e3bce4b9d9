//! `/ws`: a WebSocket that says what it is told.

use futures_util::StreamExt;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_util::task::TaskTracker;

use crate::answer::{self, Body};
use crate::error::Refusal;

/// The longest message, in bytes.
const MAX_MESSAGE: usize = 16 << 20;

/// Switches to the WebSocket protocol.
pub(crate) fn answer(
    tasks: &TaskTracker,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let headers = request.headers();
    let websocket =
        headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))
            && headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|v| v == "13");
    let (true, Some(key)) = (websocket, headers.get(SEC_WEBSOCKET_KEY)) else {
        return Err(Refusal::NoUpgrade);
    };
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|e| Refusal::Machine(e.to_string()))?;
    let upgraded = hyper::upgrade::on(&mut request);
    tasks.spawn(async move {
        // A visitor who never comes to speak has nothing to be told.
        let Ok(stream) = upgraded.await else { return };
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE));
        let io = TokioIo::new(stream);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (said, heard) = socket.split();
        let messages = heard.filter(|m| {
            std::future::ready(m.as_ref().map_or(true, |m| m.is_text() || m.is_binary()))
        });
        // Ends when either side hangs up.
        let _ = messages.forward(said).await;
    });
    let mut response = Response::new(answer::full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}
