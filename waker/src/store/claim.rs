//! Whether this node may wake an app, and from what. Pure.
//!
//! A node that holds an app asks nobody. Otherwise the reference in the store decides, and the next turn is
//! taken by a write that depends on it: of two nodes one gets it, and the other sees a larger fencing
//! number than its own.

use rouse_protocol::app::Generation;

use super::record::Record;
use super::reference::{Reference, Turn};

/// What this node has of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Nothing at all.
    Nothing,
    /// What a life has left: a disk to boot from.
    Remains,
    /// A generation that sleeps.
    Asleep(Generation),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Wake what is here, or boot where there is nothing; the app is this node's already.
    Ours,
    /// Take the turn, then as [`Self::Ours`].
    Take(Reference),
    /// Take the turn, then wake from the store what it has; what is here is older and goes.
    Fetch(Reference),
    /// Another node has it.
    Elsewhere {
        /// Which.
        owner: String,
        /// Why this one can't have it.
        why: &'static str,
    },
    /// What the store should have is not there.
    Lost(Generation),
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// This node's name.
    pub node: &'a str,
    /// Apps may go from node to node: the store holds to conditions, and the operator has it so.
    pub moving: bool,
}

/// Decides. `reference` is the store's; none: there is none.
pub fn decide(
    asker: Asker<'_>,
    app: &rouse_protocol::app::AppId,
    record: Option<&Record>,
    local: Local,
    reference: Option<&Reference>,
) -> Claim {
    let known = record.map_or(0, |record| record.fence);
    let Some(reference) = reference else {
        // A store that was emptied, or is another.
        return match (record.map(|record| record.turn), local) {
            (Some(super::record::Turn::Free(generation)), Local::Nothing) => {
                Claim::Lost(generation)
            }
            _ => Claim::Take(Reference::first(app, asker.node, known + 1)),
        };
    };
    let ours = reference.owner == asker.node;
    if ours && reference.fence > known && record.is_some() {
        let why = "the store knows a later turn of this node: another one has its name, or its state was put back";
        return Claim::Elsewhere { owner: reference.owner.clone(), why };
    }
    if !ours {
        if !asker.moving {
            let why = "apps do not move here: the store has no conditional writes, or `store.moving` is false";
            return Claim::Elsewhere { owner: reference.owner.clone(), why };
        }
        if reference.turn == Turn::Held {
            let why = "it runs there, or sleeps there and is not in the store yet";
            return Claim::Elsewhere { owner: reference.owner.clone(), why };
        }
    }
    let next = reference.taken(asker.node);
    let newest = reference.newest().map(|stored| stored.generation);
    // Nobody else has had it since this node had.
    let current = match local {
        Local::Nothing => false,
        Local::Asleep(generation) => ours && Some(generation) >= newest,
        // A life's disk is this turn's, unless the turn was taken to fetch another.
        Local::Remains => {
            let taking = record.is_some_and(|record| record.turn == super::record::Turn::Taking);
            ours && !taking && reference.turn == Turn::Held
        }
    };
    // It died without leaving anything to boot from; memory that has been used is not used again.
    let spent = ours && record.is_some_and(Record::holds) && reference.turn == Turn::Held;
    let current = current || spent;
    let alone = ours && record.is_some() && (reference.turn == Turn::Held || !asker.moving);
    match (current, newest) {
        (true, _) if alone => Claim::Ours,
        (false, Some(_)) => Claim::Fetch(next),
        _ => Claim::Take(next),
    }
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::AppId;

    use super::super::record;
    use super::super::reference::Stored;
    use super::*;

    fn app() -> AppId {
        "hello".parse().unwrap()
    }

    fn stored(generation: u64) -> Stored {
        Stored {
            generation: Generation(generation),
            image_id: "00".repeat(16),
            manifest_blake3: "00".repeat(32),
            slept_unix_ms: 1,
        }
    }

    fn reference(owner: &str, fence: u64, turn: Turn, newest: Option<u64>) -> Reference {
        let generations = newest.map(stored).into_iter().collect();
        Reference { turn, generations, ..Reference::first(&app(), owner, fence) }
    }

    fn record(fence: u64, turn: record::Turn) -> Option<Record> {
        Some(Record { fence, turn })
    }

    #[test]
    fn who_may_wake_what() {
        use Local::{Asleep, Nothing, Remains};
        let (held, free) = (record::Turn::Held, record::Turn::Free(Generation(3)));
        let freeing = record::Turn::Freeing(Generation(3));
        let g3 = Asleep(Generation(3));
        // record, local, the store's, what comes of it
        let table = [
            ("the very first wake", None, Nothing, None, "take 1"),
            ("slept before there was a store", None, g3, None, "take 1"),
            ("the store was emptied", record(4, free), g3, None, "take 5"),
            ("the store was emptied, and it is all gone", record(4, free), Nothing, None, "lost 3"),
            ("the answer got lost", record(1, record::Turn::Taking), Nothing, None, "take 2"),
            (
                "in the store, and here",
                record(4, free),
                g3,
                Some(("a", 4, Turn::Free, Some(3))),
                "take 5",
            ),
            (
                "perhaps in the store",
                record(4, freeing),
                g3,
                Some(("a", 4, Turn::Free, Some(3))),
                "take 5",
            ),
            (
                "perhaps in the store, and not",
                record(4, freeing),
                g3,
                Some(("a", 4, Turn::Held, Some(2))),
                "ours",
            ),
            (
                "in the store only",
                record(4, free),
                Nothing,
                Some(("a", 4, Turn::Free, Some(3))),
                "fetch 5",
            ),
            ("all state wiped", None, Nothing, Some(("a", 4, Turn::Free, Some(3))), "fetch 5"),
            ("wiped while awake", None, Nothing, Some(("a", 4, Turn::Held, Some(3))), "fetch 5"),
            ("wiped in its first life", None, Nothing, Some(("a", 4, Turn::Held, None)), "take 5"),
            (
                "another took it and sleeps",
                record(4, free),
                g3,
                Some(("b", 5, Turn::Free, Some(4))),
                "fetch 6",
            ),
            (
                "another took it and runs",
                record(4, free),
                g3,
                Some(("b", 5, Turn::Held, Some(3))),
                "elsewhere b",
            ),
            (
                "another's, never here",
                None,
                Nothing,
                Some(("b", 5, Turn::Free, Some(4))),
                "fetch 6",
            ),
            (
                "another's first life",
                None,
                Nothing,
                Some(("b", 1, Turn::Held, None)),
                "elsewhere b",
            ),
            (
                "taken from us by force",
                record(4, held),
                Remains,
                Some(("b", 5, Turn::Held, Some(3))),
                "elsewhere b",
            ),
            (
                "our turn was taken, the answer lost",
                record(5, record::Turn::Taking),
                g3,
                Some(("a", 5, Turn::Held, Some(3))),
                "ours",
            ),
            (
                "a copy of our state",
                record(3, held),
                g3,
                Some(("a", 5, Turn::Held, Some(4))),
                "elsewhere a",
            ),
            ("its record got lost", None, g3, Some(("a", 4, Turn::Free, Some(3))), "take 5"),
            (
                "its record got lost, and it is old",
                None,
                g3,
                Some(("a", 4, Turn::Free, Some(4))),
                "fetch 5",
            ),
            (
                "its record got lost while awake",
                None,
                Remains,
                Some(("a", 4, Turn::Held, Some(3))),
                "take 5",
            ),
            (
                "cut off while it was fetched, beside what it had before",
                record(6, record::Turn::Taking),
                g3,
                Some(("a", 6, Turn::Held, Some(4))),
                "fetch 7",
            ),
            (
                "the same, beside a disk",
                record(6, record::Turn::Taking),
                Remains,
                Some(("a", 6, Turn::Held, Some(4))),
                "fetch 7",
            ),
            (
                "a life that left nothing",
                record(4, held),
                Nothing,
                Some(("a", 4, Turn::Held, Some(3))),
                "ours",
            ),
            (
                "cut off while it was fetched",
                record(4, record::Turn::Taking),
                Nothing,
                Some(("a", 4, Turn::Held, Some(3))),
                "fetch 5",
            ),
            (
                "a life's remains",
                record(4, held),
                Remains,
                Some(("a", 4, Turn::Held, Some(3))),
                "ours",
            ),
        ];
        for (what, record, local, there, expected) in table {
            let there =
                there.map(|(owner, fence, turn, newest)| reference(owner, fence, turn, newest));
            let asker = Asker { node: "a", moving: true };
            let got = match decide(asker, &app(), record.as_ref(), local, there.as_ref()) {
                Claim::Ours => "ours".to_owned(),
                Claim::Take(next) => format!("take {}", checked(next)),
                Claim::Fetch(next) => format!("fetch {}", checked(next)),
                Claim::Elsewhere { owner, .. } => format!("elsewhere {owner}"),
                Claim::Lost(generation) => format!("lost {generation}"),
            };
            assert_eq!(got, expected, "{what}");
        }
    }

    fn checked(next: Reference) -> u64 {
        assert_eq!((&*next.owner, next.turn), ("a", Turn::Held));
        next.fence
    }

    #[test]
    fn where_apps_do_not_move_one_node_works_as_ever_and_no_other() {
        let asker = |node| Asker { node, moving: false };
        let there = reference("a", 4, Turn::Free, Some(3));
        let record = record(4, record::Turn::Free(Generation(3)));
        let local = Local::Asleep(Generation(3));
        let ours = decide(asker("a"), &app(), record.as_ref(), local, Some(&there));
        assert_eq!(ours, Claim::Ours);
        let wiped = decide(asker("a"), &app(), None, Local::Nothing, Some(&there));
        assert!(matches!(wiped, Claim::Fetch(_)), "{wiped:?}");
        let theirs = decide(asker("b"), &app(), None, Local::Nothing, Some(&there));
        assert!(matches!(theirs, Claim::Elsewhere { .. }), "{theirs:?}");
    }
}
