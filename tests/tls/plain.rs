//! What comes without TLS where TLS is wanted?

use rouse_tests::{DEFAULT_HOST, Front, Node, Visit, assert_eventually, eventually};

use crate::authority::{Authority, TOKEN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_redirect_nor_a_challenge_wakes_anybody() {
    let node = Node::start().await;
    let generation = node.generation("hello").await;
    let authority = Authority::start().await;
    let acme = authority.client_of("new.localhost");
    let builder = Front::build(authority.origin()).beside(&node);
    let front = builder.listen("redirect_https = true\n").more(&acme).start().await;

    let to = front.http();
    for method in [http::Method::GET, http::Method::POST] {
        let visit = Visit::new(method, "/a?b=c");
        let reply = visit.send(to).await.expect("an answer").expect_status(308);
        assert_eq!(reply.header("location"), format!("https://{DEFAULT_HOST}/a?b=c"));
    }

    // The authority asks by HTTP at whatever host, and is not sent to HTTPS.
    let path = format!("/.well-known/acme-challenge/{TOKEN}");
    let proof = eventually("the challenge is answered", async || {
        let reply = Visit::get(&path).send(to).await.expect("an answer");
        (reply.status == 200).then_some(reply)
    })
    .await;
    assert!(proof.text().starts_with(&format!("{TOKEN}.")), "{proof:?}");
    assert_eq!(proof.header("cache-control"), "no-store");
    assert_eventually!(authority.is_told(), "the authority is asked to look");
    // One that nobody ordered is a visitor's like any other.
    let other = Visit::get("/.well-known/acme-challenge/other").send(to).await;
    other.expect("an answer").expect_status(308);

    assert_eq!(node.generation("hello").await, generation, "nobody was woken");
    assert_eq!(node.wakes().await, 0.0);
    node.wait_asleep("hello").await;
}
