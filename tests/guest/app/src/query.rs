//! Query parameters: numbers within bounds, or one text, and none that the path does not know.

use std::ops::RangeInclusive;

use http::Uri;

use crate::error::Refusal;

/// One number that a path takes.
pub(crate) struct Number {
    /// Its name in the query.
    pub(crate) name: &'static str,
    /// What is allowed.
    pub(crate) range: RangeInclusive<u64>,
    /// What it is when absent.
    pub(crate) default: u64,
}

/// The values of `numbers` in the query of `uri`, in their order.
pub(crate) fn numbers<const N: usize>(
    uri: &Uri,
    numbers: [Number; N],
) -> Result<[u64; N], Refusal> {
    let mut values = [None; N];
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        let at = numbers
            .iter()
            .position(|n| n.name == name)
            .ok_or_else(|| Refusal::parameter(name, "this path does not take it"))?;
        let Number { range, .. } = &numbers[at];
        let value = text.parse().ok().filter(|v| range.contains(v)).ok_or_else(|| {
            let why = format!("a whole number from {} to {}", range.start(), range.end());
            Refusal::parameter(name, why)
        })?;
        if values[at].replace(value).is_some() {
            return Err(Refusal::parameter(name, "given twice"));
        }
    }
    let mut values = values.into_iter();
    Ok(numbers.map(|n| values.next().flatten().unwrap_or(n.default)))
}

/// The text `name` in the query of `uri`, which takes nothing else.
pub(crate) fn text(uri: &Uri, name: &'static str) -> Result<Option<String>, Refusal> {
    let mut value = None;
    for (found, text) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        if found != name {
            return Err(Refusal::parameter(&found, "this path does not take it"));
        }
        if value.replace(text.into_owned()).is_some() {
            return Err(Refusal::parameter(name, "given twice"));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<[u64; 2], String> {
        let bytes = Number { name: "bytes", range: 0..=10, default: 7 };
        let ms = Number { name: "ms", range: 1..=5, default: 2 };
        numbers(&format!("/x{query}").parse().unwrap(), [bytes, ms]).map_err(|e| e.to_string())
    }

    #[test]
    fn values_are_bounded_and_known() {
        assert_eq!(parse(""), Ok([7, 2]));
        assert_eq!(parse("?"), Ok([7, 2]));
        assert_eq!(parse("?ms=5"), Ok([7, 5]));
        assert_eq!(parse("?ms=1&bytes=10"), Ok([10, 1]));
        for bad in ["?ms=0", "?ms=6", "?ms", "?ms=", "?ms=x", "?ms=-1", "?ms=1&ms=1", "?x=1"] {
            parse(bad).unwrap_err();
        }
        assert_eq!(parse("?bytes=11").unwrap_err(), "bytes: a whole number from 0 to 10");
    }

    #[test]
    fn a_text_is_decoded() {
        let parse = |query: &str| text(&format!("/x{query}").parse().unwrap(), "entry");
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("?entry=").unwrap().as_deref(), Some(""));
        assert_eq!(parse("?entry=a%20b+c%3Dd").unwrap().as_deref(), Some("a b c=d"));
        parse("?entry=a&entry=b").unwrap_err();
        parse("?entry=a&n=1").unwrap_err();
    }
}
