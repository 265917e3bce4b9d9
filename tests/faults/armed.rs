//! A node whose waker fails where it is told to, and what must hold on it whatever fails.

use rouse_protocol::client::ClientError;
use rouse_tests::{App, Binaries, Counter, LogHead, Node, Vm, assert_eventually, eventually};

/// The variable that the waker reads at its start.
const FAILPOINTS: &str = "FAILPOINTS";

/// A node, and what its app has acknowledged.
pub(crate) struct Armed {
    pub(crate) node: Node,
    acknowledged: Vec<LogHead>,
    counter: Counter,
}

impl Armed {
    /// The test app on a disk of its own, awake. Paused it stays so, to be seen and not gone.
    pub(crate) async fn start() -> Self {
        let binaries = Binaries::find();
        let app = App::hello(&binaries).disk(32).paused(3600);
        let node = Node::builder(&binaries)
            .app(app)
            // What else runs on this machine ends no pause.
            .waker(|waker| waker.sleep.keep_free_mib = Some(0))
            .start()
            .await;
        let counter = node.get("/counter").await.expect_status(200).json();
        let mut armed = Self { node, acknowledged: Vec::new(), counter };
        armed.log("first").await;
        armed
    }

    /// Starts the waker anew with these fail points, or none.
    pub(crate) async fn arm(&mut self, points: Option<&str>) {
        self.node.waker.kill();
        match points {
            Some(points) => self.node.waker.set_env(FAILPOINTS, points),
            None => self.node.waker.unset_env(FAILPOINTS),
        }
        self.node.start_waker().await;
    }

    /// Starts the waker, which is dead, with these fail points, and returns when it is dead again.
    pub(crate) async fn start_to_death(&mut self, points: &str, when: &str) {
        self.node.waker.kill();
        self.node.waker.set_env(FAILPOINTS, points);
        self.node.waker.start();
        assert_eventually!(!self.node.waker.runs(), "{when}: the waker dies at its start");
    }

    /// Has the app acknowledge an entry.
    pub(crate) async fn log(&mut self, entry: &str) {
        self.acknowledged.push(self.node.log(entry).await);
    }

    /// The app's VM; panics when there is another beside it.
    pub(crate) fn vm(&self, when: &str) -> Option<Vm> {
        let vms = self.node.vms("hello");
        assert!(vms.len() <= 1, "{when}: one VM at most: {vms:?}");
        vms.first().copied()
    }

    /// Visitors are served, now or soon, and nothing of the log is lost. Whether the memory is the
    /// one that there was before.
    pub(crate) async fn serves(&mut self, when: &str) -> bool {
        let next: Counter = eventually(&format!("{when}: visitors are served"), async || {
            let reply = self.node.get("/counter").await;
            (reply.status == 200).then(|| reply.json())
        })
        .await;
        self.vm(when).unwrap_or_else(|| panic!("{when}: who serves has a VM"));
        let there = self.node.logged().await.into_iter();
        let there: Vec<_> = there.map(|line| LogHead { n: line.n, hash: line.hash }).collect();
        assert_eq!(there, self.acknowledged, "{when}: the log");
        let same = next.boot == self.counter.boot;
        if same {
            // A visitor whose waker died may have been counted without having been told.
            assert!(next.counter > self.counter.counter, "{when}: it never goes back: {next:?}");
        }
        self.counter = next;
        self.log(when).await;
        same
    }

    /// Asks for a sleep until the waker is dead.
    pub(crate) async fn sleep_to_death(&mut self, when: &str) {
        assert_eventually!(
            {
                match self.node.try_sleep("hello").await {
                    Ok(report) => panic!("{when}: it sleeps: {report:?}"),
                    // A visitor's last byte may still be on its way.
                    Err(ClientError::Refused(problem)) => {
                        let code = problem.code();
                        assert!(["busy", "failed"].contains(&code), "{when}: {problem:?}");
                    }
                    Err(_) => {}
                }
                !self.node.waker.runs()
            },
            "{when}: the waker dies in a sleep"
        );
    }

    /// Asks for a wake, and returns when the waker is dead.
    pub(crate) async fn wake_to_death(&mut self, when: &str) {
        let woken = self.node.wake_events("hello").await;
        assert!(woken.is_err(), "{when}: nobody is told of a wake: {woken:?}");
        assert_eventually!(!self.node.waker.runs(), "{when}: the waker dies in a wake");
    }
}
