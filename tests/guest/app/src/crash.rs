//! `/crash`: the process ends, and init starts it again; `/crash?what=agent`: the agent does.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode, Uri};
use serde_json::json;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query::{self, Number};
use crate::route::App;

/// Where init reads how many milliseconds to wait before it starts the app again.
const DOWN_MS: &str = "/run/app/down_ms";

/// open(2); the same on every architecture that Linux's generic ABI covers, x86_64 among them.
const O_NONBLOCK: i32 = 0o4000;

/// What the process exits with.
const STATUS: u8 = 42;

/// The time that the answer has to leave, at the least.
const FLUSH: Duration = Duration::from_millis(20);

/// A pipe at whose other end init waits to kill the agent.
const KILL_AGENT: &str = "/run/app/kill-agent";

/// Answers 202, and exits `after_ms` later. The app then stays away for `down_ms`.
pub(crate) fn answer(app: &Arc<App>, uri: &Uri) -> Result<Response<Body>, Refusal> {
    if uri.query() == Some("what=agent") {
        // Not one that a missing reader would block, nor a plain file in its place.
        let mut pipe = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(pipe.write(true), O_NONBLOCK)
            .open(KILL_AGENT)
            .and_then(|mut pipe| std::io::Write::write_all(&mut pipe, b"now\n"))
            .map_err(|e| Refusal::Machine(format!("{KILL_AGENT}: {e}")))?;
        return Ok(answer::json(StatusCode::ACCEPTED, &json!({ "ends": "agent" })));
    }
    let after = Number { name: "after_ms", range: 0..=600_000, default: 0 };
    let down = Number { name: "down_ms", range: 0..=600_000, default: u64::MAX };
    let [after, down] = query::numbers(uri, [after, down])?;
    if down != u64::MAX {
        std::fs::write(DOWN_MS, format!("{down}\n"))
            .map_err(|e| Refusal::Machine(format!("{DOWN_MS}: {e}")))?;
    }
    let exit = app.exit.clone();
    app.tasks.spawn(async move {
        tokio::time::sleep(FLUSH.max(Duration::from_millis(after))).await;
        exit.send_replace(Some(STATUS));
    });
    let value = json!({ "exits_with": STATUS, "after_ms": after });
    let mut response = answer::json(StatusCode::ACCEPTED, &value);
    // Nobody is to send a second request on a connection about to break.
    let close = http::HeaderValue::from_static("close");
    response.headers_mut().insert(http::header::CONNECTION, close);
    Ok(response)
}
