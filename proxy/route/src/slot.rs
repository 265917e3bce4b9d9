//! One place in the table: a host and a path prefix, and who claims it.

use std::cmp::Reverse;
use std::sync::Arc;

use http::HeaderMap;
use rouse_protocol::app::AppId;
use smallvec::SmallVec;

use crate::{HeaderMatches, HostPattern, MAX_DEPTH, PathPrefix};

/// What one app claims of a slot.
#[derive(Clone, Debug)]
pub(crate) struct Claim<T> {
    pub(crate) target: T,
    pub(crate) headers: HeaderMatches,
    pub(crate) app: Arc<AppId>,
    /// The smaller, the older. No two have the same.
    pub(crate) age: u64,
}

/// A host pattern, a path prefix and their claims.
#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    pub(crate) host: HostPattern,
    pub(crate) path: PathPrefix,
    /// What counts, the most specific first; headers differ from one to the next.
    pub(crate) claims: SmallVec<[Claim<T>; 1]>,
    /// What somebody older has; the oldest first.
    pub(crate) waiting: Vec<Claim<T>>,
    /// Of a slot without a path: what paths this host has slots for.
    pub(crate) below: Option<Box<Below>>,
}

/// How deep a host's path prefixes are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Below {
    /// Bit `d - 1`: there is a slot with `d` segments.
    pub(crate) depths: u16,
    counts: [u32; MAX_DEPTH],
}

const _: () = assert!(MAX_DEPTH == u16::BITS as usize);

impl Below {
    /// A slot of `depth` segments, from 1, has come.
    pub(crate) fn add(&mut self, depth: usize) {
        if let Some(count) = self.counts.get_mut(depth.wrapping_sub(1)) {
            *count += 1;
            self.depths |= 1 << (depth - 1);
        }
    }

    /// A slot of `depth` segments, from 1, has gone.
    pub(crate) fn sub(&mut self, depth: usize) {
        if let Some(count) = self.counts.get_mut(depth.wrapping_sub(1)) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.depths &= !(1 << (depth - 1));
            }
        }
    }
}

impl<T> Slot<T> {
    pub(crate) fn new(host: HostPattern, path: PathPrefix) -> Self {
        Self { host, path, claims: SmallVec::new(), waiting: Vec::new(), below: None }
    }

    /// Whether nothing is left that it is there for.
    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.waiting.is_empty() && self.below.is_none()
    }

    /// Whom a request with these headers is for.
    pub(crate) fn pick(&self, headers: &HeaderMap) -> Option<&T> {
        self.claims.iter().find(|claim| claim.headers.matches(headers)).map(|claim| &claim.target)
    }

    /// Who has what is claimed with exactly `headers`.
    pub(crate) fn holder(&self, headers: &HeaderMatches) -> Option<&Arc<AppId>> {
        self.claims.iter().find(|claim| claim.headers == *headers).map(|claim| &claim.app)
    }

    /// Enters a claim that is younger than all others here, or renews the one that its app has.
    pub(crate) fn claim(&mut self, claim: Claim<T>) {
        let same = |old: &&mut Claim<T>| old.app == claim.app && old.headers == claim.headers;
        if let Some(old) = self.claims.iter_mut().chain(&mut self.waiting).find(same) {
            old.target = claim.target;
        } else if self.holder(&claim.headers).is_some() {
            self.waiting.push(claim);
        } else {
            self.enter(claim);
        }
    }

    /// Takes back what `app` claims with exactly `headers`. Returns who takes over, if anybody does.
    pub(crate) fn release(&mut self, app: &AppId, headers: &HeaderMatches) -> Option<Arc<AppId>> {
        let its = |claim: &Claim<T>| *claim.app == *app && claim.headers == *headers;
        if let Some(i) = self.waiting.iter().position(its) {
            self.waiting.remove(i);
            self.waiting.shrink_to_fit();
            return None;
        }
        self.claims.remove(self.claims.iter().position(its)?);
        self.claims.shrink_to_fit();
        let next = self.waiting.iter().position(|claim| claim.headers == *headers)?;
        let next = self.waiting.remove(next);
        self.waiting.shrink_to_fit();
        let app = next.app.clone();
        self.enter(next);
        Some(app)
    }

    fn enter(&mut self, claim: Claim<T>) {
        let place = self.claims.partition_point(|other| order(other) < order(&claim));
        self.claims.insert(place, claim);
    }
}

/// The most specific first; then by id; then, of one app's own rules, the oldest.
fn order<T>(claim: &Claim<T>) -> (Reverse<usize>, &AppId, u64) {
    (Reverse(claim.headers.as_slice().len()), &claim.app, claim.age)
}
