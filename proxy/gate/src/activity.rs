//! Who is there and since when nobody was. The clock is an argument.
//!
//! A visitor is in flight from its arrival until its response is through, held or not: a WebSocket,
//! an event stream and a slow download are activity as long as they last. The gate's own probes
//! never are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use tokio::time::Instant;

/// The visitors of one app.
#[derive(Debug)]
pub struct Activity {
    origin: Instant,
    in_flight: AtomicU64,
    /// Milliseconds after `origin`.
    last: AtomicU64,
    /// It was woken for a visitor who has not come yet.
    expects: AtomicBool,
}

impl Activity {
    /// Nobody is there, and the last one left `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            origin: now,
            in_flight: AtomicU64::new(0),
            last: AtomicU64::new(0),
            expects: AtomicBool::new(false),
        }
    }

    /// A visitor comes. What it reads of the gate after this, it reads after having been counted:
    /// whoever closes the gate and then looks at [`Self::in_flight`] either sees it there or has
    /// closed the gate before it looked.
    pub fn arrive(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.expects.load(Ordering::Relaxed) {
            self.expects.store(false, Ordering::Relaxed);
        }
    }

    /// It is woken for a visitor who is still shaking hands.
    pub fn expect(&self, now: Instant) {
        self.touch(now);
        self.expects.store(true, Ordering::Relaxed);
    }

    /// That wake came to nothing, or its life is over.
    pub fn expect_nobody(&self) {
        self.expects.store(false, Ordering::Relaxed);
    }

    /// Whether that visitor has not come.
    pub fn expects(&self) -> bool {
        self.expects.load(Ordering::Relaxed)
    }

    /// A visitor is through.
    pub fn leave(&self, now: Instant) {
        self.touch(now);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// A visitor is through whose visit is no activity, a health check say: it was never frozen, and
    /// keeps nothing awake for longer than it lasted.
    pub fn leave_uncounted(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// Something happened that is as good as a visitor.
    pub fn touch(&self, now: Instant) {
        let ms = now.saturating_duration_since(self.origin).as_millis();
        self.last.fetch_max(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many are there.
    pub fn in_flight(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.in_flight.load(Ordering::SeqCst)
    }

    /// For how long nobody has been there; zero while somebody is.
    pub fn idle(&self, now: Instant) -> Duration {
        if self.in_flight() > 0 {
            return Duration::ZERO;
        }
        let last = self.origin + Duration::from_millis(self.last.load(Ordering::Relaxed));
        now.saturating_duration_since(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_counts_from_the_end_of_the_last_visit() {
        let t = Instant::now();
        let ms = Duration::from_millis;
        let activity = Activity::new(t);
        assert_eq!(activity.idle(t + ms(5)), ms(5));
        activity.arrive();
        activity.arrive();
        assert_eq!((activity.in_flight(), activity.idle(t + ms(1000))), (2, ms(0)));
        activity.leave(t + ms(1000));
        assert_eq!(activity.idle(t + ms(2000)), ms(0), "a long download is activity");
        activity.leave(t + ms(3000));
        assert_eq!((activity.in_flight(), activity.idle(t + ms(3500))), (0, ms(500)));
        activity.arrive();
        assert_eq!(activity.idle(t + ms(3600)), ms(0), "what is in flight is never frozen");
        activity.leave_uncounted();
        assert_eq!((activity.in_flight(), activity.idle(t + ms(3600))), (0, ms(600)));
        activity.touch(t + ms(10));
        assert_eq!(activity.idle(t + ms(3500)), ms(500), "the clock never goes back");
    }
}
