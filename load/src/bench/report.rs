//! The JSON that every benchmark ends in.

use serde_json::{Map, Value, json};

/// What a figure must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }

    fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => limit,
        }
    }
}

/// A benchmark's outcome.
#[derive(Debug)]
pub(crate) struct Report {
    bench: &'static str,
    figures: Value,
    bars: Vec<(String, f64, Bar)>,
}

impl Report {
    pub(crate) fn new(bench: &'static str, figures: Value) -> Self {
        Self { bench, figures, bars: Vec::new() }
    }

    /// With a value that is held against a bar.
    pub(crate) fn bar(mut self, name: impl Into<String>, value: f64, bar: Bar) -> Self {
        self.bars.push((name.into(), value, bar));
        self
    }

    /// Prints the bars and, when `json` is wanted, all of it on the last line.
    pub(crate) fn print(&self, json: bool) {
        for (name, value, bar) in &self.bars {
            let (sign, limit) = match bar {
                Bar::AtLeast(limit) => ("≥", limit),
                Bar::AtMost(limit) => ("≤", limit),
            };
            let word = if bar.holds(*value) { "holds" } else { "MISSED" };
            println!("bar {name}: {value:.3}, {sign} {limit} {word}");
        }
        if json {
            println!("{}", self.json());
        }
    }

    fn json(&self) -> Value {
        let bars: Map<_, _> = self
            .bars
            .iter()
            .map(|(name, value, bar)| {
                let holds = bar.holds(*value);
                let bar = json!({ "value": value, "limit": bar.limit(), "holds": holds });
                (name.clone(), bar)
            })
            .collect();
        json!({ "bench": self.bench, "figures": self.figures, "bars": bars })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_say_whether_they_hold() {
        let report = Report::new("x", json!({ "n": 1 }))
            .bar("a", 0.97, Bar::AtLeast(0.97))
            .bar("b", 0.96, Bar::AtLeast(0.97))
            .bar("c", 5.0, Bar::AtMost(5.0))
            .bar("d", 5.1, Bar::AtMost(5.0));
        assert_eq!(
            report.json(),
            json!({ "bench": "x", "figures": { "n": 1 }, "bars": {
                "a": { "value": 0.97, "limit": 0.97, "holds": true },
                "b": { "value": 0.96, "limit": 0.97, "holds": false },
                "c": { "value": 5.0, "limit": 5.0, "holds": true },
                "d": { "value": 5.1, "limit": 5.0, "holds": false },
            } })
        );
        // A value that JSON has no number for does not pass for one.
        let broken = Report::new("x", json!({})).bar("a", f64::NAN, Bar::AtMost(5.0)).json();
        assert_eq!(broken["bars"]["a"], json!({ "value": null, "limit": 5.0, "holds": false }));
    }
}
