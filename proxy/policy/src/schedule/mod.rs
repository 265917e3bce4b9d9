//! When an app is kept awake, and when it is woken with nobody asking.
//!
//! In words: `Mon-Fri 08:00-18:00 Europe/Berlin`. Days may be left out (every day), and the zone
//! (UTC). Such wakes are nobody's: no budget is charged for them.

#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::AmbiguousOffset;
use jiff::{Span, Timestamp};
use serde::{Deserialize, Serialize};

pub use text::{Days, ScheduleError, Zone};

use crate::is_default;

/// An app's times. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// It does not go to sleep in these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awake: Vec<Window>,
    /// It is woken at these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prewarm: Vec<Moment>,
    /// It does not go to sleep for so long after a wake, in seconds.
    #[serde(skip_serializing_if = "is_default")]
    pub min_awake_seconds: u32,
}

/// A time of some days of the week: `[days] HH:MM-HH:MM [zone]`. It is open whenever a clock on the
/// wall shows a time in it, its end not included: a time that does not exist on a day when clocks
/// go forward never comes, and one that comes twice is open twice. An end that is not after the
/// start is on the next day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    days: Days,
    /// In minutes of the day, below 1440.
    start: i16,
    /// In minutes of the day, at most 1440.
    end: i16,
    zone: Zone,
}

/// A moment of some days of the week: `[days] HH:MM [zone]`. It comes once on each of them: where
/// clocks go forward over it, as much later as they do; where it comes twice, the first time
/// (RFC 5545, 3.3.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment {
    days: Days,
    /// In minutes of the day, below 1440.
    at: i16,
    zone: Zone,
}

/// Every schedule repeats after so many days; one more for a day that clocks stretch.
const HORIZON_DAYS: i64 = 8;

impl Schedule {
    /// Whether the app is kept awake at `now`.
    pub fn keeps_awake(&self, now: Timestamp) -> bool {
        self.awake.iter().any(|window| window.is_open(now))
    }

    /// When [`Self::keeps_awake`] next becomes another than at `now`; none: never. It takes up to
    /// milliseconds where there are many windows, so it is for setting a timer, not for every
    /// visitor.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let is = self.keeps_awake(now);
        let mut edges: Vec<_> = self.awake.iter().flat_map(|window| window.edges(now)).collect();
        edges.retain(|edge| *edge > now);
        edges.sort_unstable();
        edges.dedup();
        edges.into_iter().find(|edge| self.keeps_awake(*edge) != is)
    }

    /// When the app is next to be woken with nobody asking, after `now`; none: never.
    pub fn next_prewarm(&self, now: Timestamp) -> Option<Timestamp> {
        self.prewarm.iter().filter_map(|moment| moment.next(now)).min()
    }

    /// Whether an idle app that has been awake for `awake_for` may go to sleep at `now`.
    pub fn may_sleep(&self, now: Timestamp, awake_for: Duration) -> bool {
        awake_for.as_secs() >= self.min_awake_seconds.into() && !self.keeps_awake(now)
    }
}

impl Window {
    /// Whether it is open at `now`.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let local = self.zone.local(now);
        let minute = i16::from(local.hour()) * 60 + i16::from(local.minute());
        let today = self.days.has(local.weekday());
        if self.start < self.end {
            return today && self.start <= minute && minute < self.end;
        }
        let yesterday = self.days.has(local.weekday().previous());
        today && self.start <= minute || yesterday && minute < self.end
    }

    /// All moments around and after `now` at which it may open or close: its ends by the clock on
    /// the wall, and the moments at which that clock is set.
    fn edges(&self, now: Timestamp) -> Vec<Timestamp> {
        let mut edges = Vec::new();
        for date in days_from(self.zone.local(now).date()) {
            let ends_on = if self.start < self.end { Some(date) } else { date.tomorrow().ok() };
            let start = at(date, self.start);
            let end = ends_on.and_then(|date| at(date, self.end));
            for local in [start, end].into_iter().flatten() {
                match self.zone.tz().to_ambiguous_timestamp(local).offset() {
                    AmbiguousOffset::Unambiguous { offset } => {
                        edges.extend(offset.to_timestamp(local));
                    }
                    AmbiguousOffset::Fold { before, after } => {
                        edges.extend(before.to_timestamp(local));
                        edges.extend(after.to_timestamp(local));
                    }
                    // It never comes; what matters is when the clock is set.
                    AmbiguousOffset::Gap { .. } => {}
                }
            }
        }
        let last = now.checked_add(jiff::SignedDuration::from_hours(24 * HORIZON_DAYS));
        if let Ok(last) = last {
            let set = self.zone.tz().following(now).map(|transition| transition.timestamp());
            edges.extend(set.take_while(|at| *at <= last));
        }
        edges
    }
}

impl Moment {
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let days = days_from(self.zone.local(now).date());
        let wanted = days.filter(|date| self.days.has(date.weekday()));
        let times = wanted.filter_map(|date| {
            let local = at(date, self.at)?;
            self.zone.tz().to_ambiguous_timestamp(local).compatible().ok()
        });
        times.filter(|time| *time > now).min()
    }
}

/// From the day before `date`, since what begins on a day may end on the next.
fn days_from(date: Date) -> impl Iterator<Item = Date> {
    (-1..=HORIZON_DAYS).filter_map(move |n| date.checked_add(Span::new().try_days(n).ok()?).ok())
}

/// `minute` of `date`; 1440 is the next day's first.
fn at(date: Date, minute: i16) -> Option<DateTime> {
    if minute >= 1440 {
        return Some(date.tomorrow().ok()?.at(0, 0, 0, 0));
    }
    let hour = i8::try_from(minute / 60).ok()?;
    let time = Time::new(hour, i8::try_from(minute % 60).ok()?, 0, 0).ok()?;
    Some(date.to_datetime(time))
}
