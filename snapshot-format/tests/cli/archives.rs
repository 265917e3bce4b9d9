//! `pack`, `unpack` and `verify`.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rouse_snapshot_format::ImageId;

use super::{Dir, filter};

fn packed() -> Dir {
    let dir = Dir::new();
    dir.image("memory.img", 3000, (0..300).chain(2000..2010));
    dir.good("sparsify memory.img");
    dir.good("pack memory.img");
    dir
}

#[test]
fn there_and_back() {
    let dir = packed();
    dir.good("unpack memory.rsz -o back.img");
    assert!(dir.bytes("back.img") == dir.bytes("memory.img"));
    assert_eq!(dir.map("back.map"), dir.map("memory.map"));
    assert_eq!(dir.names(), ["back.img", "back.map", "memory.img", "memory.map", "memory.rsz"]);
    let said = dir.good("verify back.img back.map memory.rsz memory.img --threads 1");
    assert_eq!(said.lines().filter(|line| line.contains(": good: ")).count(), 4, "{said}");
    assert_eq!(dir.good("verify -q back.img"), "");

    // Names are free; what is there by them goes only by force, both at once.
    std::fs::remove_file(dir.path("back.img")).unwrap();
    dir.refused("unpack memory.rsz -o back.img", 73, "back.map");
    dir.damage("back.map", 20);
    dir.good("unpack memory.rsz -o back.img --force --no-sync");
    dir.good("verify back.img");
    dir.good("pack back.img --level 19 -o small.rsz --no-sync");
    assert!(dir.bytes("small.rsz").len() < dir.bytes("memory.rsz").len());
}

#[test]
fn an_image_without_a_map_is_scanned() {
    let dir = packed();
    std::fs::rename(dir.path("memory.map"), dir.path("old.map")).unwrap();
    let id = "00112233445566778899aabbccddeeff";
    dir.good(&format!("pack memory.img -o new.rsz --image-id {id}"));
    dir.good("unpack new.rsz");
    assert!(dir.bytes("new.img") == dir.bytes("memory.img"));
    let map = dir.map("new.map");
    assert_eq!(map.image_id(), ImageId::from_hex(id).unwrap());
    assert_eq!(map.states(), dir.map("old.map").states());
    assert!(map.has_checksums());

    dir.good("pack memory.img -o other.rsz");
    assert_ne!(dir.bytes("other.rsz"), dir.bytes("new.rsz"));
    // A map that was asked for must be there, and one that is there has the say.
    dir.refused("pack memory.img --map no.map -o x.rsz", 1, "no.map");
    dir.refused(&format!("pack new.img --image-id {} -o x.rsz", "1".repeat(32)), 65, "--image-id");
}

#[test]
fn standard_output_is_a_zstd_file() {
    let dir = packed();
    let out = File::create(dir.path("piped.rsz")).unwrap();
    let ended = dir.command("pack -q memory.img -o -").stdout(out).status().unwrap();
    assert!(ended.success());
    assert!(dir.bytes("piped.rsz") == dir.bytes("memory.rsz"));
    filter("zstd", &["-tq"], &dir.path("piped.rsz"));
    let data = filter("zstd", &["-dq"], &dir.path("piped.rsz"));
    let image = dir.bytes("memory.img");
    let page = |n: usize| &image[n * 4096..(n + 1) * 4096];
    let wanted = (0..300).chain(2000..2010).flat_map(page);
    assert!(data.iter().eq(wanted), "the DATA pages one after the other");
}

#[test]
fn damage_is_found_and_said() {
    let dir = packed();
    dir.good("unpack memory.rsz -o bad.img");
    dir.damage("bad.img", 50 * 4096);
    dir.refused("verify bad.img", 65, "window 0");
    dir.damage("bad.img", 50 * 4096);
    dir.damage("bad.img", 1000 * 4096 + 1);
    dir.refused("verify bad.img", 65, "offset 4096000");
    dir.damage("memory.rsz", 1000);
    dir.refused("verify memory.rsz", 65, "BLAKE3");
    dir.refused("unpack memory.rsz -o x.img", 65, "BLAKE3");
    assert!(!dir.names().iter().any(|name| name.starts_with("x.") || name.starts_with('.')));

    // The others are looked at all the same, and the first bad one has the say.
    let output = dir.command("verify memory.map no.map memory.rsz memory.img").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (said, errors) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert_eq!(said.unwrap().lines().count(), 2);
    assert_eq!(errors.unwrap().lines().count(), 2);
}

#[test]
fn what_wakes_touched_is_packed_first() {
    let dir = packed();
    std::fs::write(dir.path("trace"), "0x200000\n8192000\n0\n").unwrap();
    dir.good("record memory.img trace");
    let said = dir.good("record -q memory.map trace");
    assert_eq!(said, "");
    assert_eq!(dir.map("memory.map").working_set().wakes().count(), 2);
    dir.good("pack memory.img -o first.rsz");
    let facts = dir.good("inspect --json first.rsz");
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    // Window 8 has no data.
    assert_eq!(facts["archive"]["working_set_frames"], 2);
    dir.good("unpack first.rsz -o again.img");
    assert!(dir.bytes("again.img") == dir.bytes("memory.img"));
    assert_eq!(dir.map("again.map"), dir.map("memory.map"));

    // Not while somebody is changing the image, whose map is then written, too.
    let merge = File::open(dir.path("memory.img")).unwrap();
    merge.lock().unwrap();
    dir.refused("record memory.img trace", 75, "in use");
    dir.refused("record memory.map trace", 75, "in use");
    // A VM has it mapped, and is what is recorded.
    merge.lock_shared().unwrap();
    dir.good("record memory.img trace");
    drop(merge);
    std::fs::rename(dir.path("again.map"), dir.path("alone.map")).unwrap();
    dir.good("record alone.map trace");

    std::fs::write(dir.path("trace"), "0\n99999999999\n").unwrap();
    dir.refused("record memory.img trace", 65, "trace: line 2");
    dir.refused("record first.rsz trace", 65, "archive");
}

/// `record` that has read a part of its trace, and so the map before, and waits for the rest.
fn recording(dir: &Dir) -> Child {
    let mut command = dir.command("record -q memory.img");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than a pipe holds.
    child.stdin.as_mut().unwrap().write_all(&b"4096\n".repeat(50_000)).unwrap();
    child
}

#[test]
fn a_trace_is_of_the_image_that_it_began_with() {
    let dir = packed();
    let child = recording(&dir);
    std::fs::remove_file(dir.path("memory.map")).unwrap();
    dir.good("sparsify memory.img");
    let before = dir.bytes("memory.map");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("another"), "{said}");
    assert!(dir.bytes("memory.map") == before);

    // What came to the map otherwise meanwhile is kept.
    let child = recording(&dir);
    std::fs::write(dir.path("trace"), "0\n").unwrap();
    dir.good("record memory.img trace");
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(dir.map("memory.map").working_set().wakes().count(), 2);
}

#[test]
fn what_is_never_cancelled_ends_at_the_first_signal() {
    let dir = packed();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut child = recording(&dir);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32));
    }
}
