use rouse_policy::{Waiting, WakePolicy};

use super::*;

/// A moment of a Tuesday in UTC.
fn at(steady: Instant, time: &str) -> Now {
    Now { steady, wall: format!("2026-12-01T{time}Z").parse().unwrap() }
}

fn policies(awake: &[&str], prewarm: &[&str], min_awake_seconds: u32) -> Policies {
    let text = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let schedule = Schedule {
        awake: text(awake).into_iter().map(|t| t.try_into().unwrap()).collect(),
        prewarm: text(prewarm).into_iter().map(|t| t.try_into().unwrap()).collect(),
        min_awake_seconds,
    };
    Policies::new(WakePolicy { schedule, ..WakePolicy::default() }, Waiting::default())
}

const S: Duration = Duration::from_secs(1);

#[test]
fn without_a_schedule_there_is_no_timer_and_no_refusal() {
    let t = Instant::now();
    let now = at(t, "12:00:00");
    let mut keep = Keep::new(&Policies::default(), now);
    assert_eq!(keep.deadline(|| panic!("no clock is read")), None);
    assert_eq!(keep.refuses(now, None), None);
    assert!(!keep.due(now, true));
}

#[test]
fn a_window_wakes_at_its_begin_and_keeps_awake_to_its_end() {
    let t = Instant::now();
    let mut keep = Keep::new(&policies(&["08:00-18:00"], &[], 0), at(t, "07:58:30"));
    assert_eq!(keep.refuses(at(t, "07:58:30"), None), None);
    // The wall is looked at each minute.
    assert_eq!(keep.deadline(|| at(t, "07:58:30")), Some(t + 60 * S));
    assert!(!keep.due(at(t + 60 * S, "07:59:30"), true));
    assert_eq!(keep.deadline(|| at(t + 60 * S, "07:59:30")), Some(t + 90 * S));
    assert!(keep.due(at(t + 90 * S, "08:00:00"), true));
    let why = keep.refuses(at(t, "17:59:59"), None).unwrap();
    assert_eq!(why, "its schedule keeps it awake");
    assert_eq!(keep.refuses(at(t, "18:00:00"), None), None);
    // Once it is awake, nothing is due before the next day.
    assert!(!keep.due(at(t + 91 * S, "08:00:01"), false));
    assert_eq!(keep.deadline(|| at(t + 91 * S, "08:00:01")), Some(t + 151 * S));
    assert!(!keep.due(at(t + 400 * S, "18:30:00"), true), "an operator's sleep is not undone");
}

#[test]
fn a_wake_that_fails_is_tried_again_for_a_while() {
    let t = Instant::now();
    let mut keep = Keep::new(&policies(&[], &["08:00"], 0), at(t, "07:59:59"));
    let mut tries = Vec::new();
    for n in 0..600_u32 {
        let wall: Timestamp = "2026-12-01T07:59:59Z".parse().unwrap();
        let now = Now { steady: t + n * S, wall: wall + jiff::SignedDuration::from_secs(n.into()) };
        if keep.due(now, true) {
            tries.push(n);
        }
    }
    assert_eq!((tries[0], tries[1], tries.len()), (1, 6, 60));
    assert!(*tries.last().unwrap() < 301);
}

#[test]
fn a_waker_that_comes_late_wakes_in_a_window_but_not_after_a_moment() {
    let t = Instant::now();
    let now = at(t, "12:00:00");
    let window = policies(&["08:00-18:00"], &[], 0);
    let mut keep = Keep::new(&window, now);
    assert_eq!(keep.deadline(|| now), Some(t));
    assert!(keep.due(now, true));
    assert!(!Keep::new(&policies(&[], &["08:00"], 0), now).due(now, true));
    // Told again, it is the same.
    assert!(!keep.due(now, false));
    keep.configure(&window, now);
    assert!(!keep.due(now, true));
    // And a parked one is not woken.
    assert!(!Keep::new(&window, now).due(now, false));
}

#[test]
fn a_wall_clock_that_is_set_is_followed() {
    let t = Instant::now();
    let mut keep = Keep::new(&policies(&[], &["08:00"], 0), at(t, "01:00:00"));
    assert!(keep.due(at(t + S, "09:00:00"), true), "forward: late, but once");
    assert!(!keep.due(at(t + 2 * S, "09:00:01"), false));
    assert!(!keep.due(at(t + 3 * S, "01:00:00"), true), "back: not twice on one day");
}

#[test]
fn awake_for_a_while_after_a_wake() {
    let t = Instant::now();
    let mut keep = Keep::new(&policies(&[], &[], 60), at(t, "12:00:00"));
    assert_eq!(keep.refuses(at(t + 60 * S, "12:01:00"), None), None);
    keep.woken(t + 100 * S);
    let why = keep.refuses(at(t + 110 * S, "12:01:50"), None).unwrap();
    assert_eq!(why, "it stays awake after a wake, for 50 s more");
    assert_eq!(keep.refuses(at(t + 160 * S, "12:02:40"), None), None);
}

#[test]
fn busy_is_believed_until_its_time() {
    let t = Instant::now();
    let keep = Keep::new(&Policies::default(), at(t, "12:00:00"));
    let why = keep.refuses(at(t, "12:00:00"), Some(t + Duration::from_millis(1_500))).unwrap();
    assert_eq!(why, "it says that it is busy, for 2 s more");
    assert_eq!(keep.refuses(at(t + 2 * S, "12:00:02"), Some(t + 2 * S)), None);
}
