//! Whose time it was. Pure: instants in, shares out.
//!
//! A wake lies on a line: called → the waker's phases → ready → serving; then each visitor has its
//! own release and its own wait for the app. A visitor who joined sees only the part after it came,
//! so that its shares always add up to its own total.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rouse_protocol::wake::{Outcome, Phase, PhaseTime};
use tokio::time::Instant;

/// The waker's phases, in order.
const WAKER: [Phase; 6] =
    [Phase::Queue, Phase::Fetch, Phase::Image, Phase::Vmm, Phase::Load, Phase::Resume];

/// The proxy's own, in order.
const PROXY: [Phase; 4] = [Phase::Hold, Phase::Gate, Phase::Release, Phase::App];

/// When one wake did what.
#[derive(Debug)]
pub struct WakeTimes {
    /// How the app came to run.
    pub outcome: Outcome,
    /// The waker was called.
    pub called: Instant,
    /// It said `ready`.
    pub ready: Instant,
    /// The verdict was `serving`.
    pub serving: Instant,
    /// The part of the gate's time that was our own: the wait on the schedule before the probe that
    /// succeeded, and from the first byte of its answer to the verdict. A guest that is silent for
    /// so long that a second probe goes out beside the first is the guest's time.
    pub gate_own: Duration,
    phases: [Duration; 6],
    told: AtomicBool,
}

impl WakeTimes {
    /// The line of a wake whose waker told `phases`. A phase that it did not tell took no time.
    pub fn new(
        outcome: Outcome,
        phases: &[PhaseTime],
        [called, ready, serving]: [Instant; 3],
        gate_own: Duration,
    ) -> Self {
        let of = |phase| phases.iter().filter(|p| p.phase == phase).map(|p| p.took()).sum();
        Self {
            outcome,
            called,
            ready,
            serving,
            gate_own,
            phases: WAKER.map(of),
            told: AtomicBool::new(false),
        }
    }

    /// True once: for the visitor that tells this wake's figures.
    pub fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// The shares of a visitor's wait: it `arrived`, was `let_go` and got its `header`.
    pub fn shares(&self, arrived: Instant, let_go: Instant, header: Instant) -> Shares {
        let told: Duration = self.phases.iter().sum();
        // The waker's phases end with its `ready`; what is left of the call is the way there and
        // back. They may begin before our call, when another proxy had started this wake.
        let mut cursor = self.ready.checked_sub(told).unwrap_or(self.called);
        let mut shares = Shares::default();
        shares.set(Phase::Hold, cursor.saturating_duration_since(arrived));
        for (phase, took) in WAKER.into_iter().zip(self.phases) {
            let end = cursor + took;
            shares.set(phase, end.saturating_duration_since(cursor.max(arrived)));
            cursor = end;
        }
        let gate = self.serving.saturating_duration_since(self.ready.max(arrived));
        shares.set(Phase::Gate, gate);
        shares.set(Phase::Release, let_go.saturating_duration_since(self.serving.max(arrived)));
        shares.set(Phase::App, header.saturating_duration_since(let_go));
        shares.own = shares.get(Phase::Hold)
            + shares.get(Phase::Queue)
            + shares.get(Phase::Image)
            + self.gate_own.min(gate)
            + shares.get(Phase::Release);
        shares.total = header.saturating_duration_since(arrived);
        shares
    }
}

/// What a visitor's wait was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    phases: [Duration; Phase::ALL.len()],
    /// Everything that is not VMM, guest or app: hold with the way to the waker and back, queue,
    /// image, the gate's own part, release.
    pub own: Duration,
    /// From the visitor's arrival to the response header.
    pub total: Duration,
}

impl Shares {
    fn index(phase: Phase) -> usize {
        Phase::ALL.iter().position(|p| *p == phase).expect("ALL names every phase")
    }

    fn set(&mut self, phase: Phase, took: Duration) {
        self.phases[Self::index(phase)] = took;
    }

    /// How long `phase` took of this visitor's time.
    pub fn get(&self, phase: Phase) -> Duration {
        self.phases[Self::index(phase)]
    }

    /// The proxy's own phases, for the waker's trace.
    pub fn of_proxy(&self) -> Vec<PhaseTime> {
        PROXY.map(|phase| PhaseTime::new(phase, self.get(phase))).into()
    }

    /// The value of a `Server-Timing` header: each phase, then `own` and `total`, in milliseconds.
    pub fn server_timing(&self) -> String {
        use std::fmt::Write;

        let mut text = String::with_capacity(256);
        let phases = Phase::ALL.map(|phase| (phase.as_str(), self.get(phase)));
        for (name, took) in phases.into_iter().chain([("own", self.own), ("total", self.total)]) {
            let separator = if text.is_empty() { "" } else { ", " };
            let ms = took.as_secs_f64() * 1e3;
            write!(text, "{separator}{name};dur={ms:.3}").expect("a String takes all");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn wake(t: Instant) -> WakeTimes {
        let phases = [
            PhaseTime::new(Phase::Queue, ms(1)),
            PhaseTime::new(Phase::Image, ms(2)),
            PhaseTime::new(Phase::Vmm, ms(3)),
            PhaseTime::new(Phase::Load, ms(10)),
            PhaseTime::new(Phase::Resume, ms(4)),
        ];
        // Called at 5, ready at 27 (2 ms for the way), serving at 77.
        WakeTimes::new(Outcome::Resumed, &phases, [t + ms(5), t + ms(27), t + ms(77)], ms(9))
    }

    #[test]
    fn the_starter_pays_for_all() {
        let t = Instant::now();
        let shares = wake(t).shares(t + ms(4), t + ms(78), t + ms(90));
        let got = Phase::ALL.map(|p| shares.get(p).as_millis());
        assert_eq!(got, [3, 1, 0, 2, 3, 10, 4, 50, 1, 12]);
        assert_eq!(shares.own, ms(3 + 1 + 2 + 9 + 1));
        assert_eq!(shares.total, ms(86));
    }

    #[test]
    fn who_joins_sees_only_what_was_left() {
        let t = Instant::now();
        let shares = wake(t).shares(t + ms(15), t + ms(78), t + ms(90));
        // Queue, image and VMM were over at 13; load ran from 13 to 23.
        let got = Phase::ALL.map(|p| shares.get(p).as_millis());
        assert_eq!(got, [0, 0, 0, 0, 0, 8, 4, 50, 1, 12]);
        let late = wake(t).shares(t + ms(80), t + ms(81), t + ms(90));
        assert_eq!(late.get(Phase::Gate), ms(0));
        assert_eq!((late.get(Phase::Release), late.own, late.total), (ms(1), ms(1), ms(10)));
    }

    #[test]
    fn the_header_is_the_documented_one() {
        let t = Instant::now();
        let header = wake(t).shares(t + ms(4), t + ms(78), t + ms(90)).server_timing();
        assert_eq!(
            header,
            "hold;dur=3.000, queue;dur=1.000, fetch;dur=0.000, image;dur=2.000, vmm;dur=3.000, load;dur=10.000, \
             resume;dur=4.000, gate;dur=50.000, release;dur=1.000, app;dur=12.000, own;dur=16.000, \
             total;dur=86.000"
        );
    }

    #[test]
    fn one_visitor_tells() {
        let wake = wake(Instant::now());
        assert_eq!([wake.tell(), wake.tell(), wake.tell()], [true, false, false]);
    }

    proptest! {
        #[test]
        fn shares_add_up(arrived in 0u64..100, wait in 0u64..50, app in 0u64..50) {
            let t = Instant::now();
            let (arrived, let_go) = (t + ms(arrived), t + ms(arrived.max(77) + wait));
            let shares = wake(t).shares(arrived, let_go, let_go + ms(app));
            let sum: Duration = Phase::ALL.iter().map(|p| shares.get(*p)).sum();
            prop_assert_eq!(sum, shares.total);
            prop_assert!(shares.own <= shares.total);
        }
    }
}
