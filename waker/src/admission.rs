//! Room on this node: how much memory its VMs may have, and how many wakes may run at once.
//!
//! Strictly first come, first served: a big app at the head is not overtaken by a small one that
//! would fit, or it would wait for ever. Tokio's semaphore is fair too, but it can neither be
//! overdrawn by a VM that runs already, nor say what its head lacks.
//!
//! Each app has at most one wake, so no more wait than there are apps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{oneshot, watch};

/// The room on one node. A clone is the same room.
#[derive(Clone, Debug)]
pub struct Admission {
    room: Arc<Room>,
}

/// The app can never run here: it is larger than all the memory that VMs may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the app has {memory_mib} MiB and all VMs of this node together may have {budget_mib} MiB: \
     make it smaller, or the node's budget larger"
)]
pub struct TooLarge {
    /// The app's memory.
    pub memory_mib: u64,
    /// The node's.
    pub budget_mib: u64,
}

/// What is taken, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// What all VMs together may have, in MiB.
    pub budget_mib: u64,
    /// What they have, in MiB. More than the budget after [`Admission::adopt`] has overdrawn it.
    pub in_use_mib: u64,
    /// Wakes that run.
    pub wakes: usize,
    /// Wakes that wait.
    pub waiting: usize,
}

/// A VM's memory, for as long as the VM lives. Given back on drop.
#[derive(Debug)]
#[must_use = "dropping it gives the memory back"]
pub struct Seat {
    room: Arc<Room>,
    memory_mib: u64,
}

/// One of the wakes that may run at once. Given back on drop.
#[derive(Debug)]
#[must_use = "dropping it lets the next wake run"]
pub struct Turn {
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    budget_mib: u64,
    at_once: usize,
    state: Mutex<State>,
    lacking: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    in_use_mib: u64,
    wakes: usize,
    queue: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    memory_mib: u64,
    enter: oneshot::Sender<()>,
}

/// A place in the queue, or what it has become. On drop it is left, or given back.
struct Place {
    room: Arc<Room>,
    number: u64,
    memory_mib: u64,
    /// [`Seat`] and [`Turn`] answer for what was granted.
    taken: bool,
}

impl Admission {
    /// Room for VMs of `memory_mib` in all, and `at_once` wakes, at least one.
    pub fn new(memory_mib: u64, at_once: usize) -> Self {
        let room = Room {
            budget_mib: memory_mib,
            at_once: at_once.max(1),
            state: Mutex::default(),
            lacking: watch::Sender::new(0),
        };
        Self { room: Arc::new(room) }
    }

    /// Waits until `memory_mib` are free and a wake may run, behind all who came before. The place
    /// in the queue is taken at the first poll; dropping the future leaves it.
    pub async fn enter(&self, memory_mib: u64) -> Result<(Seat, Turn), TooLarge> {
        let room = &self.room;
        if memory_mib > room.budget_mib {
            return Err(TooLarge { memory_mib, budget_mib: room.budget_mib });
        }
        let (enter, entered) = oneshot::channel();
        let mut place = room.queue(memory_mib, enter);
        // The sender is in the queue until it has sent, and only this place takes it out otherwise.
        entered.await.expect("who waits is let in");
        place.taken = true;
        let seat = Seat { room: Arc::clone(room), memory_mib };
        Ok((seat, Turn { room: Arc::clone(room) }))
    }

    /// Counts a VM that runs already. It always succeeds and may overdraw the budget; who comes
    /// later waits until that is made good.
    pub fn adopt(&self, memory_mib: u64) -> Seat {
        let mut state = self.room.lock();
        state.in_use_mib = state.in_use_mib.saturating_add(memory_mib);
        self.room.advance(&mut state);
        Seat { room: Arc::clone(&self.room), memory_mib }
    }

    /// How many MiB the head of the queue lacks, now and whenever that changes; 0: none. Whoever
    /// can free memory, by saving paused apps, does so for it.
    pub fn lacking(&self) -> watch::Receiver<u64> {
        self.room.lacking.subscribe()
    }

    /// What is taken now.
    pub fn figures(&self) -> Figures {
        let state = self.room.lock();
        Figures {
            budget_mib: self.room.budget_mib,
            in_use_mib: state.in_use_mib,
            wakes: state.wakes,
            waiting: state.queue.len(),
        }
    }
}

impl Seat {
    /// How much memory it is.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.room.give_back(self.memory_mib, 0);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.room.give_back(0, 1);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.room.lock();
        match state.queue.iter().position(|w| w.number == self.number) {
            Some(at) => {
                state.queue.remove(at);
                self.room.advance(&mut state);
            }
            // It was let in and never learned it.
            None => {
                drop(state);
                self.room.give_back(self.memory_mib, 1);
            }
        }
    }
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn queue(self: &Arc<Self>, memory_mib: u64, enter: oneshot::Sender<()>) -> Place {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.queue.push_back(Waiting { number, memory_mib, enter });
        self.advance(&mut state);
        Place { room: Arc::clone(self), number, memory_mib, taken: false }
    }

    fn give_back(&self, memory_mib: u64, wakes: usize) {
        let mut state = self.lock();
        state.in_use_mib = state.in_use_mib.saturating_sub(memory_mib);
        state.wakes = state.wakes.saturating_sub(wakes);
        self.advance(&mut state);
    }

    /// Lets in from the head for as long as it fits, and says what the new head lacks.
    fn advance(&self, state: &mut State) {
        while state.wakes < self.at_once
            && let Some(head) = state.queue.pop_front_if(|w| self.lacks(state.in_use_mib, w) == 0)
        {
            state.in_use_mib += head.memory_mib;
            state.wakes += 1;
            // Whoever no longer listens drops its place, and that gives back.
            let _ = head.enter.send(());
        }
        let lacking = state.queue.front().map_or(0, |w| self.lacks(state.in_use_mib, w));
        self.lacking.send_if_modified(|known| std::mem::replace(known, lacking) != lacking);
    }

    fn lacks(&self, in_use_mib: u64, waiting: &Waiting) -> u64 {
        in_use_mib.saturating_add(waiting.memory_mib).saturating_sub(self.budget_mib)
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
