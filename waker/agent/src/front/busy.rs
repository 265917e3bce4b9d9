//! The app's word that it is busy, from inside the guest.

use bytes::Bytes;
use http::{Method, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;

use super::answer;
use super::body::Answer;
use crate::busy::{BUSY_PATH, Busy, BusyError, MAX_BODY, parse};

/// Whether this is such a word, given that it comes from inside.
pub(super) fn is_word(method: &Method, uri: &Uri) -> bool {
    method == Method::POST && uri.path() == BUSY_PATH
}

/// Takes it: 204 once it is noted. The waker hears of it right after.
pub(super) async fn take(busy: &Busy, body: Incoming, front: Version) -> Response<Answer> {
    let body = Limited::new(body, MAX_BODY).collect().await;
    let seconds = match body {
        Ok(body) => parse(&body.to_bytes()),
        Err(_) => Err(BusyError::Shape),
    };
    match seconds {
        Ok(seconds) => {
            busy.say(seconds);
            let mut response = Response::new(Either::Right(Full::new(Bytes::new())));
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(error) => answer::problem(
            StatusCode::BAD_REQUEST,
            "busy-unreadable",
            "no word of being busy",
            &error.to_string(),
            front,
        ),
    }
}
