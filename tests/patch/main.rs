//! What is done to a woken guest once its first visitor is served, and what if that fails?
#![forbid(unsafe_code)]

mod coherence;
mod park;
mod trace;

use rouse_protocol::status::{PatchTrace, WakeTrace};
use rouse_tests::{Node, eventually};

/// The newest wake of the test app, once so many patches of it are told.
async fn patched(node: &Node, patches: usize) -> WakeTrace {
    eventually(&format!("{patches} patches are told"), async || {
        node.trace("hello").await.filter(|wake| wake.patches.len() >= patches)
    })
    .await
}

fn names(wake: &WakeTrace) -> Vec<&str> {
    wake.patches.iter().map(|patch| &*patch.patch).collect()
}

fn failed(wake: &WakeTrace) -> Vec<&PatchTrace> {
    wake.patches.iter().filter(|patch| patch.error.is_some()).collect()
}
