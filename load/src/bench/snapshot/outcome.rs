//! The tables, the same as JSON, and the bars.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::contest::CONTESTS;
use super::job::{Job, Part};
use super::lab::Files;
use super::peak::Peak;
use super::rounds::{Results, SYNCED_ROUNDS};
use crate::report::{Bar, Report};
use crate::stats::{median, paired_ratio};
use crate::units::mib;

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
    /// Of the synthetic image's map.
    pub(super) map_open_ms: Option<f64>,
}

/// What was measured on one image.
#[derive(Debug)]
pub(super) struct Image {
    /// `real`, `synthetic` or `sparse_1tib`.
    name: &'static str,
    source: Source,
    bytes: u64,
    data_bytes: u64,
    pub(super) results: Results,
    pub(super) peaks: Vec<Peak>,
}

/// Whose pages an image has.
#[derive(Debug)]
pub(super) enum Source {
    /// A guest's that was put to sleep.
    Guest { accelerator: String },
    /// Those of a file of this name.
    File(String),
    /// The real image's, laid out as this says.
    Real { layout: String },
}

impl Source {
    fn describe(&self) -> String {
        match self {
            Self::Guest { accelerator } => format!("of the guest on {accelerator}"),
            Self::File(name) => format!("of {name}"),
            Self::Real { layout } => format!("of the real image in {layout}"),
        }
    }

    fn tell(&self) -> Value {
        match self {
            Self::Guest { accelerator } => json!({ "guest": { "accelerator": accelerator } }),
            Self::File(name) => json!({ "file": name }),
            Self::Real { layout } => json!({ "pages_of": "real", "layout": layout }),
        }
    }
}

impl Outcome {
    pub(super) fn new(machine: Value, filesystem: String, rounds: usize) -> Self {
        Self { machine, filesystem, rounds, images: Vec::new(), map_open_ms: None }
    }

    /// Prints the tables.
    pub(super) fn report(self) -> anyhow::Result<Report> {
        let mut bars = Vec::new();
        let mut figures = json!({
            "machine": self.machine,
            "filesystem": self.filesystem,
            "rounds": self.rounds,
            "synced_rounds": SYNCED_ROUNDS,
        });
        for image in &self.images {
            figures[image.name] = image.tell(&mut bars)?;
        }
        if let Some(ms) = self.map_open_ms {
            println!("\nmap of the synthetic image, opened: {ms:.3} ms");
            figures["map_open_ms"] = ms.into();
            bars.push(("map_open_ms".into(), ms, MAP_OPEN));
        }
        println!();
        let report = Report::new("snapshot", figures);
        Ok(bars.into_iter().fold(report, |report, (name, value, bar)| report.bar(name, value, bar)))
    }
}

type Bars = Vec<(String, f64, Bar)>;

impl Image {
    /// Of an image that has its map; nothing is measured yet.
    pub(super) fn of(name: &'static str, source: Source, files: &Files) -> anyhow::Result<Self> {
        let (bytes, data_bytes) = files.sizes()?;
        let (results, peaks) = Default::default();
        let image = Self { name, source, bytes, data_bytes, results, peaks };
        println!("{}", image.title());
        Ok(image)
    }

    fn title(&self) -> String {
        let (all, data) = (self.bytes >> 20, mib(self.data_bytes));
        let source = self.source.describe();
        format!("{} image: {all} MiB, {data:.1} MiB of them data {source}", self.name)
    }

    fn tell(&self, bars: &mut Bars) -> anyhow::Result<Value> {
        println!("\n{}", self.title());
        let mut figures = json!({
            "source": self.source.tell(),
            "bytes": self.bytes,
            "data_bytes": self.data_bytes,
        });
        if !self.results.jobs.is_empty() {
            figures["commands"] = self.commands()?;
            self.contests(&mut figures, bars);
        }
        if let Some(told) = self.archives(bars) {
            figures["archives"] = told;
        }
        if let Some(told) = self.verify() {
            figures["read_and_hash"] = told;
        }
        if !self.peaks.is_empty() {
            figures["peak_mib"] = self.memory(bars);
        }
        Ok(figures)
    }

    fn commands(&self) -> anyhow::Result<Value> {
        println!("{:<24}{:>12}{:>12}{:>12}", "", "median ms", "synced ms", "MiB written");
        let mut jobs = Map::new();
        for (job, measured) in &self.results.jobs {
            let ms = median(&measured.ms).context("no rounds")?;
            let by_round = self.results.synced.get(job);
            let synced = by_round.and_then(|ms| median(ms));
            let durable = synced.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
            println!("{:<24}{ms:>12.1}{durable:>12}{:>12.1}", job.name(), mib(measured.stored));
            let told = json!({
                "median_ms": ms,
                "ms_by_round": measured.ms,
                "synced_median_ms": synced,
                "synced_ms_by_round": by_round,
                "stored_bytes": measured.stored,
            });
            jobs.insert(job.name().to_owned(), told);
        }
        println!("synced: durable in the end; medians of {SYNCED_ROUNDS} rounds of their own");
        Ok(jobs.into())
    }

    fn contests(&self, figures: &mut Value, bars: &mut Bars) {
        println!("{:<36}{:>12}{:>12}", "", "times", "synced");
        for contest in &CONTESTS {
            let Some(ended) = contest.held(&self.results) else { continue };
            println!("{:<36}{:>12.2}{:>12.2}", contest.title(), ended.times, ended.synced);
            figures[contest.name] = contest.tell(&ended);
            if let Some(limit) = contest.bar(self.name) {
                let name = format!("{}_{}", contest.name, self.name);
                bars.push((name, ended.times, Bar::AtLeast(limit)));
            }
        }
        // What finds zeros has to read them all.
        let bandwidth = self.results.bandwidth.get(&Part::Sparsify);
        if let Some(bandwidth) = bandwidth.and_then(|beside| median(beside)) {
            let ms = self.bytes as f64 / bandwidth * 1e3;
            println!("{:<36}{ms:>9.1} ms", "the image's size read from memory");
            figures["read_floor_ms"] = ms.into();
        }
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
        let verify = self.results.jobs.get(&Job::Verify)?;
        let bandwidth = self.results.bandwidth.get(&Part::Verify)?;
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

    /// How much memory each command had.
    fn memory(&self, bars: &mut Bars) -> Value {
        println!("{:<24}{:>12}", "", "peak MiB");
        let mut told = Map::new();
        for (command, bytes) in &self.peaks {
            println!("{command:<24}{:>12.1}", mib(*bytes));
            told.insert((*command).to_owned(), mib(*bytes).into());
            bars.push((format!("peak_mib_{command}_{}", self.name), mib(*bytes), PEAK_MIB));
        }
        told.into()
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
            results.synced.insert(*job, vec![50.0, 70.0, 60.0]);
        }
        for part in [Part::Sparsify, Part::Verify] {
            results.bandwidth.insert(part, vec![20e9, 20e9, 10e9]);
        }
        let source = Source::File("guest.img".into());
        let (bytes, data_bytes) = (4_000_000_000, 250_000_000);
        Image { name, source, bytes, data_bytes, results, peaks: Vec::new() }
    }

    fn outcome(images: Vec<Image>) -> Outcome {
        Outcome { images, ..Outcome::new(json!({}), "ext4".into(), 3) }
    }

    #[test]
    fn both_ways_to_sparsify_are_held_against_cp() {
        let jobs: [(Job, &[f64], u64); 4] = [
            (Job::Sparsify, &[100.0, 200.0, 100.0], 1),
            (Job::SparsifyOutput, &[180.0, 360.0, 300.0], 1),
            (Job::DigHoles, &[400.0, 800.0, 100.0], 1),
            (Job::Cp, &[360.0, 720.0, 360.0], 1),
        ];
        let report = format!("{:?}", outcome(vec![image("real", &jobs)]).report().unwrap());
        for part in [
            r#"("sparsify_vs_fallocate_real", 4.0, AtLeast(3.0))"#,
            r#"("sparsify_in_place_vs_cp_real", 3.6, AtLeast(3.0))"#,
            r#"("sparsify_output_vs_cp_real", 2.0, AtLeast(3.0))"#,
            r#""times_as_fast_synced": Number(1.0)"#,
            r#""synced_median_ms": Number(60.0)"#,
            r#""synced_rounds": Number(3)"#,
            r#""read_floor_ms": Number(200.0)"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        // What was not measured is not judged.
        assert!(!report.contains("zstd") && !report.contains("map_open"), "{report}");
    }

    #[test]
    fn an_image_is_told_whatever_was_measured() {
        let mut huge = image("sparse_1tib", &[]);
        huge.peaks = vec![("merge", 64 << 20)];
        let images = vec![image("real", &[]), huge];
        let report = format!("{:?}", outcome(images).report().unwrap());
        for part in [
            r#""source": Object {"file": String("guest.img")}"#,
            r#""real": Object {"bytes": Number(4000000000), "data_bytes": Number(250000000)"#,
            r#"("peak_mib_merge_sparse_1tib", 64.0, AtMost(128.0))"#,
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
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
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        // Told, not judged.
        assert!(!report.contains("pack_with_map_vs_zstd_real"), "{report}");
        assert!(report.contains("pack_with_map_vs_zstd"), "{report}");
    }
}
