//! `/time` and `/slow`.

use std::time::Duration;

use http::{Response, StatusCode, Uri};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query::{self, Number};

/// Both clocks, in milliseconds.
pub(crate) fn now() -> Response<Body> {
    let ms = |clock| clock_gettime(clock).map(|t| Duration::from(t).as_millis() as u64).ok();
    let value = json!({
        "unix_ms": ms(ClockId::CLOCK_REALTIME),
        "monotonic_ms": ms(ClockId::CLOCK_MONOTONIC),
    });
    answer::json(StatusCode::OK, &value)
}

/// An answer that takes its time.
pub(crate) async fn slow(uri: &Uri) -> Result<Response<Body>, Refusal> {
    let ms = Number { name: "ms", range: 0..=600_000, default: 1000 };
    let [ms] = query::numbers(uri, [ms])?;
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(answer::json(StatusCode::OK, &json!({ "slept_ms": ms })))
}
