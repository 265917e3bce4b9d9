//! One warm image for all tests: the test app booted once, put to sleep, and copied from then on.
//!
//! A boot takes seconds on an emulated core, a sparse copy of an image milliseconds.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::config::{App, WakerConfig};
use crate::node::Node;
use crate::wait::TICK;
use crate::{Binaries, Visit};

/// The key of this process's golden image. Reading the files takes a moment; once is enough.
static KEY: OnceCell<String> = OnceCell::const_new();

/// Fills `state`, which is not there yet, with the app of [`App::hello`] asleep. Makes the image
/// first when there is none for these binaries and this guest.
pub(crate) async fn copy_to(state: &Path, binaries: &Binaries, waker: &WakerConfig) {
    let kept = binaries.kept();
    fs::create_dir_all(&kept).unwrap_or_else(|e| panic!("{}: {e}", kept.display()));
    let key = KEY.get_or_init(async || key(binaries, waker)).await;
    let golden = kept.join(format!("golden-{key}"));
    let path = kept.join("golden.lock");
    let lock = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));

    // Whoever copies shares the lock; whoever makes the image or throws old ones away has it alone.
    wait_for(|| lock.try_lock_shared().is_ok()).await;
    if !golden.is_dir() {
        let _ = lock.unlock();
        wait_for(|| lock.try_lock().is_ok()).await;
        if !golden.is_dir() {
            remove_others(&kept, &golden);
            Box::pin(make(&golden, binaries)).await;
        }
    }
    copy(&golden, state);
}

async fn wait_for(locked: impl Fn() -> bool) {
    while !locked() {
        tokio::time::sleep(TICK).await;
    }
}

/// Boots the app, visits it, and keeps what the waker left when it slept.
async fn make(golden: &Path, binaries: &Binaries) {
    let app = App::hello(binaries).cold();
    let mut node = Node::builder(binaries).app(app).without_slot().start().await;
    let endpoint = node.wake("hello").await.endpoint;
    // Once more than the first time, so that what an app does only once is in the image.
    for _ in 0..2 {
        Visit::get("/").send(endpoint).await.expect("the app serves its page").expect_status(200);
    }
    node.sleep("hello").await;
    node.proxy.kill();
    node.waker.stop().await;

    let fresh = golden.with_extension("new");
    let _ = fs::remove_dir_all(&fresh);
    copy(node.state_dir(), &fresh);
    fs::rename(&fresh, golden).unwrap_or_else(|e| panic!("{}: {e}", golden.display()));
}

/// Copies a state directory: what the apps have, not the running VMMs and their sockets.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    let entries = fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    for entry in entries {
        let entry = entry.unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        let socket = entry.file_type().is_ok_and(|t| t.is_socket());
        // The proxies that its waker knew are none of ours.
        let others = entry.file_name() == "vmm" || entry.file_name() == "proxies.json";
        if socket || others {
            continue;
        }
        let status = Command::new("cp")
            .args(["-a", "--sparse=always", "--reflink=auto"])
            .arg(entry.path())
            .arg(to)
            .status()
            .unwrap_or_else(|e| panic!("cp: {e}"));
        assert!(status.success(), "cp {}: {status}", entry.path().display());
    }
}

/// A name for all that an image depends on.
fn key(binaries: &Binaries, waker: &WakerConfig) -> String {
    let mut hash = Sha256::new();
    for path in [binaries.waker(), binaries.kernel(), binaries.initrd()] {
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        hash.update(path.as_os_str().as_encoded_bytes());
        hash.update(Sha256::digest(&bytes));
    }
    hash.update(&waker.qemu.accelerator);
    if let Ok(version) = Command::new("qemu-system-x86_64").arg("--version").output() {
        hash.update(version.stdout);
    }
    format!("{}-{}", dir_name(binaries), &hex::encode(hash.finalize())[..16])
}

/// `debug` or `release`: images of one do not push out those of the other.
fn dir_name(binaries: &Binaries) -> String {
    binaries.dir().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Throws away images of the same binaries' earlier builds.
fn remove_others(kept: &Path, golden: &Path) {
    let name = golden.file_name().unwrap_or_default().to_string_lossy();
    let family = name.rsplit_once('-').map_or(&*name, |(family, _)| family);
    let others = fs::read_dir(kept).into_iter().flatten().flatten().map(|e| e.path());
    let old =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(family));
    for path in others.filter(old) {
        let _ = fs::remove_dir_all(path);
    }
}
