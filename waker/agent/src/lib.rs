//! The guest's side of Rouse: it fronts the app's port, answers the gate's probe with a signed
//! word, and takes from the waker what a guest can't know after a sleep.
//!
//! - [`control`]: the virtio-serial port, over which the waker tells the guest its [`life`].
//! - [`lanes`]: flushes and patches, away from that port's loop: of the [`disk`], and the ones of [`patch`].
//! - [`busy`]: the app's word that it works and must not be put to sleep.
//! - [`front`]: the HTTP front before the app.
//! - [`state`]: which word to sign. Pure.
//! - [`clock`] and [`entropy`]: the patches that a [`life::Life`] brings along.
#![deny(unsafe_code)]

pub mod busy;
pub mod clock;
pub mod control;
pub mod disk;
#[allow(unsafe_code)]
pub mod entropy;
pub mod front;
pub mod lanes;
pub mod life;
mod lines;
pub mod patch;
pub mod state;
mod voice;
