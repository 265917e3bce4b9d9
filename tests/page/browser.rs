//! A browser without a window, told what to do by the DevTools protocol.

use std::collections::BTreeMap;
use std::process::Stdio;

use futures_util::{SinkExt, StreamExt};
use rouse_tests::{Visit, eventually, patience};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// Alone, on loopback, and asking nobody for anything.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "about:blank",
];

/// A page's answer as the browser saw it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Document {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
}

impl Document {
    /// A header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// One browser with one page. Ends when it is dropped.
pub(crate) struct Browser {
    page: WebSocketStream<TcpStream>,
    asked: u64,
    documents: Vec<Document>,
    _process: Child,
    _profile: TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let profile = tempfile::tempdir().expect("a directory can be made");
        let process = Command::new("chromium")
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromium is installed: ./dev setup");
        let file = profile.path().join("DevToolsActivePort");
        let page = eventually("the browser has a page", async || {
            let text = std::fs::read_to_string(&file).ok()?;
            let port: u16 = text.lines().next()?.parse().ok()?;
            let to = ([127, 0, 0, 1], port).into();
            let list = Visit::get("/json/list").host(&format!("127.0.0.1:{port}")).send(to).await;
            let list: Value = list.ok()?.json();
            let page = list.as_array()?.iter().find(|target| target["type"] == "page")?.clone();
            let request = page["webSocketDebuggerUrl"].as_str()?.into_client_request().ok()?;
            let stream = TcpStream::connect(to).await.ok()?;
            Some(tokio_tungstenite::client_async(request, stream).await.ok()?.0)
        })
        .await;
        let mut browser =
            Self { page, asked: 0, documents: Vec::new(), _process: process, _profile: profile };
        browser.call("Network.enable", json!({})).await;
        browser.call("Page.enable", json!({})).await;
        browser
    }

    /// Goes to `url`, and returns when the answer's head is there.
    pub(crate) async fn open(&mut self, url: &str) {
        let gone = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
    }

    /// As one who likes this colour scheme.
    pub(crate) async fn prefers(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await;
    }

    /// What is to be read on the page; none while it changes.
    pub(crate) async fn text(&mut self) -> Option<String> {
        self.value("document.body.innerText").await
    }

    /// What a script comes to, as text; none while the page changes.
    pub(crate) async fn value(&mut self, script: &str) -> Option<String> {
        let script = format!("String({script})");
        let value = self.call("Runtime.evaluate", json!({ "expression": script })).await;
        value["result"]["value"]
            .as_str()
            .filter(|_| value["exceptionDetails"].is_null())
            .map(Into::into)
    }

    /// The answers that were shown as pages so far.
    pub(crate) fn documents(&self) -> Vec<Document> {
        self.documents.clone()
    }

    /// The result of a call, or null when it failed. What happens meanwhile is noted.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let call = json!({ "id": self.asked, "method": method, "params": params });
        self.page.send(Message::text(call.to_string())).await.expect("the browser runs");
        loop {
            let next = tokio::time::timeout(patience(), self.page.next()).await;
            let next = next.unwrap_or_else(|_| panic!("the browser does not answer {method}"));
            let Message::Text(text) = next.expect("the browser runs").expect("it speaks") else {
                continue;
            };
            let mut said: Value = serde_json::from_str(&text).expect("it speaks JSON");
            if said["id"] == self.asked {
                return said["result"].take();
            }
            let params = &mut said["params"];
            if params["type"] == "Document" && params["response"].is_object() {
                let document = serde_json::from_value(params["response"].take());
                self.documents.push(document.expect("an answer has a status and headers"));
            }
        }
    }
}
