//! What does somebody see who opens a sleeping app in a browser?
#![forbid(unsafe_code)]

mod browser;

use std::time::Duration;

use browser::Browser;
use rouse_tests::{App, Binaries, Echo, Node, Visit, assert_eventually, eventually};
use tokio::task::JoinSet;

/// How long the app is down: browsers have time to look, and come again.
const DOWN: Duration = Duration::from_secs(15);

/// A node whose app shows a page to browsers that wait for more than a second.
async fn node() -> Node {
    let binaries = Binaries::find();
    let app = App::hello(&binaries);
    let text = toml::to_string(&app).expect("our own configuration can be written as TOML");
    let waiting = "[waiting]\npage_after_seconds = 1\nretry_seconds = 1\n";
    Node::builder(&binaries)
        .app(app)
        // In its place.
        .app_file("hello.toml", &format!("{text}\n{waiting}"))
        .start()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_is_shown_a_page_that_becomes_the_apps_by_itself() {
    let node = node().await;
    node.wake("hello").await;
    let mut browser = Browser::start().await;
    node.crash("hello", DOWN).await;

    // A program that comes meanwhile is held, and answered by the app.
    let to = node.http();
    let mut program = JoinSet::new();
    program.spawn(async move { Visit::get("/echo").send(to).await });
    assert_eventually!(node.held().await >= 1.0, "the program is held");

    browser.open(&format!("http://hello.localhost:{}/", to.port())).await;
    eventually("the waiting page is shown", async || {
        let shown = browser.text().await?;
        (shown.contains("hello is starting") && shown.contains("hello.localhost")).then_some(())
    })
    .await;
    for (scheme, background) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 22, 22)")] {
        browser.prefers(scheme).await;
        eventually(&format!("it is {scheme} for who likes it so"), async || {
            let color = "getComputedStyle(document.body).backgroundColor";
            let title = browser.value("document.title").await?;
            assert_eq!(title, "hello is starting", "it is the waiting page still");
            (browser.value(color).await? == background).then_some(())
        })
        .await;
    }
    assert!(program.try_join_next().is_none(), "the program waits on");

    eventually("the app's own page is shown in its place", async || {
        (browser.value("document.title").await? == "Hello from a microVM").then_some(())
    })
    .await;
    let documents = browser.documents();
    let (last, before) = documents.split_last().expect("there were answers");
    assert_eq!(last.status, 200, "{documents:?}");
    assert!(!before.is_empty(), "the page came again by itself: {documents:?}");
    for waiting in before {
        assert_eq!(waiting.status, 503, "{waiting:?}");
        assert_eq!(waiting.header("cache-control"), "no-store", "{waiting:?}");
        assert_eq!(waiting.header("retry-after"), "1", "{waiting:?}");
        assert_eq!(waiting.header("rouse-error"), "waiting", "{waiting:?}");
    }
    let answer = program.join_next().await.expect("it waits").expect("it does not panic");
    let echo: Echo = answer.expect("the program has an answer").expect_status(200).json();
    assert_eq!(echo.path, "/echo", "of the app");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_wakes_the_app_soon_enough_sees_no_page_but_its_own() {
    let node = Node::start().await;
    let before = node.generation("hello").await;
    let mut browser = Browser::start().await;
    browser.open(&format!("http://hello.localhost:{}/", node.http().port())).await;
    eventually("the app's page is shown", async || {
        (browser.value("document.title").await? == "Hello from a microVM").then_some(())
    })
    .await;
    let statuses: Vec<_> = browser.documents().iter().map(|d| d.status).collect();
    assert_eq!(statuses, [200], "held, and not sent round");
    assert_eq!(node.generation("hello").await, before + 1, "it woke the app");
    eventually("its image and style came, too", async || {
        let loaded = "document.images[0].naturalWidth > 0 && document.styleSheets.length == 1";
        (browser.value(loaded).await? == "true").then_some(())
    })
    .await;
}
