//! The tables, the same as JSON, and the bars.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::visitors::{INSTANTS, Sleep, Visitor, percent};
use super::{Cycle, DIRTY_MIB, MEMORY_MIB};
use crate::report::{Bar, Report};
use crate::stats::{median, worst};
use crate::units::mib;

/// For how long the app can't be served from its VM, in milliseconds.
const REOPEN: Bar = Bar::AtMost(50.0);
/// How many times less than writing all of the memory a sleep takes, and how many times less it writes.
const VS_FULL: Bar = Bar::AtLeast(5.0);
/// How many visitors are left waiting until a sleep is finished.
const LEFT_WAITING: Bar = Bar::AtMost(0.0);

/// Everything that was measured.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) machine: Value,
    pub(super) filesystem: String,
    pub(super) cycles: Vec<Cycle>,
    pub(super) visitors: Vec<Visitor>,
}

/// A row of figures, one a cycle.
struct Row {
    name: &'static str,
    values: Vec<f64>,
    median: f64,
    worst: f64,
}

impl Outcome {
    /// Prints the tables.
    pub(super) fn report(&self) -> anyhow::Result<Report> {
        let mut figures = json!({
            "machine": self.machine,
            "filesystem": self.filesystem,
            "memory_mib": MEMORY_MIB,
            "dirty_mib": DIRTY_MIB,
            "cycles": self.cycles.len(),
        });
        let times = self.times()?;
        print_rows("ms from the request", "ms", &times, &mut figures);
        let sizes = self.sizes()?;
        print_rows("MiB", "mib", &sizes, &mut figures);
        let middle = |rows: &[Row], name| {
            let row = rows.iter().find(|row| row.name == name);
            row.map(|row| row.median).with_context(|| format!("no {name}"))
        };
        let faster = middle(&times, "full")? / middle(&times, "published")?;
        let smaller = middle(&sizes, "full_written")? / middle(&sizes, "written")?;
        println!(
            "\nall of the memory to a sleep: {faster:.1} × the time, {smaller:.1} × the bytes"
        );
        figures["full_vs_sleep"] = json!({ "time": faster, "bytes": smaller });

        let woken = times.iter().find(|row| row.name == "wake").context("no wakes")?;
        println!("\na wake from the image: {:.1} ms, worst {:.1} ms", woken.median, woken.worst);
        let (at, slowest) = self.instants();
        figures["visitors"] = at.into();
        let visited: Vec<_> = self.visitors.iter().map(|visitor| visitor.ms).collect();
        figures["visitor_median_ms"] = median(&visited).into();
        let waiting = self.visitors.iter().filter(|v| v.sleep == Sleep::Finished).count();
        println!();
        Ok(Report::new("sleep", figures)
            .bar("reopen_median_ms", middle(&times, "reopen")?, REOPEN)
            .bar("time_full_vs_sleep", faster, VS_FULL)
            .bar("bytes_full_vs_sleep", smaller, VS_FULL)
            .bar("visitor_worst_ms", slowest, Bar::AtMost(woken.worst))
            .bar("visitors_left_waiting", waiting as f64, LEFT_WAITING))
    }

    /// In milliseconds. Those of a sleep are from its request, but `reopen`: that is how long the app
    /// could not be served from its VM.
    fn times(&self) -> anyhow::Result<Vec<Row>> {
        let us = |of: &dyn Fn(&Cycle) -> u64| self.column(&|cycle| of(cycle) as f64 / 1e3);
        let reopen = |c: &Cycle| Some(c.sleep.saved_us.checked_sub(c.sleep.flushed_us)? as f64);
        let reopen: Option<Vec<_>> = self.cycles.iter().map(reopen).collect();
        let reopen = reopen.context("a VM was saved before the guest had flushed its disk")?;
        [
            ("wake", self.column(&|cycle| cycle.wake_ms)),
            ("agreed", us(&|cycle| cycle.sleep.agreed_us)),
            ("flushed", us(&|cycle| cycle.sleep.flushed_us)),
            ("stopped", us(&|cycle| cycle.sleep.stopped_us)),
            ("saved", us(&|cycle| cycle.sleep.saved_us)),
            ("durable", us(&|cycle| cycle.sleep.durable_us)),
            ("published", us(&|cycle| cycle.sleep.published_us)),
            ("reopen", reopen.into_iter().map(|us| us / 1e3).collect()),
            ("full", self.column(&|cycle| cycle.full.ms)),
        ]
        .into_iter()
        .map(|(name, values)| Row::new(name, values))
        .collect()
    }

    /// In MiB. Beside what is said to be written stands what the disk was given to write, while the
    /// app was awake, in the sleep, and for all of the memory: it does not know who wrote.
    fn sizes(&self) -> anyhow::Result<Vec<Row>> {
        let size = |of: &dyn Fn(&Cycle) -> u64| self.column(&|cycle| mib(of(cycle)));
        let mut rows = vec![
            Row::new("written", size(&|cycle| cycle.sleep.written_bytes))?,
            Row::new("image", size(&|cycle| cycle.sleep.image_bytes))?,
            Row::new("full_written", size(&|cycle| cycle.full.bytes))?,
        ];
        let disk = |of: &dyn Fn(&Cycle) -> Option<u64>| {
            self.cycles.iter().map(|cycle| of(cycle).map(mib)).collect::<Option<Vec<_>>>()
        };
        for (name, values) in [
            ("disk_life", disk(&|cycle| cycle.disk_life)),
            ("disk_sleep", disk(&|cycle| cycle.disk_sleep)),
            ("disk_full", disk(&|cycle| cycle.full.disk_bytes)),
        ] {
            if let Some(values) = values {
                rows.push(Row::new(name, values)?);
            }
        }
        Ok(rows)
    }

    fn column(&self, of: &dyn Fn(&Cycle) -> f64) -> Vec<f64> {
        self.cycles.iter().map(of).collect()
    }

    /// What visitors met at each instant, and how long the slowest of all waited: not a number when
    /// there is an instant at which none came.
    fn instants(&self) -> (Vec<Value>, f64) {
        println!("{:<16}{:>12}{:>12}  the sleep", "visitor at", "median ms", "worst ms");
        let (mut all, mut slowest) = (Vec::new(), Vec::new());
        for instant in 0..INSTANTS {
            let at = format!("{:.0} %", percent(instant));
            let came: Vec<_> = self.visitors.iter().filter(|v| v.instant == instant).collect();
            let waited: Vec<_> = came.iter().map(|visitor| visitor.ms).collect();
            let (median, worst) = (median(&waited), worst(&waited));
            let mut sleeps = Map::new();
            for sleep in Sleep::ALL {
                let count = came.iter().filter(|visitor| visitor.sleep == sleep).count();
                if count > 0 {
                    sleeps.insert(sleep.as_str().to_owned(), count.into());
                }
            }
            if let Some((median, worst)) = median.zip(worst) {
                let told: Vec<_> = sleeps.iter().map(|(how, n)| format!("{how} {n}")).collect();
                println!("{at:<16}{median:>12.1}{worst:>12.1}  {}", told.join(", "));
            } else {
                println!("{at:<16}{:>12}{:>12}  was always over before", "-", "-");
            }
            slowest.push(worst);
            let woken: Vec<_> = came.iter().map(|visitor| visitor.how.as_str()).collect();
            all.push(json!({
                "percent": percent(instant),
                "median_ms": median,
                "worst_ms": worst,
                "ms_by_round": waited,
                "woken_by_round": woken,
                "sleeps": sleeps,
            }));
        }
        let slowest = slowest.into_iter().collect::<Option<Vec<_>>>();
        (all, slowest.and_then(|all| worst(&all)).unwrap_or(f64::NAN))
    }
}

impl Row {
    fn new(name: &'static str, values: Vec<f64>) -> anyhow::Result<Self> {
        let (median, worst) = median(&values).zip(worst(&values)).context("no cycles")?;
        Ok(Self { name, values, median, worst })
    }
}

/// Prints a table of `rows`, and tells it in `figures`. `unit` is part of the keys there.
fn print_rows(title: &str, unit: &str, rows: &[Row], figures: &mut Value) {
    println!("\n{title:<24}{:>12}{:>12}", "median", "worst");
    for row in rows {
        println!("{:<24}{:>12.1}{:>12.1}", row.name, row.median, row.worst);
        let mut told = Map::new();
        told.insert(format!("median_{unit}"), row.median.into());
        told.insert(format!("worst_{unit}"), row.worst.into());
        told.insert(format!("{unit}_by_cycle"), row.values.clone().into());
        figures[row.name] = told.into();
    }
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;
    use rouse_protocol::wake::{SleepReport, Tier};

    use super::*;
    use crate::sleep::full::Full;

    /// A cycle whose sleep was saved, and over, so many milliseconds after its request.
    fn cycle(wake_ms: f64, saved: u64, published: u64) -> Cycle {
        let sleep = SleepReport {
            generation: Generation(8),
            tier: Tier::Image,
            agreed_us: 2000,
            flushed_us: 5000,
            stopped_us: 6000,
            saved_us: saved * 1000,
            durable_us: published * 1000 - 1000,
            published_us: published * 1000,
            written_bytes: 128 << 20,
            image_bytes: 300 << 20,
        };
        let full = Full { ms: 2000.0, bytes: 1 << 30, disk_bytes: Some(1 << 30) };
        Cycle { wake_ms, sleep, disk_life: Some(1 << 20), disk_sleep: Some(140 << 20), full }
    }

    fn visitor(instant: usize, ms: f64, sleep: Sleep) -> Visitor {
        Visitor { instant, ms, how: "awake".into(), sleep }
    }

    fn outcome() -> Outcome {
        let visitors = (0..INSTANTS).map(|instant| visitor(instant, 20.0, Sleep::Cancelled));
        Outcome {
            machine: json!({}),
            filesystem: "ext4".into(),
            cycles: vec![cycle(400.0, 25, 500), cycle(600.0, 35, 400), cycle(500.0, 95, 300)],
            visitors: visitors.collect(),
        }
    }

    fn told(outcome: &Outcome) -> String {
        format!("{:?}", outcome.report().unwrap())
    }

    #[test]
    fn a_sleep_beside_all_of_the_memory() {
        let report = told(&outcome());
        for part in [
            r#""saved": Object {"median_ms": Number(35.0), "ms_by_cycle""#,
            r#""published": Object {"median_ms": Number(400.0)"#,
            r#""disk_sleep": Object {"median_mib": Number(140.0)"#,
            r#""full_vs_sleep": Object {"bytes": Number(8.0), "time": Number(5.0)}"#,
            r#"("reopen_median_ms", 30.0, AtMost(50.0))"#,
            r#"("time_full_vs_sleep", 5.0, AtLeast(5.0))"#,
            r#"("bytes_full_vs_sleep", 8.0, AtLeast(5.0))"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        // A disk that does not tell is no reason not to measure.
        let mut silent = outcome();
        silent.cycles[1].disk_sleep = None;
        assert!(!told(&silent).contains(r#""disk_sleep""#));
        assert!(told(&silent).contains(r#""disk_full""#));
        // Times that can't be are not told.
        silent.cycles[1].sleep.flushed_us = 36_000;
        assert!(silent.report().is_err());
        silent.cycles.clear();
        assert!(silent.report().is_err());
    }

    #[test]
    fn the_slowest_visitor_is_held_against_the_slowest_wake() {
        let mut outcome = outcome();
        outcome.visitors.push(visitor(3, 599.0, Sleep::Over));
        outcome.visitors.push(visitor(3, 45.0, Sleep::Finished));
        let report = told(&outcome);
        for part in [
            r#""percent": Number(35.0), "sleeps": Object {"cancelled": Number(1), "finished": Number(1), "over": Number(1)}"#,
            r#""visitor_median_ms": Number(20.0)"#,
            r#"("visitor_worst_ms", 599.0, AtMost(600.0))"#,
            r#"("visitors_left_waiting", 1.0, AtMost(0.0))"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
    }

    #[test]
    fn an_instant_without_a_visitor_is_not_passed_over() {
        let mut outcome = outcome();
        outcome.visitors.retain(|visitor| visitor.instant != 4);
        let report = told(&outcome);
        assert!(report.contains(r#"("visitor_worst_ms", NaN, AtMost(600.0))"#), "{report}");
        assert!(report.contains(r#"("visitors_left_waiting", 0.0, AtMost(0.0))"#), "{report}");
    }
}
