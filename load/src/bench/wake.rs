//! `rouse-bench wake`: what a wake is made of, on a real microVM.
//!
//! A waker and a proxy of our own, an app that has been booted once, and then again and again:
//! put to sleep, left alone a while, visited by one plain client.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, ensure};
use rouse_protocol::wake::Phase;
use rouse_tests::{DEFAULT_HOST, Node};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::machine;
use crate::report::{Bar, Report};
use crate::stats::{median, worst};
use crate::timing::Timing;
use crate::units::ms;
use crate::visit::visit;
use crate::waterfall;

/// The budget for everything that is neither VMM nor guest nor app.
const OWN_SHARE: Bar = Bar::AtMost(5.0);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How many wakes are measured.
    #[arg(long, default_value = "20")]
    cycles: NonZeroUsize,
    /// How long the app is left asleep, in milliseconds: as a real one it wakes on a quiet machine,
    /// with a VMM started in advance.
    #[arg(long, default_value = "1500")]
    pause_ms: u64,
    #[command(flatten)]
    guest: Guest,
}

/// One cycle.
#[derive(Debug)]
struct Cycle {
    /// As the proxy told it, in milliseconds.
    timing: Timing,
    /// As the visitor saw it, in milliseconds.
    visitor_total: f64,
    /// How long the sleep before it took until it was durable, in milliseconds.
    sleep: f64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let qemu = machine::installed("qemu-system-x86_64")?;
    let machine = machine::describe(&[("qemu", &qemu, "--version")]);
    let accel = args.guest.accelerator();
    println!("wake: {} sleep-wake cycles of a microVM ({accel})", args.cycles);
    machine::print(&machine);

    let binaries = args.guest.find()?;
    let (mut node, booted) = args.guest.booted(&binaries).await?;
    println!("first boot: {:.0} ms", ms(booted.took));
    // One cycle that does not count, for the caches.
    cycle(&node, args.pause_ms).await?;

    let mut cycles = Vec::new();
    for n in 1..=args.cycles.get() {
        let done = cycle(&node, args.pause_ms).await.with_context(|| format!("cycle {n}"))?;
        let own = done.timing.get("own").unwrap_or(f64::NAN);
        println!("cycle {n:>3}: page after {:>7.1} ms, our own {own:>5.2} ms", done.visitor_total);
        cycles.push(done);
    }
    node.sleep("hello").await;
    node.proxy.kill();
    node.waker.stop().await;

    report(&cycles, machine)?.print(args.json);
    Ok(())
}

async fn cycle(node: &Node, pause_ms: u64) -> anyhow::Result<Cycle> {
    let slept = node.sleep("hello").await;
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    let woken = visit(node.http(), DEFAULT_HOST, "/").await?;
    ensure!(woken.how == "resumed", "the app was not resumed, it was {}", woken.how);
    for name in Phase::ALL.map(Phase::as_str).into_iter().chain(["own", "total"]) {
        ensure!(woken.timing.get(name).is_some(), "Server-Timing says nothing of {name}");
    }
    let visitor_total = ms(woken.took);
    Ok(Cycle { timing: woken.timing, visitor_total, sleep: slept.durable_us as f64 / 1e3 })
}

/// The table, the waterfall of the medians, and the same as JSON.
fn report(cycles: &[Cycle], machine: Value) -> anyhow::Result<Report> {
    let column = |of: &dyn Fn(&Cycle) -> f64| cycles.iter().map(of).collect::<Vec<_>>();
    let timed = |name: &str| column(&|cycle| cycle.timing.get(name).unwrap_or(f64::NAN));
    let phases = Phase::ALL.map(|phase| (phase.as_str(), timed(phase.as_str())));
    let sums = [
        ("own_share", timed("own")),
        ("total", timed("total")),
        ("visitor_total", column(&|cycle| cycle.visitor_total)),
        ("sleep", column(&|cycle| cycle.sleep)),
    ];

    println!("\n{:<16}{:>12}{:>12}", "ms", "median", "worst");
    let mut figures = json!({ "machine": machine, "cycles": cycles.len() });
    let mut waterfall = Vec::new();
    let mut own_share = None;
    for (name, values) in phases.into_iter().chain(sums) {
        let (median, worst) = median(&values).zip(worst(&values)).context("no cycles")?;
        println!("{name:<16}{median:>12.2}{worst:>12.2}");
        figures[name] = json!({ "median_ms": median, "worst_ms": worst });
        waterfall.push(format!("{};dur={median}", if name == "own_share" { "own" } else { name }));
        if name == "own_share" {
            own_share = Some(median);
        }
    }
    println!("\nthe median wake:\n{}\n", waterfall::draw(&Timing::parse(&waterfall.join(","))));
    let own_share = own_share.context("no cycles")?;
    Ok(Report::new("wake", figures).bar("own_share_median_ms", own_share, OWN_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_and_worst() {
        let cycle = |gate: f64, own: f64| Cycle {
            timing: Timing::parse(&format!(
                "hold;dur=1, gate;dur={gate}, own;dur={own}, total;dur=9"
            )),
            visitor_total: gate + 1.0,
            sleep: 3.0,
        };
        let cycles = [cycle(5.0, 2.0), cycle(300.0, 6.0), cycle(7.0, 4.0)];
        let report = format!("{:?}", report(&cycles, json!({})).unwrap());
        for part in [
            r#""gate": Object {"median_ms": Number(7.0), "worst_ms": Number(300.0)}"#,
            r#""visitor_total": Object {"median_ms": Number(8.0), "worst_ms": Number(301.0)}"#,
            r#"("own_share_median_ms", 4.0, AtMost(5.0))"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
    }
}
