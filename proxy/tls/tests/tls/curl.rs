//! A client that others have written. curl has to be there.

use std::process::Stdio;

use rouse_tls::{Accepted, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{World, tls};

#[tokio::test]
async fn curl_trusts_what_it_is_served_and_is_refused_where_nothing_is() {
    let world = World::new();
    let ca = world.write("ca.pem", &world.ca_pem);
    let config = Config { alpn: vec![rouse_tls::Alpn::Http11], ..world.config(&["*.a.example"]) };
    let tls = tls(&config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let curl = async |scheme: &str, host: &str| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--cacert"])
            .arg(&ca)
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .arg(format!("{scheme}://{host}:{port}/"))
            .stdin(Stdio::null())
            .output();
        let serve = async {
            let (socket, _) = listener.accept().await.unwrap();
            match tls.accept(socket, |_| {}).await {
                Ok(Accepted::Visitor(mut stream, facts)) => {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        request.push(stream.read_u8().await.unwrap());
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                    stream.write_all(answer).await.unwrap();
                    stream.shutdown().await.unwrap();
                    format!("{:?}", facts.alpn)
                }
                Ok(Accepted::Challenge { .. }) => panic!("no challenge was meant"),
                Err(error) => error.kind().to_owned(),
            }
        };
        let (output, served) = tokio::join!(output, serve);
        let output = output.expect("curl can be run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, served)
    };
    assert_eq!(
        curl("https", "x.a.example").await,
        (Some(0), "hi".to_owned(), "Some(Http11)".to_owned())
    );
    // 35: CURLE_SSL_CONNECT_ERROR.
    assert_eq!(
        curl("https", "b.example").await,
        (Some(35), String::new(), "no_certificate".to_owned())
    );
    let (code, text, served) = curl("http", "x.a.example").await;
    assert_eq!((code, &*served), (Some(0), "plain_http"));
    assert!(text.contains("speaks HTTPS"), "{text}");
}
