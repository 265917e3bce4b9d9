//! Readings and judgements, in tables.

use super::*;

const MIB: u64 = 1 << 20;
const LIMITS: Limits = Limits { keep_free: 400 * MIB, stalled: 0.1 };

fn reading(free: u64, stalled: Option<u64>) -> Reading {
    let memory = Meminfo { total: 8192 * MIB, available: free, mapped: 0, cached: 0 };
    Reading { memory, stalled: stalled.map(|ms| Stalled(Duration::from_millis(ms))) }
}

#[test]
fn meminfo_is_read() {
    let text = "MemTotal:       24684092 kB\nMemFree:        21893416 kB\n\
                MemAvailable:   24118136 kB\nActive(file):     896052 kB\n\
                Inactive(file):  1394548 kB\nMapped:           100000 kB\nHugePages_Total: 0\n";
    let read: Meminfo = text.parse().unwrap();
    let expected = Meminfo {
        total: 24_684_092 << 10,
        available: 24_118_136 << 10,
        mapped: 100_000 << 10,
        cached: (896_052 + 1_394_548) << 10,
    };
    assert_eq!(read, expected);
    for (wrong, field) in [
        (text.replace("MemTotal:", "MemTotals:"), "MemTotal"),
        (text.replace("24118136 kB", "24118136"), "MemAvailable"),
        (text.replace("1394548", "-1"), "Inactive(file)"),
        (text.replace("100000", "18446744073709551615"), "Mapped"),
        (String::new(), "MemTotal"),
    ] {
        let error = wrong.parse::<Meminfo>().unwrap_err().to_string();
        assert_eq!(error, format!("/proc/meminfo has no `{field}` that can be understood"));
    }
}

#[test]
fn stalls_are_read() {
    let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=3334236\n\
                full avg10=0.00 avg60=0.00 avg300=0.00 total=2941729\n";
    let stalled: Stalled = text.parse().unwrap();
    assert_eq!(stalled, Stalled(Duration::from_micros(3_334_236)));
    for wrong in ["", "some avg10=0.00\n", "some total=x\n", "full total=1\n"] {
        assert!(wrong.parse::<Stalled>().is_err(), "{wrong:?}");
    }
}

#[test]
fn this_node_is_read() {
    let reading = Reading::now().unwrap();
    assert!(reading.memory.available <= reading.memory.total);
    assert!(reading.memory.total > 0);
}

#[test]
fn the_guests_memory_does_not_count_as_free() {
    let info = |available, mapped, cached| Meminfo { total: 100, available, mapped, cached };
    for (info, free) in [
        (info(90, 0, 50), 90),
        (info(90, 40, 50), 50),
        // Mapped, but no page cache that the kernel counts as available: tmpfs.
        (info(30, 60, 10), 20),
        (info(10, 40, 50), 0),
    ] {
        assert_eq!(info.free(), free, "{info:?}");
    }
}

#[test]
fn the_defaults_follow_the_node() {
    for (total, keep_free) in
        [(1024 * MIB, 256 * MIB), (5120 * MIB, 256 * MIB), (20_480 * MIB, 1024 * MIB)]
    {
        assert_eq!(Limits::of_node(total).keep_free, keep_free);
    }
}

#[test]
fn memory_is_short_below_the_limit_and_until_a_quarter_above_it() {
    let short = |lacking_bytes| Pressure::Short { lacking_bytes };
    for (free, expected) in [
        (0, short(500 * MIB)),
        (399 * MIB, short(101 * MIB)),
        (400 * MIB, Pressure::None),
        (500 * MIB, Pressure::None),
    ] {
        let mut judge = Judge::new(LIMITS);
        assert_eq!(judge.judge(Instant::now(), &reading(free, None)), expected);
    }
}

#[test]
fn waiting_for_memory_counts_while_it_lasts() {
    let start = Instant::now();
    let mut judge = Judge::new(LIMITS);
    let one = Pressure::Short { lacking_bytes: 1 };
    for (at_ms, stalled_ms, expected) in [
        // What was before the first look says nothing.
        (0, 100_000, Pressure::None),
        (2000, 100_200, Pressure::None),
        (4000, 100_401, one),
        (6000, 100_402, Pressure::None),
        // Too soon to tell; the next look sees the whole span.
        (6500, 100_800, Pressure::None),
        (7000, 100_900, one),
    ] {
        let now = start + Duration::from_millis(at_ms);
        let judged = judge.judge(now, &reading(1024 * MIB, Some(stalled_ms)));
        assert_eq!(judged, expected, "after {at_ms} ms");
    }
}

#[test]
fn those_paused_for_longest_go_and_no_more_than_it_takes() {
    let start = Instant::now();
    let paused = |app: &str, since_s, memory_bytes| Paused {
        app: app.parse().unwrap(),
        since: start + Duration::from_secs(since_s),
        memory_bytes,
    };
    let all = [
        paused("young", 9, 100),
        paused("old", 1, 100),
        paused("empty", 0, 0),
        paused("b", 5, 50),
        paused("a", 5, 50),
    ];
    let cases: [(u64, &[&str]); 6] = [
        (0, &[]),
        (1, &["old"]),
        (100, &["old"]),
        (101, &["old", "a"]),
        (200, &["old", "a", "b"]),
        (u64::MAX, &["old", "a", "b", "young"]),
    ];
    for (lacking, expected) in cases {
        let chosen = choose(&all, lacking);
        let chosen: Vec<_> = chosen.iter().map(AppId::as_str).collect();
        assert_eq!(chosen, expected, "{lacking} lacking");
    }
    assert!(choose(&[], 5).is_empty());
}
