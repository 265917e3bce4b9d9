//! Sessions that are resumed.

use rouse_tls::{ClientAuth, Config};
use rustls::version::{TLS12, TLS13};

use crate::support::{Client, World, meet, tls};

#[tokio::test]
async fn a_ticket_outlives_the_certificate_that_it_was_made_under() {
    let world = World::new();
    let tls = tls(&world.config(&["a.example", "b.example"]));
    for version in [&TLS12, &TLS13] {
        let client = Client { versions: vec![version], ..Client::default() }.make();
        let resumed = async |name| meet(&tls, &client, name).await.server.unwrap().resumed;
        assert!(!resumed("a.example").await);
        assert!(resumed("a.example").await);
        world.put("one", &world.pair(&["a.example", "b.example"]));
        assert_eq!(tls.store().reload().changed, 1);
        assert!(resumed("a.example").await);
        assert!(!resumed("b.example").await, "a session is one host's");
    }
}

#[tokio::test]
async fn no_session_outlives_the_clients_ca() {
    let (world, other) = (World::new(), World::new());
    let config = Config {
        client_ca: Some(world.write("ca.pem", &world.ca_pem)),
        client_auth: ClientAuth::Required,
        ..world.config(&["a.example"])
    };
    let tls = tls(&config);
    let client = Client { shows: Some(world.pair(&["client"])), ..Client::default() }.make();
    let meet = async || meet(&tls, &client, "a.example").await.server;
    let first = meet().await.unwrap();
    let second = meet().await.unwrap();
    assert!(!first.resumed && second.resumed);
    assert_eq!(first.client, second.client);
    assert!(first.client.is_some());
    world.write("ca.pem", &other.ca_pem);
    assert_eq!(tls.store().reload().changed, 1);
    assert_eq!(meet().await.unwrap_err().kind(), "client_certificate");
    world.write("ca.pem", &format!("{}{}", other.ca_pem, world.ca_pem));
    assert_eq!(tls.store().reload().changed, 1);
    assert!(!meet().await.unwrap().resumed);
}
