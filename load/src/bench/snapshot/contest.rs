//! Our commands beside their peers: ratios and their bars.

use serde_json::{Value, json};

use super::job::Job;
use super::rounds::Results;
use crate::stats::paired_ratio;

/// A job of ours beside a peer's.
#[derive(Debug)]
pub(super) struct Contest {
    pub(super) name: &'static str,
    ours: Job,
    peer: Job,
    /// How many times as fast it must be, on the large image and on the real one.
    bars: Option<(f64, f64)>,
}

/// How a contest went.
#[derive(Debug)]
pub(super) struct Ended {
    /// How many times as fast ours is.
    pub(super) times: f64,
    /// The same, durable.
    pub(super) synced: f64,
}

pub(super) const CONTESTS: [Contest; 6] = [
    Contest {
        name: "sparsify_vs_fallocate",
        ours: Job::Sparsify,
        peer: Job::DigHoles,
        bars: Some((3.0, 3.0)),
    },
    // Not like for like: it has no copy to write, and does not leave the image as it was.
    Contest {
        name: "sparsify_in_place_vs_cp",
        ours: Job::Sparsify,
        peer: Job::Cp,
        bars: Some((3.0, 3.0)),
    },
    // Like for like: both leave the image, and write another.
    Contest {
        name: "sparsify_output_vs_cp",
        ours: Job::SparsifyOutput,
        peer: Job::Cp,
        bars: Some((3.0, 3.0)),
    },
    Contest { name: "pack_vs_zstd", ours: Job::Pack, peer: Job::Zstd, bars: Some((2.0, 1.0)) },
    // zstd has no map to go by: told, not judged.
    Contest { name: "pack_with_map_vs_zstd", ours: Job::PackMapped, peer: Job::Zstd, bars: None },
    Contest {
        name: "unpack_vs_zstd",
        ours: Job::Unpack,
        peer: Job::Unzstd,
        bars: Some((2.0, 1.3)),
    },
];

impl Contest {
    /// For the tables.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.ours.name(), self.peer.name())
    }

    /// How many times as fast it must be on the image of this name.
    pub(super) fn bar(&self, image: &str) -> Option<f64> {
        let (synthetic, real) = self.bars?;
        Some(if image == "real" { real } else { synthetic })
    }

    /// None when the two were not measured.
    pub(super) fn held(&self, results: &Results) -> Option<Ended> {
        let (jobs, synced) = (&results.jobs, &results.synced);
        Some(Ended {
            times: paired_ratio(&jobs.get(&self.peer)?.ms, &jobs.get(&self.ours)?.ms)?,
            synced: paired_ratio(synced.get(&self.peer)?, synced.get(&self.ours)?)?,
        })
    }

    /// For the JSON.
    pub(super) fn tell(&self, ended: &Ended) -> Value {
        json!({
            "ours": self.ours.name(),
            "peer": self.peer.name(),
            "times_as_fast": ended.times,
            "times_as_fast_synced": ended.synced,
        })
    }
}
