//! The end-to-end harness: real binaries, real sockets, real microVMs.
//!
//! - [`Node`]: a waker and a proxy of one's own, with an app that sleeps.
//! - [`Front`]: a proxy with every kind of port before a [`RawOrigin`] that keeps every byte it gets.
//! - [`Visit`]: one request as a visitor makes it; [`Raw`]: the bytes themselves; [`Frames`]:
//!   those of HTTP/2.
//! - [`eventually`] and [`assert_eventually!`]: waiting for a fact, never for a time.
//! - [`Binaries`]: where the programs under test are.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `ROUSE_BIN_DIR` | where the binaries are; without it beside the program that runs |
//! | `ROUSE_GUEST_DIR` | where `vmlinuz` and `initrd.cpio.gz` are; without it `target/guest` |
//! | `ROUSE_ACCEL` | `tcg` (without it), `kvm` or `auto` |
//! | `ROUSE_PATIENCE` | how many seconds a fact may take to come true; 60 without it |
//! | `ROUSE_NODES` | how many nodes run at once, over all processes; the cores, at most 4, without it |
//! | `ROUSE_KEEP` | when set, the nodes' directories stay |
#![forbid(unsafe_code)]

mod binaries;
mod certificates;
mod config;
mod daemon;
pub mod frames;
mod front;
mod golden;
mod log;
mod metrics;
mod node;
pub mod origin;
mod pages;
mod program;
mod slots;
mod visit;
mod vm;
mod volume;
mod wait;

pub use binaries::Binaries;
pub use certificates::Certificate;
pub use config::{
    App, AppSleep, Disk, Gate, GuestVm, Hold, Listen, Origin, Park, Patch, ProxyConfig, ProxyWaker,
    Qemu, S3, Server, Store, Wake, WakerConfig, WakerSleep, WakerSocket,
};
pub use daemon::Daemon;
pub use frames::Frames;
pub use front::{Front, FrontBuilder, ORIGIN_HOST};
pub use log::{LogError, LogHead, LogLine, read_log};
pub use metrics::{Metrics, Sample};
pub use node::{Node, NodeBuilder, free_port};
pub use origin::RawOrigin;
pub use pages::{Counter, Echo, sha256};
pub use program::{Ran, run};
pub use visit::{
    DEFAULT_HOST, Open, Raw, Reply, Visit, VisitError, crowd, fetch_unix, websocket, websocket_for,
};
pub use vm::{Vm, vmms_of};
pub use volume::{FileSystem, Volume, VolumeError};
pub use wait::{eventually, patience};
