//! What the cache occupies: each file once, however many names it has here.

use std::collections::HashMap;

use crate::policy::{Inode, Part};

/// Files by inode, with how many names the cache has for each.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    files: HashMap<Inode, (usize, u64)>,
    total: u64,
}

impl Ledger {
    /// All of it, in bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// What these would add.
    pub(crate) fn fresh(&self, parts: &[Part]) -> u64 {
        let fresh: HashMap<Inode, u64> = parts
            .iter()
            .filter(|part| !self.files.contains_key(&part.inode))
            .map(|part| (part.inode, part.bytes))
            .collect();
        fresh.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub(crate) fn add(&mut self, parts: &[Part]) {
        for part in parts {
            let (names, bytes) = self.files.entry(part.inode).or_default();
            *names += 1;
            // Last measured, best known.
            self.total = self.total.saturating_sub(*bytes).saturating_add(part.bytes);
            *bytes = part.bytes;
        }
    }

    /// Takes these out, and says what that frees, in bytes.
    pub(crate) fn remove(&mut self, parts: &[Part]) -> u64 {
        let mut freed = 0_u64;
        for part in parts {
            let Some((names, bytes)) = self.files.get_mut(&part.inode) else { continue };
            *names -= 1;
            if *names == 0 {
                freed = freed.saturating_add(*bytes);
                self.files.remove(&part.inode);
            }
        }
        self.total = self.total.saturating_sub(freed);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once_and_goes_with_the_second() {
        let part = |number, bytes| Part { inode: Inode { device: 1, number }, bytes };
        let (one, two) = ([part(1, 10), part(2, 20)], [part(2, 20), part(3, 40)]);
        let mut ledger = Ledger::default();
        ledger.add(&one);
        assert_eq!(ledger.fresh(&two), 40);
        ledger.add(&two);
        assert_eq!(ledger.total(), 70);
        assert_eq!(ledger.remove(&one), 10);
        assert_eq!(ledger.remove(&two), 60);
        assert_eq!(ledger.total(), 0);
    }
}
