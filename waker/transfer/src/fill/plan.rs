//! Which frames to ask for next, and which are there. Pure.
//!
//! A frame is *missing*, *on its way* (asked for by one request, by two when hedged, and by one more when somebody waits for it), *being written* by
//! whoever got its bytes first, and then *there*, for good: nothing leads back from there, so what a
//! guest writes to a window is never overwritten.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::pace::{Median, Pace};

/// The most that is asked for and not written yet, in bytes, besides faults. It may be in memory twice: as
/// it came and as a frame.
pub(super) const MOST_HELD: u64 = 40 << 20;
/// As much again for faults alone, in bytes, so that none waits for others' bytes: some frames of the largest kind.
pub(super) const MOST_HELD_BY_FAULTS: u64 = 10 << 20;
/// What a request asks for at most, in bytes: its own time is then small beside that of its bytes.
const REQUEST: u64 = 8 << 20;
/// What a request for the working set asks for at least, in bytes, if there is so much: it is brought by as many requests
/// as may be, and the time of each is still more than a request's own.
const LEAST: u64 = 1 << 20;
/// What lies behind the working set is asked for once no more than this of it is still to come, in bytes: it would take its
/// share of the link, and nobody waits for it.
const NEAR: u64 = 1 << 20;
/// What a fault asks for at most unless its frame is larger, in bytes: neighbours that cost little to bring along.
const FAULT: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    OnItsWay,
    Writing,
    There,
}

/// Some frames side by side that a request is to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) id: u64,
    pub(super) frames: Range<usize>,
    /// Somebody waits for it.
    pub(super) fault: bool,
    /// Another request is already at it.
    pub(super) hedge: bool,
}

#[derive(Debug)]
struct Flight {
    ask: Ask,
    /// From here on its frames are still to come.
    next: usize,
    begun: Duration,
    hedged: bool,
}

/// What to do about requests, by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hedging {
    /// None is hedged that is younger.
    pub(super) floor: Duration,
    /// One of so many requests may be a hedge.
    pub(super) share: u64,
}

/// The frames of an image, in the order in which they are fetched: the working set's come first.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many bytes all before each have, and all together.
    offsets: Vec<u64>,
    /// Whether each lies right behind the one before, in the same object: only then one request brings both.
    follows: Vec<bool>,
    states: Vec<State>,
    /// By how many requests each is on its way.
    holders: Vec<u8>,
    working_set: usize,
    /// No frame before this is missing.
    cursor: usize,
    faults: VecDeque<usize>,
    there: usize,
    working_set_there: usize,
    /// What of the working set has not come yet, in bytes.
    working_set_left: u64,
    held: u64,
    held_by_faults: u64,
    flights: HashMap<u64, Flight>,
    next_id: u64,
    hedging: Hedging,
    hedges: u64,
    /// Before then nothing is asked for: streams, and faults.
    not_before: [Duration; 2],
    pub(super) pace: Pace,
    took: [Median; 2],
}

impl Plan {
    /// Of frames between these offsets, of which the first `working_set` are the working set's.
    pub(super) fn new(
        offsets: Vec<u64>,
        follows: Vec<bool>,
        working_set: usize,
        pace: Pace,
        hedging: Hedging,
    ) -> Self {
        let frames = offsets.len().saturating_sub(1);
        let working_set = working_set.min(frames);
        Self {
            working_set_left: offsets.get(working_set).copied().unwrap_or(0),
            offsets,
            follows,
            states: vec![State::Missing; frames],
            holders: vec![0; frames],
            working_set,
            cursor: 0,
            faults: VecDeque::new(),
            there: 0,
            working_set_there: 0,
            held: 0,
            held_by_faults: 0,
            flights: HashMap::new(),
            next_id: 0,
            hedging,
            hedges: 0,
            not_before: [Duration::ZERO; 2],
            pace,
            took: [Median::default(), Median::default()],
        }
    }

    fn bytes(&self, frames: Range<usize>) -> u64 {
        self.offsets[frames.end] - self.offsets[frames.start]
    }

    pub(super) fn is_there(&self, frame: usize) -> bool {
        self.states.get(frame) == Some(&State::There)
    }

    pub(super) fn working_set_is_there(&self) -> bool {
        self.working_set_there == self.working_set
    }

    pub(super) fn whole_is_there(&self) -> bool {
        self.there == self.states.len()
    }

    /// What is asked for and not written yet, in bytes.
    pub(super) fn held(&self) -> u64 {
        self.held + self.held_by_faults
    }

    /// Somebody waits for `frame`.
    pub(super) fn need(&mut self, frame: usize) {
        let waits = match self.states.get(frame) {
            Some(State::Missing) => true,
            // Behind others in a long request it may be long in coming.
            Some(State::OnItsWay) => self.is_far(frame),
            _ => false,
        };
        if waits && !self.faults.contains(&frame) {
            self.faults.push_back(frame);
        }
    }

    /// Whether a frame is on its way only behind much else, and by no request for a fault.
    fn is_far(&self, frame: usize) -> bool {
        let mut with = self
            .flights
            .values()
            .filter(|flight| (flight.next..flight.ask.frames.end).contains(&frame));
        with.all(|flight| !flight.ask.fault && self.bytes(flight.next..frame) > FAULT)
    }

    /// Nothing is asked for before `until`; faults are only held back by what befell a `fault`.
    pub(super) fn rest(&mut self, until: Duration, fault: bool) {
        self.not_before[0] = self.not_before[0].max(until);
        if fault {
            self.not_before[1] = self.not_before[1].max(until);
        }
    }

    /// Until when requests rest, where that is later than `now`.
    pub(super) fn rests_until(&self, now: Duration) -> Option<Duration> {
        self.not_before.into_iter().filter(|until| *until > now).min()
    }

    /// The next request, if there may be one at `now`.
    pub(super) fn next(&mut self, now: Duration) -> Option<Ask> {
        while let Some(frame) = self.faults.front().copied() {
            let hedge = self.states[frame] == State::OnItsWay && self.is_far(frame);
            if self.states[frame] != State::Missing && !hedge {
                self.faults.pop_front();
                continue;
            }
            if now < self.not_before[1] {
                break;
            }
            let alone = frame..frame + 1;
            let frames =
                if hedge { alone.clone() } else { self.run(frame, FAULT, self.states.len()) };
            for frames in [frames, alone] {
                let fits = self.held_by_faults + self.bytes(frames.clone()) <= MOST_HELD_BY_FAULTS;
                if fits || self.held_by_faults == 0 {
                    self.faults.pop_front();
                    self.hedges += u64::from(hedge);
                    return Some(self.ask(frames, true, hedge, now));
                }
            }
            break;
        }
        let streams = self.flights.values().filter(|flight| !flight.ask.fault).count();
        if now < self.not_before[0] || streams >= self.pace.limit() {
            return None;
        }
        while self.states.get(self.cursor).is_some_and(|state| *state != State::Missing) {
            self.cursor += 1;
        }
        let first = self.cursor;
        if first == self.states.len() {
            return None;
        }
        // The working set does not wait for what lies behind it.
        let limit = self.pace.limit() as u64;
        let early = first < self.working_set;
        if !early && self.working_set_left > NEAR {
            return None;
        }
        let end = if early { self.working_set } else { self.states.len() };
        let share = self.bytes(0..self.working_set) / limit;
        let most = REQUEST.min(MOST_HELD / limit);
        let most = if early { share.clamp(LEAST.min(most), most) } else { most };
        let frames = self.run(first, most, end);
        let fits = self.held + self.bytes(frames.clone()) <= MOST_HELD || self.held == 0;
        fits.then(|| self.ask(frames, false, false, now))
    }

    /// Frames from `first` on that are all missing and no more than `most` bytes, but one at least.
    fn run(&self, first: usize, most: u64, end: usize) -> Range<usize> {
        let mut next = first + 1;
        while next < end
            && self.follows[next]
            && self.states[next] == State::Missing
            && self.bytes(first..next + 1) <= most
        {
            next += 1;
        }
        first..next
    }

    fn ask(&mut self, frames: Range<usize>, fault: bool, hedge: bool, now: Duration) -> Ask {
        let id = self.next_id;
        self.next_id += 1;
        *self.budget(fault) += self.bytes(frames.clone());
        for frame in frames.clone() {
            if self.states[frame] == State::Missing {
                self.states[frame] = State::OnItsWay;
            }
            self.holders[frame] += 1;
        }
        let ask = Ask { id, frames, fault, hedge };
        let flight = Flight { next: ask.frames.start, ask: ask.clone(), begun: now, hedged: hedge };
        self.flights.insert(id, flight);
        ask
    }

    fn budget(&mut self, fault: bool) -> &mut u64 {
        if fault { &mut self.held_by_faults } else { &mut self.held }
    }

    /// The bytes of the next frame of this request have come. Whether they are to be written, by the one
    /// who asks, and nobody else; if not, another brought them first.
    pub(super) fn claim(&mut self, id: u64, frame: usize) -> bool {
        let Some(flight) = self.flights.get_mut(&id) else { return false };
        debug_assert_eq!(flight.next, frame);
        flight.next = frame + 1;
        let fault = flight.ask.fault;
        self.holders[frame] -= 1;
        if self.states[frame] == State::OnItsWay {
            self.states[frame] = State::Writing;
            if frame < self.working_set {
                self.working_set_left -= self.bytes(frame..frame + 1);
            }
            return true;
        }
        let bytes = self.bytes(frame..frame + 1);
        *self.budget(fault) -= bytes;
        false
    }

    /// Whether a request still brings anything that nobody else has brought.
    pub(super) fn is_of_use(&self, id: u64) -> bool {
        self.flights.get(&id).is_some_and(|flight| {
            (flight.next..flight.ask.frames.end).any(|f| self.states[f] == State::OnItsWay)
        })
    }

    /// A claimed frame, of a request that was one for a `fault`, is in the file.
    pub(super) fn written(&mut self, frame: usize, fault: bool) {
        debug_assert_eq!(self.states[frame], State::Writing);
        self.states[frame] = State::There;
        self.there += 1;
        self.working_set_there += usize::from(frame < self.working_set);
        let bytes = self.bytes(frame..frame + 1);
        *self.budget(fault) -= bytes;
    }

    /// A claimed frame was not what the index says, and nothing of it was written.
    pub(super) fn spoilt(&mut self, frame: usize, fault: bool) {
        debug_assert_eq!(self.states[frame], State::Writing);
        let bytes = self.bytes(frame..frame + 1);
        *self.budget(fault) -= bytes;
        if frame < self.working_set {
            self.working_set_left += bytes;
        }
        self.states[frame] = State::OnItsWay;
        self.let_go(frame, fault);
    }

    fn let_go(&mut self, frame: usize, fault: bool) {
        if self.states[frame] == State::OnItsWay && self.holders[frame] == 0 {
            self.states[frame] = State::Missing;
            self.cursor = self.cursor.min(frame);
            if fault {
                self.need(frame);
            }
        }
    }

    /// A request has ended. What it did not bring is missing again; the first such frame is returned.
    pub(super) fn ended(&mut self, id: u64, now: Duration) -> Option<usize> {
        let flight = self.flights.remove(&id)?;
        let (fault, left) = (flight.ask.fault, flight.next..flight.ask.frames.end);
        let bytes = self.bytes(left.clone());
        *self.budget(fault) -= bytes;
        for frame in left.clone() {
            self.holders[frame] -= 1;
            self.let_go(frame, fault);
        }
        if left.is_empty() {
            self.took[usize::from(fault)].add(now.saturating_sub(flight.begun));
        }
        (!left.is_empty()).then_some(left.start)
    }

    /// Whether nobody brings this frame.
    pub(super) fn is_missed(&self, frame: usize) -> bool {
        self.states[frame] == State::Missing
    }

    /// Until when a request may take before it is hedged.
    fn patience(&self, fault: bool) -> Duration {
        let median = self.took[usize::from(fault)].get();
        median.map_or(self.hedging.floor, |median| self.hedging.floor.max(median * 3))
    }

    fn may_hedge(&self) -> bool {
        self.hedges * self.hedging.share < self.next_id + self.hedging.share
    }

    /// How many requests were for what another was at already.
    pub(super) fn hedges(&self) -> u64 {
        self.hedges
    }

    /// The requests that bring nothing any more that nobody else has brought.
    pub(super) fn useless(&self) -> Vec<u64> {
        self.flights.keys().copied().filter(|id| !self.is_of_use(*id)).collect()
    }

    /// When the next request may be hedged.
    pub(super) fn next_hedge(&self) -> Option<Duration> {
        let due = |flight: &Flight| flight.begun + self.patience(flight.ask.fault);
        let open = self.flights.values().filter(|flight| !flight.hedged);
        open.map(due).min().filter(|_| self.may_hedge())
    }

    /// A second request for what is left of one that takes too long at `now`.
    pub(super) fn hedge(&mut self, now: Duration) -> Option<Ask> {
        if !self.may_hedge() {
            return None;
        }
        let patience = [self.patience(false), self.patience(true)];
        let late =
            |f: &&mut Flight| !f.hedged && now >= f.begun + patience[usize::from(f.ask.fault)];
        // Faults first, then the oldest.
        let late = self.flights.values_mut().filter(late);
        let flight = late.min_by_key(|f| (!f.ask.fault, f.ask.id))?;
        flight.hedged = true;
        let (mut left, fault) = (flight.next..flight.ask.frames.end, flight.ask.fault);
        let open = |f: usize| self.states[f] == State::OnItsWay && self.holders[f] == 1;
        left.start = left.clone().find(|frame| open(*frame))?;
        left.end = left.clone().find(|frame| !open(*frame)).unwrap_or(left.end);
        let most = if fault { MOST_HELD_BY_FAULTS } else { MOST_HELD };
        if *self.budget(fault) + self.bytes(left.clone()) > most {
            return None;
        }
        self.hedges += 1;
        Some(self.ask(left, fault, true, now))
    }
}

#[cfg(test)]
mod tests;
