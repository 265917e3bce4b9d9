use proptest::prelude::*;

use super::*;

fn ts(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn window(text: &str) -> Window {
    Window::try_from(text.to_owned()).unwrap()
}

fn awake(texts: &[&str]) -> Schedule {
    Schedule { awake: texts.iter().map(|t| window(t)).collect(), ..Schedule::default() }
}

fn prewarm(texts: &[&str]) -> Schedule {
    let moment = |t: &&str| Moment::try_from((*t).to_owned()).unwrap();
    Schedule { prewarm: texts.iter().map(moment).collect(), ..Schedule::default() }
}

#[test]
fn without_times_nothing_happens() {
    let none = Schedule::default();
    let now = ts("2026-03-02T12:00:00Z");
    assert!(!none.keeps_awake(now));
    assert_eq!((none.next_change(now), none.next_prewarm(now)), (None, None));
    assert!(none.may_sleep(now, Duration::ZERO));
}

#[test]
fn office_hours() {
    // 2026-03-02 is a Monday; Berlin is an hour ahead of UTC then.
    let office = awake(&["Mon-Fri 08:00-18:00 Europe/Berlin"]);
    let table = [
        ("2026-03-02T06:59:59Z", false, "2026-03-02T07:00:00Z"),
        ("2026-03-02T07:00:00Z", true, "2026-03-02T17:00:00Z"),
        ("2026-03-02T16:59:59Z", true, "2026-03-02T17:00:00Z"),
        ("2026-03-02T17:00:00Z", false, "2026-03-03T07:00:00Z"),
        ("2026-03-06T17:00:00Z", false, "2026-03-09T07:00:00Z"),
        // Clocks go forward on Sunday the 29th.
        ("2026-03-27T17:00:00Z", false, "2026-03-30T06:00:00Z"),
    ];
    for (now, is, next) in table {
        assert_eq!(office.keeps_awake(ts(now)), is, "{now}");
        assert_eq!(office.next_change(ts(now)), Some(ts(next)), "{now}");
    }
}

#[test]
fn over_midnight() {
    let night = awake(&["Fri 22:00-02:00"]);
    let table = [
        ("2026-03-06T21:59:00Z", false),
        ("2026-03-06T22:00:00Z", true),
        ("2026-03-07T01:59:00Z", true),
        ("2026-03-07T02:00:00Z", false),
        // Early on Friday it is Thursday's night.
        ("2026-03-06T01:00:00Z", false),
        ("2026-03-07T22:30:00Z", false),
    ];
    for (now, is) in table {
        assert_eq!(night.keeps_awake(ts(now)), is, "{now}");
    }
    assert_eq!(night.next_change(ts("2026-03-06T23:00:00Z")), Some(ts("2026-03-07T02:00:00Z")));
    assert_eq!(night.next_change(ts("2026-03-07T02:00:00Z")), Some(ts("2026-03-13T22:00:00Z")));
    let until = awake(&["Fri 22:00-00:00"]);
    assert!(until.keeps_awake(ts("2026-03-06T23:59:59Z")));
    assert_eq!(until.next_change(ts("2026-03-06T23:00:00Z")), Some(ts("2026-03-07T00:00:00Z")));
}

#[test]
fn windows_that_touch_are_one() {
    let whole = awake(&["Mon 00:00-24:00", "Tue 00:00-12:00"]);
    assert_eq!(whole.next_change(ts("2026-03-02T08:00:00Z")), Some(ts("2026-03-03T12:00:00Z")));
    let always = awake(&["00:00-24:00"]);
    assert!(always.keeps_awake(ts("2026-03-02T08:00:00Z")));
    assert_eq!(always.next_change(ts("2026-03-02T08:00:00Z")), None);
}

#[test]
fn a_time_that_does_not_exist() {
    // On 2026-03-29 in Berlin, 02:00 is 03:00 at once: 01:00 UTC.
    let within = awake(&["02:15-02:45 Europe/Berlin"]);
    assert_eq!(within.next_change(ts("2026-03-29T00:30:00Z")), Some(ts("2026-03-30T00:15:00Z")));
    let into = awake(&["02:30-03:15 Europe/Berlin"]);
    assert!(into.keeps_awake(ts("2026-03-29T01:00:00Z")));
    assert_eq!(into.next_change(ts("2026-03-29T00:30:00Z")), Some(ts("2026-03-29T01:00:00Z")));
    assert_eq!(into.next_change(ts("2026-03-29T01:00:00Z")), Some(ts("2026-03-29T01:15:00Z")));
    let out_of = awake(&["01:30-02:30 Europe/Berlin"]);
    assert_eq!(out_of.next_change(ts("2026-03-29T00:30:00Z")), Some(ts("2026-03-29T01:00:00Z")));
    // Half past two comes as half past three.
    let at = prewarm(&["02:30 Europe/Berlin"]);
    assert_eq!(at.next_prewarm(ts("2026-03-29T00:59:59Z")), Some(ts("2026-03-29T01:30:00Z")));
    assert_eq!(at.next_prewarm(ts("2026-03-29T01:30:00Z")), Some(ts("2026-03-30T00:30:00Z")));
}

#[test]
fn a_time_that_comes_twice() {
    // On 2026-10-25 in Berlin, 03:00 is 02:00 again: 01:00 UTC.
    let twice = awake(&["02:15-02:45 Europe/Berlin"]);
    let table = [
        ("2026-10-25T00:14:00Z", false, "2026-10-25T00:15:00Z"),
        ("2026-10-25T00:30:00Z", true, "2026-10-25T00:45:00Z"),
        ("2026-10-25T00:45:00Z", false, "2026-10-25T01:15:00Z"),
        ("2026-10-25T01:30:00Z", true, "2026-10-25T01:45:00Z"),
        ("2026-10-25T01:45:00Z", false, "2026-10-26T01:15:00Z"),
    ];
    for (now, is, next) in table {
        assert_eq!(twice.keeps_awake(ts(now)), is, "{now}");
        assert_eq!(twice.next_change(ts(now)), Some(ts(next)), "{now}");
    }
    // A prewarm comes once, the first time.
    let at = prewarm(&["02:30 Europe/Berlin"]);
    assert_eq!(at.next_prewarm(ts("2026-10-25T00:00:00Z")), Some(ts("2026-10-25T00:30:00Z")));
    assert_eq!(at.next_prewarm(ts("2026-10-25T00:30:00Z")), Some(ts("2026-10-26T01:30:00Z")));
}

#[test]
fn prewarms() {
    let two = prewarm(&["Mon-Fri 07:55 Europe/Berlin", "Sat,Sun 10:00"]);
    let table = [
        ("2026-03-02T06:54:59Z", "2026-03-02T06:55:00Z"),
        ("2026-03-02T06:55:00Z", "2026-03-03T06:55:00Z"),
        ("2026-03-06T06:55:00Z", "2026-03-07T10:00:00Z"),
        ("2026-03-08T10:00:00Z", "2026-03-09T06:55:00Z"),
    ];
    for (now, next) in table {
        assert_eq!(two.next_prewarm(ts(now)), Some(ts(next)), "{now}");
    }
    let weekly = prewarm(&["Mon 00:00"]);
    assert_eq!(weekly.next_prewarm(ts("2026-03-02T00:00:00Z")), Some(ts("2026-03-09T00:00:00Z")));
}

#[test]
fn sleep_waits_for_both() {
    let schedule = Schedule { min_awake_seconds: 60, ..awake(&["08:00-18:00"]) };
    let (day, night) = (ts("2026-03-02T12:00:00Z"), ts("2026-03-02T20:00:00Z"));
    assert!(!schedule.may_sleep(night, Duration::from_millis(59_999)));
    assert!(schedule.may_sleep(night, Duration::from_secs(60)));
    assert!(!schedule.may_sleep(day, Duration::from_secs(9999)));
}

#[test]
fn at_the_end_of_time() {
    let both =
        Schedule { prewarm: prewarm(&["07:00"]).prewarm, ..awake(&["22:00-02:00 Asia/Tokyo"]) };
    for now in [Timestamp::MIN, Timestamp::MAX] {
        let _ = (both.keeps_awake(now), both.next_change(now), both.next_prewarm(now));
    }
}

#[test]
fn zones_are_known_without_a_system_that_knows_them() {
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    assert!(bundled.get("Europe/Berlin").is_ok());
}

#[test]
fn texts() {
    let table = [
        ("Mon-Fri 08:00-18:00 Europe/Berlin", "Mon,Tue,Wed,Thu,Fri 08:00-18:00 Europe/Berlin"),
        ("  sat-MON   22:00-02:00", "Mon,Sat,Sun 22:00-02:00 UTC"),
        ("Mon,Wed-Thu 00:00-24:00 UTC", "Mon,Wed,Thu 00:00-24:00 UTC"),
        ("08:00-18:00", "08:00-18:00 UTC"),
        ("Mon-Sun 08:00-18:00", "08:00-18:00 UTC"),
    ];
    for (text, canonical) in table {
        assert_eq!(window(text).to_string(), canonical);
        assert_eq!(window(canonical), window(text));
    }
    let refused = [
        ("", "is not `[days] HH:MM-HH:MM [zone]`"),
        ("Mon", "is not"),
        ("Mon 08:00", "is not"),
        ("Mon 08:00-18:00 UTC UTC", "is not"),
        ("Mox 08:00-18:00", "`Mox` is no day"),
        ("Mon- 08:00-18:00", "is no day"),
        ("8:00-18:00", "`8:00` is no time"),
        ("08:60-18:00", "is no time"),
        ("24:00-08:00", "is no time"),
        ("08:00-24:01", "is no time"),
        ("+8:00-18:00", "is no time"),
        ("08:00-08:00", "starts when it ends"),
        ("08:00-18:00 Europe/Berlni", "is no time zone"),
        ("08:00-18:00 ../../etc/passwd", "is no time zone"),
    ];
    for (text, why) in refused {
        let error = Window::try_from(text.to_owned()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    let long = Window::try_from("x".repeat(100_000)).unwrap_err();
    assert!(long.to_string().len() < 300);
    assert!(Moment::try_from("Mon 24:00".to_owned()).is_err());
    assert!(Moment::try_from("Mon 08:00-09:00".to_owned()).is_err());
}

proptest! {
    /// What is told as the next change is one, and there is none before it. Around both changes of
    /// the clock, in a zone with half an hour of summer time too.
    #[test]
    fn nothing_changes_before_the_next_change(
        windows in proptest::collection::vec((1u8..128, 0i16..96, 0i16..=96, 0usize..4), 1..4),
        day in 0i64..370, minute in 0i64..1440,
    ) {
        let zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];
        let awake = windows.into_iter().filter(|(_, start, end, _)| start != end);
        let awake = awake.map(|(days, start, end, zone)| {
            let names: Vec<_> = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].into_iter()
                .enumerate().filter(|(n, _)| days >> n & 1 == 1).map(|(_, name)| name).collect();
            let clock = |quarter: i16| format!("{:02}:{:02}", quarter / 4, quarter % 4 * 15);
            let (start, end) = (clock(start), clock(end));
            window(&format!("{} {start}-{end} {}", names.join(","), zones[zone]))
        });
        let schedule = Schedule { awake: awake.collect(), ..Schedule::default() };
        let start = ts("2026-01-01T00:00:00Z");
        let after = |m: i64| start + jiff::SignedDuration::from_mins(m);
        let now = day * 1440 + minute;
        let is = schedule.keeps_awake(after(now));
        let next = schedule.next_change(after(now));
        let mut at = now;
        let end = next.unwrap_or(after(now + 8 * 1440));
        while after(at) < end {
            prop_assert_eq!(schedule.keeps_awake(after(at)), is);
            at += 15 - at % 15;
        }
        if let Some(next) = next {
            prop_assert_ne!(schedule.keeps_awake(next), is);
            prop_assert_eq!(schedule.keeps_awake(next - jiff::SignedDuration::from_nanos(1)), is);
        }
    }

    #[test]
    fn no_text_breaks_the_parser(text in "\\PC{0,40}|[MonTue0-9:, A-Z/-]{0,30}") {
        if let Ok(window) = Window::try_from(text.clone()) {
            prop_assert_eq!(Window::try_from(window.to_string()).unwrap(), window);
        }
        if let Ok(moment) = Moment::try_from(text) {
            prop_assert_eq!(Moment::try_from(moment.to_string()).unwrap(), moment);
        }
    }
}
