//! One network.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// The bits before a v4 address in a v4-mapped one (RFC 4291, section 2.5.5.2).
const MAPPED: u8 = 96;

/// A network: `192.0.2.0/24`, `2001:db8::/32`, or one address. v4-mapped ones are v4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

/// Why a text is no [`Cidr`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// No address, or no prefix length after it.
    #[error(
        "a network is an address and a prefix length, as 192.0.2.0/24, or an address; {0:?} is neither"
    )]
    Form(String),
    /// The address goes on after the prefix: likely a slip, and one in who is trusted.
    #[error("{given} has bits after its prefix; write {meant}, or the address alone")]
    HostBits {
        /// What was given.
        given: IpNet,
        /// The network it is in.
        meant: IpNet,
    },
}

impl Cidr {
    /// The network as its own library has it.
    pub fn net(&self) -> IpNet {
        self.0
    }

    /// The network of the first `prefix` bits of `address`; none if it has fewer.
    pub fn truncated(address: IpAddr, prefix: u8) -> Option<Self> {
        IpNet::new(address, prefix).ok().map(|net| Self(unmapped(net.trunc())))
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let net = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            // What is quoted comes from a file, and goes into a log.
            Err(_) => text
                .parse::<IpNet>()
                .map_err(|_| CidrError::Form(text.chars().take(64).collect()))?,
        };
        if net != net.trunc() {
            return Err(CidrError::HostBits { given: net, meant: net.trunc() });
        }
        Ok(Self(unmapped(net)))
    }
}

fn unmapped(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped = Ipv6Addr::to_ipv4_mapped(&v6.network());
    let v4 = mapped.zip(v6.prefix_len().checked_sub(MAPPED));
    v4.and_then(|(address, prefix)| IpNet::new(address.into(), prefix).ok()).unwrap_or(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, net) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().net().to_string(), net);
        }
        for text in [
            "",
            "a",
            "192.0.2.0/33",
            "192.0.2/24",
            "192.0.2.0/",
            "/8",
            "1.2.3.4 /8",
            "fe80::1%1",
            "1.2.3.4/+8",
        ] {
            let error = text.parse::<Cidr>().unwrap_err();
            assert_eq!(error, CidrError::Form(text.to_owned()), "{text}");
        }
        let error = "10.0.0.1/8".parse::<Cidr>().unwrap_err().to_string();
        assert_eq!(
            error,
            "10.0.0.1/8 has bits after its prefix; write 10.0.0.0/8, or the address alone"
        );
    }
}
