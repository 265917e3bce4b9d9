//! How long a look-up and a change take, and what an app costs in memory.
//!
//! `cargo run --release -p rouse-route --example lookup`
#![allow(clippy::print_stdout, reason = "it is what was asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderMap;
use rouse_route::{LiveRoutes, Rule};

/// Counts what is asked of the system's allocator.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
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

const LOOKUPS: u32 = 100_000;
const ROUNDS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "look-ups: ns each, least and median of {ROUNDS} rounds of {LOOKUPS}, hosts at random\n"
    );
    for apps in [10, 10_000] {
        measure(apps)?;
    }
    Ok(())
}

fn measure(apps: usize) -> Result<(), Box<dyn std::error::Error>> {
    println!("{apps} apps");
    let rules = |i: usize| -> Result<Vec<Rule>, Box<dyn std::error::Error>> {
        Ok(vec![serde_json::from_str(&format!("\"app-{i:05}.apps.example\""))?])
    };
    let target = Arc::new(0_u64);
    let live = LiveRoutes::default();
    let before = BYTES.load(Ordering::Relaxed);
    let start = Instant::now();
    for i in 0..apps {
        let (app, rules) = (format!("app-{i:05}").parse()?, rules(i)?);
        live.change(|routes| drop(routes.set(&app, rules, target.clone())));
    }
    let one_by_one = start.elapsed();
    let used = BYTES.load(Ordering::Relaxed) - before;
    println!("  {:>28}: {} bytes", "memory of an app", used / apps);
    per("changes, one by one", one_by_one, apps);

    let whole = LiveRoutes::default();
    let start = Instant::now();
    whole.change(|routes| -> Result<(), Box<dyn std::error::Error>> {
        for i in 0..apps {
            let _ = routes.set(&format!("app-{i:05}").parse()?, rules(i)?, target.clone());
        }
        Ok(())
    })?;
    per("changes, all in one", start.elapsed(), apps);

    let host = |i: usize| format!("app-{i:05}.apps.example");
    time("the loop itself", apps, host, |host| {
        black_box(host.as_bytes().first());
    });
    look(&live, "exact host", apps, host, "/a/b?c");
    look(&live, "exact host and port", apps, |i| host(i) + ":8443", "/a/b?c");
    look(&live, "unknown host", apps, |i| host(i + apps), "/");

    let beside: Vec<Rule> = serde_json::from_str(
        r#"["*.wild.example", {"host": "paths.example", "path": "/api/v1"},
            {"host": "paths.example", "path": "/static"}, "paths.example"]"#,
    )?;
    let app = "beside".parse()?;
    live.change(|routes| drop(routes.set(&app, beside, target.clone())));
    look(&live, "wildcard", apps, |i| format!("a-{i}.wild.example"), "/");
    look(&live, "two paths, plain", apps, |_| "paths.example".to_owned(), "/api/v1/x/y");
    look(&live, "two paths, odd", apps, |_| "paths.example".to_owned(), "/x/%2e%2e/api//v1/x");
    println!();
    Ok(())
}

fn per(what: &str, took: Duration, n: usize) {
    println!("  {what:>28}: {:.1} µs each", took.as_secs_f64() * 1e6 / n as f64);
}

fn look(
    live: &LiveRoutes<Arc<u64>>,
    what: &str,
    apps: usize,
    host: impl Fn(usize) -> String,
    path: &str,
) {
    let headers = HeaderMap::new();
    time(what, apps, host, |host| {
        black_box(live.table().lookup(black_box(host), black_box(path), &headers));
    });
}

fn time(what: &str, apps: usize, host: impl Fn(usize) -> String, each: impl Fn(&str)) {
    let hosts: Vec<_> = (0..apps).map(host).collect();
    let calls = CALLS.load(Ordering::Relaxed);
    let mut times = [0.0; ROUNDS];
    for time in &mut times {
        let mut dice = 1_u64;
        let start = Instant::now();
        for _ in 0..LOOKUPS {
            // Knuth's MMIX generator: cheap, and no order that a cache could guess.
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            each(&hosts[(dice >> 33) as usize % apps]);
        }
        *time = start.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS);
    }
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    times.sort_by(f64::total_cmp);
    println!("  {what:>28}: {:.0} {:.0} ns, {calls} allocations", times[0], times[ROUNDS / 2]);
}
