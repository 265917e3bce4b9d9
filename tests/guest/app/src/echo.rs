//! `/echo`: what of a request arrived, and how often.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::answer::{self, Body};
use crate::error::Refusal;

/// How many request ids are remembered; above it the oldest are forgotten.
const MAX_IDS: usize = 100_000;
/// The longest request id that is counted, in bytes.
const MAX_ID: usize = 128;

/// How many times each `X-Request-Id` was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_id: HashMap<Vec<u8>, u64>,
    order: VecDeque<Vec<u8>>,
}

impl Seen {
    /// Counts the request with `headers`; 0 when it has no id.
    fn count(&self, headers: &HeaderMap) -> Result<u64, Refusal> {
        let Some(id) = headers.get("x-request-id") else { return Ok(0) };
        if id.len() > MAX_ID {
            return Err(Refusal::parameter("X-Request-Id", format!("at most {MAX_ID} bytes")));
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts { by_id, order } = &mut *counts;
        let seen = by_id.entry(id.as_bytes().to_vec()).or_insert_with(|| {
            order.push_back(id.as_bytes().to_vec());
            0
        });
        *seen += 1;
        let seen = *seen;
        if order.len() > MAX_IDS
            && let Some(oldest) = order.pop_front()
        {
            by_id.remove(&oldest);
        }
        Ok(seen)
    }
}

/// What arrived. Counted as soon as the header is there: a request that breaks off was seen too.
pub(crate) async fn answer(
    seen: &Seen,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let (parts, mut body) = request.into_parts();
    let seen = seen.count(&parts.headers)?;
    let mut hash = Sha256::new();
    let mut bytes = 0_usize;
    let mut trailers = Value::Null;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                bytes += data.len();
                hash.update(&data);
            }
            Err(frame) => {
                if let Ok(map) = frame.into_trailers() {
                    trailers = pairs(&map);
                }
            }
        }
    }
    let value = json!({
        "method": parts.method.as_str(),
        "path": parts.uri.to_string(),
        "headers": pairs(&parts.headers),
        "trailers": trailers,
        "body_bytes": bytes,
        "body_sha256": hex::encode(hash.finalize()),
        "seen": seen,
    });
    Ok(answer::json(StatusCode::OK, &value))
}

fn pairs(headers: &HeaderMap) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers.iter().map(|(name, value)| json!([name.as_str(), text(value.as_bytes())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> HeaderMap {
        HeaderMap::from_iter([("x-request-id".parse().unwrap(), text.parse().unwrap())])
    }

    #[test]
    fn each_id_is_counted_for_itself() {
        let seen = Seen::default();
        let counts = ["a", "b", "a", "a"].map(|text| seen.count(&id(text)).unwrap());
        assert_eq!(counts, [1, 1, 2, 3]);
        assert_eq!(seen.count(&HeaderMap::new()).unwrap(), 0);
        seen.count(&id(&"x".repeat(MAX_ID + 1))).unwrap_err();
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let seen = Seen::default();
        for i in 0..=MAX_IDS {
            assert_eq!(seen.count(&id(&i.to_string())).unwrap(), 1);
        }
        assert_eq!(seen.count(&id("0")).unwrap(), 1);
        assert_eq!(seen.0.lock().unwrap().by_id.len(), MAX_IDS);
    }
}
