//! A step of a sleep fails.

use rouse_protocol::client::ClientError;
use rouse_protocol::wake::{ParkRequest, SleepRefusal};
use rouse_protocol::watch::AppState;
use rouse_tests::eventually;

use crate::armed::Armed;

/// The steps, in the order of a sleep.
const STEPS: [&str; 6] =
    ["save", "saved", "settle-sync", "settle-memory", "settle-map", "settle-manifest"];

/// What goes wrong, and how the operator reads it.
const ERRORS: [(&str, &str); 3] = [
    ("enospc", "No space left on device"),
    ("eio", "Input/output error"),
    ("erofs", "Read-only file system"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleep_that_fails_leaves_the_app_awake_as_it_was() {
    let mut armed = Armed::start().await;
    let vm = armed.vm("awake");
    for step in STEPS {
        let returns: Vec<_> =
            ERRORS.iter().map(|(error, _)| format!("1*return({error})")).collect();
        armed.arm(Some(&format!("{step}={}->off", returns.join("->")))).await;
        let vm = if step == STEPS[0] { vm } else { armed.vm(step) };
        for (error, text) in ERRORS {
            let when = format!("{step} with {error}");
            let (code, detail) = refused(&armed, &when).await;
            assert_eq!(code, SleepRefusal::Failed.as_str(), "{when}: how it ended: {detail}");
            assert!(detail.contains(text), "{when}: the operator reads why: {detail}");
            assert!(armed.serves(&when).await, "{when}: from the memory that there was");
            assert_eq!(armed.vm(&when), vm, "{when}: in the same VM");
            let view = armed.node.view("hello").await;
            assert!(matches!(view.state, AppState::Awake(_)), "{when}: it is awake: {view:?}");
        }
        let report = armed.node.sleep("hello").await;
        assert!(report.image_bytes > 0, "{step}: the next sleep is one: {report:?}");
        assert_eq!(armed.vm(step), None, "{step}: and ends the VM");
        assert!(armed.serves(&format!("{step} is over")).await, "{step}: from that image");
    }
}

/// Asks for a sleep that fails; with what code, and why.
async fn refused(armed: &Armed, when: &str) -> (String, String) {
    eventually(&format!("{when}: the sleep has an end"), async || {
        match armed.node.try_sleep("hello").await {
            Ok(report) => panic!("{when}: it sleeps: {report:?}"),
            // A visitor's last byte may still be on its way.
            Err(ClientError::Refused(problem)) if problem.code() == "busy" => None,
            Err(ClientError::Refused(problem)) => Some((problem.code().to_owned(), problem.detail)),
            Err(error) => panic!("{when}: the waker answers: {error}"),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_that_fails_when_its_vm_runs_leaves_no_second_one() {
    let mut armed = Armed::start().await;
    for step in ["reserve", "run-record", "resume", "woken"] {
        armed.node.sleep("hello").await;
        armed.arm(Some(&format!("{step}=1*return(eio)"))).await;
        armed.node.get("/counter").await.expect_status(503);
        assert_eq!(armed.vm(step), None, "{step}: the VM of the failed wake has ended");
        let same = armed.serves(&format!("{step} has failed once")).await;
        assert!(same || step == "woken", "{step}: no vCPU ran, so its memory is kept");
        assert!(armed.vm(step).is_some(), "{step}: and the next one is alone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_that_cannot_be_opened_when_the_waker_starts_is_there_and_comes_back() {
    let mut armed = Armed::start().await;
    let when = "undo fails at the start";
    // A standing VM with a manifest beside it, so that there is something to take back.
    armed.arm(Some("settled=return(kill)")).await;
    let vm = armed.vm(when);
    armed.sleep_to_death(when).await;
    armed.arm(Some("undo=3*return(enospc)")).await;
    eventually(&format!("{when}: it is served again"), async || {
        let reply = armed.node.get("/").await;
        let code = reply.header("rouse-error").to_owned();
        assert_ne!(reply.status, 404, "{when}: there is such an app: {reply:?}");
        assert!(reply.status == 200 || reply.status == 503, "{when}: {code}: {reply:?}");
        (reply.status == 200).then_some(())
    })
    .await;
    assert!(armed.serves(when).await, "{when}: with its memory");
    assert_eq!(armed.vm(when), vm, "{when}: in the VM that it had");
}

#[tokio::test]
async fn an_app_that_is_parked_while_it_cannot_be_opened_is_parked_then() {
    let mut armed = Armed::start().await;
    let when = "parked before it could be opened";
    armed.arm(Some("settled=return(kill)")).await;
    armed.sleep_to_death(when).await;
    armed.arm(Some("undo=3*return(enospc)")).await;
    let id = "hello".parse().unwrap();
    let client = armed.node.client();
    client.park(&id, &ParkRequest { reason: "wanted".to_owned() }).await.unwrap();
    armed
        .node
        .wait_state(
            "hello",
            "parked",
            |state| matches!(state, AppState::Parked { detail } if detail.contains("wanted")),
        )
        .await;
    assert_eq!(armed.node.get("/").await.header("rouse-error"), "parked");
    armed.node.client().clear(&id).await.unwrap();
    eventually(&format!("{when}: it is served once it is cleared"), async || {
        let reply = armed.node.get("/").await;
        assert!(reply.status == 200 || reply.status == 503, "{reply:?}");
        (reply.status == 200).then_some(())
    })
    .await;
}
