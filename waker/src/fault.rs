//! Named points at which a test has the waker fail, or end as a crash would.
//!
//! Built in by the feature `failpoints` alone, and armed by the environment variable `FAILPOINTS` in
//! the syntax of the crate `fail`: `publish=return(kill);settle-sync=1*return(eio)`.

use std::io;

/// Every point, in the order of an app's life.
pub const POINTS: &[&str] = &[
    "consume",
    "consumed",
    "reserve",
    "run-record",
    "resume",
    "woken",
    "save",
    "saved",
    "settle-memory",
    "settle-sync",
    "settle-map",
    "settle-manifest",
    "settled",
    "undo",
    "finish",
    "finished",
    "publish",
    "published",
    "trim",
    "fresh",
    "disk",
    "store-memory",
    "store-layers",
    "store-manifest",
    "store-freeing",
    "store-freed",
    "store-taking",
    "store-taken",
    "store-fetching",
    "store-fetched",
    "store-adopted",
    "store-mounted",
    "store-begun",
    "store-runs",
];

/// What the point is armed with: an error, or this process's end. Nothing, normally.
#[cfg(feature = "failpoints")]
pub fn hit(point: &'static str) -> io::Result<()> {
    use rustix::io::Errno;
    fail::fail_point!(point, |what: Option<String>| {
        tracing::warn!(point, what, "a fail point is hit");
        Err(match what.as_deref() {
            Some("kill") => {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                Errno::INTR.into()
            }
            Some("enospc") => Errno::NOSPC.into(),
            Some("erofs") => Errno::ROFS.into(),
            _ => Errno::IO.into(),
        })
    });
    Ok(())
}

/// Nothing: fail points are not built in.
#[cfg(not(feature = "failpoints"))]
pub fn hit(_: &'static str) -> io::Result<()> {
    Ok(())
}

/// Arms the points that the environment names, for as long as the answer lives.
#[cfg(feature = "failpoints")]
pub fn arm() -> impl Sized {
    fail::FailScenario::setup()
}

/// Nothing: fail points are not built in.
#[cfg(not(feature = "failpoints"))]
pub fn arm() -> impl Sized {}
