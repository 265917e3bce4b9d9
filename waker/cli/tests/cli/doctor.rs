//! `rouse doctor` on the machine that the tests run on.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::waker::StandIn;
use crate::{Ran, command, configure, one_document, run};

/// A program that says it is QEMU.
fn qemu(waker: &StandIn, version: &str) -> String {
    let path = waker.directory().join("qemu");
    std::fs::write(&path, format!("#!/bin/sh\necho QEMU emulator version {version}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("[qemu]\nbinary = '{}'\n", path.display())
}

fn app(waker: &StandIn, kernel: &str) {
    let text =
        format!("id = 'a'\nhosts = ['a.test']\n[vm]\nmemory_mib = 32\nkernel = '{kernel}'\n");
    std::fs::write(waker.directory().join("apps.d/a.toml"), text).unwrap();
}

fn verdict<'a>(report: &'a Value, check: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let found: Vec<_> = checks.iter().filter(|c| c["check"] == check).collect();
    assert_eq!(found.len(), 1, "{check}: {report}");
    found[0]["verdict"].as_str().unwrap()
}

/// The exit code says what the document does.
fn report(ran: &Ran) -> Value {
    let report = one_document(&ran.out);
    assert_eq!(ran.err, "");
    let fails = report["checks"].as_array().unwrap().iter().any(|c| c["verdict"] == "fail");
    assert_eq!((report["ok"] == true, ran.code), (!fails, i32::from(fails)), "{report}");
    report
}

#[tokio::test]
async fn a_node_with_a_waker_that_runs() {
    let waker = StandIn::start();
    waker.answer("GET /healthz", "ok");
    let config = configure(&waker, &qemu(&waker, "7.2.22"));
    let state = waker.directory().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(waker.directory().join("kernel"), "").unwrap();
    app(&waker, "../kernel");

    let line = format!("doctor --config '{}'", config.display());
    let told = report(&run(&mut command(&format!("{line} --json"))).await);
    for check in ["config", "apps", "user", "qemu", "state-dir", "writable", "kernel"] {
        assert_eq!(verdict(&told, check), "ok", "{check}: {told}");
    }
    for check in ["socket", "waker", "pagemap"] {
        assert_eq!(verdict(&told, check), "ok", "{check}: {told}");
    }
    // What these come to is the machine's; that each is told once is ours.
    for check in ["file-system", "space", "reflink", "holes", "kvm", "mkfs", "open-files", "memory"]
    {
        assert!(matches!(verdict(&told, check), "ok" | "warn" | "fail"), "{check}");
    }
    for check in ["swap", "pressure", "clock"] {
        assert!(matches!(verdict(&told, check), "ok" | "warn"), "{check}");
    }
    assert_eq!(waker.asked(), ["GET /healthz"]);
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0, "nothing is left behind");

    let ran = run(&mut command(&line)).await;
    assert!(ran.out.contains("ok    config       "), "{}", ran.out);
    assert_eq!(ran.code, i32::from(told["ok"] == false));
}

#[tokio::test]
async fn what_is_wrong_fails_and_is_told() {
    let waker = StandIn::start();
    let config = configure(&waker, &qemu(&waker, "6.2.0"));
    app(&waker, "/nowhere/vmlinuz");
    let line = format!("doctor --config '{}'", config.display());
    let told = report(&run(&mut command(&format!("{line} --json"))).await);
    // The stand-in knows no /healthz.
    for check in ["apps", "qemu", "waker"] {
        assert_eq!(verdict(&told, check), "fail", "{check}: {told}");
    }
    assert_eq!(verdict(&told, "state-dir"), "warn");
    let ran = run(&mut command(&line)).await;
    assert_eq!(ran.code, 1);
    for words in ["app a: /nowhere/vmlinuz: ", "7.2 or newer", "/healthz with 404"] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
}

#[tokio::test]
async fn without_a_waker_and_without_a_configuration() {
    let waker = StandIn::start();
    let config = configure(&waker, &qemu(&waker, "10.0.2"));
    std::fs::remove_file(waker.socket()).unwrap();
    let line = format!("doctor --json --config '{}'", config.display());
    let told = report(&run(&mut command(&line)).await);
    assert_eq!((verdict(&told, "socket"), verdict(&told, "waker")), ("warn", "warn"));

    let told = report(&run(&mut command("doctor --json --config /nowhere")).await);
    assert_eq!(verdict(&told, "config"), "fail");
    assert!(matches!(verdict(&told, "kernel"), "ok" | "warn"));
    assert!(!told.to_string().contains("state-dir"), "{told}");
}

#[tokio::test]
async fn a_waker_that_hangs_is_not_waited_for_long() {
    let waker = StandIn::start();
    // The kernel takes the connection, and nobody reads from it.
    let socket = waker.directory().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let line = format!("doctor --json --config /nowhere --socket '{}'", socket.display());
    let told = report(&run(&mut command(&line)).await);
    assert_eq!(verdict(&told, "waker"), "fail");
    assert!(told.to_string().contains("has not answered for 2 s"), "{told}");
}
