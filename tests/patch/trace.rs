//! The patches of a wake, as the operator sees them.

use std::collections::BTreeMap;

use rouse_protocol::wake::{Outcome, Phase};
use rouse_tests::{App, Binaries, Node, assert_eventually};

use crate::{failed, names, patched};

const ALL: [&str; 6] = ["clock", "entropy", "disk", "env", "ssh", "command"];
const VALUE: &str = "it's \"quoted\" $HOME \\ ü";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_woken_guest_is_patched_in_order() {
    let binaries = Binaries::find();
    let mut app = App::hello(&binaries).disk(32);
    app.env = BTreeMap::from([("GREETING".into(), VALUE.into()), ("ROUND".into(), "one".into())]);
    app.patch.ssh_port = Some(2222);
    app.patch.command = Some(["/bin/busybox", "test", "-d", "/data/app"].map(Into::into).into());
    let mut node = Node::builder(&binaries).app(app).start().await;

    node.get("/").await.expect_status(200);
    let wake = patched(&node, ALL.len()).await;
    assert_eq!(wake.outcome, Some(Outcome::Cold), "the first wake: {wake:?}");
    assert_eq!(names(&wake), ALL, "in this order: {wake:?}");
    assert!(failed(&wake).is_empty(), "and well: {wake:?}");
    for (name, value) in [("GREETING", VALUE), ("ROUND", "one")] {
        let reply = node.get(&format!("/env?name={name}")).await.expect_status(200);
        assert_eq!(reply.text(), value, "{name} in the guest: {reply:?}");
    }

    // The operator changes what it is told while it sleeps.
    node.sleep("hello").await;
    let file = node.root().join("apps.d/hello.toml");
    let text = std::fs::read_to_string(&file).expect("we wrote it");
    assert!(text.contains("ROUND = \"one\""), "as we wrote it: {text}");
    std::fs::write(&file, text.replace("ROUND = \"one\"", "ROUND = \"two\"")).expect("it is ours");
    node.waker.stop().await;
    node.start_waker().await;

    assert_eventually!(node.get("/").await.status == 200, "visitors are served again");
    let wake = patched(&node, ALL.len()).await;
    assert_eq!(wake.outcome, Some(Outcome::Resumed), "the second wake: {wake:?}");
    assert_eq!(names(&wake), ALL, "the same again: {wake:?}");
    assert!(failed(&wake).is_empty(), "and well: {wake:?}");
    let phases: Vec<_> = wake.phases.iter().map(|time| time.phase).collect();
    let missing: Vec<_> = Phase::ALL.into_iter().filter(|phase| !phases.contains(phase)).collect();
    // It was here, and nothing was fetched.
    assert_eq!(missing, [Phase::Fetch], "with the phases of waker and proxy: {wake:?}");
    let reply = node.get("/env?name=ROUND").await.expect_status(200);
    assert_eq!(reply.text(), "two", "the new value is in the guest: {reply:?}");

    let counted = node.waker_metrics().await;
    for patch in ALL {
        let done = counted.sum("rouse_waker_patch_seconds_count", &[("patch", patch)]);
        assert_eq!(done, 1.0, "{patch} is counted since the waker started");
    }
}
