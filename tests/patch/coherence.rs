//! A disk that is not of its memory's instant, and looks as if it were.

use std::fs::{File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rouse_protocol::wake::Outcome;
use rouse_protocol::watch::AppState;
use rouse_tests::{App, Binaries, Node, assert_eventually};

/// The block of a file system as small as this one, and with it where a file may begin. The agent's
/// marker is 32 hexadecimal digits, a line's end, and zeros.
const BLOCK: usize = 1024;
const DIGITS: usize = 32;

/// Changes the marker in a raw disk, and leaves the file's times as they were; how many were found.
fn change_marker(disk: &Path) -> usize {
    let bytes = std::fs::read(disk).unwrap_or_else(|e| panic!("{}: {e}", disk.display()));
    let file = File::options().write(true).open(disk).expect("what can be read can be written");
    let metadata = file.metadata().expect("an open file has times");
    let modified = metadata.modified().expect("an open file has times");
    let mut found = 0;
    for (at, block) in bytes.chunks(BLOCK).enumerate() {
        let (digits, rest) = block.split_at(DIGITS);
        let zeros = rest[1..].iter().all(|b| *b == 0);
        if digits.iter().all(u8::is_ascii_hexdigit) && rest[0] == b'\n' && zeros {
            let other = if digits[0] == b'0' { b'1' } else { b'0' };
            file.write_all_at(&[other], (at * BLOCK) as u64).expect("the disk can be written");
            found += 1;
        }
    }
    file.set_times(FileTimes::new().set_modified(modified)).expect("times can be set");
    file.sync_all().expect("the disk can be synced");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_another_instant_is_found_out_by_its_marker() {
    let binaries = Binaries::find();
    let node = Node::builder(&binaries).app(App::hello(&binaries).disk(32)).start().await;
    let acknowledged = node.log("before").await;
    node.sleep("hello").await;
    let disk = node.app_dir("hello").join("current/disk.img");
    assert_eq!(change_marker(&disk), 1, "the flush has left one marker on the disk");

    // Nothing that is checked before the guest runs tells of it.
    let reply = node.get("/").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "{reply:?}");
    let parked = |state: &AppState| matches!(state, AppState::Parked { .. });
    let view = node.wait_state("hello", "parked", parked).await;
    let AppState::Parked { detail } = &view.state else { panic!("we waited for it: {view:?}") };
    assert!(detail.contains("`disk`"), "it says which check: {detail}");
    assert!(detail.contains("different instants"), "and what it found: {detail}");
    assert_eventually!(node.vms("hello").is_empty(), "its VM ends");
    let reply = node.get("/").await.expect_status(503);
    assert_eq!(reply.header("rouse-error"), "parked", "visitors are told: {reply:?}");

    let app = "hello".parse().expect("an id");
    node.client().clear(&app).await.expect("it is cleared");
    assert_eventually!(node.get("/").await.status == 200, "visitors are served");
    let wake = node.trace("hello").await.expect("it was woken");
    assert_eq!(wake.outcome, Some(Outcome::Cold), "from the disk, without the memory: {wake:?}");
    let lines = node.logged().await;
    let last = lines.last().map(|line| (line.n, line.hash.clone()));
    assert_eq!(last, Some((acknowledged.n, acknowledged.hash)), "which is whole: {lines:?}");
}
