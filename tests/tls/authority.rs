//! A certificate authority (RFC 8555) that gives a challenge and never looks. It is an origin behind
//! a proxy of its own, since it has to speak TLS.

use std::net::SocketAddr;

use rouse_tests::origin::{Act, Request};
use rouse_tests::{Certificate, Front, RawOrigin};

/// The token of its challenge.
pub(crate) const TOKEN: &str = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA";

const HOST: &str = "localhost";

pub(crate) struct Authority {
    origin: RawOrigin,
    front: Front,
    certificate: Certificate,
}

impl Authority {
    pub(crate) async fn start() -> Self {
        let origin = RawOrigin::with(answer).await;
        let host = format!(
            "[[origin]]\nid = \"ca\"\nhosts = [\"{HOST}\"]\naddress = \"{}\"\n",
            origin.address()
        );
        let builder = Front::build(origin.address());
        let certificate = Certificate::of(builder.directory(), "ca", &[HOST]);
        let directory = builder.directory().join("certs.d/ca");
        std::fs::create_dir_all(&directory).expect("a directory of ours can be made");
        for (from, to) in [(&certificate.cert, "fullchain.pem"), (&certificate.key, "privkey.pem")]
        {
            std::fs::copy(from, directory.join(to)).expect("a file of ours can be copied");
        }
        let front = builder.tls("directory = \"certs.d\"\n").more(&host).start().await;
        Self { origin, front, certificate }
    }

    /// What a proxy has to have in its file to order a certificate for `name`.
    pub(crate) fn client_of(&self, name: &str) -> String {
        let (port, cert) = (self.front.https().port(), &self.certificate.cert);
        format!(
            "[tls.acme]\ndirectory = \"https://{HOST}:{port}/directory\"\nnames = [\"{name}\"]\n\
             kept = \"acme\"\nproof = \"http-01\"\nterms_agreed = true\nca_file = {cert:?}\n"
        )
    }

    /// Some origin.
    pub(crate) fn origin(&self) -> SocketAddr {
        self.origin.address()
    }

    /// Whether it was told that its challenge is met.
    pub(crate) fn is_told(&self) -> bool {
        self.origin.requests().iter().any(|request| request.target == "/challenge")
    }
}

fn answer(request: &Request) -> Act {
    let base = format!("https://{}", request.header("host"));
    let order = format!(
        r#"{{"status":"pending","identifiers":[{{"type":"dns","value":"new.localhost"}}],
           "authorizations":["{base}/authorization"],"finalize":"{base}/finalize"}}"#
    );
    let challenge = format!(
        r#"{{"type":"http-01","url":"{base}/challenge","token":"{TOKEN}","status":"pending"}}"#
    );
    let (status, at, body) = match request.target.as_str() {
        "/directory" => {
            let all = ["Nonce", "Account", "Order"]
                .map(|what| format!(r#""new{what}":"{base}/new{what}""#));
            (200, "", format!("{{{}}}", all.join(",")))
        }
        "/newAccount" => (201, "/account", r#"{"status":"valid"}"#.to_owned()),
        "/newOrder" => (201, "/order", order),
        "/order" => (200, "", order),
        "/authorization" => {
            let name = r#"{"type":"dns","value":"new.localhost"}"#;
            let body =
                format!(r#"{{"status":"pending","identifier":{name},"challenges":[{challenge}]}}"#);
            (200, "", body)
        }
        "/challenge" => (200, "", challenge),
        _ => (200, "", String::new()),
    };
    let location = if at.is_empty() { String::new() } else { format!("Location: {base}{at}\r\n") };
    let head = format!(
        "HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nReplay-Nonce: bm9uY2U\r\n{location}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let body = if request.method == "HEAD" { "" } else { &body };
    Act::Answer([head, body.to_owned()].concat().into_bytes())
}
