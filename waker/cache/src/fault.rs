//! Named points between two steps, at which a test looks at what is on disk, or has a step fail.

use std::io;

#[cfg(test)]
type Hook = Box<dyn FnMut(&'static str) -> io::Result<()>>;

#[cfg(test)]
thread_local! {
    static HOOK: std::cell::RefCell<Option<Hook>> = const { std::cell::RefCell::new(None) };
}

/// Has this thread call `hook` at each point.
#[cfg(test)]
pub(crate) fn set(hook: Option<Hook>) {
    HOOK.with(|held| *held.borrow_mut() = hook);
}

/// A point is reached.
#[cfg(test)]
pub(crate) fn hit(point: &'static str) -> io::Result<()> {
    HOOK.with(|held| held.borrow_mut().as_mut().map_or(Ok(()), |hook| hook(point)))
}

/// Nothing outside tests.
#[cfg(not(test))]
pub(crate) fn hit(_: &'static str) -> io::Result<()> {
    Ok(())
}
