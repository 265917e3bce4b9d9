//! Numbers for whoever makes metrics of them.

/// Upper bounds of [`Ages::counts`], in seconds: from "the budget is far too small" to "nobody missed it".
pub const AGE_BOUNDS_SECONDS: [u64; 8] =
    [60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000, 7_776_000];

/// How long entries had not been used when they were evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// How many were at most as old as each of [`AGE_BOUNDS_SECONDS`] and older than the one before; the
    /// last counts those that were older than all.
    pub counts: [u64; AGE_BOUNDS_SECONDS.len() + 1],
    /// All their ages together, in milliseconds.
    pub sum_ms: u64,
}

impl Ages {
    pub(crate) fn record(&mut self, age_ms: u64) {
        let bucket = AGE_BOUNDS_SECONDS.partition_point(|bound| bound * 1000 < age_ms);
        self.counts[bucket] += 1;
        self.sum_ms = self.sum_ms.saturating_add(age_ms);
    }
}

/// What the cache has and did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries now.
    pub entries: u64,
    /// What the cache occupies now, in bytes, reservations left out.
    pub allocated_bytes: u64,
    /// What is promised to drafts now, in bytes.
    pub reserved_bytes: u64,
    /// Times that an entry was asked for and there.
    pub hits: u64,
    /// Times that it was not.
    pub misses: u64,
    /// Entries that were published.
    pub published: u64,
    /// Entries that were taken.
    pub taken: u64,
    /// Entries that went for want of room.
    pub evictions: u64,
    /// What that freed, in bytes.
    pub evicted_bytes: u64,
    /// Entries that went because they were not what their record says.
    pub discarded: u64,
    /// Reservations that were refused for want of room.
    pub refused: u64,
    /// Ages at eviction.
    pub ages: Ages,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_counts_in_the_bucket_whose_bound_it_does_not_exceed() {
        let mut ages = Ages::default();
        for age in [0, 60_000, 60_001, u64::MAX / 2] {
            ages.record(age);
        }
        assert_eq!(ages.counts, [2, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(ages.sum_ms, u64::MAX / 2 + 120_001);
    }
}
