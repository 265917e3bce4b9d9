//! `/counter` and `/dirty`: what only memory knows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use http::{Response, StatusCode, Uri};
use serde_json::json;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query::{self, Number};
use crate::random::Random;

/// What one page of memory has, in bytes.
const PAGE: usize = 4096;

/// The app's memory, as far as it is shown.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    counter: AtomicU64,
    ballast: Mutex<Vec<u8>>,
}

impl Memory {
    /// Counts up. `boot` tells a process from its successor.
    pub(crate) fn counter(&self, random: &Random) -> Response<Body> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        answer::json(StatusCode::OK, &json!({ "counter": counter, "boot": random.boot() }))
    }

    /// Holds `mb` MiB in place of those it held before, each page with bytes of its own.
    pub(crate) fn dirty(&self, uri: &Uri) -> Result<Response<Body>, Refusal> {
        let mb = Number { name: "mb", range: 0..=1024, default: 16 };
        let [mb] = query::numbers(uri, [mb])?;
        let size = usize::try_from(mb).map_err(|e| Refusal::Machine(e.to_string()))? << 20;
        let mut held = self.ballast.lock().unwrap_or_else(PoisonError::into_inner);
        // The old ones go first: both may not fit.
        *held = Vec::new();
        let mut ballast = Vec::new();
        ballast.try_reserve_exact(size).map_err(|e| Refusal::Machine(e.to_string()))?;
        ballast.resize(size, 0);
        let mut state = self.counter.load(Ordering::Relaxed) ^ 0x9e37_79b9_7f4a_7c15;
        for page in ballast.chunks_mut(PAGE) {
            // Different in every page (splitmix64), so that nothing merges or compresses them.
            for word in page.chunks_exact_mut(8) {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word.copy_from_slice(&(mixed ^ (mixed >> 27)).to_le_bytes());
            }
        }
        *held = ballast;
        Ok(answer::json(StatusCode::OK, &json!({ "held_mb": mb })))
    }
}
