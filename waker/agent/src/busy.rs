//! The app's word that it works though no visitor is there, so that it is not put to sleep meanwhile.
//!
//! Time is the guest's own, which stands still while it sleeps: what was said goes on after a wake.
//! It is told by a thread of its own, since the control port takes nothing while no waker reads, and
//! told again to each waker that tells a life, since a waker may have been started anew.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rouse_protocol::control::{FromAgent, MAX_BUSY_SECONDS};
use serde_json::Value;
use tracing::{debug, warn};

use crate::voice::Voice;

/// Where the app says it, by POST to the front, from inside the guest.
pub const BUSY_PATH: &str = "/.well-known/rouse-busy";

/// The longest that it may say, in bytes.
pub const MAX_BODY: usize = 1024;

/// What the app has said. Clones share it.
#[derive(Clone, Debug)]
pub struct Busy {
    said: Arc<Mutex<Said>>,
    bell: SyncSender<()>,
}

#[derive(Debug, Default)]
struct Said {
    until: Option<Instant>,
    voice: Option<Voice>,
}

/// Why a body is no word of the app's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusyError {
    /// It is something else.
    #[error("the body is `{{\"seconds\": n}}`, with a whole number")]
    Shape,
    /// It is too long a time.
    #[error("an app can say that it is busy for {MAX_BUSY_SECONDS} s at once, and say so again")]
    Long,
}

/// The seconds that `body` says.
pub fn parse(body: &[u8]) -> Result<u64, BusyError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| BusyError::Shape)?;
    let object = value.as_object().filter(|object| object.len() == 1).ok_or(BusyError::Shape)?;
    match object.get("seconds").and_then(Value::as_u64) {
        Some(seconds) if seconds <= MAX_BUSY_SECONDS => Ok(seconds),
        Some(_) => Err(BusyError::Long),
        None => Err(BusyError::Shape),
    }
}

/// Whether who asks is in the guest: the kernel takes no such address from outside.
pub fn is_inside(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

impl Busy {
    /// Starts the thread that tells. It ends with the last clone.
    pub fn start() -> io::Result<Self> {
        let (bell, rung) = sync_channel(1);
        let said = Arc::<Mutex<Said>>::default();
        let theirs = Arc::clone(&said);
        thread::Builder::new().name("busy".into()).spawn(move || tell_all(&theirs, &rung))?;
        Ok(Self { said, bell })
    }

    fn locked(&self) -> MutexGuard<'_, Said> {
        locked(&self.said)
    }

    /// It is busy for so long from now on; zero: not any more.
    pub fn say(&self, seconds: u64) {
        let length = Duration::from_secs(seconds.min(MAX_BUSY_SECONDS));
        self.locked().until = Instant::now().checked_add(length);
        self.ring();
    }

    /// From now on it is told by `voice`, to whom nothing has been told yet.
    pub(crate) fn told_by(&self, voice: &Voice) {
        let mut said = self.locked();
        said.voice = Some(voice.clone());
        let now = Instant::now();
        if said.until.is_some_and(|until| until > now) {
            drop(said);
            self.ring();
        }
    }

    /// One ring is enough for all that was said before it is answered.
    fn ring(&self) {
        let _ = self.bell.try_send(());
    }
}

fn locked(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    // Nothing panics under the lock.
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell_all(said: &Mutex<Said>, rung: &Receiver<()>) {
    while rung.recv().is_ok() {
        let (voice, until) = {
            let said = locked(said);
            (said.voice.clone(), said.until)
        };
        let (Some(voice), Some(until)) = (voice, until) else { continue };
        let left = until.saturating_duration_since(Instant::now());
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        debug!(seconds, "the app says that it is busy");
        if let Err(error) = voice.say(&FromAgent::Busy { seconds }) {
            warn!(%error, "the waker can't be told that the app is busy");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies() {
        let table: [(&str, Result<u64, BusyError>); 9] = [
            (r#"{"seconds": 60}"#, Ok(60)),
            (r#"{"seconds":0}"#, Ok(0)),
            (r#"{"seconds":86400}"#, Ok(86_400)),
            (r#"{"seconds":86401}"#, Err(BusyError::Long)),
            (r#"{"seconds":-1}"#, Err(BusyError::Shape)),
            (r#"{"seconds":1.5}"#, Err(BusyError::Shape)),
            (r#"{"seconds":1,"x":2}"#, Err(BusyError::Shape)),
            ("60", Err(BusyError::Shape)),
            ("", Err(BusyError::Shape)),
        ];
        for (body, expected) in table {
            assert_eq!(parse(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn only_the_guest_itself_is_inside() {
        for (address, inside) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.2.2", false),
            ("10.0.2.15", false),
            ("::ffff:10.0.2.2", false),
        ] {
            assert_eq!(is_inside(address.parse().unwrap()), inside, "{address}");
        }
    }
}
