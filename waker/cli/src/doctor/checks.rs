//! From facts to verdicts. Nothing here looks at the machine.

pub(super) mod config;
pub(super) mod host;
pub(super) mod memory;
pub(super) mod storage;
pub(super) mod waker;

/// A row of a table of cases: the verdict, and words of what was found or is to be done.
#[cfg(test)]
fn assert_check(check: &super::Check, verdict: super::Verdict, words: &str) {
    let said = format!("{} > {}", check.found, check.todo);
    assert_eq!(check.verdict, verdict, "{}: {said}", check.check);
    assert!(said.contains(words), "{}: {said} has no {words:?}", check.check);
    // Whatever is not well says what to do.
    assert_eq!(check.todo.is_empty(), verdict == super::Verdict::Ok, "{said}");
}
