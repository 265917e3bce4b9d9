use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// An entry of the model: last use, pinned, the files by number. A file's size follows from its number.
type Model = (u64, bool, Vec<u64>);

fn size(file: u64) -> u64 {
    file * 7 % 5 * 4096
}

fn parts(files: &[u64]) -> Vec<Part> {
    let part = |&number| Part { inode: Inode { device: 1, number }, bytes: size(number) };
    files.iter().map(part).collect()
}

/// What the entries that are left occupy, counted anew.
fn occupied(entries: &BTreeMap<usize, Model>) -> u64 {
    let files: BTreeSet<u64> = entries.values().flat_map(|entry| entry.2.clone()).collect();
    files.into_iter().map(size).sum()
}

/// The rule in its plainest form: remove the oldest, count everything anew, go on.
fn reference(entries: &[Model], need: u64, at_most: usize) -> Choice<usize> {
    let mut left: BTreeMap<usize, Model> = entries.iter().cloned().enumerate().collect();
    let before = occupied(&left);
    let mut ids = Vec::new();
    while before - occupied(&left) < need && ids.len() < at_most {
        let oldest = left.iter().filter(|(_, entry)| !entry.1).min_by_key(|(id, e)| (e.0, **id));
        let Some((&id, _)) = oldest else { break };
        left.remove(&id);
        ids.push(id);
    }
    Choice { ids, bytes: before - occupied(&left) }
}

fn entries() -> impl Strategy<Value = Vec<Model>> {
    // Few files and few times, so that many are shared and many tie.
    let entry = (0..6_u64, any::<bool>(), prop::collection::vec(0..24_u64, 0..5));
    prop::collection::vec(entry, 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_choice_is_the_references(entries in entries(), need in 0..200_000_u64, at_most in 0..16_usize) {
        let files: Vec<_> = entries.iter().map(|entry| parts(&entry.2)).collect();
        let candidates: Vec<_> = entries
            .iter()
            .zip(&files)
            .enumerate()
            .map(|(id, (&(last_use_unix_ms, pinned, _), parts))| Candidate { id, last_use_unix_ms, pinned, parts })
            .collect();
        let choice = choose(&candidates, need, at_most);
        prop_assert_eq!(&choice, &reference(&entries, need, at_most));
        prop_assert!(choice.ids.iter().all(|id| !entries[*id].1), "a pinned one goes");
        let pinned = entries.iter().cloned().enumerate().filter(|(_, entry)| entry.1).collect();
        prop_assert_eq!(pinned_bytes(&candidates), occupied(&pinned));
    }
}

#[test]
fn a_low_mark_above_the_high_one_is_refused() {
    assert_eq!(Budget::new(1, 2, 0), Err(BudgetError { high: 1, low: 2 }));
    assert!(Budget::new(2, 2, 0).is_ok());
}
