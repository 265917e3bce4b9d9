//! Readers that have seen enough.

use std::fs::File;
use std::io;

use super::Dir;

#[test]
fn a_closed_pipe_is_no_failure_of_those_who_only_say_something() {
    let dir = Dir::new();
    dir.image("a.img", 2000, 0..1000);
    dir.good("sparsify a.img");
    dir.good("pack a.img");
    for line in [
        "inspect a.img",
        "inspect --json a.img",
        "sparsify a.img",
        "verify a.img a.map",
        "pack a.img -o b.rsz",
        "unpack a.rsz -o b.img",
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = dir.command(line).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "{line}: {said}");
    }
}

#[test]
fn an_archive_that_nobody_takes_is_one() {
    let dir = Dir::new();
    dir.image("a.img", 2000, 0..1000);
    dir.good("sparsify a.img");
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = dir.command("pack a.img -o -").stdout(writer).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("rouse-snapshot: a.img: ") && said.contains("Broken pipe"), "{said}");

    // Nor may what is said be lost for another reason.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = dir.command("inspect a.img").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}
