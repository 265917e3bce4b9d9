//! Is the configuration read as it is written, and refused as a whole where it is wrong?
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

use rouse_tests::{App, Binaries, Node, Visit, assert_eventually};

const BAD_CONFIG: i32 = 64;

fn check(program: &Path, config: &Path) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(program)
        .arg("--config")
        .arg(config)
        .arg("--check")
        .output()
        .expect("it starts");
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_spelling_of_a_host_is_the_same() {
    let binaries = Binaries::find();
    let mut app = App::hello(&binaries);
    app.hosts.push("Second.Example".into());
    let node = Node::builder(&binaries).app(app).start().await;
    for host in [
        "hello.localhost",
        "HELLO.localhost",
        "hello.localhost:8443",
        "hello.localhost.",
        "Hello.Localhost.:80",
        "second.example",
        "SECOND.example.:1",
    ] {
        let reply = node.visit(&Visit::get("/").host(host)).await;
        assert_eq!(reply.status, 200, "{host} is the app's: {reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_file_does_not_take_the_good_ones_down() {
    let binaries = Binaries::find();
    let node = Node::builder(&binaries)
        .app(App::hello(&binaries))
        .app_file(
            "bad.toml",
            "id = \"bad\"\nhosts = [\"bad.localhost\"]\n\n[sleep]\nidle_second = 5\n",
        )
        .app_file("worse.toml", "this is no TOML")
        .start()
        .await;
    node.get("/").await.expect_status(200);
    let apps = node.client().apps().await.unwrap();
    let ids: Vec<_> = apps.iter().map(|app| app.id.as_str()).collect();
    assert_eq!(ids, ["hello"], "the good app is known, the bad ones are not");

    let (code, said) = check(&binaries.waker(), &node.root().join("waker.toml"));
    assert_eq!(code, Some(BAD_CONFIG), "a check finds it: {said}");
    for expected in ["bad.toml:5", "idle_second", "idle_seconds", "worse.toml:1"] {
        assert!(said.contains(expected), "file, line, key and hint: {expected} in {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apps_are_read_again_when_their_files_change() {
    let binaries = Binaries::find();
    let node = Node::builder(&binaries).app(App::hello(&binaries)).start().await;
    let moved = Visit::get("/").host("moved.localhost");
    assert_eq!(node.visit(&moved).await.status, 404, "not yet an app's host");

    let file = node.root().join("apps.d/hello.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("hello.localhost", "moved.localhost")).unwrap();
    assert_eventually!(node.visit(&moved).await.status == 200, "the new host is served");
    assert_eq!(node.get("/").await.status, 404, "the old one is nobody's");
}

#[test]
fn a_bad_config_ends_the_program_before_anything_binds() {
    let binaries = Binaries::find();
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let socket = dir.path().join("waker.sock");
    let waker = config(
        "waker.toml",
        &format!("state_dir = \"s\"\nsockets = 1\n[socket]\npath = \"{}\"\n", socket.display()),
    );
    let proxy = config("proxy.toml", "[listen]\nhttp = [\"nowhere\"]\nadmin = \"127.0.0.1:0\"\n");
    for (program, config) in [(binaries.waker(), waker), (binaries.proxy(), proxy)] {
        for check_only in [true, false] {
            let mut command = Command::new(&program);
            command.arg("--config").arg(&config);
            if check_only {
                command.arg("--check");
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(BAD_CONFIG), "{}: {said}", program.display());
            let file = config.file_name().unwrap().to_str().unwrap();
            assert!(said.contains(file), "it names the file {file}: {said}");
        }
    }
    assert!(!socket.exists(), "nothing was bound");
}
