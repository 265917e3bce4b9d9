//! A step of a wake or of a sleep is the waker's last.

use rouse_tests::{Vm, assert_eventually};

use crate::armed::Armed;

/// What becomes of the app's memory when the waker dies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// It is in an image, or in a VM.
    Kept,
    /// The image is spent and its VM did not run yet: there may be a cold boot.
    MayGo,
}

use Memory::{Kept, MayGo};

/// The steps of a wake.
const WAKE: [(&str, Memory); 6] = [
    ("consume", Kept),
    ("consumed", MayGo),
    ("reserve", MayGo),
    ("run-record", MayGo),
    ("resume", MayGo),
    ("woken", Kept),
];

/// The steps of a sleep.
const SLEEP: [&str; 9] = [
    "save",
    "saved",
    "settle-sync",
    "settle-memory",
    "settle-map",
    "settle-manifest",
    "settled",
    "publish",
    "published",
];

impl Armed {
    /// The waker has died. The next one finds what there is, and visitors lose nothing.
    async fn comes_back(&mut self, when: &str, memory: Memory) {
        let vm = self.vm(when);
        self.arm(None).await;
        let survived = vm.is_some_and(|vm| vm.runs());
        if survived {
            let recorded = self.node.vm("hello");
            assert_eq!(Some(recorded), vm, "{when}: the VM that survived is adopted");
            let pid = self.node.status("hello").await.pid;
            assert_eq!(pid, vm.map(|vm: Vm| vm.pid), "{when}: and known to operators");
        }
        let same = self.serves(when).await;
        assert!(same || memory == MayGo, "{when}: its memory is kept");
        if survived {
            assert_eq!(self.vm(when), vm, "{when}: the VM that survived serves");
            assert!(same, "{when}: with its memory");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_dies_in_a_wake_loses_nothing() {
    let mut armed = Armed::start().await;
    for (point, memory) in WAKE {
        armed.node.sleep("hello").await;
        armed.arm(Some(&format!("{point}=return(kill)"))).await;
        armed.wake_to_death(point).await;
        armed.comes_back(point, memory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_dies_in_a_sleep_loses_nothing() {
    let mut armed = Armed::start().await;
    for point in SLEEP {
        armed.arm(Some(&format!("{point}=return(kill)"))).await;
        let vm = armed.vm(point);
        armed.sleep_to_death(point).await;
        let published = ["publish", "published"].contains(&point);
        let gone = vm.is_none_or(|vm| !vm.runs());
        assert_eq!(gone, published, "{point}: the VM stays until its generation is whole");
        armed.comes_back(point, Kept).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_dies_trimming_an_image_loses_nothing() {
    let mut armed = Armed::start().await;
    let when = "trim";
    armed.arm(Some("trim=return(kill)")).await;
    // Who asked may or may not have been told.
    let _ = armed.node.try_sleep("hello").await;
    assert_eventually!(!armed.node.waker.runs(), "{when}: the waker dies after the sleep");
    armed.comes_back(when, Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_dies_taking_a_sleep_back_loses_nothing() {
    let mut armed = Armed::start().await;
    // The first time is at its start, when it finds the VM awake.
    let when = "undo after a failure";
    armed.arm(Some("settled=return(eio);undo=1*off->return(kill)")).await;
    armed.sleep_to_death(when).await;
    armed.comes_back(when, Kept).await;

    let when = "undo at a start";
    armed.arm(Some("settled=return(kill)")).await;
    armed.sleep_to_death(when).await;
    armed.start_to_death("undo=return(kill)", when).await;
    armed.comes_back(when, Kept).await;

    armed.node.sleep("hello").await;
    assert!(armed.serves("at last").await, "it sleeps and wakes on");
}
