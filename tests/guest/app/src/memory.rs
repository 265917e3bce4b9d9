//! `/counter`, `/dirty` and `/zero`: what only memory knows.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Response, StatusCode, Uri};
use serde_json::json;
use twox_hash::XxHash3_64;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::query::{self, Number};
use crate::random::Random;

/// The most that either of the two holds, in MiB.
const MAX_MIB: u64 = 512;

/// The app's memory, as far as it is shown.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    counter: AtomicU64,
    dirty: Held,
    zero: Held,
}

/// Memory of many MiB. Filling it takes a guest seconds, which probes don't wait for.
type Held = Arc<Mutex<Vec<u8>>>;

impl Memory {
    /// Counts up. `boot` tells a process from its successor.
    pub(crate) fn counter(&self, random: &Random) -> Response<Body> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        answer::json(StatusCode::OK, &json!({ "counter": counter, "boot": random.boot() }))
    }

    /// A POST holds `mib` MiB made from `seed` in place of those held before. Either method reads all
    /// that is held, and answers its hash: the same bytes, the same answer.
    pub(crate) async fn dirty(
        &self,
        method: &Method,
        uri: &Uri,
    ) -> Result<Response<Body>, Refusal> {
        let change = match *method {
            Method::POST => {
                let seed = Number { name: "seed", range: 0..=u64::MAX, default: 0 };
                let [mib, seed] = query::numbers(uri, [mib(), seed])?;
                Some((mib, seed))
            }
            _ => {
                let [] = query::numbers(uri, [])?;
                None
            }
        };
        let value = blocking(&self.dirty, move |held| {
            if let Some((mib, seed)) = change {
                fill(held, mib, seed)?;
            }
            let mut hash = XxHash3_64::new();
            hash.write(held);
            Ok(json!({ "mib": held.len() >> 20, "xxh3": format!("{:016x}", hash.finish()) }))
        })
        .await?;
        Ok(answer::json(StatusCode::OK, &value))
    }

    /// Holds `mib` MiB that had contents and are zero now, in place of those held before.
    pub(crate) async fn zero(&self, uri: &Uri) -> Result<Response<Body>, Refusal> {
        let [mib] = query::numbers(uri, [mib()])?;
        blocking(&self.zero, move |held| {
            fill(held, mib, 1)?;
            // Else the compiler may see that nobody reads what the zeros go over.
            std::hint::black_box(&mut *held).fill(0);
            Ok(())
        })
        .await?;
        Ok(answer::json(StatusCode::OK, &json!({ "zero_mib": mib })))
    }
}

fn mib() -> Number {
    Number { name: "mib", range: 0..=MAX_MIB, default: 16 }
}

async fn blocking<T: Send + 'static>(
    held: &Held,
    work: impl FnOnce(&mut Vec<u8>) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let held = held.clone();
    tokio::task::spawn_blocking(move || {
        work(&mut held.lock().unwrap_or_else(PoisonError::into_inner))
    })
    .await
    .map_err(|e| Refusal::Machine(e.to_string()))?
}

/// Puts `mib` MiB of pseudo-random bytes in place of what is `held`.
fn fill(held: &mut Vec<u8>, mib: u64, seed: u64) -> Result<(), Refusal> {
    let size = usize::try_from(mib << 20).map_err(|e| Refusal::Machine(e.to_string()))?;
    // The old ones go first: both may not fit.
    *held = Vec::new();
    held.try_reserve_exact(size).map_err(|e| Refusal::Machine(e.to_string()))?;
    // splitmix64: different in every page, so that nothing merges or compresses them.
    let mut state = seed;
    while held.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        held.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_its_bytes() {
        let made = |mib, seed| {
            let mut held = vec![7];
            fill(&mut held, mib, seed).unwrap();
            held
        };
        assert_eq!(made(1, 5), made(1, 5));
        assert_ne!(made(1, 5), made(1, 6));
        assert_eq!(made(2, 5).len(), 2 << 20);
        assert_eq!(made(0, 5), Vec::<u8>::new());
        // The first of splitmix64 from 0.
        assert_eq!(made(1, 0)[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        let mut pages: Vec<Vec<u8>> = made(1, 5).chunks(4096).map(<[u8]>::to_vec).collect();
        pages.sort();
        pages.dedup();
        assert_eq!(pages.len(), 256);
    }
}
