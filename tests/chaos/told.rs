//! The highest of what had been told by a certain time.

use crate::trouble::At;

/// Values with the times at which they became known, of which only the highest so far counts.
#[derive(Debug)]
pub(crate) struct Told<T> {
    /// Both rise.
    highest: Vec<(At, T)>,
}

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self { highest: Vec::new() }
    }
}

impl<T: Ord> Told<T> {
    /// `value` became known at `at`, which is not before any time named until now.
    pub(crate) fn at(&mut self, at: At, value: T) {
        if self.highest.last().is_none_or(|(_, highest)| value > *highest) {
            self.highest.push((at, value));
        }
    }

    /// The highest that was known before `at`.
    pub(crate) fn before(&self, at: At) -> Option<&T> {
        let known = self.highest.partition_point(|(told, _)| *told < at);
        self.highest[..known].last().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_known_counts() {
        let mut told = Told::default();
        for (at, value) in [(1, 5), (3, 4), (5, 9), (5, 10)] {
            told.at(At::from_secs(at), value);
        }
        let known =
            [0, 1, 2, 4, 5, 6].map(|at| told.before(At::from_secs(at)).copied().unwrap_or(0));
        assert_eq!(known, [0, 0, 5, 5, 5, 10]);
    }
}
