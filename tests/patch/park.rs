//! A check that fails parks the app.

use rouse_protocol::wake::Outcome;
use rouse_protocol::watch::{AppState, AppView};
use rouse_tests::{Node, assert_eventually, eventually};

use crate::{failed, patched};

fn reason(view: &AppView) -> &str {
    match &view.state {
        AppState::Parked { detail } => detail,
        other => panic!("it is parked: {other:?}"),
    }
}

/// What the hook does: it says what it was told, in one piece.
fn hook(node_says: &str) -> Vec<String> {
    let script = format!(
        "printf '%s\\n%s' \"$ROUSE_APP\" \"$ROUSE_REASON\" > {node_says}.new && \
         mv {node_says}.new {node_says}"
    );
    ["/bin/sh", "-c", &script].map(str::to_owned).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_fails_parks_the_app_until_it_is_cleared() {
    let told = tempfile::tempdir().expect("a directory can be made");
    let told = told.path().join("told");
    let mut node = Node::with_app(|app| {
        app.patch.command = Some(["/bin/busybox", "false"].map(Into::into).into());
        app.park.hook = Some(hook(&told.to_string_lossy()));
    })
    .await;

    // The visitor comes before the check.
    let reply = node.get("/").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "{reply:?}");
    let vm = node.vm("hello");
    let parked = |state: &AppState| matches!(state, AppState::Parked { .. });
    let view = node.wait_state("hello", "parked", parked).await;
    let why = reason(&view).to_owned();
    assert!(why.contains("`command`"), "it says which check: {why}");
    assert_eventually!(
        node.waker_metrics().await.sum("rouse_waker_parked_total", &[]) == 1.0,
        "it is counted when it is over"
    );
    assert!(!vm.runs(), "its VM has ended");
    let told = eventually("the hook was run", async || std::fs::read_to_string(&told).ok()).await;
    assert_eq!(told, format!("hello\n{why}"), "and told which app, and why");
    assert_parked(&node).await;

    node.waker.kill();
    node.start_waker().await;
    assert_eq!(reason(&node.view("hello").await), why, "it is for the next waker, too");
    eventually("visitors are told by the next waker", async || {
        let reply = node.get("/").await.expect_status(503);
        (reply.header("rouse-error") == "parked").then_some(())
    })
    .await;

    // The operator mends what was wrong, and says so.
    let file = node.root().join("apps.d/hello.toml");
    let text = std::fs::read_to_string(&file).expect("we wrote it");
    assert!(text.contains("\"false\""), "as we wrote it: {text}");
    std::fs::write(&file, text.replace("\"false\"", "\"true\"")).expect("it is ours");
    node.waker.stop().await;
    node.start_waker().await;
    let app = "hello".parse().expect("an id");
    node.client().clear(&app).await.expect("it is cleared");
    assert_eventually!(node.get("/").await.status == 200, "visitors are served");
    let wake = patched(&node, 3).await;
    assert_eq!(wake.outcome, Some(Outcome::Cold), "its memory was not kept: {wake:?}");
    assert!(failed(&wake).is_empty(), "and all is well: {wake:?}");
    assert!(matches!(node.view("hello").await.state, AppState::Awake(_)), "it serves on");
}

/// Visitors are told, and wake nothing.
async fn assert_parked(node: &Node) {
    let wakes = node.wakes().await;
    for _ in 0..3 {
        let reply = node.get("/").await.expect_status(503);
        assert_eq!(reply.header("rouse-error"), "parked", "the visitor is told: {reply:?}");
        assert_eq!(reply.header("retry-after"), "", "nobody knows for how long: {reply:?}");
    }
    assert_eq!(node.wakes().await, wakes, "nobody wakes it");
    assert!(node.vms("hello").is_empty(), "and it has no VM");
}
