//! How many connections there are, in all and of one client.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maps that the clients are spread over, so that two accepts seldom want the same.
const SHARDS: usize = 16;

/// Whose connections are counted together: a v4 address, or the /64 of a v6 one, since that is the
/// least that one client is given (RFC 6177, section 2) and it may come from any address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    V4(u32),
    V6(u64),
}

impl Origin {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments().map(u64::from);
                Self::V6(a << 48 | b << 32 | c << 16 | d)
            }
        }
    }
}

/// Why there is no room for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// There are as many as there may be.
    #[error("there are as many connections as there may be")]
    Total,
    /// This client has as many as it may.
    #[error("this client has as many connections as it may")]
    Address,
}

impl Full {
    /// One word for a metric or a log; there are two.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Address => "address",
        }
    }
}

/// The connections there are. Memory is bounded by their number: a client without one has no entry.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    most_per_address: usize,
    total: AtomicUsize,
    hasher: RandomState,
    shards: [Mutex<HashMap<Origin, usize>>; SHARDS],
}

impl Connections {
    /// None yet, and at the most `most` in all and `most_per_address` of one client.
    pub fn new(most: usize, most_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_per_address,
            total: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Counts one more connection until it is dropped. Before anything is read from it.
    pub fn enter(self: &Arc<Self>) -> Result<Connection, Full> {
        let more = |n| (n < self.most).then_some(n + 1);
        match self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Connection { all: Arc::clone(self), origin: None }),
            Err(_) => Err(Full::Total),
        }
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    fn shard(&self, origin: Origin) -> &Mutex<HashMap<Origin, usize>> {
        // Keyed, so that nobody can choose addresses that all meet in one.
        let hash = self.hasher.hash_one(origin) % SHARDS as u64;
        &self.shards[usize::try_from(hash).unwrap_or(0)]
    }

    fn count(&self, origin: Origin) -> Result<(), Full> {
        // A count is right after every statement, so a panic elsewhere leaves nothing to mend.
        let mut counts = self.shard(origin).lock().unwrap_or_else(PoisonError::into_inner);
        match counts.entry(origin) {
            Entry::Occupied(count) if *count.get() >= self.most_per_address => Err(Full::Address),
            Entry::Vacant(_) if self.most_per_address == 0 => Err(Full::Address),
            entry => {
                *entry.or_insert(0) += 1;
                Ok(())
            }
        }
    }

    fn forget(&self, origin: Origin) {
        let mut counts = self.shard(origin).lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = counts.entry(origin) {
            if *count.get() > 1 {
                *count.get_mut() -= 1;
            } else {
                count.remove();
            }
        }
    }
}

/// One connection. It counts until it is dropped.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    origin: Option<Origin>,
}

impl Connection {
    /// Counts it as one of the client at `address`, and of no other any more. After its PROXY
    /// protocol header, which tells the client's address; and not for a trusted front, whose
    /// connections are of many clients. An error leaves it as one of nobody's.
    pub fn count_for(&mut self, address: IpAddr) -> Result<(), Full> {
        let origin = Origin::of(address);
        if self.origin == Some(origin) {
            return Ok(());
        }
        if let Some(before) = self.origin.take() {
            self.all.forget(before);
        }
        self.all.count(origin)?;
        self.origin = Some(origin);
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(origin) = self.origin {
            self.all.forget(origin);
        }
        self.all.total.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn entries(all: &Connections) -> usize {
        all.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }

    #[test]
    fn the_total_is_a_limit_and_is_given_back() {
        let all = Connections::new(2, 10);
        let one = all.enter().unwrap();
        let _two = all.enter().unwrap();
        assert_eq!(all.enter().unwrap_err(), Full::Total);
        drop(one);
        assert_eq!(all.total(), 1);
        all.enter().unwrap();
    }

    #[test]
    fn a_client_has_its_own_limit() {
        let all = Connections::new(100, 2);
        let enter = |address: &str| {
            let mut connection = all.enter().unwrap();
            connection.count_for(ip(address)).map(|()| connection)
        };
        for (first, second, third, other) in [
            ("192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3", "2001:db8:0:1::1"),
        ] {
            let (one, _two) = (enter(first).unwrap(), enter(second).unwrap());
            assert_eq!(enter(third).unwrap_err(), Full::Address);
            enter(other).unwrap();
            drop(one);
            enter(third).unwrap();
        }
        assert_eq!((all.total(), entries(&all)), (0, 0));
    }

    #[test]
    fn a_connection_counts_for_one_client() {
        let all = Connections::new(9, 1);
        let mut one = all.enter().unwrap();
        one.count_for(ip("192.0.2.1")).unwrap();
        one.count_for(ip("192.0.2.1")).unwrap();
        one.count_for(ip("192.0.2.2")).unwrap();
        let mut two = all.enter().unwrap();
        assert_eq!(two.count_for(ip("192.0.2.2")), Err(Full::Address));
        two.count_for(ip("192.0.2.1")).unwrap();
        drop((one, two));
        assert_eq!((all.total(), entries(&all)), (0, 0));
    }

    #[test]
    fn threads_agree() {
        let all = Connections::new(8, 5);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let all = &all;
                scope.spawn(move || {
                    for i in 0..2000u32 {
                        let Ok(mut connection) = all.enter() else { continue };
                        let last = u8::try_from(i % 3).unwrap() + thread;
                        let _ = connection.count_for(IpAddr::from([192, 0, 2, last]));
                        assert!(all.total() <= 8);
                    }
                });
            }
        });
        assert_eq!((all.total(), entries(&all)), (0, 0));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0..6u8), 0..80)) {
            let all = Connections::new(10, 3);
            let mut open: Vec<(u8, Connection)> = Vec::new();
            for (leave, client) in steps {
                if leave {
                    if !open.is_empty() {
                        open.remove(usize::from(client) % open.len());
                    }
                    continue;
                }
                let of_client = open.iter().filter(|(c, _)| *c == client).count();
                let expected = if open.len() == 10 {
                    Err(Full::Total)
                } else if of_client == 3 {
                    Err(Full::Address)
                } else {
                    Ok(())
                };
                let entered = all.enter().and_then(|mut connection| {
                    connection.count_for(IpAddr::from([192, 0, 2, client])).map(|()| connection)
                });
                prop_assert_eq!(entered.as_ref().map(|_| ()).map_err(|full| *full), expected);
                open.extend(entered.ok().map(|connection| (client, connection)));
                prop_assert_eq!(all.total(), open.len());
            }
            let clients: std::collections::HashSet<_> = open.iter().map(|(c, _)| *c).collect();
            prop_assert_eq!(entries(&all), clients.len());
        }
    }
}
