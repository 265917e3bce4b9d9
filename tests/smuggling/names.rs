//! Does a request say for which host it is, and from whom, in one way only?

use rouse_tests::origin::Request;

use crate::World;

fn get(target: &str, lines: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_for_one_host() {
    let world = World::new().await;
    for (target, lines) in [
        ("/", ""),
        ("/", "Host: \r\n"),
        ("/", "Host: origin.localhost\r\nHost: origin.localhost\r\n"),
        ("/", "Host: origin.localhost\r\nHost: other.localhost\r\n"),
        ("/", "Host: other.localhost\r\nhost: origin.localhost\r\n"),
        ("/", "Host: origin.localhost, other.localhost\r\n"),
        ("/", "Host: origin.localhost other.localhost\r\n"),
        ("/", "Host: origin.localhost/other\r\n"),
        ("/", "Host: origin.localhost?other\r\n"),
        ("/", "Host: origin.localhost#other\r\n"),
        ("/", "Host: origin.localhost\\other\r\n"),
        ("/", "Host: origin.localhost:80:80\r\n"),
        ("/", "Host: origin.localhost:x\r\n"),
        ("/", "Host: origin.localhost:99999\r\n"),
        ("/", "Host: user@origin.localhost\r\n"),
        ("/", "Host: http://origin.localhost\r\n"),
        ("/", "Host: [origin.localhost]\r\n"),
        ("http://other.localhost/", "Host: origin.localhost\r\n"),
        ("http://origin.localhost/", "Host: other.localhost\r\n"),
        ("http://origin.localhost/", ""),
        ("http://origin.localhost:81/", "Host: origin.localhost:82\r\n"),
        ("http://a@origin.localhost/", "Host: origin.localhost\r\n"),
        ("http://a:b@origin.localhost/", "Host: origin.localhost\r\n"),
        ("http://other.localhost@origin.localhost/", "Host: origin.localhost\r\n"),
        ("http://origin.localhost@other.localhost/", "Host: origin.localhost\r\n"),
        ("http:///", "Host: origin.localhost\r\n"),
        ("http:/path", "Host: origin.localhost\r\n"),
        ("http://", "Host: origin.localhost\r\n"),
        ("ftp://origin.localhost/", "Host: origin.localhost\r\n"),
        ("file:///etc/passwd", "Host: origin.localhost\r\n"),
        ("origin.localhost:80", "Host: origin.localhost\r\n"),
    ] {
        world.refused(&get(target, lines)).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_uri_as_target_means_what_its_host_says() {
    let world = World::new().await;
    let lines = "Host: origin.localhost\r\nConnection: close\r\n";
    for (target, path) in [
        ("http://origin.localhost/a?b", "/a?b"),
        ("https://origin.localhost/a", "/a"),
        ("http://origin.localhost", "/"),
        ("http://origin.localhost?b", "/?b"),
    ] {
        let request = world.one(&get(target, lines)).await;
        assert!(request.target == path || request.target == target, "{target}: {request:?}");
        assert_eq!(request.header("host"), "origin.localhost", "{target}: {request:?}");
    }
    // A path that looks like another host is a path.
    for target in ["//other.localhost/a", "/http://other.localhost/", "/@other.localhost", "/a:80"]
    {
        let request = world.one(&get(target, lines)).await;
        assert_eq!((&*request.target, request.header("host")), (target, "origin.localhost"));
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_0_without_a_host_is_nobodys() {
    let world = World::new().await;
    world.refused(b"GET / HTTP/1.0\r\n\r\n").await;
    world.refused(b"GET / HTTP/1.0\r\nHost: origin.localhost\r\nHost: b\r\n\r\n").await;
    world.fine().await;
}

/// Every name in which an app could look for what we or a front say, also as CGI would spell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_as_the_proxy_or_as_another_client() {
    let world = World::new().await;
    let ours =
        ["Rouse-Nonce", "ROUSE-AGENT", "Rouse-Anything", "Rouse_Nonce", "rouse_agent", "Rouse-_x"];
    let fronts = [
        "X-Forwarded-For",
        "X_Forwarded_For",
        "x_forwarded-for",
        "X-Forwarded_For",
        "X_FORWARDED_PROTO",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Forwarded-Anything",
        "X-Real-IP",
        "X_Real_IP",
        "Forwarded",
        "True-Client-IP",
        "True_Client_IP",
        "CF-Connecting-IP",
        "X-Client-IP",
        "Client-IP",
        "X-Cluster-Client-IP",
    ];
    for name in ours.iter().chain(&fronts) {
        let lines = format!("Host: origin.localhost\r\nConnection: close\r\n{name}: forged\r\n");
        let request = world.one(&get("/", &lines)).await;
        assert!(!says(&request, "forged"), "{name} arrives: {request:#?}");
        assert_eq!(request.header("x-forwarded-for"), "127.0.0.1", "{name}: {request:?}");
        assert_eq!(request.header("x-forwarded-proto"), "http", "{name}: {request:?}");
    }
    world.fine().await;
}

fn says(request: &Request, what: &str) -> bool {
    request.headers.iter().any(|(_, value)| value.contains(what))
}
