//! Schedules as text.

use std::fmt::{self, Display};

use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

use super::{Moment, Window};

/// Why a text is no [`Window`] or no [`Moment`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// It has other parts.
    #[error("`{0}` is not `{1}`, such as `{2}`")]
    Shape(String, &'static str, &'static str),
    /// A day is none.
    #[error(
        "`{0}` is no day; write Mon, Tue, Wed, Thu, Fri, Sat or Sun, with `-` and `,` between several"
    )]
    Day(String),
    /// A time is none.
    #[error(
        "`{0}` is no time of day; write `HH:MM`, from 00:00 to 23:59 (24:00 at the end of a window)"
    )]
    Time(String),
    /// A window with the same start and end.
    #[error("`{0}` starts when it ends; for the whole day write `00:00-24:00`")]
    Empty(String),
    /// A time zone is not known here.
    #[error(
        "`{0}` is no time zone that is known here; write its IANA name, such as `Europe/Berlin`"
    )]
    Zone(String),
}

/// Days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(u8);

const NAMES: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const EVERY: Days = Days(0b111_1111);

impl Days {
    /// Whether `day` is one of them.
    pub fn has(self, day: Weekday) -> bool {
        self.0 >> day.to_monday_zero_offset() & 1 == 1
    }

    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let day = |name: &str| {
            let found = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name));
            found.ok_or_else(|| ScheduleError::Day(text.to_owned()))
        };
        let mut days = 0;
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (day(first)?, day(last)?),
                None => (day(part)?, day(part)?),
            };
            // `Sat-Mon` goes over the week's end.
            let length = (last + 7 - first) % 7;
            for n in first..=first + length {
                days |= 1 << (n % 7);
            }
        }
        Ok(Self(days))
    }
}

/// A time zone by its IANA name. The default is UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    name: Box<str>,
    tz: TimeZone,
}

impl Default for Zone {
    fn default() -> Self {
        Self { name: "UTC".into(), tz: TimeZone::UTC }
    }
}

impl Zone {
    /// The zone called `name`, as this system knows it, else as it was known when this was built.
    fn parse(name: &str) -> Result<Self, ScheduleError> {
        let unknown = || ScheduleError::Zone(name.chars().take(64).collect());
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'-' | b'+');
        if name.len() > 64 || !name.bytes().all(allowed) {
            return Err(unknown());
        }
        if name == "UTC" {
            return Ok(Self::default());
        }
        let tz = TimeZone::get(name).map_err(|_| unknown())?;
        let name = tz.iana_name().unwrap_or(name).into();
        Ok(Self { name, tz })
    }

    pub(super) fn tz(&self) -> &TimeZone {
        &self.tz
    }

    pub(super) fn local(&self, now: Timestamp) -> DateTime {
        self.tz.to_datetime(now)
    }
}

/// The days, the times and the zone of a text, the first and the last of which may be missing.
fn parts(text: &str) -> Option<(Option<&str>, &str, Option<&str>)> {
    let mut words = text.split_ascii_whitespace().peekable();
    let days = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let (times, zone) = (words.next()?, words.next());
    words.next().is_none().then_some((days, times, zone))
}

/// `HH:MM` in minutes of the day.
fn time(text: &str) -> Result<i16, ScheduleError> {
    let minutes = match text.as_bytes() {
        [a, b, b':', c, d] if [a, b, c, d].iter().all(|digit| digit.is_ascii_digit()) => {
            let two = |a: u8, b: u8| i16::from(a - b'0') * 10 + i16::from(b - b'0');
            let (hours, minutes) = (two(*a, *b), two(*c, *d));
            (minutes < 60).then_some(hours * 60 + minutes)
        }
        _ => None,
    };
    minutes.filter(|m| *m <= 1440).ok_or_else(|| ScheduleError::Time(text.to_owned()))
}

fn below_midnight(minute: i16, text: &str) -> Result<i16, ScheduleError> {
    if minute < 1440 { Ok(minute) } else { Err(ScheduleError::Time(text.to_owned())) }
}

/// A text longer than this has other parts; it is not repeated whole in a message.
const MAX_TEXT: usize = 128;

fn shape(text: &str, form: &'static str, example: &'static str) -> ScheduleError {
    ScheduleError::Shape(text.chars().take(MAX_TEXT).collect(), form, example)
}

impl TryFrom<String> for Window {
    type Error = ScheduleError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let other =
            || shape(&text, "[days] HH:MM-HH:MM [zone]", "Mon-Fri 08:00-18:00 Europe/Berlin");
        let (days, times, zone) =
            parts(&text).filter(|_| text.len() <= MAX_TEXT).ok_or_else(other)?;
        let (start, end) = times.split_once('-').ok_or_else(other)?;
        let (start, end) = (below_midnight(time(start)?, start)?, time(end)?);
        if start == end {
            return Err(ScheduleError::Empty(times.to_owned()));
        }
        Ok(Self {
            days: days.map_or(Ok(EVERY), Days::parse)?,
            start,
            end,
            zone: zone.map_or(Ok(Zone::default()), Zone::parse)?,
        })
    }
}

impl TryFrom<String> for Moment {
    type Error = ScheduleError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let other = || shape(&text, "[days] HH:MM [zone]", "Mon-Fri 07:55 Europe/Berlin");
        let (days, at, zone) = parts(&text).filter(|_| text.len() <= MAX_TEXT).ok_or_else(other)?;
        Ok(Self {
            days: days.map_or(Ok(EVERY), Days::parse)?,
            at: below_midnight(time(at)?, at)?,
            zone: zone.map_or(Ok(Zone::default()), Zone::parse)?,
        })
    }
}

/// As it is read, with a space after; nothing for every day.
impl Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == EVERY {
            return Ok(());
        }
        let mut between = "";
        for (n, name) in NAMES.iter().enumerate() {
            if self.0 >> n & 1 == 1 {
                write!(f, "{between}{name}")?;
                between = ",";
            }
        }
        f.write_str(" ")
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { days, start, end, zone } = self;
        let ([a, b], [c, d]) = ([start / 60, start % 60], [end / 60, end % 60]);
        write!(f, "{days}{a:02}:{b:02}-{c:02}:{d:02} {}", zone.name)
    }
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { days, at, zone } = self;
        write!(f, "{days}{:02}:{:02} {}", at / 60, at % 60, zone.name)
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.to_string()
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}
