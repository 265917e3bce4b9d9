//! Does TLS wake apps a round trip early, and is it what real clients expect of it?
#![forbid(unsafe_code)]

mod authority;
mod certificates;
mod client;
mod clients;
mod early;
mod plain;

use rouse_tests::{Front, Ran, run};

/// curl to the port for TLS.
async fn curl(front: &Front, host: &str, args: &[&str]) -> Ran {
    let port = front.https().port();
    let (resolve, url) =
        (format!("{host}:{port}:127.0.0.1"), format!("https://{host}:{port}/page"));
    let certificate = front.certificate();
    let certificate = certificate.to_str().expect("a path in UTF-8");
    let known = ["-sS", "--max-time", "60", "--resolve", &resolve, "--cacert", certificate, &url];
    run("curl", &[&known, args].concat(), "").await
}

/// openssl's client, which makes one request and reads until the connection ends.
async fn s_client(front: &Front, host: &str, args: &[&str]) -> Ran {
    let to = front.https().to_string();
    let known = ["s_client", "-connect", &to, "-servername", host, "-ign_eof"];
    let request = format!("GET /page HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    run("openssl", &[&known, args].concat(), &request).await
}
