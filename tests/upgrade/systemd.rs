//! Sockets that systemd holds, and what it is told.

use std::net::TcpListener;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rouse_tests::{Front, ORIGIN_HOST, RawOrigin, Visit, assert_eventually, eventually};
use tokio::process::Child;

use crate::notify::{Notified, activate};

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).expect("a pid fits");
    kill(Pid::from_raw(pid), signal).expect("it runs");
}

async fn page(front: &Front) -> bool {
    let reply = Visit::get("/page").host(ORIGIN_HOST).send(front.http()).await;
    reply.is_ok_and(|reply| reply.status == 200 && reply.text() == "page")
}

async fn ends(child: &mut Child) {
    assert_eventually!(
        child.try_wait().expect("it is ours").is_some_and(|status| status.success()),
        "the process ends well"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_are_there_before_the_proxy_and_systemd_knows_who_serves() {
    let origin = RawOrigin::start().await;
    let front = Front::build(origin.address()).unstarted();
    let notified = Notified::new(front.directory());
    let [http, https] = [front.http(), front.https()].map(|a| TcpListener::bind(a).expect("free"));
    let keep = [&http, &https].map(|socket| socket.try_clone().expect("a socket of ours"));
    // Somebody comes before the proxy does.
    let to = front.http();
    let mut early = tokio::task::JoinSet::new();
    early.spawn(async move { Visit::get("/page").host(ORIGIN_HOST).send(to).await });
    let mut first = activate(&front, [http.into(), https.into()], "http:https", &notified.path());
    let pid = first.id().expect("it runs");
    let told = notified.next().await;
    assert!(told.contains("READY=1") && told.contains(&format!("MAINPID={pid}")), "{told:?}");
    let reply = early.join_next().await.expect("it is there").expect("it ends");
    reply.expect("an answer").expect_status(200);
    assert!(page(&front).await);

    signal(pid, Signal::SIGHUP);
    assert!(notified.next().await.contains("RELOADING=1"));
    assert!(notified.next().await.contains("READY=1"));

    signal(pid, Signal::SIGQUIT);
    let told = notified.next().await;
    let second = eventually("the second is there", async || {
        front.processes().into_iter().find(|other| *other != pid)
    })
    .await;
    assert!(told.contains(&format!("MAINPID={second}")) && told.contains("READY=1"), "{told:?}");
    ends(&mut first).await;
    // STOPPING=1 of a process that is no longer the main one would take the service down.
    assert_eq!(notified.rest(), [""; 0], "nothing else is told at a handover");
    assert!(page(&front).await);

    signal(second, Signal::SIGTERM);
    assert_eq!(notified.next().await.trim(), "STOPPING=1");
    assert_eventually!(front.processes().is_empty(), "the second ends");
    // systemd has the sockets still: who comes waits for the next process.
    let mut waits = tokio::task::JoinSet::new();
    waits.spawn(async move { Visit::get("/page").host(ORIGIN_HOST).send(to).await });
    let sockets = keep.map(Into::into);
    let third = activate(&front, sockets, "http:https", &notified.path());
    assert!(notified.next().await.contains("READY=1"));
    let reply = waits.join_next().await.expect("it is there").expect("it ends");
    reply.expect("an answer").expect_status(200);
    drop(third);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_for_another_process_are_left_alone() {
    let origin = RawOrigin::start().await;
    // LISTEN_PID is somebody else's: descriptors of that number are no sockets of ours.
    let builder = Front::build(origin.address()).env("LISTEN_FDS", "2").env("LISTEN_PID", "1");
    let front = builder.start().await;
    assert!(page(&front).await);
}
