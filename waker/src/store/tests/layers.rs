//! What has not changed is not sent again, and comes back all the same.

use super::*;

#[tokio::test]
async fn many_sleeps_are_few_bytes_and_a_bounded_number_of_layers() {
    let world = World::new();
    let a = world.node("a");
    // Something to build upon.
    a.take("hello").await.unwrap();
    let live = a.begin("hello");
    let noise: Vec<u8> =
        (0..3 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    OpenOptions::new().write(true).open(live.memory()).unwrap().write_all_at(&noise, 8192).unwrap();
    write(&live, 1);
    a.end("hello", live);
    let first = a.free("hello").await.bytes;
    let mut most = 0;
    for value in 2..20_u8 {
        let b = world.node(&format!("n{value}"));
        assert_eq!(b.live_once("hello", value).await, value - 1, "on the next node");
        let sent = b.free("hello").await.bytes;
        let (reference, _) = b.node.read(&app("hello"), &Asked::default()).await.unwrap().unwrap();
        let stored = reference.newest().unwrap();
        let at = app_key(&app("hello"));
        let manifest = up::read_manifest(&b.node, &at, stored, &Asked::default()).await.unwrap();
        let layers = manifest.memory.len();
        assert!(layers <= 6, "{layers} layers");
        if layers > 1 {
            assert!(sent < first / 2, "{sent} bytes after {first} at first, in layer {layers}");
        }
        most = most.max(layers);
    }
    assert!(most > 2, "there were layers over layers");
}

#[tokio::test]
async fn a_sleep_in_which_nothing_changed_sends_no_layer() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.live_once("hello", 9).await;
    a.free("hello").await;
    b.take("hello").await.unwrap();
    let live = b.begin("hello");
    b.end("hello", live);
    let freed = b.free("hello").await;
    assert!(freed.bytes < 8192, "no more than manifest and state: {freed:?}");
    assert_eq!(a.live_once("hello", 10).await, 9);
}
