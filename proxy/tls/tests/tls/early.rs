//! The early look.

use rouse_tls::{ClientAuth, Config};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use crate::support::{Client, World, meet, tls};

/// The first bytes of a client that asks for `name`.
pub(crate) fn hello(name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Client::default().make(), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test(start_paused = true)]
async fn the_name_is_known_before_the_handshake_is_over() {
    let tls = tls(&World::new().config(&["a.example"]));
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    theirs.write_all(&hello("A.example")).await.unwrap();
    let (tell, told) = oneshot::channel();
    let accept = tls.accept(ours, |hello| {
        let alpn: Vec<_> = hello.alpn().map(<[u8]>::to_vec).collect();
        tell.send((hello.server_name().map(str::to_owned), alpn)).unwrap();
    });
    let mut accept = std::pin::pin!(accept);
    // The client says no more, so only the hook can end this.
    let told = tokio::select! {
        biased;
        _ = &mut accept => panic!("the handshake is over"),
        told = told => told.unwrap(),
    };
    assert_eq!(told.0.as_deref(), Some("a.example"));
    assert_eq!(told.1, [&b"h2"[..], b"http/1.1"]);
    assert_eq!(accept.await.unwrap_err().kind(), "timeout");
}

#[tokio::test(start_paused = true)]
async fn who_proves_nothing_wakes_nothing() {
    let world = World::new();
    let config = Config {
        client_ca: Some(world.write("ca.pem", &world.ca_pem)),
        client_auth: ClientAuth::Required,
        ..world.config(&["a.example"])
    };
    let required = tls(&config);
    let open = tls(&Config { client_auth: ClientAuth::Off, client_ca: None, ..config });
    for (tls, name) in [(&required, "a.example"), (&open, "b.example"), (&open, "x.a.example")] {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(&hello(name)).await.unwrap();
        let mut called = false;
        tls.accept(ours, |_| called = true).await.unwrap_err();
        assert!(!called, "{name}");
    }
    // The proof that it would have been seen.
    assert!(meet(&open, &Client::default().make(), "a.example").await.server.is_ok());
}
