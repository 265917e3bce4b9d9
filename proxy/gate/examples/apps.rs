//! What an app costs a gate in memory, asleep and once it serves, and how long it takes to be found.
//!
//! `cargo run --release -p rouse-gate --example apps`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is what was asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use rouse_gate::verdict::Heard;
use rouse_gate::{Dialer, Events, Gate, Limits, Probe, Prober, Settings, Upstream, Waker};
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::client::ClientError;
use rouse_protocol::route::HostPattern;
use rouse_protocol::signature::DEFAULT_GATE_PATH;
use rouse_protocol::wake::{
    Agreement, Outcome, Ready, Served, SleepReport, SleepRequest, WakeEvent,
};
use rouse_protocol::watch::{AppState, AppView, Policy, WatchEvent};
use tokio::time::Instant;

/// Counts what is asked of the system's allocator.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A waker of so many apps, which are made as they are told.
struct StandIn(usize);

fn host(i: usize) -> String {
    format!("app-{i}.example.com")
}

fn view(i: usize) -> AppView {
    AppView {
        id: format!("app-{i}").parse().unwrap(),
        rules: vec![host(i).parse::<HostPattern>().unwrap().into()],
        policy: Policy {
            idle_ms: 0,
            hold_deadline_ms: 25_000,
            gate_path: DEFAULT_GATE_PATH.to_owned(),
            ..Policy::default()
        },
        generation: Generation(0),
        since_unix_ms: 0,
        state: AppState::Asleep,
    }
}

struct Watch {
    told: usize,
    of: usize,
}

#[async_trait]
impl Events<WatchEvent> for Watch {
    async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        self.told += 1;
        match self.told - 1 {
            i if i < self.of => Ok(Some(WatchEvent::App(view(i)))),
            i if i == self.of => Ok(Some(WatchEvent::Synced)),
            _ => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Some(WatchEvent::Alive))
            }
        }
    }
}

struct Woken(Option<WakeEvent>);

#[async_trait]
impl Events<WakeEvent> for Woken {
    async fn next(&mut self) -> Result<Option<WakeEvent>, ClientError> {
        Ok(self.0.take())
    }
}

#[async_trait]
impl Waker for StandIn {
    async fn wake(&self, _: &AppId) -> Result<Box<dyn Events<WakeEvent>>, ClientError> {
        let (endpoint, generation) = (([127, 0, 0, 1], 1).into(), Generation(1));
        let ready = Ready { endpoint, generation, outcome: Outcome::Resumed, key: None };
        Ok(Box::new(Woken(Some(WakeEvent::Ready(ready)))))
    }

    async fn sleep(&self, _: &AppId, _: &SleepRequest) -> Result<SleepReport, ClientError> {
        std::future::pending().await
    }

    async fn agree(&self, _: &AppId, _: &Agreement) -> Result<(), ClientError> {
        Ok(())
    }

    async fn served(&self, _: &AppId, _: &Served) -> Result<(), ClientError> {
        Ok(())
    }

    async fn watch(&self, _: &str) -> Result<Box<dyn Events<WatchEvent>>, ClientError> {
        Ok(Box::new(Watch { told: 0, of: self.0 }))
    }
}

/// Apps that serve at once.
struct Serving;

#[async_trait]
impl Prober for Serving {
    async fn probe(&self, _: &Probe) -> (Heard, Option<Instant>) {
        (Heard::Answer { agent: Vec::new() }, Some(Instant::now()))
    }
}

struct NoConnections;

impl Upstream for NoConnections {
    fn shut(&self) {}
}

impl Dialer for NoConnections {
    fn upstream(&self, _: &AppId, _: SocketAddr, _: Generation) -> Arc<dyn Upstream> {
        Arc::new(Self)
    }
}

/// Bytes allocated, and resident.
fn memory() -> (usize, usize) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (BYTES.load(Ordering::Relaxed), resident * 4096)
}

async fn measure(apps: usize) {
    let before = memory();
    let settings = Settings {
        name: "apps".to_owned(),
        limits: Limits::default(),
        waker: Some(Arc::new(StandIn(apps))),
        prober: Arc::new(Serving),
        dialer: Arc::new(NoConnections),
        observer: Arc::new(()),
        runtime: tokio::runtime::Handle::current(),
    };
    let gate = Gate::start(settings, []);
    while !gate.synced() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let per_app = |(bytes, resident): (usize, usize)| {
        let each = |now: usize, then: usize| now.saturating_sub(then) / apps;
        (each(bytes, before.0), each(resident, before.1))
    };
    let (asleep, asleep_resident) = per_app(memory());

    let hosts: Vec<_> = (0..apps).map(host).collect();
    let headers = HeaderMap::new();
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let (mut i, rounds) = (0, 100_000);
        let start = Instant::now();
        for _ in 0..rounds {
            // In no order: what was found last is in no cache.
            i = (i + 7_919) % apps;
            black_box(gate.enter(&hosts[i], "/", &headers, start));
        }
        best = best.min(start.elapsed() / rounds);
    }
    drop(hosts);

    for i in 0..apps {
        let mut visitor = gate.enter(&host(i), "/", &headers, Instant::now()).unwrap();
        gate.hold(&mut visitor, rouse_gate::Asker::default(), std::future::pending())
            .await
            .unwrap();
        gate.answered(&mut visitor);
    }
    // What paces a release and what tells the waker end within a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (open, open_resident) = per_app(memory());
    println!(
        "{apps:>6} apps: asleep {asleep} bytes an app ({asleep_resident} resident), \
         open {open} ({open_resident}), found and left in {best:?}"
    );
    gate.end().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The largest first: what a smaller one frees would hide its pages.
    for apps in [10_000, 1_000, 10] {
        runtime.block_on(measure(apps));
    }
}
