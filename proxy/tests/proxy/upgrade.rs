//! Does anybody notice that another process takes over, or that this one goes?

use super::*;

/// Whether a new connection is served.
async fn served(to: std::net::SocketAddr) -> bool {
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\n";
    client::request(to, head, &[]).await.status == 200
}

/// How many processes of this proxy run: two during a handover.
async fn two_run(proxy: &Proxy) {
    eventually("another process has started", async || proxy.processes().len() == 2).await;
}

#[tokio::test]
async fn whoever_is_held_during_a_handover_is_served_and_nobody_is_refused() {
    let mut world = World::new("").await;
    world.waker.plan(waker::Wake::Runs(Duration::from_secs(3)));
    let mut held = client::connect(world.proxy.http).await;
    let head = "GET /held HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut held, head, &[]).await;
    eventually("it is held", async || world.proxy.holds().await == 1).await;

    world.proxy.signal("-QUIT").await;
    two_run(&world.proxy).await;
    for _ in 0..50 {
        assert!(served(world.proxy.http).await);
    }
    let reply = client::read(&mut held).await;
    assert_eq!((reply.status, reply.header("rouse-wake")), (200, Some("resumed")));
    assert!(world.proxy.ended().await, "the old process goes when the last is served");
    assert!(served(world.proxy.http).await);
}

#[tokio::test]
async fn requests_all_through_a_handover_succeed() {
    let mut world = World::new("").await;
    assert!(served(world.proxy.http).await);
    let to = world.proxy.http;
    let mut visitors = tokio::task::JoinSet::new();
    visitors.spawn(async move {
        // Bounded; the test ends it much earlier.
        for n in 0..20_000 {
            assert!(served(to).await, "the visit {n}");
            tokio::task::yield_now().await;
        }
    });
    world.proxy.signal("-QUIT").await;
    two_run(&world.proxy).await;
    assert!(world.proxy.ended().await, "nobody is there to wait for");
    let ended = visitors.try_join_next();
    assert!(ended.is_none(), "a request failed, or there were not enough: {ended:?}");
}

#[tokio::test]
async fn a_connection_that_has_asked_for_nothing_yet_is_not_cut() {
    let mut world = World::new("").await;
    // Two, as browsers open them ahead: one is used, and one is not.
    let mut used = client::connect(world.proxy.http).await;
    let unused = client::connect(world.proxy.http).await;
    // Both are accepted: connections are, in order.
    assert!(served(world.proxy.http).await);
    world.proxy.signal("-QUIT").await;
    two_run(&world.proxy).await;
    // Longer than idle connections are kept in a drain.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(world.proxy.runs());
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut used, head, &[]).await;
    assert_eq!(client::read(&mut used).await.status, 200);
    drop(unused);
    assert!(world.proxy.ended().await, "nobody is there to wait for");
}

#[tokio::test]
async fn a_successor_that_can_not_start_changes_nothing() {
    let mut world = World::new("").await;
    let file = world.waker.directory().join("proxy.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}\n[nonsense]\n")).unwrap();
    world.proxy.signal("-QUIT").await;
    for _ in 0..50 {
        assert!(served(world.proxy.http).await);
    }
    std::fs::write(&file, good).unwrap();
    assert!(world.proxy.runs());
    eventually("the successor is gone", async || world.proxy.processes().len() == 1).await;
    world.proxy.signal("-QUIT").await;
    assert!(world.proxy.ended().await, "with a good file it goes");
    assert!(served(world.proxy.http).await);
}

#[tokio::test]
async fn a_stop_ends_holds_with_an_answer() {
    let mut world = World::with("", |plan| plan.wake = waker::Wake::Hangs).await;
    let mut held = client::connect(world.proxy.http).await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut held, head, &[]).await;
    eventually("it is held", async || world.proxy.holds().await == 1).await;
    world.proxy.terminate().await;
    let reply = client::read(&mut held).await;
    assert_eq!((reply.status, reply.error()), (503, Some("stopping")));
    assert!(reply.header("retry-after").is_some());
    assert!(world.proxy.ended().await);
}
