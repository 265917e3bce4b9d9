//! Whose word is taken on who is behind it: networks, from the configuration and from files.

mod cidr;
mod files;

use std::net::IpAddr;

pub use cidr::{Cidr, CidrError};
pub use files::{Live, Source};

/// A set of networks, for one look-up a connection and some a request.
///
/// Ranges, sorted and merged: a look-up in hundreds of networks is a handful of comparisons in one
/// cache line or three, and allocates nothing. A v4-mapped address is looked up as the v4 address
/// it is, so `::/0` holds no v4 address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trusted {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Trusted {
    /// Whether `address` is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => within(&self.v4, address.to_bits()),
            IpAddr::V6(address) => within(&self.v6, address.to_bits()),
        }
    }

    /// Whether nobody is trusted.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl FromIterator<Cidr> for Trusted {
    fn from_iter<I: IntoIterator<Item = Cidr>>(networks: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match (network.net().network(), network.net().broadcast()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((first.to_bits(), last.to_bits())),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((first.to_bits(), last.to_bits())),
                // Both ends of a network are of one family.
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
            }
        }
        Self { v4: merged(v4), v6: merged(v6) }
    }
}

fn within<A: Ord + Copy>(ranges: &[(A, A)], address: A) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    after > 0 && address <= ranges[after - 1].1
}

/// `ranges` in order and without overlaps.
fn merged<A: Ord + Copy>(mut ranges: Vec<(A, A)>) -> Box<[(A, A)]> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let overlaps = next.0 <= kept.1;
        if overlaps {
            kept.1 = kept.1.max(next.1);
        }
        overlaps
    });
    ranges.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn set(networks: &[&str]) -> Trusted {
        networks.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_and_ends() {
        let set =
            set(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1", "::ffff:198.51.100.0/120"]);
        for (address, inside) in [
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("198.51.100.200", true),
            ("198.51.101.0", false),
            ("::ffff:10.1.1.1", true),
            ("::ffff:11.1.1.1", false),
            ("2001:db8:ffff::", true),
            ("2001:db9::", false),
            ("::1", true),
            ("::", false),
        ] {
            assert_eq!(set.contains(address.parse().unwrap()), inside, "{address}");
        }
        assert!(!set.is_empty());
        assert!(Trusted::default().is_empty());
        assert!(!Trusted::default().contains(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn all_of_a_family_is_not_all_of_the_other() {
        assert!(set(&["0.0.0.0/0"]).contains(Ipv4Addr::BROADCAST.into()));
        assert!(!set(&["0.0.0.0/0"]).contains(Ipv6Addr::LOCALHOST.into()));
        assert!(!set(&["::/0"]).contains("::ffff:10.0.0.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn a_look_up_is_what_a_walk_of_the_list_finds(
            v4 in prop::collection::vec((any::<u32>(), 0..=32u8), 0..40),
            v6 in prop::collection::vec((any::<u128>(), 0..=95u8), 0..40),
            addresses in prop::collection::vec(any::<u32>(), 0..20),
        ) {
            let networks: Vec<Cidr> = v4
                .iter()
                .map(|(a, p)| Cidr::truncated(Ipv4Addr::from_bits(*a).into(), *p))
                .chain(v6.iter().map(|(a, p)| Cidr::truncated(Ipv6Addr::from_bits(*a).into(), *p)))
                .map(Option::unwrap)
                .collect();
            let set: Trusted = networks.iter().copied().collect();
            // Any address, and the ends of every network with their neighbours.
            let mut probes: Vec<IpAddr> =
                addresses.into_iter().map(|a| Ipv4Addr::from_bits(a).into()).collect();
            for network in &networks {
                for end in [network.net().network(), network.net().broadcast()] {
                    probes.push(end);
                    match end {
                        IpAddr::V4(a) => probes.extend([
                            IpAddr::from(Ipv4Addr::from_bits(a.to_bits().wrapping_sub(1))),
                            Ipv4Addr::from_bits(a.to_bits().wrapping_add(1)).into(),
                        ]),
                        IpAddr::V6(a) => probes.extend([
                            IpAddr::from(Ipv6Addr::from_bits(a.to_bits().wrapping_sub(1))),
                            Ipv6Addr::from_bits(a.to_bits().wrapping_add(1)).into(),
                        ]),
                    }
                }
            }
            for probe in probes {
                let probe = probe.to_canonical();
                let walk = networks.iter().any(|network| network.net().contains(&probe));
                prop_assert_eq!(set.contains(probe), walk, "{}", probe);
            }
        }
    }
}
