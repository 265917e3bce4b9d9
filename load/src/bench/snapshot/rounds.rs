//! Our commands and their peers in turn, round by round.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use anyhow::Context;

use super::job::{Done, Job, Part};
use super::lab::{Files, Lab};
use super::memory;

/// How often each job is measured durable: a disk's figures are told, not judged.
pub(super) const SYNCED_ROUNDS: usize = 3;

/// What the rounds have shown of one image.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) jobs: BTreeMap<Job, Measured>,
    /// How long each took durable, in milliseconds, in rounds of their own.
    pub(super) synced: BTreeMap<Job, Vec<f64>>,
    /// The memory's bandwidth, in bytes per second, measured beside the parts that are read against
    /// it.
    pub(super) bandwidth: BTreeMap<Part, Vec<f64>>,
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
            let done = turn(lab, files, &jobs, round, false).await?;
            for (job, done) in done {
                let measured = results.jobs.entry(job).or_default();
                measured.ms.push(ms(done));
                measured.stored = done.stored;
            }
            if matches!(part, Part::Sparsify | Part::Verify) {
                let bandwidth = tokio::task::spawn_blocking(memory::bandwidth).await;
                let bandwidth = bandwidth.context("the memory's bandwidth")?;
                results.bandwidth.entry(*part).or_default().push(bandwidth);
            }
        }
        // Reading is as durable as it gets.
        if *part == Part::Verify {
            continue;
        }
        for round in 0..SYNCED_ROUNDS {
            for (job, done) in turn(lab, files, &jobs, round, true).await? {
                results.synced.entry(job).or_default().push(ms(done));
            }
        }
    }
    Ok(results)
}

/// One round.
async fn turn(
    lab: &Lab,
    files: &Files,
    jobs: &[Job],
    round: usize,
    synced: bool,
) -> anyhow::Result<Vec<(Job, Done)>> {
    let mut all = Vec::new();
    for n in 0..jobs.len() {
        let job = jobs[(n + round) % jobs.len()];
        all.push((job, job.run(lab, files, synced).await?));
        job.clean(files)?;
    }
    let told: Vec<_> =
        all.iter().map(|(job, done)| format!("{} {:.0} ms", job.name(), ms(*done))).collect();
    let name = if synced { "synced round" } else { "round" };
    println!("{name} {}: {}", round + 1, told.join(", "));
    Ok(all)
}

fn ms(done: Done) -> f64 {
    done.took.as_secs_f64() * 1e3
}
