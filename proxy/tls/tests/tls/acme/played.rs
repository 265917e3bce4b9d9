//! Orders over days, with a CA that is played here on a paused clock: it checks challenges, and no
//! signatures.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use rouse_tls::acme::instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rouse_tls::acme::{Acme, AcmeConfig, AcmeError, Clock, Proof, Tokens, Told};
use rouse_tls::{Accepted, Tls};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::support::{Client, World, meet, tls};

const CA: &str = "https://ca.example";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone)]
struct Played(Arc<Inner>);

struct Inner {
    world: World,
    tls: Tls,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tokens: Tokens,
    /// Of the account's key.
    thumb: String,
    orders: Vec<Order>,
    accounts: u32,
    /// How many requests came.
    requests: u32,
    down: bool,
    /// The host that it never believes.
    doubted: &'static str,
    /// What goes wrong once, by path.
    slips: BTreeMap<&'static str, &'static str>,
}

struct Order {
    name: String,
    state: &'static str,
    chain: String,
}

impl Played {
    fn new() -> Self {
        let world = World::new();
        let tls = tls(&world.config(&["other.example"]));
        let (began, then) = (SystemTime::now(), Instant::now());
        let clock: Clock = Arc::new(move || began + then.elapsed());
        Self(Arc::new(Inner { world, tls, clock, state: Mutex::default() }))
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().unwrap());
    }

    fn get<T>(&self, of: impl FnOnce(&State) -> T) -> T {
        of(&self.0.state.lock().unwrap())
    }

    fn config(&self, names: &[&str], proof: Proof) -> AcmeConfig {
        AcmeConfig {
            directory: format!("{CA}/directory"),
            contact: None,
            names: names.iter().map(|name| name.parse().unwrap()).collect(),
            kept: self.0.world.path("acme"),
            proof,
            ca_file: None,
            binding: None,
        }
    }

    /// Runs for so long, and gives back what was told, and when.
    async fn run(&self, config: &AcmeConfig, long: Duration) -> Vec<(Duration, String)> {
        let http = Arc::new(self.clone());
        let store = self.0.tls.store().clone();
        let acme = Acme::open_with(config, store, http, self.0.clock.clone()).unwrap();
        self.set(|state| state.tokens = acme.tokens());
        let (cancel, began, mut all) = (CancellationToken::new(), Instant::now(), Vec::new());
        let run = acme.run(cancel.clone(), |told| {
            let what = match told {
                Told::Ordered { name, .. } => format!("ordered {name}"),
                Told::Failed { name, error: AcmeError::NotProven(..) } => format!("doubted {name}"),
                other => other.to_string(),
            };
            all.push((began.elapsed(), what));
        });
        let end = async {
            tokio::time::sleep(long).await;
            cancel.cancel();
        };
        tokio::join!(run, end);
        all
    }

    async fn served(&self, name: &str) -> Vec<u8> {
        meet(&self.0.tls, &Client::default().make(), name).await.client.unwrap().to_vec()
    }

    /// Whether a token is answered over HTTP.
    fn sees_http(&self, token: &str) -> bool {
        self.get(|state| {
            let path = format!("/.well-known/acme-challenge/{token}");
            state.tokens.get(&path).as_deref() == Some(&*format!("{token}.{}", state.thumb))
        })
    }

    /// Whether a token is answered over TLS.
    async fn sees_tls(&self, name: &str, token: &str) -> bool {
        let digest = self.get(|state| Sha256::digest(format!("{token}.{}", state.thumb)));
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let client = Client { alpn: &["acme-tls/1"], checks: false, ..Client::default() }.make();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(client);
        let (accepted, stream) =
            tokio::join!(self.0.tls.accept(ours, |_| {}), connector.connect(name, theirs));
        let Ok(stream) = stream else { return false };
        assert!(matches!(accepted, Ok(Accepted::Challenge { .. })));
        let served = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        served.windows(32).any(|part| part == digest.as_slice())
    }

    fn order(&self, i: usize) -> Value {
        self.get(|state| {
            json!({
                "status": state.orders[i].state, "authorizations": [format!("{CA}/authz/{i}")],
                "finalize": format!("{CA}/finalize/{i}"), "certificate": format!("{CA}/cert/{i}"),
                "identifiers": [{"type": "dns", "value": state.orders[i].name}],
            })
        })
    }

    /// The status, the answer and the place of what was made.
    async fn answer(&self, path: &str, jws: &Value) -> (u16, String, Option<String>) {
        let part = |name: &str| -> Value {
            let bytes = BASE64.decode(jws[name].as_str().unwrap_or_default()).unwrap();
            serde_json::from_slice(&bytes).unwrap_or(Value::Null)
        };
        let payload = part("payload");
        let mut slip = None;
        self.set(|state| slip = state.slips.remove(path));
        if let Some(kind) = slip {
            let kind = format!("urn:ietf:params:acme:error:{kind}");
            return (400, json!({"type": kind}).to_string(), None);
        }
        let (what, i) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        let i = i.parse().unwrap_or(0usize);
        let token = format!("T{i}");
        let name = self.get(|state| state.orders.get(i).map(|order| order.name.clone()));
        let name = name.unwrap_or_default();
        let (answer, place) = match what {
            "directory" => {
                let at = |name: &str| format!("{CA}/{name}");
                let (account, order) = (at("account"), at("new"));
                (json!({"newNonce": at("nonce"), "newAccount": account, "newOrder": order}), None)
            }
            "account" => {
                assert_eq!(payload["termsOfServiceAgreed"], true);
                let key = &part("protected")["jwk"];
                // RFC 7638, section 3.
                let key = format!(
                    r#"{{"crv":{},"kty":{},"x":{},"y":{}}}"#,
                    key["crv"], key["kty"], key["x"], key["y"]
                );
                self.set(|state| {
                    state.thumb = BASE64.encode(Sha256::digest(key));
                    state.accounts += 1;
                });
                let place = format!("{CA}/account/{}", self.get(|state| state.accounts));
                (json!({"status": "valid"}), Some(place))
            }
            "new" => {
                let name = payload["identifiers"][0]["value"].as_str().unwrap().to_owned();
                let order = Order { name, state: "pending", chain: String::new() };
                self.set(|state| state.orders.push(order));
                let i = self.get(|state| state.orders.len()) - 1;
                (self.order(i), Some(format!("{CA}/order/{i}")))
            }
            "order" => (self.order(i), None),
            "authz" => {
                let doubted = self.get(|state| state.doubted == name);
                let error = doubted.then(|| json!({"detail": "nothing there"}));
                let challenge = |kind: &str| json!({"type": kind, "url": format!("{CA}/{kind}/{i}"), "token": token, "status": "pending", "error": error});
                let authz = json!({
                    "status": "pending", "identifier": {"type": "dns", "value": name},
                    "challenges": [challenge("http-01"), challenge("tls-alpn-01")],
                });
                (authz, None)
            }
            "http-01" | "tls-alpn-01" => {
                let seen = match what {
                    "http-01" => self.sees_http(&token),
                    _ => self.sees_tls(&name, &token).await,
                };
                assert!(seen, "{path} is not answered");
                self.set(|state| {
                    let doubted = state.doubted == name;
                    state.orders[i].state = if doubted { "invalid" } else { "ready" };
                });
                let url = format!("{CA}{path}");
                (json!({"type": what, "url": url, "token": token, "status": "processing"}), None)
            }
            "finalize" => {
                let csr = BASE64.decode(payload["csr"].as_str().unwrap()).unwrap();
                let chain = self.0.world.sign(&csr, (self.0.clock)());
                self.set(|state| {
                    state.orders[i].chain = chain;
                    state.orders[i].state = "valid";
                });
                (self.order(i), None)
            }
            "cert" => return (200, self.get(|state| state.orders[i].chain.clone()), None),
            _ => (Value::Null, None),
        };
        (200, answer.to_string(), place)
    }
}

impl HttpClient for Played {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let ca = self.clone();
        Box::pin(async move {
            ca.set(|state| state.requests += 1);
            if ca.get(|state| state.down) {
                return Err(Error::Str("it is down"));
            }
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let jws = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (status, answer, place) = ca.answer(&path, &jws).await;
            let mut response = Response::builder().status(status).header("replay-nonce", "n");
            if let Some(place) = place {
                response = response.header("location", place);
            }
            Ok(BytesResponse::from(response.body(Full::new(Bytes::from(answer))).unwrap()))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_in_time_and_every_restart_serves_what_is_kept() {
    for proof in [Proof::Http01, Proof::TlsAlpn01] {
        let ca = Played::new();
        let config = ca.config(&["a.example"], proof);
        let told = ca.run(&config, DAY * 50).await;
        assert!(told.len() == 1 && told[0].1 == "ordered a.example", "{told:?}");
        let first = ca.served("a.example").await;
        // What the CA was shown is gone.
        assert!(!ca.sees_http("T0") && !ca.sees_tls("a.example", "T0").await);
        // The next process finds account and certificate, and asks nobody.
        ca.0.tls.store().clear_managed(&config.names[0]);
        let before = ca.get(|state| state.requests);
        assert!(ca.run(&config, DAY).await.is_empty());
        assert_eq!(
            (ca.get(|state| state.requests), ca.served("a.example").await),
            (before, first.clone())
        );
        let told = ca.run(&config, DAY * 10).await;
        assert!(told.len() == 1 && told[0].1 == "ordered a.example", "{told:?}");
        assert_eq!(ca.get(|state| state.accounts), 1);
        assert_ne!(ca.served("a.example").await, first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_fails_is_told_and_tried_again_and_the_others_go_on() {
    let ca = Played::new();
    ca.set(|state| state.doubted = "c.example");
    let names = ["a.example", "b.example", "c.example", "d.example", "e.example", "f.example"];
    let config = ca.config(&names, Proof::Http01);
    let told = ca.run(&config, HOUR).await;
    let ordered: BTreeSet<_> =
        told.iter().filter_map(|(_, t)| t.strip_prefix("ordered ")).collect();
    assert_eq!(ordered.len(), 5, "{told:?}");
    let doubted = || told.iter().filter(|(_, what)| what == "doubted c.example");
    assert!((2..=4).contains(&doubted().count()), "{told:?}");
    assert_eq!(told.len(), 5 + doubted().count());
    // It heals: the certificate comes with the next try.
    ca.set(|state| state.doubted = "");
    let told = ca.run(&config, HOUR).await;
    assert!(told.len() == 1 && told[0].1 == "ordered c.example", "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_is_down_is_not_asked_by_every_name() {
    let ca = Played::new();
    ca.set(|state| state.down = true);
    let names: Vec<_> = (0..40).map(|i| format!("n{i}.example")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let config = ca.config(&names, Proof::Http01);
    let told = ca.run(&config, HOUR).await;
    assert!((2..=4).contains(&told.len()), "{told:?}");
    assert!(
        told.iter().all(|(_, t)| t == "no account with the CA: the CA: missing data: it is down")
    );
    ca.set(|state| state.down = false);
    let told = ca.run(&config, HOUR).await;
    assert_eq!(told.iter().filter(|(_, what)| what.starts_with("ordered ")).count(), 40);
    assert_eq!(ca.get(|state| state.accounts), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_has_enough_is_left_alone_for_a_while() {
    let ca = Played::new();
    ca.set(|state| state.slips.extend([("/new", "rateLimited")]));
    let names: Vec<_> = (0..20).map(|i| format!("n{i}.example")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let told = ca.run(&ca.config(&names, Proof::Http01), HOUR).await;
    let refused = told.iter().find(|(_, what)| what.contains("rateLimited")).unwrap().0;
    let pause = refused + HOUR / 60..refused + HOUR / 12;
    assert!(!told.iter().any(|(when, _)| pause.contains(when)), "{told:?}");
    assert!(told.iter().filter(|(when, _)| *when > pause.end).count() >= 16, "{told:?}");
    assert_eq!(told.len(), 21, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_ca_takes_back_is_given_again() {
    let ca = Played::new();
    let config = ca.config(&["a.example"], Proof::Http01);
    // A nonce that is not taken costs nothing.
    ca.set(|state| state.slips.extend([("/new", "badNonce"), ("/account", "badNonce")]));
    assert_eq!(ca.run(&config, HOUR).await.len(), 1);
    // Nor does an account that it has lost, in the end.
    std::fs::remove_file(config.kept.join("a.example.pem")).unwrap();
    ca.set(|state| state.slips.extend([("/new", "accountDoesNotExist")]));
    let told = ca.run(&config, HOUR).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].1.contains("accountDoesNotExist") && told[1].1 == "ordered a.example");
    assert_eq!(ca.get(|state| state.accounts), 2);
    // What is kept and broken is told, and replaced.
    std::fs::write(config.kept.join("a.example.pem"), "x").unwrap();
    let told = ca.run(&config, HOUR).await;
    assert!(told.len() == 2 && told[0].1.contains("ordered anew"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn another_ca_signs_anew_and_until_then_the_old_ones_certificate_is_served() {
    let ca = Played::new();
    let mut config = ca.config(&["a.example"], Proof::Http01);
    ca.run(&config, HOUR).await;
    let first = ca.served("a.example").await;
    ca.0.tls.store().clear_managed(&config.names[0]);
    ca.set(|state| state.down = true);
    config.directory.push_str("?another");
    ca.run(&config, HOUR).await;
    assert_eq!(ca.served("a.example").await, first);
    ca.set(|state| state.down = false);
    assert_eq!(ca.run(&config, HOUR).await.len(), 1);
    assert_ne!(ca.served("a.example").await, first);
    assert_eq!(ca.get(|state| state.accounts), 2);
}
