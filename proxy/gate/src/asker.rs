//! What matters of a visitor at a gate that is not open.

use std::net::IpAddr;
use std::time::Duration;

use rouse_policy::{Denied, Kind, Policies, Request};

/// A request as its app's policy sees it. The default may wake, is shown no page and has no address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Why it may not wake the app, if so.
    pub(crate) denied: Option<Denied>,
    /// After how long in the hold it is shown the waiting page, if ever.
    pub(crate) page_after: Option<Duration>,
    /// Whose budget a wake is charged to, besides the app's.
    pub(crate) address: Option<IpAddr>,
}

impl Asker {
    pub(crate) fn new(policies: &Policies, request: &Request<'_>, address: Option<IpAddr>) -> Self {
        let waiting = policies.waiting.as_ref();
        Self {
            denied: policies.wake.as_ref().and_then(|wake| wake.may_wake(request).err()),
            page_after: waiting.and_then(|waiting| waiting.page_after(Kind::of(request))),
            address,
        }
    }
}
