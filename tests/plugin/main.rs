//! Does holding work in somebody else's Pingora server?
#![forbid(unsafe_code)]

use std::net::SocketAddr;

use rouse_tests::{Binaries, Daemon, Node, Visit, eventually, free_port};

/// The example in front of the node's waker, beside the node's own proxy.
async fn embed(node: &Node) -> (Daemon, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let args = vec![address.to_string(), node.socket().display().to_string()];
    let log = node.root().join("embed.log");
    let mut embed = Daemon::new(Binaries::find().example("embed"), args, log);
    embed.start();
    eventually("the example knows its apps", async || {
        embed.assert_runs();
        // Before it knows them, every host is one that it can't tell yet.
        let reply = Visit::get("/").host("unknown.localhost").send(address).await.ok()?;
        (reply.status == 404).then_some(())
    })
    .await;
    (embed, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_holds_and_wakes() {
    let node = Node::start().await;
    let (_embed, address) = embed(&node).await;
    let before = node.generation("hello").await;

    let own = Visit::get("/internal/x").send(address).await.unwrap();
    assert_eq!(own.status, 403, "its own rule holds: {own:?}");
    assert_eq!(node.generation("hello").await, before, "and wakes nobody");

    let page = Visit::get("/").send(address).await.unwrap().expect_status(200);
    assert_eq!(page.header("x-served-by"), "mine", "with its own header: {page:?}");
    assert_eq!(page.header("rouse-wake"), "resumed", "from the app that it woke: {page:?}");
    assert_eq!(node.generation("hello").await, before + 1, "in one new life");

    // Two proxies watch now, and both have to agree.
    node.sleep("hello").await;
    let page = Visit::get("/").send(address).await.unwrap().expect_status(200);
    assert_eq!(page.header("rouse-wake"), "resumed", "it slept and was woken again: {page:?}");
    node.get("/").await.expect_status(200);
}
