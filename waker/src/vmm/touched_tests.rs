//! What is read from /proc, in tables. Real mappings: `waker/tests/touched.rs`.

#![expect(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

use super::*;

type Ranges = &'static [Range<u64>];

#[test]
fn counters_that_move_before_pages_are_unmapped_are_summed() {
    let vmstat = "nr_free_pages 5000000\npgscan_kswapd 100\npgscan_direct 20\npgscan_anon 3\n\
                  pgscan_file 117\npgsteal_file 1000\npgsteal_khugepaged 0\npgmigrate_success 7\n\
                  compact_isolated 2000\ncompact_stall 9\ncma_alloc_success 4000\n";
    assert_eq!(sum(vmstat), Some(100 + 20 + 3 + 117 + 1000 + 2000 + 4000));
    for line in ["pgscan_anon 3\n", "pgscan_file 117\n"] {
        assert_eq!(sum(&vmstat.replace(line, "")), None, "without {line}");
    }
    let least = "pgscan_anon 18446744073709551615\npgscan_file 2\n";
    assert_eq!(sum(least), Some(1), "a sum that wraps still differs");
}

#[test]
fn lines_of_maps_are_parsed() {
    let device = makedev(0xfe, 0x1f);
    let parsed = |line: &[u8]| {
        parse(line).map(|l| (l.name.to_owned(), l.mapping, l.shared, l.device, l.inode))
    };
    let mapping = Mapping { address: 0x7f00_0000_0000, bytes: 0x2000, offset: 0x10_0000 };
    let name = "7f0000000000-7f0000002000";
    for (rest, shared) in [
        (&b" rw-s 00100000 fe:1f 4660 /a/memory.img\n"[..], true),
        (b" rw-p 00100000 fe:1f 4660       /a b/\xff (deleted)\n", false),
        (b" r--s 00100000 fe:1f 4660", true),
    ] {
        let line = [name.as_bytes(), rest].concat();
        let expected = (name.to_owned(), mapping.clone(), shared, device, 4660);
        assert_eq!(parsed(&line), Some(expected), "{}", line.escape_ascii());
    }
    let anonymous = parse(b"ffff600000-ffff601000 --xp 00000000 00:00 0    [vsyscall]\n").unwrap();
    assert_eq!((anonymous.device, anonymous.inode), (0, 0));
    for wrong in [
        &b""[..],
        b"\n",
        b"7f00 rw-s 0 fe:1f 1 /a\n",
        b"2000-1000 rw-s 0 fe:1f 1 /a\n",
        b"0-2000 rw-s fffffffffffff000 fe:1f 1 /a\n",
        b"0-2000 rw-s 0 fe1f 1 /a\n",
        b"0-2000 rw-s 0 fe:1f x /a\n",
        b"0-2000 rw-s 0 fe:1f\n",
        b"\xff-2000 rw-s 0 fe:1f 1 /a\n",
    ] {
        assert_eq!(parsed(wrong), None, "{}", wrong.escape_ascii());
    }
}

#[test]
fn ranges_are_merged() {
    let cases: [(Ranges, Ranges); 5] = [
        (&[], &[]),
        (&[0..0, 3..3], &[]),
        (&[4..8, 0..4], &[0..8]),
        (&[0..9, 2..4, 10..12], &[0..9, 10..12]),
        (&[5..6, 0..1, 0..3, 2..4], &[0..4, 5..6]),
    ];
    for (ranges, merged) in cases {
        assert_eq!(merge(ranges.to_vec()), merged, "{ranges:?}");
    }
}

#[test]
fn what_no_mapping_shows_is_found() {
    let mapping = |range: &Range<u64>| Mapping {
        address: 0,
        bytes: range.end - range.start,
        offset: range.start,
    };
    let cases: [(Ranges, Ranges); 6] = [
        (&[], &[0..100]),
        (&[0..100], &[]),
        (&[20..40], &[0..20, 40..100]),
        (&[60..100, 0..20], &[20..60]),
        (&[0..60, 20..30, 50..100], &[]),
        (&[0..100, 200..200], &[]),
    ];
    for (mapped, gaps) in cases {
        let mappings: Vec<_> = mapped.iter().map(mapping).collect();
        assert_eq!(unmapped(&mappings, 100), gaps, "{mapped:?}");
    }
}
