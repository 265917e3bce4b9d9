//! Orders from a real CA: pebble, which is Let's Encrypt's for tests.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rouse_tls::acme::{Acme, AcmeConfig, AcmeError, Binding, Proof, Told};
use rouse_tls::{Config, Store, Tls};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::responder::Responder;
use crate::support::{Client, World, meet};

const LONG: Duration = Duration::from_secs(60);
/// 48 bytes in base64url.
const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

/// A pebble, and hosts that it can look at.
struct Scene {
    world: World,
    tls: Arc<Tls>,
    config: AcmeConfig,
}

/// Ends pebble with the test.
struct Pebble(Child);

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What runs, and what it tells.
struct Running {
    told: UnboundedReceiver<String>,
    responder: Responder,
    _pebble: Pebble,
    tasks: JoinSet<()>,
    _cancel: DropGuard,
}

impl Scene {
    fn new(names: &[&str], proof: Proof) -> Self {
        let world = World::new();
        world.put("pebble", &world.pair(&["localhost"]));
        let config = AcmeConfig {
            directory: String::new(),
            contact: Some("mailto:ops@a.example".to_owned()),
            names: names.iter().map(|name| name.parse().unwrap()).collect(),
            kept: world.path("kept"),
            proof,
            ca_file: Some(world.write("ca.pem", &world.ca_pem)),
            binding: None,
        };
        let tls = tls();
        Self { world, tls, config }
    }

    /// Starts pebble and the orders; certificates are good for `seconds`.
    async fn run(&mut self, seconds: u64) -> Running {
        for _ in 0..5 {
            // A port that is free now may be another's when pebble comes to it.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            self.config.directory = format!("https://localhost:{port}/dir");
            let acme = Acme::open(&self.config, self.tls.store().clone()).unwrap();
            let responder = Responder::new(self.tls.clone(), acme.tokens()).await;
            let Some(pebble) = self.pebble(port, &responder, seconds).await else { continue };
            let (tell, told) = unbounded_channel();
            let cancel = CancellationToken::new();
            let mut tasks = JoinSet::new();
            tasks.spawn(acme.run(cancel.clone(), move |told| {
                let text = match told {
                    Told::Failed { name, error: AcmeError::NotProven(_, reason) } => {
                        format!("{name} is not proven: {reason}")
                    }
                    told => told.to_string(),
                };
                let _ = tell.send(text);
            }));
            let _cancel = cancel.drop_guard();
            return Running { told, responder, _pebble: pebble, tasks, _cancel };
        }
        panic!("pebble does not start");
    }

    async fn pebble(&self, port: u16, responder: &Responder, seconds: u64) -> Option<Pebble> {
        let bound = self.config.binding.is_some();
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": "",
            "certificate": self.world.path("pebble.pem"),
            "privateKey": self.world.path("pebble.key"),
            "httpPort": responder.http,
            "tlsPort": responder.tls,
            "certificateValidityPeriod": seconds,
            "externalAccountBindingRequired": bound,
            "externalAccountMACKeys": if bound { json!({"ours": KEY}) } else { json!({}) },
        }});
        let config = self.world.write("pebble.json", &config.to_string());
        let log = std::fs::File::create(self.world.path("pebble.log")).unwrap();
        let child = Command::new("pebble")
            .arg("-strict")
            .arg("-config")
            .arg(config)
            .arg("-dnsserver")
            .arg(responder.dns.to_string())
            // It would wait up to 15 s before each look. That it refuses a nonce in twenty is meant.
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .expect("pebble is needed: `./dev setup` installs it");
        let mut pebble = Pebble(child);
        let until = tokio::time::Instant::now() + LONG;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if pebble.0.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(tokio::time::Instant::now() < until, "pebble does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(pebble)
    }

    async fn served(&self, name: &str) -> Option<Vec<u8>> {
        let met = meet(&self.tls, &Client::default().make(), name).await;
        met.client.ok().map(|der| der.to_vec())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.world.path("pebble.log")).unwrap_or_default()
    }
}

impl Running {
    /// What is told next.
    async fn next(&mut self, scene: &Scene) -> String {
        match tokio::time::timeout(LONG, self.told.recv()).await {
            Ok(Some(told)) => told,
            ended => panic!("nothing is told: {ended:?}\n{}", scene.log()),
        }
    }

    async fn end(mut self) {
        drop(self._cancel);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

fn tls() -> Arc<Tls> {
    let config = Config::default();
    let (store, errors) = Store::open(&config);
    assert!(errors.is_empty());
    Arc::new(Tls::new(Arc::new(store), &config).unwrap())
}

fn came(name: &str) -> String {
    format!("a certificate for `{name}` has come")
}

#[tokio::test]
async fn a_real_ca_signs_by_either_proof_and_a_restart_serves_what_is_kept() {
    for proof in [Proof::Http01, Proof::TlsAlpn01] {
        let names =
            ["a.example", "b.a.example", "c.example", "d.example", "e.example", "x.nowhere"];
        let mut scene = Scene::new(&names, proof);
        assert_eq!(scene.served("a.example").await, None);
        let mut running = scene.run(90 * 86_400).await;
        let mut told = Vec::new();
        for _ in names {
            told.push(running.next(&scene).await);
        }
        told.sort();
        for (told, name) in told.iter().zip(&names[..5]) {
            assert_eq!(*told, came(name), "{}", scene.log());
        }
        // The one that the CA does not find is told with the CA's reason, and held up nobody.
        assert!(told[5].starts_with("x.nowhere is not proven: "), "{}", told[5]);
        let served = scene.served("a.example").await.unwrap();
        running.end().await;

        // Another process, while the CA is down.
        scene.tls = tls();
        scene.config.names.retain(|name| *name != "x.nowhere".parse().unwrap());
        let acme = Acme::open(&scene.config, scene.tls.store().clone()).unwrap();
        assert_eq!(scene.served("a.example").await, Some(served));
        let cancel = CancellationToken::new();
        cancel.cancel();
        acme.run(cancel, |told| panic!("{told}")).await;
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_and_a_renewal_that_fails_leaves_it_in_use() {
    let mut scene = Scene::new(&["a.example"], Proof::Http01);
    // Due again after some 5 s.
    let mut running = scene.run(8).await;
    assert_eq!(running.next(&scene).await, came("a.example"));
    let first = scene.served("a.example").await.unwrap();
    assert_eq!(running.next(&scene).await, came("a.example"));
    let second = scene.served("a.example").await.unwrap();
    assert_ne!(first, second);
    running.responder.lies.store(true, Ordering::SeqCst);
    let told = running.next(&scene).await;
    assert!(told.starts_with("a.example is not proven: ") && told.contains("-not"), "{told}");
    assert_eq!(scene.served("a.example").await, Some(second.clone()));
    running.end().await;
    // Nor has what is kept changed.
    scene.tls = tls();
    let _acme = Acme::open(&scene.config, scene.tls.store().clone()).unwrap();
    assert_eq!(scene.served("a.example").await, Some(second));
}

#[tokio::test]
async fn an_account_is_bound_to_another_and_a_ca_is_not_trusted_without_its_certificate() {
    let mut scene = Scene::new(&["a.example"], Proof::TlsAlpn01);
    let key_file = scene.world.write("eab.key", &format!("{KEY}\n"));
    scene.config.binding = Some(Binding { key_id: "ours".to_owned(), key_file: key_file.clone() });
    let mut running = scene.run(86_400).await;
    assert_eq!(running.next(&scene).await, came("a.example"));
    // The same CA, for one that it does not know: another key, or none.
    let mut errors = Vec::new();
    for change in [
        (|c, w| drop((c, w.write("eab.key", "AAAA")))) as fn(&mut AcmeConfig, &World),
        |c, _| c.binding = None,
        |c, w| c.ca_file = Some(w.write("other.pem", &World::new().ca_pem)),
    ] {
        let mut config = scene.config.clone();
        config.kept = scene.world.path("other");
        change(&mut config, &scene.world);
        let acme = Acme::open(&config, scene.tls.store().clone()).unwrap();
        let (cancel, mut told) = (CancellationToken::new(), None);
        let stop = cancel.clone();
        let run = acme.run(cancel, |what| {
            told = Some(what.to_string());
            stop.cancel();
        });
        tokio::time::timeout(LONG, run).await.unwrap();
        errors.push(told.unwrap());
    }
    assert!(errors.iter().all(|error| error.starts_with("no account with the CA: ")), "{errors:?}");
    assert!(errors[1].contains("external"), "{errors:?}");
    assert!(errors[2].contains("certificate"), "{errors:?}");
    running.end().await;
}
