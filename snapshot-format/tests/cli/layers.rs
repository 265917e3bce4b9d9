//! `diff`, `merge` and `import-diff`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rouse_snapshot_format::PAGE;

use super::Dir;

/// Three generations of an image, and the layers between them.
fn chain() -> Dir {
    let dir = Dir::new();
    dir.image("a.img", 1000, 0..100);
    dir.image("b.img", 1000, (0..90).chain(200..210));
    dir.image("c.img", 1200, (5..90).chain(1100..1110));
    for image in ["a", "b", "c"] {
        dir.good(&format!("sparsify {image}.img"));
    }
    dir.good("diff a.img b.img -o ab.img");
    dir.good("diff b.img c.img -o bc.img --threads 1 --no-sync");
    dir
}

#[test]
fn layers_make_the_next_image_of_the_last() {
    let dir = chain();
    let layer = dir.map("ab.map");
    assert_eq!(layer.parent(), Some(dir.map("a.map").image_id()));
    assert_eq!(layer.image_id(), dir.map("b.map").image_id());
    assert_eq!((layer.counts().data, layer.counts().zero), (10, 10));

    dir.good("merge a.img ab.img bc.img -o merged.img");
    assert!(dir.bytes("merged.img") == dir.bytes("c.img"));
    assert_eq!(dir.map("merged.map"), dir.map("c.map"));
    dir.good("verify merged.img");

    dir.good("merge --flatten ab.img bc.img -o ac.img");
    let flat = dir.map("ac.map");
    assert_eq!(flat.parent(), Some(dir.map("a.map").image_id()));
    dir.good("merge a.img ac.img -o merged.img --force");
    assert!(dir.bytes("merged.img") == dir.bytes("c.img"));

    let before = (dir.bytes("ab.img"), dir.bytes("bc.img"));
    dir.good("merge --in-place a.img ab.img bc.img");
    assert!(dir.bytes("a.img") == dir.bytes("c.img"));
    assert_eq!(dir.map("a.map"), dir.map("c.map"));
    assert!((dir.bytes("ab.img"), dir.bytes("bc.img")) == before);
    // Once more is as good.
    dir.good("merge --in-place a.img ab.img bc.img");
    assert!(dir.bytes("a.img") == dir.bytes("c.img"));
}

#[test]
fn a_layer_fits_one_image_only() {
    let dir = chain();
    let before = dir.files();
    dir.refused("merge a.img bc.img -o x.img", 65, "bottom up");
    dir.refused("merge --in-place a.img bc.img", 65, "bottom up");
    dir.refused("merge --flatten bc.img ab.img -o x.img", 65, "bottom up");
    dir.refused("diff a.img bc.img -o x.img", 65, "layer");
    dir.refused("diff a.img a.img -o x.img", 65, "called");
    dir.refused("merge a.img -o x.img", 2, "one layer");
    dir.damage("ab.img", 205 * 4096);
    dir.refused("merge a.img ab.img -o x.img", 65, "window 3");
    dir.refused("merge --in-place a.img ab.img", 65, "window 3");
    dir.damage("ab.img", 205 * 4096);
    assert!(dir.files() == before);
}

#[test]
fn the_diff_of_a_vmm_becomes_a_layer() {
    let dir = chain();
    // What Firecracker writes: changed pages, zeros among them, and holes for all others.
    let diff = File::create(dir.path("vmm.diff")).unwrap();
    diff.set_len(1000 * PAGE).unwrap();
    let b = dir.bytes("b.img");
    for page in [90..100, 200..210] {
        let bytes = (page.start * PAGE) as usize..(page.end * PAGE) as usize;
        diff.write_all_at(&b[bytes.clone()], bytes.start as u64).unwrap();
    }
    let before = dir.bytes("vmm.diff");
    let id = dir.map("b.map").image_id();
    dir.good(&format!("import-diff vmm.diff --base a.img --image-id {id}"));
    assert!(dir.bytes("vmm.diff") == before);
    assert_eq!(dir.map("vmm.map"), dir.map("ab.map"));
    dir.good("merge a.img vmm.diff -o merged.img");
    assert!(dir.bytes("merged.img") == b);

    dir.refused("import-diff vmm.diff --base a.img", 73, "--force");
    dir.good("import-diff vmm.diff --base a.map --force");
    assert_ne!(dir.map("vmm.map").image_id(), id);
    dir.refused("import-diff vmm.diff --base a.map --map a.map --force", 2, "what is read");
    assert_eq!(fs::metadata(dir.path("vmm.diff")).unwrap().len(), 1000 * PAGE);
}

#[test]
fn a_merge_that_is_killed_is_gone_on_with() {
    let dir = Dir::new();
    dir.image("base.img", 6000, 0..3000);
    dir.image("new.img", 6000, 1000..6000);
    dir.good("sparsify base.img");
    dir.good("sparsify new.img");
    dir.good("diff base.img new.img -o layer.img --no-sync");
    dir.good("diff new.img base.img -o other.img --no-sync");
    dir.good("pack base.img --no-sync");
    let journal = dir.path("base.map.merging");
    // It may be over before it is killed; then once more, from the start.
    for _ in 0..100 {
        let mut merge = dir.command("merge -q --in-place base.img layer.img").spawn().unwrap();
        while !journal.exists() && merge.try_wait().unwrap().is_none() {}
        merge.kill().unwrap();
        merge.wait().unwrap();
        if journal.exists() && !dir.path("base.map").exists() {
            break;
        }
        fs::remove_file(dir.path("base.map")).unwrap();
        let _ = fs::remove_file(&journal);
        dir.good("unpack base.rsz -o base.img --force --no-sync");
    }
    assert!(journal.exists(), "no kill came in time");
    // Nobody may take it for an image, or make it pass for one.
    dir.refused("sparsify base.img", 65, "merge --in-place");
    dir.refused("pack base.img -o x.rsz", 65, "merge --in-place");
    dir.refused("verify base.img", 65, "base.map");
    // Only where it is true that the same command goes on, it is said.
    let said = |line: &str, code| {
        let output = dir.command(line).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
        String::from_utf8(output.stderr).unwrap()
    };
    let other = said("merge --in-place base.img other.img", 65);
    assert!(other.contains("was being merged") && !other.contains("goes on"), "{other}");
    let vm = File::open(dir.path("base.img")).unwrap();
    vm.lock().unwrap();
    let in_use = said("merge --in-place base.img layer.img", 75);
    assert!(!in_use.contains("goes on"), "{in_use}");
    drop(vm);
    dir.damage("layer.img", 5999 * 4096);
    let damaged = said("merge --in-place base.img layer.img", 65);
    assert!(damaged.contains("the same command goes on"), "{damaged}");
    dir.damage("layer.img", 5999 * 4096);

    dir.good("merge --in-place base.img layer.img");
    assert!(dir.bytes("base.img") == dir.bytes("new.img"));
    assert_eq!(dir.map("base.map"), dir.map("new.map"));
    assert!(!journal.exists());
    dir.good("verify base.img");
}

#[test]
fn the_map_of_the_base_is_not_that_of_its_diff() {
    let dir = Dir::new();
    dir.image("mem.img", 100, [1]);
    dir.good("sparsify mem.img");
    dir.image("mem.diff", 100, [2]);
    let before = dir.files();
    // Both would be called mem.map.
    for base in ["mem.img", "mem.map"] {
        for force in ["", "--force"] {
            dir.refused(&format!("import-diff mem.diff --base {base} {force}"), 2, "what is read");
        }
    }
    assert!(dir.files() == before);
    dir.good("import-diff mem.diff --base mem.img --map diff.map");
    assert_eq!(dir.map("diff.map").parent(), Some(dir.map("mem.map").image_id()));
}

#[test]
fn a_diff_is_as_large_as_its_base() {
    let dir = Dir::new();
    dir.image("base.img", 100, [1]);
    dir.good("sparsify base.img");
    for pages in [0, 99, 101] {
        dir.image("vmm.diff", pages, []);
        dir.refused("import-diff vmm.diff --base base.img", 65, "as large as");
        assert_eq!(dir.names(), ["base.img", "base.map", "vmm.diff"]);
    }
}

#[test]
fn a_merge_in_place_has_its_journal_where_all_look_for_it() {
    let dir = chain();
    let before = dir.files();
    for map in ["a.map", "ab.map", "x.map"] {
        let line = format!("merge --in-place a.img ab.img --map {map}");
        assert_eq!(dir.command(&line).output().unwrap().status.code(), Some(2), "{line}");
    }
    // A journal that can't be looked at is the system's fault, and no damage.
    let journal = dir.path("a.map.merging");
    std::os::unix::fs::symlink("a.map.merging", &journal).unwrap();
    dir.refused("merge --in-place a.img ab.img", 1, "can't be read");
    fs::remove_file(journal).unwrap();
    assert!(dir.files() == before);
}
