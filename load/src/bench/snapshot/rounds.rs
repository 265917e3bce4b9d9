//! Our commands and their peers in turn, round by round.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use anyhow::Context;

use super::job::{Job, Part};
use super::lab::{Files, Lab};
use super::memory;

/// What the rounds have shown of one image.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) jobs: BTreeMap<Job, Measured>,
    /// Each job once more, durable, in milliseconds.
    pub(super) synced: BTreeMap<Job, f64>,
    /// The memory's bandwidth, in bytes per second, measured beside `verify`.
    pub(super) bandwidth: Vec<f64>,
}

/// What the rounds have shown of one job.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// How long it took, in milliseconds, round by round.
    pub(super) ms: Vec<f64>,
    /// What it wrote in the last round, in bytes.
    pub(super) stored: u64,
}

/// Measures the jobs of `parts` on one image. Those of one part follow each other, each round in
/// another order. Before, each is done once, to see whether it does it well.
pub(super) async fn measure(
    lab: &Lab,
    files: &Files,
    parts: &[Part],
    rounds: NonZeroUsize,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for part in parts {
        let jobs: Vec<_> = Job::ALL.into_iter().filter(|job| job.part() == *part).collect();
        for job in &jobs {
            job.check(lab, files).await?;
        }
        for round in 0..rounds.get() {
            let mut told = Vec::new();
            for n in 0..jobs.len() {
                let job = jobs[(n + round) % jobs.len()];
                let done = job.run(lab, files, false).await?;
                job.clean(files)?;
                let ms = done.took.as_secs_f64() * 1e3;
                told.push(format!("{} {ms:.0} ms", job.name()));
                let measured = results.jobs.entry(job).or_default();
                measured.ms.push(ms);
                measured.stored = done.stored;
            }
            if *part == Part::Verify {
                let bandwidth = tokio::task::spawn_blocking(memory::bandwidth).await;
                results.bandwidth.push(bandwidth.context("the memory's bandwidth")?);
            }
            if !told.is_empty() {
                println!("round {}: {}", round + 1, told.join(", "));
            }
        }
        // Reading is as durable as it gets.
        for job in jobs.into_iter().filter(|job| *job != Job::Verify) {
            let done = job.run(lab, files, true).await?;
            job.clean(files)?;
            results.synced.insert(job, done.took.as_secs_f64() * 1e3);
        }
    }
    Ok(results)
}
