//! How often an app may be woken, in all and by one client address: token buckets in whole numbers.
//!
//! Only who *starts* a wake is charged; joining one is free. A budget belongs to one proxy: two
//! proxies in front of one app have two.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Denied;

/// The most client addresses that are remembered for one app: some 50 KiB.
pub const MAX_ADDRESSES: usize = 1024;

/// So many wakes in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many wakes come back in [`Self::per_seconds`].
    pub wakes: u32,
    /// In seconds.
    pub per_seconds: u32,
    /// How many can be had at once.
    pub burst: u32,
}

/// A token bucket. One wake costs `per_ms` units and each millisecond brings `wakes` units, so that
/// nothing is ever rounded.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: u64,
    /// When `level` was right, in milliseconds since the budgets began.
    at_ms: u64,
}

/// A rate in a bucket's units. Zeros, which no configuration has, are taken for ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Units {
    per_ms: u64,
    cost: u64,
    full: u64,
}

impl From<Rate> for Units {
    fn from(rate: Rate) -> Self {
        let cost = u64::from(rate.per_seconds.max(1)) * 1000;
        let full = cost.saturating_mul(rate.burst.max(1).into());
        Self { per_ms: rate.wakes.max(1).into(), cost, full }
    }
}

impl Bucket {
    fn full(units: Units, at_ms: u64) -> Self {
        Self { level: units.full, at_ms }
    }

    /// What is in it at `now_ms`. Time that goes backwards brings nothing.
    fn level(&self, units: Units, now_ms: u64) -> u64 {
        let came = now_ms.saturating_sub(self.at_ms).saturating_mul(units.per_ms);
        self.level.saturating_add(came).min(units.full)
    }

    /// How long until there is a wake; none: there is one now.
    fn wait(&self, units: Units, now_ms: u64) -> Option<Duration> {
        let lacks = units.cost.saturating_sub(self.level(units, now_ms));
        (lacks > 0).then(|| Duration::from_millis(lacks.div_ceil(units.per_ms)))
    }

    /// Takes one wake, which must be there.
    fn take(&mut self, units: Units, now_ms: u64) {
        self.level = self.level(units, now_ms).saturating_sub(units.cost);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// Puts one wake back, if there is room for it.
    fn give(&mut self, units: Units, now_ms: u64) {
        self.level = self.level(units, now_ms).saturating_add(units.cost).min(units.full);
        self.at_ms = self.at_ms.max(now_ms);
    }

    /// As it is under another rate: as many wakes as before, and never more than full.
    fn adapt(&mut self, old: Units, new: Units, now_ms: u64) {
        let level =
            u128::from(self.level(old, now_ms)) * u128::from(new.cost) / u128::from(old.cost);
        self.level = u64::try_from(level).unwrap_or(u64::MAX).min(new.full);
        self.at_ms = self.at_ms.max(now_ms);
    }
}

/// What is left of one app's budgets.
///
/// An address is remembered from its first wake on, never for being refused or for joining. When
/// [`MAX_ADDRESSES`] are, the one that lacks least makes room. So nobody can be robbed: forgetting
/// an address only ever gives it wakes, and nobody's coming takes any from another. And it does not
/// pay an attacker with many addresses to push out their own: each push is itself a wake, charged
/// to the app, and gives back no more than the address that had used least had used.
#[derive(Debug)]
pub struct Budgets {
    began: Instant,
    // Never held for longer than one pass over the addresses; a wake is rare.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    app: Option<(Units, Bucket)>,
    per_address: Option<Units>,
    addresses: HashMap<Client, Bucket>,
    most: usize,
}

/// Whose budget it is: an IPv4 address, or the /64 that one IPv6 subscriber gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

impl Budgets {
    /// Full budgets: of the app and of each address; none: without a bound.
    pub fn new(app: Option<Rate>, per_address: Option<Rate>, now: Instant) -> Self {
        let app = app.map(|rate| {
            let units = Units::from(rate);
            (units, Bucket::full(units, 0))
        });
        let state = State {
            app,
            per_address: per_address.map(Units::from),
            addresses: HashMap::new(),
            most: MAX_ADDRESSES,
        };
        Self { began: now, state: Mutex::new(state) }
    }

    fn locked(&self, now: Instant) -> (MutexGuard<'_, State>, u64) {
        let ms = now.saturating_duration_since(self.began).as_millis();
        // Numbers only: whoever panicked left nothing half done that matters.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state, u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// Whether a visitor from `address` could start a wake at `now`. Takes nothing. A visitor
    /// without an address, over a Unix socket, is bounded by the app's budget only.
    pub fn check(&self, address: Option<IpAddr>, now: Instant) -> Result<(), Denied> {
        let (state, now_ms) = self.locked(now);
        state.check(address.map(Client::from), now_ms)
    }

    /// Takes the wake that a visitor from `address` starts, from both budgets or from none. Of many
    /// that ask at once, no more get one than there are.
    pub fn charge(&self, address: Option<IpAddr>, now: Instant) -> Result<(), Denied> {
        let client = address.map(Client::from);
        let (mut state, now_ms) = self.locked(now);
        state.check(client, now_ms)?;
        if let Some((units, bucket)) = &mut state.app {
            bucket.take(*units, now_ms);
        }
        if let (Some(units), Some(client)) = (state.per_address, client) {
            state.bucket(client, units, now_ms).take(units, now_ms);
        }
        Ok(())
    }

    /// Gives back a wake that was charged to `address` and never began.
    pub fn refund(&self, address: Option<IpAddr>, now: Instant) {
        let client = address.map(Client::from);
        let (mut state, now_ms) = self.locked(now);
        if let Some((units, bucket)) = &mut state.app {
            bucket.give(*units, now_ms);
        }
        if let (Some(units), Some(client)) = (state.per_address, client)
            && let Some(bucket) = state.addresses.get_mut(&client)
        {
            bucket.give(units, now_ms);
        }
    }

    /// Takes other rates. Who has wakes left keeps them, as far as they fit: telling the same
    /// policy again gives nothing back.
    pub fn change(&self, app: Option<Rate>, per_address: Option<Rate>, now: Instant) {
        let (mut state, now_ms) = self.locked(now);
        state.app = app.map(|rate| {
            let new = Units::from(rate);
            let bucket = match state.app {
                Some((old, mut bucket)) => {
                    bucket.adapt(old, new, now_ms);
                    bucket
                }
                None => Bucket::full(new, now_ms),
            };
            (new, bucket)
        });
        let new = per_address.map(Units::from);
        match (state.per_address, new) {
            (Some(old), Some(new)) if old != new => {
                for bucket in state.addresses.values_mut() {
                    bucket.adapt(old, new, now_ms);
                }
            }
            (_, None) => state.addresses = HashMap::new(),
            _ => {}
        }
        state.per_address = new;
    }

    /// How many addresses are remembered.
    pub fn addresses(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).addresses.len()
    }
}

impl State {
    fn check(&self, client: Option<Client>, now_ms: u64) -> Result<(), Denied> {
        // The address first: who has used up its own is told so, whatever else is used up.
        if let (Some(units), Some(client)) = (self.per_address, client) {
            let wait = self.addresses.get(&client).and_then(|bucket| bucket.wait(units, now_ms));
            if let Some(retry_after) = wait {
                return Err(Denied::AddressBudget { retry_after });
            }
        }
        match self.app.and_then(|(units, bucket)| bucket.wait(units, now_ms)) {
            Some(retry_after) => Err(Denied::AppBudget { retry_after }),
            None => Ok(()),
        }
    }

    fn bucket(&mut self, client: Client, units: Units, now_ms: u64) -> &mut Bucket {
        if self.addresses.len() >= self.most && !self.addresses.contains_key(&client) {
            // A full one is as good as none.
            self.addresses.retain(|_, bucket| bucket.level(units, now_ms) < units.full);
            if self.addresses.len() >= self.most {
                let fullest = self.addresses.iter().max_by_key(|(_, b)| b.level(units, now_ms));
                if let Some(fullest) = fullest.map(|(client, _)| *client) {
                    self.addresses.remove(&fullest);
                }
            }
        }
        self.addresses.entry(client).or_insert(Bucket::full(units, now_ms))
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
