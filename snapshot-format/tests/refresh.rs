//! A map is brought up to date while somebody has the image mapped.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use rouse_snapshot_format::{
    Image, ImageId, Known, OpenImageError, PAGE, PageState, Punching, SparsifyError,
    SparsifyOptions, Work, refresh, sparsify, verify_image,
};

/// What a VM is to its memory file: it has it mapped, keeps a shared lock on it, writes, stands still
/// until it hears a word, and goes on. In the end it says what it sees.
const VM: &str = r#"
import fcntl, mmap, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_SH)
memory = mmap.mmap(file.fileno(), 0)
page = lambda n, byte: memory.__setitem__(slice(n * 4096, n * 4096 + 4096), bytes([byte]) * 4096)
for n in range(512, 520): page(n, 7)
for n in range(100, 164): page(n, 0)
seen = sum(memory[n * 4096] for n in range(1024))
print(seen, flush=True)
sys.stdin.readline()
page(120, 9)
page(900, 9)
sys.stdout.buffer.write(memory)
"#;

fn beside_a_vm_in(dir: &Path) {
    // On tmpfs, who looks at a hole through a mapping fills it.
    let read_holes_stay = statfs(dir).unwrap().filesystem_type() != TMPFS_MAGIC;
    let dir = tempfile::tempdir_in(dir).unwrap();
    let path = dir.path().join("memory.img");
    // Pages 0 to 255 hold something, and 256 to 1023 are a hole after the first sleep.
    let mut bytes = vec![0; 1024 * PAGE as usize];
    bytes[..256 * PAGE as usize].fill(3);
    fs::write(&path, &bytes).unwrap();
    let map = sparsify(&path, &SparsifyOptions::default()).unwrap().into_map(ImageId::random());

    let mut vm = Command::new("python3")
        .args(["-c", VM])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there; `./dev setup` installs it");
    let mut said = BufReader::new(vm.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), (192 * 3 + 8 * 7).to_string());

    // The one that wants it for itself can't have it.
    let refused = sparsify(&path, &SparsifyOptions::default()).unwrap_err();
    assert!(matches!(refused, SparsifyError::Open(OpenImageError::InUse(_))), "{refused}");
    File::open(&path).unwrap().sync_all().unwrap();
    let page = |from: usize, to: usize| from as u64 * PAGE..to as u64 * PAGE;
    let written = [page(512, 520), page(100, 164)];
    let known = Known { map: &map, written: &written };
    let options = SparsifyOptions { sync: true, ..SparsifyOptions::default() };
    let found = refresh(&path, Some(known), &options).unwrap();
    assert_eq!(found.punching, Punching::Done);
    // The rest of the last window that was written to, of which it has looked at all.
    let looked_at = if read_holes_stay { 0 } else { 576 - 520 };
    assert_eq!(found.punched_bytes, (64 + looked_at) * PAGE);
    assert!(found.allocated_after < found.allocated_before);
    assert!(found.read_bytes >= (128 + 8) * PAGE && found.read_bytes <= 3 * 64 * PAGE);
    let map = found.into_map(ImageId::random());
    let data = |page| (page < 256 && !(100..164).contains(&page)) || (512..520).contains(&page);
    for page in 0..1024 {
        let wanted = if data(page) { PageState::Data } else { PageState::Zero };
        assert_eq!(map.state(page), Ok(wanted), "page {page}");
    }
    let image = Image::with_map(&path, map).unwrap();
    verify_image(&image, Work::default()).unwrap();
    drop(image);
    let blocks = fs::metadata(&path).unwrap().blocks();

    // It goes on, and writes also where a page was punched.
    vm.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut seen = Vec::new();
    said.read_to_end(&mut seen).unwrap();
    assert!(vm.wait().unwrap().success());
    for (pages, byte) in [(512..520, 7), (100..164, 0), (120..121, 9), (900..901, 9)] {
        bytes[pages.start * PAGE as usize..pages.end * PAGE as usize].fill(byte);
    }
    assert!(seen == bytes, "the VM sees other bytes");
    assert!(fs::read(&path).unwrap() == bytes, "the file has other bytes");
    // What it wrote has blocks again, and nothing around; the filesystem may need some to say where.
    File::open(&path).unwrap().sync_all().unwrap();
    if read_holes_stay {
        let more = (fs::metadata(&path).unwrap().blocks() - blocks) * 512;
        assert!((2 * PAGE..8 * PAGE).contains(&more), "{more} bytes more");
    }
}

#[test]
fn a_stopped_vm_keeps_its_image_mapped_and_locked() {
    beside_a_vm_in(&std::env::temp_dir());
}

#[test]
fn a_stopped_vm_keeps_its_image_in_memory_mapped_and_locked() {
    // A tmpfs on every common Linux.
    let shm = Path::new("/dev/shm");
    if tempfile::tempfile_in(shm).is_err() {
        eprintln!("not tested: no file can be made in {shm:?}");
        return;
    }
    beside_a_vm_in(shm);
}
