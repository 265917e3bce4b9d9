//! A VMM hangs before it has been given anything.

use std::os::unix::fs::PermissionsExt;

use rouse_tests::{App, Binaries, Node};

/// QEMU, but for the first that is to run a guest: that one never answers.
const FIRST_HANGS: &str = "#!/bin/sh
case \" $* \" in
    *' --version '*) ;;
    *) mkdir \"$0.hung\" 2>/dev/null && exec sleep 600 ;;
esac
exec qemu-system-x86_64 \"$@\"
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vmm_that_hangs_at_its_start_is_replaced_and_the_visitor_served() {
    let binaries = Binaries::find();
    let builder = Node::builder(&binaries);
    let program = builder.root().join("qemu");
    std::fs::write(&program, FIRST_HANGS).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let node = builder
        .app(App::hello(&binaries))
        .waker(|waker| {
            waker.qemu.pool = 0;
            waker.qemu.binary = Some(program.clone());
        })
        .start()
        .await;

    let reply = node.get("/").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "its image is as good as ever: {reply:?}");
    assert!(program.with_extension("hung").exists(), "the first one hung");
    let failed =
        node.waker_metrics().await.sum("rouse_waker_wakes_total", &[("outcome", "failed")]);
    assert_eq!(failed, 0.0, "and nobody was told of a failure");
}
