//! TLS-ALPN-01.

use rouse_tls::Accepted;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio_rustls::TlsConnector;

use crate::support::{Client, World, meet, tls};

#[tokio::test]
async fn a_challenge_is_answered_and_the_connection_closed() {
    let world = World::new();
    let tls = tls(&world.config(&["a.example"]));
    let (name, proof) = ("a.example".parse().unwrap(), world.pair(&["a.example"]));
    let client = Client { alpn: &["acme-tls/1"], ..Client::default() }.make();
    assert_eq!(meet(&tls, &client, "a.example").await.server.unwrap_err().kind(), "no_certificate");
    tls.store().set_challenge(&name, proof.certified()).unwrap();

    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let asks = async {
        let name = ServerName::try_from("a.example").unwrap();
        let mut stream = TlsConnector::from(client.clone()).connect(name, theirs).await.unwrap();
        let read = stream.read_to_end(&mut Vec::new()).await.unwrap();
        let connection = stream.get_ref().1;
        assert_eq!(connection.alpn_protocol(), Some(&b"acme-tls/1"[..]));
        (read, connection.peer_certificates().unwrap()[0].clone().into_owned())
    };
    let mut called = false;
    let (accepted, (read, served)) = tokio::join!(tls.accept(ours, |_| called = true), asks);
    assert!(
        matches!(accepted.unwrap(), Accepted::Challenge { server_name } if &*server_name == "a.example")
    );
    assert_eq!((read, served), (0, proof.der()));
    assert!(!called, "a challenge wakes nobody");

    // Visitors do not see it, and it ends.
    let met = meet(&tls, &Client::default().make(), "a.example").await;
    assert_ne!(met.client.unwrap(), proof.der());
    assert!(tls.store().clear_challenge(&name));
    assert!(!tls.store().clear_challenge(&name));
    assert_eq!(meet(&tls, &client, "a.example").await.server.unwrap_err().kind(), "no_certificate");
}
