//! How many connections may there be?

use rouse_tests::{DEFAULT_HOST, Front, Node, RawOrigin, assert_eventually, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::{GREEDY, OTHER, peer, served, unharmed};

/// Takes `most` places, and tells that there are no more.
async fn fill(front: &Front, most: usize, reason: &str) -> Vec<TcpStream> {
    let mut there = Vec::new();
    eventually("the places can be taken", async || {
        // Those by which the harness has looked may be on their way out.
        there.extend(served(front, GREEDY).await);
        (there.len() == most).then_some(())
    })
    .await;
    let before = front.refused(reason).await;
    for _ in 0..3 {
        assert!(served(front, GREEDY).await.is_none(), "there is no place more");
    }
    // A little after they are closed; and those before them may be late.
    assert_eventually!(front.refused(reason).await >= before + 3.0, "they are counted");
    there
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_so_many_in_all() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "[downstream]\nconnections = 10\n").await;
    let mut there = fill(&front, 10, "total").await;
    assert!(served(&front, OTHER).await.is_none(), "for nobody");
    // On the other ports as little; operators have their own.
    let mut secure = peer::connect(OTHER, front.https()).await;
    assert_eq!(peer::say(&mut secure, b"\x16\x03\x01").await, "");
    for stream in &mut there {
        assert!(crate::page(stream).await.is_some(), "who is there is served");
    }
    there.truncate(5);
    let mut again = Vec::new();
    eventually("five places are free again", async || {
        again.extend(served(&front, OTHER).await);
        (again.len() == 5).then_some(())
    })
    .await;
    assert!(served(&front, OTHER).await.is_none(), "and no more than these");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn and_so_many_of_one_client() {
    let origin = RawOrigin::start().await;
    let limit = "[downstream]\nconnections_per_address = 5\ntrusted_proxies = [\"127.0.0.3\"]\n";
    let front = Front::of(origin.address(), limit).await;
    let mut there = fill(&front, 5, "address").await;
    unharmed(&front).await;
    // A front's are those of many.
    let mut fronts = Vec::new();
    for _ in 0..10 {
        let stream = served(&front, std::net::Ipv4Addr::new(127, 0, 0, 3)).await;
        fronts.push(stream.expect("they are not counted"));
    }
    there.pop();
    assert_eventually!(served(&front, GREEDY).await.is_some(), "a place is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_harms_nobody_who_waits_for_a_sleeping_app() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let limit = "[downstream]\nconnections_per_address = 50\nheader_seconds = 2\n";
    let front = Front::beside(&node, origin.address(), limit).await;
    let mut flood = Vec::new();
    for n in 0..300 {
        // Every port, and never a whole request.
        let (port, said) = match n % 3 {
            0 => (front.http(), "GET / HTTP/1.1\r\nHost: hel"),
            1 => (front.https(), "\x16\x03\x01"),
            _ => (front.h2c(), "PRI * HTTP/2.0\r\n"),
        };
        let mut stream = peer::connect(GREEDY, port).await;
        // It may be refused already.
        let _ = stream.write_all(said.as_bytes()).await;
        flood.push(stream);
    }
    let head = format!("GET /counter HTTP/1.1\r\nHost: {DEFAULT_HOST}\r\n");
    let mut visitors = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (head, to) = (head.clone(), front.http());
        visitors.spawn(async move { peer::ask(OTHER, to, &head).await });
    }
    for answer in visitors.join_all().await {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(node.wakes().await, 1.0, "they were held, and the flood woke nobody else");
    assert_eventually!(front.refused("address").await >= 250.0, "most of it is refused");
    // The rest is cut for its slowness, though it is still there.
    assert_eventually!(served(&front, GREEDY).await.is_some(), "its places are free again");
    assert_eq!(flood.len(), 300);
}
