//! Who is the client, and by what did it come?

use nix::sys::signal::Signal;
use rouse_tests::{DEFAULT_HOST, Echo, Front, Node, ORIGIN_HOST, RawOrigin, assert_eventually};

use crate::peer::{self, CDN, STRANGER};
use crate::{TRUSTING, clients};

fn echo(answer: &str) -> Echo {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|e| panic!("no echo ({e}): {answer}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cdn_is_believed_and_a_stranger_is_not() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), TRUSTING).await;
    let ask = async |from, headers: &str| {
        let head = format!("GET /echo HTTP/1.1\r\nHost: {DEFAULT_HOST}\r\n{headers}");
        echo(&peer::ask(from, front.http(), &head).await)
    };
    let lies = "X-Forwarded-For: 198.51.100.6\r\nX-Forwarded-Proto: https\r\n\
                X-Forwarded-Host: evil.example\r\nX-Real-IP: 198.51.100.6\r\n\
                Forwarded: for=198.51.100.6;proto=https;host=evil.example\r\n\
                CF-Connecting-IP: 198.51.100.6\r\nX_Forwarded_For: 198.51.100.6\r\n";
    let seen = ask(STRANGER, lies).await;
    assert_eq!(seen.header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.header("x-forwarded-proto"), "http");
    assert_eq!(seen.header("host"), DEFAULT_HOST);
    let all = format!("{:?}", seen.headers);
    assert!(!all.contains("198.51.100.6") && !all.contains("evil"), "{all}");
    assert!(seen.header("forwarded").contains("127.0.0.1"), "{all}");

    // What the client itself had written stands before what the CDN added, and is not the client.
    let told = "X-Forwarded-For: 203.0.113.1, 198.51.100.7\r\nX-Forwarded-Proto: https\r\n\
                X-Forwarded-Host: shop.example\r\n";
    let seen = ask(CDN, told).await;
    assert_eq!(seen.header("x-forwarded-for"), "203.0.113.1, 198.51.100.7, 127.0.0.2");
    assert_eq!(seen.header("x-forwarded-proto"), "https");
    assert_eq!(seen.header("x-forwarded-host"), "shop.example");
    assert_eq!(seen.header("host"), DEFAULT_HOST);

    let seen = ask(CDN, "Forwarded: for=198.51.100.8;proto=https;host=shop.example\r\n").await;
    let forwarded = seen.header("forwarded");
    for part in ["for=198.51.100.8", "proto=https", "127.0.0.2"] {
        assert!(forwarded.contains(part), "{part}: {:?}", seen.headers);
    }
    assert_eq!(seen.header("x-forwarded-proto"), "https");
    assert_eq!(clients(&front, 3).await, ["127.0.0.1", "198.51.100.7", "198.51.100.8"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_trusted_addresses_is_read_again() {
    let origin = RawOrigin::start().await;
    let listed = "[downstream]\ntrusted_proxies_files = [\"cdn.txt\"]\n";
    let builder = Front::build(origin.address()).more(listed);
    let list = builder.directory().join("cdn.txt");
    let write = |text: &str| std::fs::write(&list, text).expect("a file of ours can be written");
    write("# ours\n192.0.2.0/24\n");
    let front = builder.start().await;
    let told = async || {
        let head =
            format!("GET / HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\nX-Forwarded-For: 198.51.100.7\r\n");
        assert!(peer::ask(CDN, front.http(), &head).await.contains(" 200 "));
        let seen = origin.requests();
        seen.last().expect("it came").header("x-forwarded-for").to_owned()
    };
    assert_eq!(told().await, "127.0.0.2", "it is not in the list");

    write("# ours\n192.0.2.0/24\n127.0.0.2\n");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(told().await == "198.51.100.7, 127.0.0.2", "the list is read again");

    write("nonsense\n");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(
        front.proxy.log().contains("trusted proxies stay as they were"),
        "the proxy says that the list is bad"
    );
    assert_eq!(told().await, "198.51.100.7, 127.0.0.2", "the one before stays");

    write("192.0.2.0/24\n");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(told().await == "127.0.0.2", "it is out of the list");
}
