//! What goes wrong, and how the program says so.

use std::fs::{self, File};

use super::Dir;

#[test]
fn usage() {
    let dir = Dir::new();
    for line in [
        "",
        "nonsense",
        "pack",
        "pack a.img --level 0",
        "pack a.img --level 20",
        "sparsify a.img --window 3",
        "merge a b",
        "merge --in-place a b -o c",
        "verify",
        "inspect a --json --svg b",
        "pack a.img --image-id 12",
    ] {
        let output = dir.command(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    let help = dir.good("--help");
    for code in ["0 ", "1 ", "2 ", "65 ", "73 ", "75 ", "130 "] {
        assert!(help.contains(&format!(" {code}")), "{code}: {help}");
    }
    assert!(dir.good("--version").starts_with("rouse-snapshot "));
}

#[test]
fn what_is_not_there() {
    let dir = Dir::new();
    for line in [
        "inspect no",
        "sparsify no",
        "pack no",
        "unpack no",
        "verify no",
        "diff no no -o x",
        "merge no no -o x",
        "merge --in-place no no",
        "import-diff no --base no",
    ] {
        dir.refused(line, 1, "no: ");
    }
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn what_is_something_else() {
    let dir = Dir::new();
    fs::write(dir.path("text"), "no image, no map").unwrap();
    fs::write(dir.path("cut.map"), "ROUSEMAP and no more").unwrap();
    dir.refused("inspect text", 65, "neither a map nor an archive");
    dir.refused("verify text", 65, "text.map");
    dir.refused("unpack text", 65, "no archive");
    dir.refused("inspect cut.map", 65, "cut short");
    dir.refused("pack cut.map", 65, "this is a map");
    dir.refused("inspect .", 65, "no regular file");
    dir.refused("sparsify .", 65, "no regular file");

    dir.image("a.img", 100, [1]);
    dir.good("sparsify a.img");
    dir.good("pack a.img");
    dir.refused("diff a.rsz a.img -o x", 65, "unpack it first");
    dir.refused("sparsify a.rsz --map x.map", 65, "unpack it first");
    dir.refused("sparsify a.map --map x.map", 65, "name its image");
    // Another version's.
    dir.damage("a.map", 8);
    dir.refused("inspect a.map", 65, "major version");
    // Not of this image.
    dir.damage("a.map", 8);
    dir.image("a.img", 101, [1]);
    dir.refused("verify a.img", 65, "its map says");
    dir.refused("pack a.img --force", 65, "its map says");
    // What is there stays there.
    dir.good("unpack a.rsz -o b.img");
}

#[test]
fn outputs_are_never_overwritten() {
    let dir = Dir::new();
    for name in ["a", "b"] {
        dir.image(&format!("{name}.img"), 100, if name == "a" { 1..2 } else { 1..3 });
        dir.good(&format!("sparsify {name}.img"));
    }
    dir.good("pack a.img");
    dir.good("diff a.img b.img -o l.img");
    fs::write(dir.path("there"), "mine").unwrap();
    fs::write(dir.path("x.map"), "mine, too").unwrap();
    let before = dir.files();

    let to = |name: &str| {
        [
            format!("sparsify a.img -o {name}"),
            format!("pack a.img -o {name}"),
            format!("unpack a.rsz -o {name}"),
            format!("diff a.img b.img -o {name}"),
            format!("merge a.img l.img -o {name}"),
            format!("merge --flatten l.img -o {name}"),
            format!("inspect a.img --svg {name}"),
        ]
    };
    for line in to("there") {
        dir.refused(&line, 73, "--force");
    }
    // A map that would be another image's.
    for line in
        to("x.img").into_iter().filter(|line| !line.contains("pack a.img") && !line.contains("svg"))
    {
        dir.refused(&line, 73, "x.map");
    }
    for line in to("no/x") {
        dir.refused(&line, 73, "no directory");
    }
    // Inputs, by force and by other names.
    fs::hard_link(dir.path("a.img"), dir.path("link")).unwrap();
    dir.refused("sparsify a.img -o link --force", 2, "what is read");
    dir.refused("pack a.img -o ./a.map --force", 2, "what is read");
    dir.refused("unpack a.rsz -o a.rsz --force", 2, "what is read");
    dir.refused("diff a.img b.img -o link --force", 2, "what is read");
    dir.refused("merge a.img l.img -o l.img --force", 2, "what is read");
    dir.refused("merge a.img l.img -o x --map b.map", 73, "b.map");
    dir.refused("unpack a.rsz -o y --map y", 2, "at once");
    dir.refused("unpack a.rsz -o y --map ./y --force", 2, "at once");
    dir.refused("diff a.img b.img -o ./y --map y --force", 2, "at once");
    dir.refused("sparsify a.img --map a.img", 2, "what is read");
    dir.refused("inspect b.img --svg b.map --force", 2, "what is read");
    dir.refused("inspect b.img --map l.map --svg l.map --force", 2, "what is read");
    dir.refused("pack a.img --map b.map -o a.map --force", 2, "what is read");
    fs::remove_file(dir.path("link")).unwrap();
    // What no rename should replace.
    dir.refused("pack a.img -o /dev/null --force", 73, "no regular file");
    assert!(dir.files() == before);
}

#[test]
fn an_image_in_use_is_left_alone() {
    let dir = Dir::new();
    dir.image("a.img", 100, [1]);
    dir.image("b.img", 100, [2]);
    for name in ["a.img", "b.img"] {
        dir.good(&format!("sparsify {name}"));
    }
    dir.good("diff a.img b.img -o l.img");
    let vm = File::open(dir.path("a.img")).unwrap();
    vm.lock_shared().unwrap();
    dir.refused("sparsify a.img", 75, "in use");
    dir.refused("merge --in-place a.img l.img", 75, "in use");
    // To read it is no harm, and to look at what is said of it takes no lock at all.
    dir.good("verify a.img");
    vm.lock().unwrap();
    dir.refused("verify a.img", 75, "try again later");
    dir.refused("pack a.img", 75, "try again later");
    dir.good("inspect a.img");
}

#[test]
fn what_a_guest_writes_does_not_make_an_image_something_else() {
    let dir = Dir::new();
    dir.image("small.img", 10, [0]);
    dir.good("sparsify small.img");
    dir.good("pack small.img");
    for start in ["small.map", "small.rsz"] {
        // The first bytes of a disk are the guest's.
        let start = dir.bytes(start);
        let mut disk = vec![0; 300 * 4096];
        disk[..start.len()].copy_from_slice(&start);
        fs::write(dir.path("disk.img"), &disk).unwrap();
        if start.starts_with(b"ROUSEMAP") {
            // Longer than any such map.
            disk.resize(1 << 20, 7);
            fs::write(dir.path("disk.img"), &disk).unwrap();
            dir.good("sparsify disk.img");
        } else {
            let found = rouse_snapshot_format::sparsify(&dir.path("disk.img"), &Default::default());
            let map = found.unwrap().into_map(rouse_snapshot_format::ImageId::random());
            map.write(dir.path("disk.map")).unwrap();
        }
        fs::write(dir.path("trace"), "0\n").unwrap();
        dir.good("record disk.img trace");
        assert!(dir.bytes("disk.img") == disk);
        assert_eq!(dir.map("disk.map").working_set().wakes().count(), 1);
        assert!(dir.good("verify disk.img").contains("image"));
        dir.good("pack disk.img --force");
        dir.good("unpack disk.rsz -o back.img --force");
        assert!(dir.bytes("back.img") == disk);
        dir.damage("disk.img", 2000);
        dir.refused("verify disk.img", 65, "window 0");
        fs::remove_file(dir.path("disk.map")).unwrap();
    }
}
