//! Reading `Server-Timing`.

/// The metrics of a `Server-Timing` header that have a duration, in the order in which they stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Timing(Vec<(String, f64)>);

impl Timing {
    /// Reads a header. What is malformed is left out, as the specification wants.
    pub(crate) fn parse(header: &str) -> Self {
        let metrics = split(header, ',').into_iter().filter_map(|metric| {
            let mut parts = split(metric, ';').into_iter().map(str::trim);
            let name = parts.next().filter(|name| !name.is_empty())?;
            let duration = parts.find_map(|parameter| {
                let (key, value) = parameter.split_once('=')?;
                key.trim().eq_ignore_ascii_case("dur").then(|| value.trim().trim_matches('"'))
            })?;
            let ms: f64 = duration.parse().ok()?;
            (ms.is_finite() && ms >= 0.0).then(|| (name.to_owned(), ms))
        });
        Self(metrics.collect())
    }

    /// The duration of a metric, in milliseconds.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, ms)| *ms)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Splits at `separator` outside of double quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(|c| {
        let was_escaped = std::mem::take(&mut escaped);
        match c {
            _ if was_escaped => false,
            '\\' => {
                escaped = quoted;
                false
            }
            '"' => {
                quoted = !quoted;
                false
            }
            _ => c == separator && !quoted,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_header() {
        let timing =
            Timing::parse("hold;dur=0.213, queue;dur=0.004,gate;dur=312.000, total;dur=320.1");
        assert_eq!(timing.get("hold"), Some(0.213));
        assert_eq!(timing.get("queue"), Some(0.004));
        assert_eq!(timing.get("gate"), Some(312.0));
        assert_eq!(timing.get("total"), Some(320.1));
        assert_eq!(timing.get("app"), None);
    }

    #[test]
    fn what_others_may_write() {
        let timing = Timing::parse(
            r#"cache;desc="a, b; \"dur=9\"";DUR="2.5" , miss, db ; dur = 7, bad;dur=x, neg;dur=-1, ;dur=3"#,
        );
        assert_eq!(timing, Timing(vec![("cache".into(), 2.5), ("db".into(), 7.0)]));
        assert!(Timing::parse("").is_empty());
        assert!(Timing::parse("nan;dur=NaN, inf;dur=inf").is_empty());
    }
}
