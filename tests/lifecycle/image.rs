//! What is on disk, asleep and awake.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rouse_snapshot_format::Map;
use rouse_tests::Node;

/// The generations with a manifest, that is those that could be restored.
fn images(node: &Node) -> Vec<PathBuf> {
    let entries = fs::read_dir(node.app_dir("hello")).expect("the app has a directory");
    let dirs = entries.map(|entry| entry.expect("it can be read").path());
    dirs.filter(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("gen-") && dir.join("manifest.json").exists()
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_app_is_one_sparse_image() {
    let node = Node::start().await;
    node.get("/").await.expect_status(200);
    let report = node.sleep("hello").await;

    let images = images(&node);
    let [dir] = &*images else { panic!("one image: {images:?}") };
    let look = || fs::metadata(dir.join("memory.img")).expect("it has a memory");
    rouse_tests::assert_eventually!(
        look().blocks() * 512 <= report.image_bytes,
        "blocks that hold nothing are given back once it sleeps"
    );
    let memory = look();
    assert_eq!(memory.len(), 256 << 20, "as large as the VM's memory");
    let allocated = memory.blocks() * 512;
    println!("{allocated} of {} bytes are allocated", memory.len());
    assert!(allocated < memory.len() * 3 / 4, "and sparse: {allocated} bytes are allocated");

    let map = Map::open(dir.join("memory.map")).expect("a map that can be read is beside it");
    assert_eq!(map.mem_size(), memory.len(), "the map is of this memory");
    let counts = map.counts();
    assert!(counts.data > 0 && counts.zero > 0, "some pages hold data, some do not: {counts:?}");
    assert_eq!(counts.parent, 0, "a whole image has no parent: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_consumed_by_its_wake() {
    let node = Node::start().await;
    assert_eq!(images(&node).len(), 1, "asleep there is an image");
    node.get("/").await.expect_status(200);
    assert_eq!(images(&node), Vec::<PathBuf>::new(), "awake there is none to restore");
    node.sleep("hello").await;
    assert_eq!(images(&node).len(), 1, "asleep again there is one");
}
