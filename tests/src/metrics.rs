//! Reading the Prometheus text format, as much of it as the tests need.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Sample>);

/// One line of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, with `_count`, `_sum` or `_bucket` for a histogram's parts.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Metrics {
    /// Reads a scrape. Panics on a line that is neither a comment nor a sample.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        Self(lines.map(|l| sample(l).unwrap_or_else(|| panic!("no metric: {l}"))).collect())
    }

    /// The samples.
    pub fn samples(&self) -> &[Sample] {
        &self.0
    }

    /// The sum of all samples of that name that have all these labels; 0 when there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |s: &&Sample| {
            labels.iter().all(|(label, value)| s.labels.get(*label).is_some_and(|v| v == value))
        };
        self.0.iter().filter(|s| s.name == name).filter(has).map(|s| s.value).sum()
    }

    /// Whether there is a sample of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|s| s.name == name)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = match head.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (head, ""),
    };
    let mut parsed = BTreeMap::new();
    // Our label values are ids and words: they hold no quotes and no commas.
    for label in labels.split(',').filter(|l| !l.is_empty()) {
        let (key, value) = label.split_once('=')?;
        parsed.insert(key.to_owned(), value.trim_matches('"').to_owned());
    }
    Some(Sample { name: name.to_owned(), labels: parsed, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_read() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"z\"} 2\na{x=\"2\"} 3.5\nb 1e3\n\
                    c_bucket{le=\"+Inf\"} 4\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.samples().len(), 4);
        assert_eq!(metrics.sum("a", &[]), 5.5);
        assert_eq!(metrics.sum("a", &[("x", "1")]), 2.0);
        assert_eq!(metrics.sum("a", &[("x", "3")]), 0.0);
        assert_eq!(metrics.sum("b", &[]), 1000.0);
        assert_eq!(metrics.sum("c_bucket", &[("le", "+Inf")]), 4.0);
        assert!(metrics.has("b") && !metrics.has("d"));
    }
}
