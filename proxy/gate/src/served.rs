//! Telling the waker that the first byte of a life has gone out: only then is its guest patched.
//!
//! The first visitor to be answered tells, whoever started the wake, and waits for nothing: what is
//! told lies in the app's one place until a task of the gate's has delivered it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_protocol::client::ClientError;
use rouse_protocol::wake::Served;

use crate::app::App;
use crate::gate::Gate;
use crate::observer::TellEnd;
use crate::outside::Waker;
use crate::visitor::{Visitor, Woken};

/// How much of a start the visitor's header gets: it is written right after it was seen here, and
/// the work that this sets going takes CPU from the same guest.
const HEAD_START: Duration = Duration::from_millis(5);
/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried while the waker can't be reached.
const TRIES: u32 = 6;
/// The pause after the first try; doubled each time, so that a restart of the waker is outlasted.
const PAUSE: Duration = Duration::from_millis(200);

impl Gate {
    /// The response header of `visitor` is here: its place goes to the next in the queue, and if
    /// it is the first of its life, the waker is told. For a visitor that was held, what to tell of
    /// the wake, once.
    pub fn answered(self: &Arc<Self>, visitor: &mut Visitor) -> Option<Woken> {
        let (woken, first) = visitor.answered();
        if let Some(served) = first
            && let Some(waker) = &self.waker
            && visitor.app().telling.put(served)
        {
            self.spawn(tell(self.clone(), waker.clone(), visitor.app().clone()));
        }
        woken
    }
}

/// Whether the first byte after a wake has been seen.
#[derive(Debug, Default)]
pub(crate) struct FirstByte(AtomicBool);

impl FirstByte {
    /// True once. Every visitor asks, so that it only reads as a rule.
    pub(crate) fn take(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// What the waker is still to be told of one app: the newest only.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    place: Mutex<Place>,
}

#[derive(Debug, Default)]
struct Place {
    next: Option<Served>,
    /// A task delivers what is here.
    taken_care: bool,
}

impl Telling {
    fn lock(&self) -> MutexGuard<'_, Place> {
        // Nothing panics under the lock.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what is unsent, unless that is of a later life. True: the caller must see to it
    /// that it is delivered.
    fn put(&self, served: Served) -> bool {
        let mut place = self.lock();
        if place.next.as_ref().is_none_or(|next| next.generation <= served.generation) {
            place.next = Some(served);
        }
        !std::mem::replace(&mut place.taken_care, true)
    }

    /// What to deliver now. With none, whoever puts the next one is told to.
    fn take(&self) -> Option<Served> {
        let mut place = self.lock();
        let next = place.next.take();
        place.taken_care = next.is_some();
        next
    }

    fn is_empty(&self) -> bool {
        self.lock().next.is_none()
    }
}

async fn tell(gate: Arc<Gate>, waker: Arc<dyn Waker>, app: Arc<App>) {
    loop {
        tokio::time::sleep(HEAD_START).await;
        let Some(served) = app.telling.take() else { return };
        let end = deliver(&*waker, &app, &served).await;
        gate.observer.served_told(end);
    }
}

/// Delivers `served`, or gives up because something newer waits or the waker stays away.
async fn deliver(waker: &dyn Waker, app: &App, served: &Served) -> TellEnd {
    let generation = served.generation;
    let mut pause = PAUSE;
    for left in (0..TRIES).rev() {
        let why = match tokio::time::timeout(PATIENCE, waker.served(app.id(), served)).await {
            Ok(Ok(())) => return TellEnd::Told,
            Ok(Err(ClientError::Refused(problem))) => {
                tracing::debug!(app = %app.id(), %generation, code = problem.code(), "the first byte was not taken: {}", problem.detail);
                return TellEnd::Refused;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        tracing::debug!(app = %app.id(), %generation, left, "the first byte can't be told: {why}");
        if left == 0 || !app.telling.is_empty() {
            break;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    TellEnd::Unreachable
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;

    use super::*;

    fn served(generation: u64) -> Served {
        Served { generation: Generation(generation), phases: Vec::new() }
    }

    #[test]
    fn one_is_the_first() {
        let first = FirstByte::default();
        assert_eq!([first.take(), first.take(), first.take()], [true, false, false]);
    }

    #[test]
    fn the_newest_takes_the_place_and_one_task_delivers() {
        let telling = Telling::default();
        assert!(telling.put(served(1)), "nobody delivers yet");
        assert!(!telling.put(served(3)));
        assert!(!telling.put(served(2)), "older than what is there");
        assert_eq!(telling.take(), Some(served(3)));
        assert!(telling.is_empty());
        // What comes while that is delivered is the same task's.
        assert!(!telling.put(served(4)));
        assert_eq!(telling.take(), Some(served(4)));
        assert_eq!(telling.take(), None);
        assert!(telling.put(served(5)), "the task has ended");
    }
}
