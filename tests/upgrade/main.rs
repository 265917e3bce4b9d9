//! Does anybody notice that a newer process takes over, or that the proxy goes or comes?
#![forbid(unsafe_code)]

mod handover;
mod notify;
mod reload;
mod stop;
mod systemd;

use rouse_tests::{Front, eventually};

/// The process that took the first one's place, once it has.
async fn successor(front: &Front) -> u32 {
    let first = front.proxy.pid();
    eventually("another process has started", async || {
        front.processes().into_iter().find(|pid| *pid != first)
    })
    .await
}
