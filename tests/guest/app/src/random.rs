//! `/random`: what two resumes of one image would share.

use std::sync::{Mutex, PoisonError};

use http::{Response, StatusCode};
use rand::rngs::{StdRng, SysRng};
use rand::{Rng, TryRng};
use serde_json::json;

use crate::answer::{self, Body};
use crate::error::Refusal;

/// A generator of the process's own, seeded once at its start and never again.
#[derive(Debug)]
pub(crate) struct Random {
    boot: String,
    own: Mutex<StdRng>,
}

impl Random {
    pub(crate) fn new() -> Self {
        let mut own: StdRng = rand::make_rng();
        let mut boot = [0; 8];
        own.fill_bytes(&mut boot);
        Self { boot: hex::encode(boot), own: Mutex::new(own) }
    }

    /// A name of this process that no other has.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }
}

/// 16 bytes of the process's own generator and 16 of the kernel's.
pub(crate) fn answer(random: &Random) -> Result<Response<Body>, Refusal> {
    let (mut own, mut kernel) = ([0; 16], [0; 16]);
    random.own.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut own);
    SysRng.try_fill_bytes(&mut kernel).map_err(|e| Refusal::Machine(e.to_string()))?;
    let value = json!({ "process": hex::encode(own), "kernel": hex::encode(kernel) });
    Ok(answer::json(StatusCode::OK, &value))
}
