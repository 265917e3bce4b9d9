//! Clients that show certificates.

use std::sync::Arc;

use rouse_tls::{ClientAuth, Config, Store, Tls, TlsError, load};

use crate::support::{Client, World, meet};

#[tokio::test]
async fn three_modes_and_three_clients() {
    let (world, other) = (World::new(), World::new());
    let mut config = Config {
        client_ca: Some(world.write("ca.pem", &world.ca_pem)),
        ..world.config(&["a.example"])
    };
    let store = Arc::new(load(&config).unwrap());
    // Mode, the client's certificate: none, of the CA, of another. None: refused.
    type Shown = Option<bool>;
    let table: [(ClientAuth, [Shown; 3]); 3] = [
        (ClientAuth::Off, [Some(false), Some(false), Some(false)]),
        (ClientAuth::Optional, [Some(false), Some(true), None]),
        (ClientAuth::Required, [None, Some(true), None]),
    ];
    for (mode, expected) in table {
        config.client_auth = mode;
        let tls = Tls::new(store.clone(), &config).unwrap();
        let shows = [None, Some(world.pair(&["c"])), Some(other.pair(&["c"]))];
        for (i, (shows, expected)) in shows.into_iter().zip(expected).enumerate() {
            let met = meet(&tls, &Client { shows, ..Client::default() }.make(), "a.example").await;
            match (met.server, expected) {
                (Ok(facts), Some(shown)) => {
                    let subject = facts.client.as_ref().map(|client| &*client.subject);
                    assert_eq!(subject, shown.then_some("CN=someone"), "{mode:?} {i}");
                    assert!(met.client.is_ok());
                }
                (Err(error), None) => {
                    assert_eq!(error.kind(), "client_certificate", "{mode:?} {i}: {error}");
                    assert!(met.client.is_err());
                }
                (got, _) => panic!("{mode:?} {i}: {got:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_fingerprint_is_of_the_certificate() {
    let world = World::new();
    let config = Config {
        client_ca: Some(world.write("ca.pem", &world.ca_pem)),
        client_auth: ClientAuth::Required,
        ..world.config(&["a.example"])
    };
    let tls = crate::support::tls(&config);
    let pair = world.pair(&["c"]);
    let path = world.write("c.pem", &pair.cert);
    let client = Client { shows: Some(pair), ..Client::default() }.make();
    let shown = meet(&tls, &client, "a.example").await.server.unwrap().client.unwrap();
    let told = std::process::Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(path)
        .output()
        .unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let hex: Vec<_> = shown.sha256.iter().map(|byte| format!("{byte:02X}")).collect();
    assert!(told.trim().ends_with(&format!("={}", hex.join(":"))), "{told} {hex:?}");
}

#[test]
fn without_the_clients_ca_nobody_is_let_in() {
    let world = World::new();
    let config = Config {
        client_ca: Some(world.path("none.pem")),
        client_auth: ClientAuth::Optional,
        ..world.config(&["a.example"])
    };
    assert_eq!(load(&config).unwrap_err().len(), 1);
    let (store, errors) = Store::open(&config);
    assert_eq!(errors.len(), 1);
    let refused = Tls::new(Arc::new(store), &config);
    assert!(matches!(refused, Err(TlsError::NoClientCa)), "{refused:?}");
}
