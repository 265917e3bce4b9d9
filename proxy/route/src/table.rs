//! The picture that requests are routed by.

use std::cell::OnceCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use http::HeaderMap;
use rouse_protocol::app::Host;

use crate::normal::Segments;
use crate::slot::Slot;
use crate::{HostPattern, Rule};

/// How many parts a table has: with 10,000 apps a change copies 40 pointers of one part, and 256 to the
/// parts.
const SHARDS: usize = 256;

/// The longest host name (RFC 1035 §2.3.4, as text).
const MAX_HOST: usize = 253;

/// A [`HostPattern`] by reference, made from a request without a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostRef<'h> {
    Exact(&'h str),
    Wildcard(&'h str),
    Any,
}

impl<'h> From<&'h HostPattern> for HostRef<'h> {
    fn from(pattern: &'h HostPattern) -> Self {
        match pattern {
            HostPattern::Exact(host) => Self::Exact(host.as_str()),
            HostPattern::Wildcard(host) => Self::Wildcard(host.as_str()),
            HostPattern::Any => Self::Any,
        }
    }
}

type Shard<T> = HashTable<Arc<Slot<T>>>;

/// An immutable picture of who gets which requests. Made by [`Routes`](crate::Routes).
#[derive(Clone)]
pub struct RouteTable<T> {
    // Keyed at random, so that nobody can choose hosts that fall together.
    hasher: RandomState,
    shards: Box<[Arc<Shard<T>>; SHARDS]>,
    /// Hosts `*.…` that there are slots for: without any, none is looked for.
    wildcards: usize,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        let empty = Arc::new(Shard::new());
        Self {
            hasher: RandomState::new(),
            shards: Box::new(std::array::from_fn(|_| empty.clone())),
            wildcards: 0,
        }
    }
}

impl<T> RouteTable<T> {
    /// Whom a request is for, by its host, path and headers, each as the visitor sent it.
    ///
    /// `host` is the `Host` header or the `:authority`; case, port and a dot at the end make no
    /// difference. A host that is none is nobody's, not even `*`'s. `path` is the target without scheme and
    /// host; a query after it is ignored.
    pub fn lookup(&self, host: &str, path: &str, headers: &HeaderMap) -> Option<&T> {
        let segments = OnceCell::new();
        let of = |host: HostRef<'_>| self.lookup_at(host, &segments, path, headers);
        // Only normal hosts are in the table. So what is there as sent needs no further look, which
        // would take longer than all the rest.
        let name = without_port(host);
        let as_sent = if name.len() <= MAX_HOST { of(HostRef::Exact(name)) } else { None };
        as_sent.or_else(|| {
            let normal = Host::normalize(host).ok()?;
            let exact = if normal == name { None } else { of(HostRef::Exact(&normal)) };
            exact
                .or_else(|| {
                    let (_, parent) = normal.split_once('.').filter(|_| self.wildcards > 0)?;
                    of(HostRef::Wildcard(parent))
                })
                .or_else(|| of(HostRef::Any))
        })
    }

    fn lookup_at<'p>(
        &self,
        host: HostRef<'_>,
        segments: &OnceCell<Segments<'p>>,
        path: &'p str,
        headers: &HeaderMap,
    ) -> Option<&T> {
        let root = self.slot(host, b"")?;
        if let Some(below) = &root.below {
            let segments = segments.get_or_init(|| Segments::of(path));
            let mut depths = below.depths;
            while let Some(bit) = depths.checked_ilog2() {
                depths &= !(1 << bit);
                let found = segments
                    .first(bit as usize + 1)
                    .and_then(|prefix| self.slot(host, prefix))
                    .and_then(|slot| slot.pick(headers));
                if found.is_some() {
                    return found;
                }
            }
        }
        root.pick(headers)
    }

    fn slot(&self, host: HostRef<'_>, path: &[u8]) -> Option<&Slot<T>> {
        let hash = hash_at(&self.hasher, host, path);
        self.shards[shard_of(hash)].find(hash, |slot| is_at(slot, host, path)).map(|slot| &**slot)
    }

    /// How many slots there are, and wildcard hosts.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.shards.iter().map(|shard| shard.len()).sum(), self.wildcards)
    }

    /// The slot of a rule, if there is one.
    pub(crate) fn slot_of(&self, rule: &Rule) -> Option<&Slot<T>> {
        self.slot(HostRef::from(&rule.host), rule.path.bytes())
    }
}

/// `host` without what looks like a port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn hash_at(hasher: &RandomState, host: HostRef<'_>, path: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    // One write for the usual host; what a name can't hold tells the rare ones apart.
    match host {
        HostRef::Exact(name) => hasher.write(name.as_bytes()),
        HostRef::Wildcard(name) => {
            hasher.write_u8(b'*');
            hasher.write(name.as_bytes());
        }
        HostRef::Any => hasher.write_u8(b'*'),
    }
    if !path.is_empty() {
        hasher.write(path);
    }
    hasher.finish()
}

/// Chosen by bits that the shard's own table makes no use of.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

fn is_at<T>(slot: &Slot<T>, host: HostRef<'_>, path: &[u8]) -> bool {
    // Nothing is not compared with nothing: a vectorised memcmp of no bytes at the address of an
    // empty box costs 100 ns on some processors, for the fault that it has to suppress.
    let own = slot.path.bytes();
    let same_path = if path.is_empty() { own.is_empty() } else { own == path };
    same_path && HostRef::from(&slot.host) == host
}

impl<T: Clone> RouteTable<T> {
    /// Changes the slot of `rule`, which is made for that and goes when it is left empty.
    pub(crate) fn change<R>(&mut self, rule: &Rule, change: impl FnOnce(&mut Slot<T>) -> R) -> R {
        let (result, came, went) = self.change_one(rule, change);
        if rule.path.is_root() {
            self.count(&rule.host, came, went);
        } else if came != went {
            let depth = rule.path.depth();
            let root = Rule::from(rule.host.clone());
            let ((), came, went) = self.change_one(&root, |root| {
                let below = root.below.get_or_insert_default();
                if came {
                    below.add(depth)
                } else {
                    below.sub(depth)
                }
                root.below.take_if(|below| below.depths == 0);
            });
            self.count(&rule.host, came, went);
        }
        result
    }

    /// Counts the slot without a path of a host that has come, or gone.
    fn count(&mut self, host: &HostPattern, came: bool, went: bool) {
        if matches!(host, HostPattern::Wildcard(_)) {
            self.wildcards = self.wildcards + usize::from(came) - usize::from(went);
        }
    }

    /// [`Self::change`] of one slot alone, and whether that has come and whether it has gone.
    fn change_one<R>(
        &mut self,
        rule: &Rule,
        change: impl FnOnce(&mut Slot<T>) -> R,
    ) -> (R, bool, bool) {
        let (host, path) = (HostRef::from(&rule.host), rule.path.bytes());
        let hash = hash_at(&self.hasher, host, path);
        let rehash = |slot: &Arc<Slot<T>>| {
            hash_at(&self.hasher, HostRef::from(&slot.host), slot.path.bytes())
        };
        let shard = Arc::make_mut(&mut self.shards[shard_of(hash)]);
        let is_this = |slot: &Arc<Slot<T>>| is_at(slot, host, path);
        match shard.entry(hash, is_this, rehash) {
            Entry::Occupied(mut entry) => {
                let slot = Arc::make_mut(entry.get_mut());
                let result = change(slot);
                let empty = slot.is_empty();
                if empty {
                    entry.remove();
                }
                (result, false, empty)
            }
            Entry::Vacant(entry) => {
                let mut slot = Slot::new(rule.host.clone(), rule.path.clone());
                let result = change(&mut slot);
                let empty = slot.is_empty();
                if !empty {
                    entry.insert(Arc::new(slot));
                }
                (result, !empty, false)
            }
        }
    }
}
