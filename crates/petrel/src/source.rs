//! The source of a peer, to which the peer's use of shared resources is charged.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

use crate::security::PeerIdentity;

/// The identity that a peer has proven; without one its IPv4 address, or its IPv6 network of 64 bits, since a host may use any
/// address in its network, and the user of a process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Source(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Address {
        network: IpAddr,
        user: Option<u32>,
    },
    /// A hash: tables of sources have small keys of one size. The hash has a key of this process, without which no peer can choose a name
    /// with a wanted hash.
    Identity(u64),
}

impl Source {
    /// Returns the source of a peer at an address, which is canonical (no IPv4 address in the form of IPv6), of a user if known.
    /// An identity that was proven counts alone: a workload may have many addresses, and many workloads may share one.
    pub(crate) fn of(address: IpAddr, user: Option<u32>, identity: Option<&PeerIdentity>) -> Self {
        if let Some(identity) = identity.and_then(hash_of) {
            return Self(Kind::Identity(identity));
        }
        let network = match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) if v6.is_loopback() => v6.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !0 << 64).into(),
        };
        Self(Kind::Address { network, user })
    }

    /// Returns a number for the source, the same as long as the process runs.
    pub(crate) fn number(self) -> u64 {
        keys().hash_one(self)
    }
}

/// Returns the hash of the name that certificates of one workload share: the SPIFFE ID, else the DNS names, else the key or certificate itself.
fn hash_of(identity: &PeerIdentity) -> Option<u64> {
    let PeerIdentity { spiffe_id, dns_names, fingerprint, .. } = identity;
    match spiffe_id {
        Some(id) => Some(keys().hash_one(id)),
        None if !dns_names.is_empty() => Some(keys().hash_one(dns_names)),
        None => fingerprint.map(|fingerprint| keys().hash_one(fingerprint)),
    }
}

fn keys() -> &'static RandomState {
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    KEYS.get_or_init(RandomState::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source::of(address.parse().unwrap(), None, None)
    }

    #[test]
    fn of__a_user_of_an_address_or_of_a_network_of_64_bits() {
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:3:4"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("::1"), source("::2"));
        let of_user = |user| Source::of([127, 0, 0, 1].into(), Some(user), None);
        assert!(of_user(1) == of_user(1) && of_user(1) != of_user(2));
        assert!(
            of_user(1).number() == of_user(1).number()
                && of_user(1).number() != of_user(2).number()
        );
    }

    #[test]
    fn of__an_identity_wherever_it_is() {
        let of = |host, identity: &PeerIdentity| {
            Source::of([10, 0, 0, host].into(), None, Some(identity))
        };
        let spiffe = |id: &str, fingerprint| PeerIdentity {
            spiffe_id: Some(id.to_owned()),
            dns_names: vec![format!("host-{fingerprint}")],
            fingerprint: Some([fingerprint; 32]),
            ..PeerIdentity::default()
        };
        let (web, shop) = (spiffe("spiffe://prod/web", 1), spiffe("spiffe://prod/shop", 1));
        assert_eq!(
            of(1, &web),
            of(2, &spiffe("spiffe://prod/web", 2)),
            "certificates of one workload"
        );
        assert_ne!(of(1, &web), of(1, &shop));

        let dns = PeerIdentity { spiffe_id: None, ..web.clone() };
        let key = PeerIdentity { dns_names: vec![], ..dns.clone() };
        let other_key = PeerIdentity { fingerprint: Some([2; 32]), ..key.clone() };
        assert_eq!(of(1, &dns), of(2, &dns));
        assert!(of(1, &key) == of(2, &key) && of(1, &key) != of(1, &other_key));
        let unproven = PeerIdentity { uid: Some(7), ..PeerIdentity::default() };
        assert_eq!(of(1, &unproven), source("10.0.0.1"), "a user is no name among hosts");
    }
}
