//! Orders, with a CA that is played here: it checks challenges, and no signatures.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use rouse_tls::acme::instant_acme::{Account, BodyWrapper, BytesResponse, Error, HttpClient};
use rouse_tls::acme::{AcmeError, Keep, Orders, Proof, Tokens};
use rouse_tls::{Accepted, Tls};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::support::{Client, World, meet, tls};

const CA: &str = "https://ca.example";

/// A CA for `a.example`.
#[derive(Clone)]
struct Played(Arc<Inner>);

struct Inner {
    world: World,
    tls: Tls,
    tokens: Tokens,
    /// Of the account's key.
    thumb: Mutex<String>,
    state: Mutex<&'static str>,
    chain: Mutex<String>,
    accounts: Mutex<u32>,
    /// Whether it believes what it is shown.
    believes: bool,
}

impl Played {
    fn new(believes: bool) -> Self {
        let world = World::new();
        let tls = tls(&world.config(&["other.example"]));
        Self(Arc::new(Inner {
            world,
            tls,
            tokens: Tokens::default(),
            thumb: Mutex::default(),
            state: Mutex::new("pending"),
            chain: Mutex::default(),
            accounts: Mutex::default(),
            believes,
        }))
    }

    async fn orders(&self, proof: Proof) -> Orders {
        let keep = Keep::new(&self.0.world.path("acme")).unwrap();
        let builder = Account::builder_with_http(Box::new(self.clone()));
        let (store, tokens) = (self.0.tls.store().clone(), self.0.tokens.clone());
        let directory = format!("{CA}/directory");
        let orders =
            Orders::new(builder, &directory, &["mailto:a@b"], keep, store, tokens, proof).await;
        let orders = orders.unwrap();
        *self.0.thumb.lock().unwrap() = orders.account().key_thumbprint().to_owned();
        orders
    }

    /// Whether the token `T` is answered over HTTP.
    fn sees_http(&self) -> bool {
        let expected = format!("T.{}", self.0.thumb.lock().unwrap());
        self.0.tokens.get("/.well-known/acme-challenge/T").as_deref() == Some(&*expected)
    }

    /// Whether the token `T` is answered over TLS.
    async fn sees_tls(&self) -> bool {
        let digest = Sha256::digest(format!("T.{}", self.0.thumb.lock().unwrap()));
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let client = Client { alpn: &["acme-tls/1"], checks: false, ..Client::default() }.make();
        let name = ServerName::try_from("a.example").unwrap();
        let connector = TlsConnector::from(client);
        let (accepted, stream) =
            tokio::join!(self.0.tls.accept(ours, |_| {}), connector.connect(name, theirs));
        let Ok(stream) = stream else { return false };
        assert!(matches!(accepted, Ok(Accepted::Challenge { .. })));
        let served = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        served.windows(32).any(|part| part == digest.as_slice())
    }

    fn order(&self) -> Value {
        json!({
            "status": *self.0.state.lock().unwrap(), "authorizations": [format!("{CA}/authz")],
            "finalize": format!("{CA}/finalize"), "certificate": format!("{CA}/cert"),
            "identifiers": [{"type": "dns", "value": "a.example"}],
        })
    }

    async fn answer(self, path: String, payload: Value) -> (String, Option<String>) {
        let place = |name: &str| Some(format!("{CA}/{name}"));
        let inner = &self.0;
        match &*path {
            "/directory" => {
                let at = |name: &str| format!("{CA}/{name}");
                let directory = json!({"newNonce": at("nonce"), "newAccount": at("account"), "newOrder": at("order")});
                (directory.to_string(), None)
            }
            "/account" => {
                assert_eq!(payload["termsOfServiceAgreed"], true);
                *inner.accounts.lock().unwrap() += 1;
                (json!({"status": "valid"}).to_string(), place("account/1"))
            }
            "/order" => {
                *inner.state.lock().unwrap() = "pending";
                (self.order().to_string(), place("order/1"))
            }
            "/order/1" => (self.order().to_string(), None),
            "/authz" => {
                let challenge = |kind: &str| json!({"type": kind, "url": format!("{CA}/{kind}"), "token": "T", "status": "pending"});
                let authz = json!({
                    "status": "pending", "identifier": {"type": "dns", "value": "a.example"},
                    "challenges": [challenge("http-01"), challenge("tls-alpn-01")],
                });
                (authz.to_string(), None)
            }
            "/http-01" | "/tls-alpn-01" => {
                let seen =
                    if path == "/http-01" { self.sees_http() } else { self.sees_tls().await };
                assert!(seen, "{path} is not answered");
                *inner.state.lock().unwrap() = if inner.believes { "ready" } else { "invalid" };
                let url = format!("{CA}{path}");
                let state =
                    json!({"type": &path[1..], "url": url, "token": "T", "status": "processing"});
                (state.to_string(), None)
            }
            "/finalize" => {
                let csr = decode(payload["csr"].as_str().unwrap());
                *inner.chain.lock().unwrap() = inner.world.sign(&csr);
                *inner.state.lock().unwrap() = "valid";
                (self.order().to_string(), None)
            }
            "/cert" => (inner.chain.lock().unwrap().clone(), None),
            _ => (String::new(), None),
        }
    }
}

impl HttpClient for Played {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let ca = self.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let payload = serde_json::from_slice(&body)
                .ok()
                .and_then(|jws: Value| {
                    serde_json::from_slice(&decode(jws["payload"].as_str()?)).ok()
                })
                .unwrap_or(Value::Null);
            let (body, location) = ca.answer(path, payload).await;
            let mut response = Response::builder().header("replay-nonce", "n");
            if let Some(location) = location {
                response = response.header("location", location);
            }
            Ok(BytesResponse::from(response.body(Full::new(Bytes::from(body))).unwrap()))
        })
    }
}

/// base64url without padding (RFC 4648, section 5).
fn decode(text: &str) -> Vec<u8> {
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0u32, 0);
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for c in text.bytes() {
        let six = alphabet.iter().position(|a| *a == c).unwrap();
        held = held << 6 | u32::try_from(six).unwrap();
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).unwrap());
        }
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_ordered_kept_and_served_again() {
    for proof in [Proof::Http01, Proof::TlsAlpn01] {
        let ca = Played::new(true);
        let name = "a.example".parse().unwrap();
        let client = Client::default().make();
        let orders = ca.orders(proof).await;
        assert_eq!(orders.serve_kept(&name).unwrap(), None);
        let life = orders.order(&name).await.unwrap();
        let served = meet(&ca.0.tls, &client, "a.example").await.client.unwrap();
        // What the CA was shown is gone.
        assert!(!ca.sees_http() && !ca.sees_tls().await);
        // The next process finds account and certificate.
        ca.0.tls.store().clear_managed(&name);
        let orders = ca.orders(proof).await;
        assert_eq!(*ca.0.accounts.lock().unwrap(), 1);
        assert_eq!(orders.serve_kept(&name).unwrap(), Some(life));
        assert_eq!(meet(&ca.0.tls, &client, "a.example").await.client.unwrap(), served);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_does_not_believe_leaves_nothing_behind() {
    let ca = Played::new(false);
    let name = "a.example".parse().unwrap();
    let orders = ca.orders(Proof::TlsAlpn01).await;
    let error = orders.order(&name).await.unwrap_err();
    assert!(matches!(error, AcmeError::NotProven(_)), "{error}");
    assert!(!ca.sees_tls().await);
    assert_eq!(orders.serve_kept(&name).unwrap(), None);
    let error = orders.order(&"*.a.example".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, AcmeError::Keep(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_ordered_once_and_then_left_alone() {
    let ca = Played::new(true);
    let orders = ca.orders(Proof::Http01).await;
    let cancel = CancellationToken::new();
    let mut reports = 0;
    let watch = async {
        // On a paused clock: five rounds of the loop.
        tokio::time::sleep(std::time::Duration::from_secs(5 * 3600)).await;
        cancel.cancel();
    };
    let names = vec!["a.example".parse().unwrap()];
    let run = orders.run(names, cancel.clone(), |_, result| {
        result.unwrap();
        reports += 1;
    });
    tokio::join!(run, watch);
    assert_eq!(reports, 1);
}
