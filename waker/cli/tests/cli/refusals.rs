//! What goes wrong, with what to do and an exit code of its own.

use rouse_protocol::wake::{FailureCode, WakeEvent, WakeFailure};

use crate::waker::{self, StandIn, line};
use crate::{command, configure, run};

#[tokio::test]
async fn every_refusal_of_a_sleep() {
    let waker = StandIn::start();
    for (code, exit, words) in [
        ("busy", 75, "try again when it is done"),
        ("not-awake", 1, "no VM"),
        ("cancelled", 75, "the app serves"),
        ("no-agreement", 75, "rouse-proxy"),
        ("failed", 1, "rouse doctor"),
    ] {
        waker.refuse("POST /v1/apps/hello/sleep", 409, code, "the detail");
        let told = format!("hello was not put to sleep: {code}: the detail");
        waker.refused("sleep hello", exit, &[&told, words]).await;
    }
}

#[tokio::test]
async fn every_failure_of_a_wake() {
    let waker = StandIn::start();
    for (code, exit, words) in [
        (FailureCode::Backoff, 75, "due in 1.5 s"),
        (FailureCode::Full, 75, "make room"),
        (FailureCode::Parked, 1, "rouse clear hello"),
        (FailureCode::Stopping, 75, "again"),
        (FailureCode::Vmm, 1, "rouse doctor"),
        (FailureCode::Storage, 1, "state directory"),
        (FailureCode::Locked, 1, "fuser"),
        (FailureCode::Removed, 1, "apps.d"),
    ] {
        let failure = WakeFailure { code, detail: "the detail".into(), retry_after_ms: Some(1500) };
        let told = format!("hello was not woken: {}: the detail", code.as_str());
        for command in ["wake", "boot"] {
            let call = format!("POST /v1/apps/hello/{command}");
            waker.lines(&call, &[WakeEvent::Failed(failure.clone())]);
            waker.refused(&format!("{command} hello"), exit, &[&told, words]).await;
        }
    }
    let ran = waker.run("--json wake hello").await;
    assert!(ran.out.contains(r#""code":"removed""#), "{}", ran.out);
    assert!(ran.out.contains(r#""retry_after_ms":1500"#), "{}", ran.out);
}

#[tokio::test]
async fn an_unknown_app_is_told_with_the_nearest() {
    let waker = StandIn::start();
    for line in
        ["wake helo", "sleep helo", "boot helo", "park helo --reason x", "clear helo", "trace helo"]
    {
        let words = ["there is no app `helo`", "did you mean `hello`?", "rouse ps"];
        waker.refused(line, 1, &words).await;
    }
    let ran = waker.run("wake xyz").await;
    assert!(ran.code == 1 && !ran.err.contains("did you mean"), "{}", ran.err);
}

#[tokio::test]
async fn who_may_not_and_what_is_not_known() {
    let waker = StandIn::start();
    for (call, line) in [("GET /v1/status", "ps"), ("POST /v1/apps/hello/sleep", "sleep hello")] {
        waker.refuse(call, 403, "peer", "");
        let told = "the waker refused: the waker's own title\n";
        waker.refused(line, 77, &[told, "allow_uids", "allow_gids"]).await;
    }
    waker.refused("clear hello", 1, &["older than this program"]).await;
    waker.refuse("POST /v1/apps/hello/boot", 409, "awake", "it runs");
    waker.refused("boot hello", 1, &["it runs", "rouse sleep hello"]).await;
    waker.refuse("POST /v1/apps/hello/wake", 503, "stopping", "it goes down");
    waker.refused("wake hello", 75, &["it goes down"]).await;
    waker.answer("GET /v1/status", "no list");
    waker.refused("ps", 1, &["can't be read", "--version"]).await;
}

#[tokio::test]
async fn a_waker_that_is_not_there() {
    let waker = StandIn::start();
    let dead = waker.directory().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for (socket, words) in [
        (waker.directory().join("none"), ["is not running", "systemctl start rouse-waker"]),
        (dead, ["nobody listens", "systemctl start rouse-waker"]),
    ] {
        for line in ["ps", "ps -w", "wake hello", "sleep hello", "trace hello"] {
            let line = format!("{line} --socket '{}'", socket.display());
            waker.refused(&line, 69, &words).await;
        }
    }
}

#[tokio::test]
async fn a_wake_that_breaks_off_and_goes_on_without_us() {
    let waker = StandIn::start();
    let call = "POST /v1/apps/hello/wake";
    waker.lines(call, &[WakeEvent::Phase(waker::phases()[0])]);
    waker.refused("wake hello", 69, &["hung up", "rouse ps"]).await;

    let events = waker.stream(call);
    events.send(line(&"no event")).unwrap();
    let ran = waker.run("wake hello").await;
    assert_eq!(ran.code, 1, "{}", ran.err);
}

#[tokio::test]
async fn wrong_usage_and_a_wrong_configuration() {
    let waker = StandIn::start();
    for (line, words) in [
        ("", "Usage: rouse"),
        ("wak hello", "'wake'"),
        ("wake", "<APP>"),
        ("wake HELLO", "a-z"),
        ("park hello", "--reason"),
        ("trace hello -n x", "invalid digit"),
        ("completions tcsh", "possible values"),
    ] {
        let ran = waker.run(line).await;
        assert_eq!(ran.code, 64, "{line}: {}", ran.err);
        assert!(ran.err.contains(words), "{line}: {}", ran.err);
    }
    assert!(waker.asked().is_empty());

    let config = configure(&waker, "[qemu]\nbinry = 'x'\n");
    let ran = run(&mut command(&format!("ps --config '{}'", config.display()))).await;
    assert_eq!(ran.code, 64, "{}", ran.err);
    for words in ["waker.toml:5: unknown key `qemu.binry`", "ROUSE_SOCKET"] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
    let ran = run(&mut command("ps --config /nowhere/waker.toml")).await;
    assert!(
        ran.code == 64 && ran.err.contains("/nowhere/waker.toml: can't be read"),
        "{}",
        ran.err
    );
}

#[tokio::test]
async fn help_tells_the_exit_codes() {
    let ran = run(&mut command("--help")).await;
    assert_eq!((ran.code, &*ran.err), (0, ""));
    for code in ["64  wrong usage", "69  the waker", "75  not now", "77  this user"] {
        assert!(ran.out.contains(code), "{}", ran.out);
    }
    assert_eq!(run(&mut command("--version")).await.code, 0);
}
