//! Conditions: as headers, and which of them the store is known not to hold to.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Condition, Conditions, StoreError};

const NO_ABSENT: &str = "write only what is absent (If-None-Match)";
const NO_UNCHANGED: &str = "write only over what is unchanged (If-Match)";

/// A condition as headers, and what it is called where the store does not know it.
pub(super) struct Headers {
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
    pub(super) what: &'static str,
}

impl From<Condition<'_>> for Headers {
    fn from(condition: Condition<'_>) -> Self {
        let none = Self { if_match: None, if_none_match: None, what: "write objects" };
        match condition {
            Condition::Always => none,
            Condition::Absent => {
                Self { if_none_match: Some("*".to_owned()), what: NO_ABSENT, ..none }
            }
            Condition::Unchanged(version) => {
                Self { if_match: Some(version.as_str().to_owned()), what: NO_UNCHANGED, ..none }
            }
        }
    }
}

/// What a probe has found a store not to hold to, for one kind of write.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    absent: AtomicBool,
    unchanged: AtomicBool,
}

impl Lacks {
    pub(super) fn learn(&self, held: Conditions) {
        self.absent.store(!held.absent, Ordering::Relaxed);
        self.unchanged.store(!held.unchanged, Ordering::Relaxed);
    }

    /// Refuses what the store is known not to hold to, rather than write unasked.
    pub(super) fn check(&self, condition: Condition<'_>) -> Result<(), StoreError> {
        match condition {
            Condition::Absent if self.absent.load(Ordering::Relaxed) => {
                Err(StoreError::Unsupported(NO_ABSENT))
            }
            Condition::Unchanged(_) if self.unchanged.load(Ordering::Relaxed) => {
                Err(StoreError::Unsupported(NO_UNCHANGED))
            }
            _ => Ok(()),
        }
    }
}
