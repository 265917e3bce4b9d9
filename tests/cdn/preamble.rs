//! The PROXY protocol.

use std::net::Ipv4Addr;

use rouse_tests::{Front, ORIGIN_HOST, RawOrigin, assert_eventually};
use tokio::io::AsyncWriteExt;

use crate::peer::{self, CDN, STRANGER};
use crate::{TRUSTING, client, clients};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn v1(client: Ipv4Addr) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 4660 80\r\n").into_bytes()
}

/// Version 2, PROXY, TCP over IPv4, twelve bytes of addresses and a TLV that means nothing (NOOP).
fn v2(client: Ipv4Addr) -> Vec<u8> {
    let rest = [127, 0, 0, 1, 0x12, 0x34, 0, 80, 4, 0, 2, 0, 0];
    [SIGNATURE, b"\x21\x11\0\x11", &client.octets(), &rest].concat()
}

/// Version 2, LOCAL: a balancer looks for itself.
fn local() -> Vec<u8> {
    [SIGNATURE, b"\x20\0\0\0"].concat()
}

fn get() -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\nConnection: close\r\n\r\n").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_versions_name_the_client_with_tls_and_without() {
    let origin = RawOrigin::start().await;
    let builder = Front::build(origin.address()).listen("proxy_protocol = \"on\"\n");
    let front = builder.more(TRUSTING).start().await;
    let mut expected = Vec::new();
    for (n, header) in [v1 as fn(Ipv4Addr) -> Vec<u8>, v2].into_iter().enumerate() {
        let n = u8::try_from(n).expect("there are two");
        let client = Ipv4Addr::new(198, 51, 100, 10 + n);
        let mut stream = peer::connect(CDN, front.http()).await;
        // In pieces: a header may come as it likes.
        for byte in header(client) {
            stream.write_all(&[byte]).await.expect("it is read");
        }
        let answer = peer::say(&mut stream, get()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        expected.push((client, "http"));

        let client = Ipv4Addr::new(198, 51, 100, 20 + n);
        let mut stream = peer::connect(CDN, front.https()).await;
        stream.write_all(&header(client)).await.expect("it is read");
        let secure = client::over(stream, ORIGIN_HOST, &[front.certificate()]).await;
        let mut secure = secure.expect("a handshake behind the header");
        let answer = client::last(&mut secure, ORIGIN_HOST, "/").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        expected.push((client, "https"));
    }
    let requests = origin.requests();
    let seen: Vec<_> = requests
        .iter()
        .map(|r| (r.header("x-forwarded-for").to_owned(), r.header("x-forwarded-proto").to_owned()))
        .collect();
    let told: Vec<_> =
        expected.iter().map(|(ip, proto)| (ip.to_string(), (*proto).to_owned())).collect();
    assert_eq!(seen, told);
    let ips: Vec<_> = told.into_iter().map(|(ip, _)| ip).collect();
    assert_eq!(clients(&front, 4).await, ips);

    let mut stream = peer::connect(CDN, front.http()).await;
    let health = b"GET /.well-known/rouse-health HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n";
    let answer = peer::say(&mut stream, [&local(), &health[..]].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "a balancer's own look: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_trusted_or_says_nothing_is_refused() {
    let origin = RawOrigin::start().await;
    let builder = Front::build(origin.address()).listen("proxy_protocol = \"on\"\n");
    let short = TRUSTING.replace("forwarded = true", "header_seconds = 1");
    let front = builder.more(&short).start().await;
    let liar = Ipv4Addr::new(198, 51, 100, 66);
    // The harness has looked whether these ports are open, as a stranger.
    let before = front.refused("untrusted").await;
    for (port, header) in
        [(front.http(), v1(liar)), (front.http(), v2(liar)), (front.https(), v2(liar))]
    {
        let mut stream = peer::connect(STRANGER, port).await;
        let answer = peer::say(&mut stream, [header, get()].concat()).await;
        assert_eq!(answer, "", "nothing is said to a stranger");
    }
    assert_eventually!(front.refused("untrusted").await == before + 3.0, "they are counted");

    let mut silent = peer::connect(CDN, front.http()).await;
    assert_eq!(peer::say(&mut silent, "").await, "", "a header has a time to come in");
    assert_eventually!(front.refused("deadline").await == 1.0, "it is counted");
    for (bad, reason) in [
        (get(), "signature"),
        (b"PROXY TCP4 300.0.0.1 127.0.0.1 1 80\r\n".to_vec(), "line"),
        ([SIGNATURE, b"\x31\x11\0\x0c"].concat(), "command"),
        ([SIGNATURE, b"\x21\x11\0\x02\x01\x02"].concat(), "short"),
    ] {
        let before = front.refused(reason).await;
        let mut stream = peer::connect(CDN, front.http()).await;
        let answer = peer::say(&mut stream, [bad, get()].concat()).await;
        assert_eq!(answer, "", "{reason}");
        assert_eventually!(front.refused(reason).await == before + 1.0, "{reason} is counted");
    }
    assert_eq!(origin.requests().len(), 0, "no request of theirs came through");
}
