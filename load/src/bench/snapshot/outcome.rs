//! The tables, the same as JSON, and the bars.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::job::Job;
use super::peak::Peak;
use super::rounds::Results;
use crate::report::{Bar, Report};
use crate::stats::{median, paired_ratio};

/// A job of ours beside a peer's.
struct Contest {
    name: &'static str,
    /// The fastest of them counts.
    ours: &'static [Job],
    peer: Job,
    /// How many times as fast it must be, on the large image and on the real one.
    bars: Option<(f64, f64)>,
}

const CONTESTS: [Contest; 5] = [
    Contest {
        name: "sparsify_vs_fallocate",
        ours: &[Job::Sparsify],
        peer: Job::DigHoles,
        bars: Some((3.0, 3.0)),
    },
    Contest {
        name: "sparsify_vs_cp",
        ours: &[Job::Sparsify, Job::SparsifyOutput],
        peer: Job::Cp,
        bars: Some((3.0, 3.0)),
    },
    Contest { name: "pack_vs_zstd", ours: &[Job::Pack], peer: Job::Zstd, bars: Some((2.0, 1.0)) },
    // zstd has no map to go by: told, not judged.
    Contest {
        name: "pack_with_map_vs_zstd",
        ours: &[Job::PackMapped],
        peer: Job::Zstd,
        bars: None,
    },
    Contest {
        name: "unpack_vs_zstd",
        ours: &[Job::Unpack],
        peer: Job::Unzstd,
        bars: Some((2.0, 1.3)),
    },
];

/// Our archive to zstd's, in bytes: what smaller frames and an index may cost.
const ARCHIVE_SIZE: Bar = Bar::AtMost(1.03);
/// What a wake has for its image, in milliseconds.
const MAP_OPEN: Bar = Bar::AtMost(1.0);
/// Of each command, in MiB: it runs on nodes whose memory is for guests.
const PEAK_MIB: Bar = Bar::AtMost(128.0);

/// Everything that was measured.
#[derive(Debug)]
pub(super) struct Outcome {
    machine: Value,
    filesystem: String,
    rounds: usize,
    pub(super) images: Vec<Image>,
    pub(super) map_open_ms: Option<f64>,
    pub(super) peaks: Vec<(&'static str, Vec<Peak>)>,
}

/// What was measured on one image.
#[derive(Debug)]
pub(super) struct Image {
    /// `synthetic` or `real`.
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) results: Results,
}

impl Outcome {
    pub(super) fn new(machine: Value, filesystem: String, rounds: usize) -> Self {
        Self {
            machine,
            filesystem,
            rounds,
            images: Vec::new(),
            map_open_ms: None,
            peaks: Vec::new(),
        }
    }

    /// Prints the tables.
    pub(super) fn report(self) -> anyhow::Result<Report> {
        let mut bars = Vec::new();
        let mut figures = json!({
            "machine": self.machine,
            "filesystem": self.filesystem,
            "rounds": self.rounds,
        });
        for image in &self.images {
            figures[image.name] = image.tell(&mut bars)?;
        }
        if let Some(ms) = self.map_open_ms {
            println!("\nmap of the synthetic image, opened: {ms:.3} ms");
            figures["map_open_ms"] = ms.into();
            bars.push(("map_open_ms".into(), ms, MAP_OPEN));
        }
        for (image, peaks) in &self.peaks {
            println!("\n{:<24}{:>12}", format!("{image} image"), "peak MiB");
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let mut told = Map::new();
            for (command, bytes) in peaks {
                println!("{command:<24}{:>12.1}", mib(*bytes));
                told.insert((*command).to_owned(), mib(*bytes).into());
                bars.push((format!("peak_mib_{command}_{image}"), mib(*bytes), PEAK_MIB));
            }
            figures["peak_mib"][image] = told.into();
        }
        println!();
        let report = Report::new("snapshot", figures);
        Ok(bars.into_iter().fold(report, |report, (name, value, bar)| report.bar(name, value, bar)))
    }
}

type Bars = Vec<(String, f64, Bar)>;

impl Image {
    fn tell(&self, bars: &mut Bars) -> anyhow::Result<Value> {
        let (mib, data_mib) = (self.bytes >> 20, self.data_bytes as f64 / f64::from(1 << 20));
        println!("\n{} image: {mib} MiB, {data_mib:.1} MiB of them data", self.name);
        println!("{:<24}{:>12}{:>12}{:>12}", "", "median ms", "synced ms", "MiB written");
        let mut jobs = Map::new();
        for (job, measured) in &self.results.jobs {
            let ms = median(&measured.ms).context("no rounds")?;
            let synced = self.results.synced.get(job);
            let durable = synced.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
            let stored = measured.stored as f64 / f64::from(1 << 20);
            println!("{:<24}{ms:>12.1}{durable:>12}{stored:>12.1}", job.name());
            let told = json!({
                "median_ms": ms,
                "ms_by_round": measured.ms,
                "synced_ms": synced,
                "stored_bytes": measured.stored,
            });
            jobs.insert(job.name().to_owned(), told);
        }
        let mut figures = json!({ "bytes": self.bytes, "data_bytes": self.data_bytes });
        figures["commands"] = jobs.into();
        println!("{:<24}{:>12}{:>12}", "", "times", "synced");
        for contest in &CONTESTS {
            if let Some(told) = self.contest(contest, bars) {
                figures[contest.name] = told;
            }
        }
        if let Some(told) = self.archives(bars) {
            figures["archives"] = told;
        }
        if let Some(told) = self.verify() {
            figures["read_and_hash"] = told;
        }
        Ok(figures)
    }

    /// How many times as fast our fastest job is as the peer's; none when they were not measured.
    fn contest(&self, contest: &Contest, bars: &mut Bars) -> Option<Value> {
        let (jobs, synced) = (&self.results.jobs, &self.results.synced);
        let peer = jobs.get(&contest.peer)?;
        let mut told = json!({});
        let mut best: Option<(f64, Job)> = None;
        for job in contest.ours {
            let times = paired_ratio(&peer.ms, &jobs.get(job)?.ms)?;
            let durable = synced.get(&contest.peer)? / synced.get(job)?;
            println!("{:<24}{times:>12.2}{durable:>12.2}", contest.title(*job));
            told[job.name()] = json!({ "times_as_fast": times, "times_as_fast_synced": durable });
            if best.is_none_or(|(most, _)| times > most) {
                best = Some((times, *job));
            }
        }
        let (times, job) = best?;
        told["judged_by"] = job.name().into();
        if let Some((synthetic, real)) = contest.bars {
            let limit = if self.name == "real" { real } else { synthetic };
            bars.push((format!("{}_{}", contest.name, self.name), times, Bar::AtLeast(limit)));
            if contest.ours.len() > 1 {
                println!("  judged by {}, the faster one", job.name());
            }
        }
        Some(told)
    }

    /// How large our archive is beside zstd's.
    fn archives(&self, bars: &mut Bars) -> Option<Value> {
        let stored = |job| Some(self.results.jobs.get(&job)?.stored as f64);
        let (ours, zstd) = (stored(Job::Pack)?, stored(Job::Zstd)?);
        let (size, data) = (ours / zstd, self.data_bytes as f64);
        println!(
            "archive: {size:.3} of zstd's; the data compressed {:.2} to 1, and {:.2} by zstd",
            data / ours,
            data / zstd
        );
        bars.push((format!("archive_size_vs_zstd_{}", self.name), size, ARCHIVE_SIZE));
        Some(json!({ "size_vs_zstd": size, "ratio": data / ours, "zstd_ratio": data / zstd }))
    }

    /// How fast data is read and hashed, and how fast memory could be read at all.
    fn verify(&self) -> Option<Value> {
        let (verify, bandwidth) = (self.results.jobs.get(&Job::Verify)?, &self.results.bandwidth);
        let data = self.data_bytes as f64;
        let speeds: Vec<_> = verify.ms.iter().map(|ms| data / (ms / 1e3)).collect();
        let (speed, memory) = (median(&speeds)?, median(bandwidth)?);
        let share = paired_ratio(&speeds, bandwidth)?;
        println!(
            "read and hash: {:.2} GB/s of data, {share:.2} of the {:.2} GB/s that memory is read with",
            speed / 1e9,
            memory / 1e9
        );
        Some(json!({
            "bytes_per_second": speed,
            "memory_bytes_per_second": memory,
            "share_of_memory": share,
        }))
    }
}

impl Contest {
    fn title(&self, ours: Job) -> String {
        format!("{}/{}", ours.name(), self.peer.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::rounds::Measured;

    fn image(name: &'static str, jobs: &[(Job, &[f64], u64)]) -> Image {
        let mut results = Results::default();
        for (job, ms, stored) in jobs {
            let (ms, stored) = (ms.to_vec(), *stored);
            results.jobs.insert(*job, Measured { ms, stored });
            results.synced.insert(*job, 50.0);
        }
        results.bandwidth = vec![20e9, 20e9, 10e9];
        Image { name, bytes: 4 << 30, data_bytes: 250_000_000, results }
    }

    fn outcome(images: Vec<Image>) -> Outcome {
        Outcome { images, ..Outcome::new(json!({}), "ext4".into(), 3) }
    }

    #[test]
    fn the_faster_of_ours_is_held_against_cp() {
        let jobs: [(Job, &[f64], u64); 4] = [
            (Job::Sparsify, &[100.0, 200.0, 100.0], 1),
            (Job::SparsifyOutput, &[90.0, 180.0, 300.0], 1),
            (Job::DigHoles, &[400.0, 800.0, 100.0], 1),
            (Job::Cp, &[360.0, 720.0, 360.0], 1),
        ];
        let report = format!("{:?}", outcome(vec![image("real", &jobs)]).report().unwrap());
        for part in [
            r#"("sparsify_vs_fallocate_real", 4.0, AtLeast(3.0))"#,
            r#"("sparsify_vs_cp_real", 4.0, AtLeast(3.0))"#,
            r#""judged_by": String("sparsify_output")"#,
            r#""times_as_fast_synced": Number(1.0)"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        // What was not measured is not judged.
        assert!(!report.contains("zstd") && !report.contains("map_open"), "{report}");
    }

    #[test]
    fn each_image_has_its_bars() {
        let jobs: [(Job, &[f64], u64); 6] = [
            (Job::Pack, &[100.0], 103_000_000),
            (Job::PackMapped, &[50.0], 103_000_000),
            (Job::Zstd, &[300.0], 100_000_000),
            (Job::Unpack, &[10.0], 1),
            (Job::Unzstd, &[15.0], 1),
            (Job::Verify, &[25.0, 25.0, 50.0], 0),
        ];
        let mut outcome = outcome(vec![image("synthetic", &jobs), image("real", &jobs)]);
        outcome.map_open_ms = Some(0.5);
        outcome.peaks = vec![("sparse_1tib", vec![("merge", 64 << 20)])];
        let report = format!("{:?}", outcome.report().unwrap());
        for part in [
            r#"("pack_vs_zstd_synthetic", 3.0, AtLeast(2.0))"#,
            r#"("pack_vs_zstd_real", 3.0, AtLeast(1.0))"#,
            r#"("unpack_vs_zstd_synthetic", 1.5, AtLeast(2.0))"#,
            r#"("unpack_vs_zstd_real", 1.5, AtLeast(1.3))"#,
            r#"("archive_size_vs_zstd_real", 1.03, AtMost(1.03))"#,
            r#""bytes_per_second": Number(10000000000.0)"#,
            r#""share_of_memory": Number(0.5)"#,
            r#"("map_open_ms", 0.5, AtMost(1.0))"#,
            r#"("peak_mib_merge_sparse_1tib", 64.0, AtMost(128.0))"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        // Told, not judged.
        assert!(!report.contains("pack_with_map_vs_zstd_real"), "{report}");
        assert!(report.contains("pack_with_map_vs_zstd"), "{report}");
    }
}
