//! Socket addresses as the kernel reads and writes them, and as keys of the peer table.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// An address in the kernel's layout, ready for `msg_name`.
#[derive(Clone, Copy)]
pub(super) enum RawAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddr {
    /// Start and length of the structure, valid while `self` stays in place.
    #[inline]
    pub(super) fn as_name(&self) -> (*const libc::c_void, libc::socklen_t) {
        match self {
            Self::V4(v4) => (std::ptr::from_ref(v4).cast(), size_of_val(v4) as libc::socklen_t),
            Self::V6(v6) => (std::ptr::from_ref(v6).cast(), size_of_val(v6) as libc::socklen_t),
        }
    }
}

impl RawAddr {
    /// Returns true if the address is one of this host's loopback.
    #[inline]
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            // The first byte in the order of the network, which is that of memory.
            Self::V4(v4) => v4.sin_addr.s_addr.to_ne_bytes()[0] == 127,
            Self::V6(_) => self.addr().ip().to_canonical().is_loopback(),
        }
    }

    /// Converts back to a socket address, for code without a kernel.
    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Self::V4(v4) => {
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                SocketAddr::from((ip, u16::from_be(v4.sin_port)))
            }
            Self::V6(v6) => {
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into()
            }
        }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: scope_of(v6.ip(), v6.scope_id()),
            }),
        }
    }
}

/// Only link-local addresses have a scope; the kernel reports 0 for all others.
fn scope_of(ip: &Ipv6Addr, scope_id: u32) -> u32 {
    if ip.is_unicast_link_local() { scope_id } else { 0 }
}

/// Identifies peers. A socket has a single family, hence a key needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddrKey {
    ip: u128,
    /// Port in the low 16 bits, scope above them.
    port: u64,
}

impl AddrKey {
    /// The key of a received `msg_name`, which the kernel filled with an address of either family.
    ///
    /// The ports of `sockaddr_in` and `sockaddr_in6` are at the same offset, and the IPv4 address
    /// is at the offset of the IPv6 flow information. One structure thus reads either family.
    #[inline]
    pub(super) fn from_name(name: &libc::sockaddr_in6) -> Self {
        let port = u64::from(u16::from_be(name.sin6_port));
        if i32::from(name.sin6_family) == libc::AF_INET {
            return Self { ip: u128::from(u32::from_be(name.sin6_flowinfo)), port };
        }
        let scope = u64::from(name.sin6_scope_id) << 16;
        Self { ip: u128::from_be_bytes(name.sin6_addr.s6_addr), port: port | scope }
    }
}

impl AddrKey {
    /// The key of another port at the same IP address.
    pub(super) fn with_port(self, port: u16) -> Self {
        Self { port: self.port & !u64::from(u16::MAX) | u64::from(port), ..self }
    }
}

impl From<SocketAddr> for AddrKey {
    fn from(addr: SocketAddr) -> Self {
        let port = u64::from(addr.port());
        match addr {
            SocketAddr::V4(v4) => Self { ip: u128::from(u32::from(*v4.ip())), port },
            SocketAddr::V6(v6) => {
                let scope = u64::from(scope_of(v6.ip(), v6.scope_id())) << 16;
                Self { ip: u128::from(*v6.ip()), port: port | scope }
            }
        }
    }
}

impl Hash for AddrKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.ip as u64);
        state.write_u64((self.ip >> 64) as u64 ^ self.port.rotate_left(48));
    }
}

/// A seeded folded-multiply hash: a few instructions where the standard one takes 20 ns. The table
/// holds only peers the control plane admitted, and the seed is secret. A stranger can thus neither
/// fill nor predict the table.
#[derive(Clone, Copy)]
pub(super) struct AddrHash {
    seed: u64,
}

impl AddrHash {
    pub(super) fn new() -> Self {
        Self { seed: std::hash::RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for AddrHash {
    type Hasher = AddrHasher;

    #[inline]
    fn build_hasher(&self) -> AddrHasher {
        AddrHasher(self.seed)
    }
}

pub(super) struct AddrHasher(u64);

impl Hasher for AddrHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        // An odd constant with mixed bits: the golden ratio of 2^64.
        let product = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product as u64) ^ ((product >> 64) as u64).rotate_left(23);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The families of addresses that a data port carries: a port of all IPv6 addresses carries IPv4, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    /// The families of a port with this address.
    pub(super) fn of(local: SocketAddr) -> Self {
        match local.ip() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(ip) if ip.is_unspecified() => Self::Both,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Whether IPv4 is among them, and IPv6.
    pub(super) fn contains(self) -> (bool, bool) {
        (self != Self::V6, self != Self::V4)
    }

    /// Returns a peer's address as the port's socket has it, or the reason against sending. A socket of both families has
    /// IPv4 addresses mapped to IPv6 (RFC 4291 §2.5.5.2).
    pub(super) fn usable(self, addr: SocketAddr) -> Result<SocketAddr, String> {
        let addr = canonical(addr);
        let (v4, v6) = self.contains();
        if !(if addr.is_ipv6() { v6 } else { v4 }) {
            let family = if v6 { "IPv6" } else { "IPv4" };
            return Err(format!("{addr} is not of the data port's family, {family}"));
        }
        if addr.port() == 0 || addr.ip().is_unspecified() || is_group(addr.ip()) {
            return Err(format!("{addr} is not the address of one peer"));
        }
        match addr {
            SocketAddr::V4(v4) if v6 => Ok((v4.ip().to_ipv6_mapped(), v4.port()).into()),
            addr => Ok(addr),
        }
    }
}

/// Returns the address as the network has it: IPv4, if it is mapped to IPv6.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, addr.port())),
        IpAddr::V6(_) => addr,
    }
}

fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The kernel's form of the name of a datagram from `addr`.
    fn name_of(addr: SocketAddr) -> libc::sockaddr_in6 {
        match RawAddr::from(addr) {
            RawAddr::V6(v6) => v6,
            RawAddr::V4(v4) => libc::sockaddr_in6 {
                sin6_family: v4.sin_family,
                sin6_port: v4.sin_port,
                sin6_flowinfo: v4.sin_addr.s_addr,
                sin6_addr: libc::in6_addr { s6_addr: [0xAA; 16] },
                sin6_scope_id: 0xAAAA_AAAA,
            },
        }
    }

    #[test]
    fn key__is_the_same_from_both_sides() {
        let texts =
            ["127.0.0.1:1", "255.1.2.3:65535", "[::1]:7", "[2001:db8::ff]:9", "[fe80::1%3]:9"];
        let keys: Vec<AddrKey> = texts.iter().map(|text| AddrKey::from(addr(text))).collect();
        for (text, key) in texts.iter().zip(&keys) {
            assert_eq!(AddrKey::from_name(&name_of(addr(text))), *key, "{text}");
            assert_eq!(keys.iter().filter(|&other| other == key).count(), 1, "{text}");
        }
    }

    #[test]
    fn addr__is_the_one_that_it_was_made_of() {
        for text in
            ["127.0.0.1:1", "255.1.2.3:65535", "[::1]:7", "[2001:db8::ff]:9", "[fe80::1%3]:9"]
        {
            assert_eq!(RawAddr::from(addr(text)).addr(), addr(text), "{text}");
        }
        // The flow label is no part of the address, nor is the scope of a global address.
        let labelled = SocketAddrV6::new("2001:db8::ff".parse().unwrap(), 9, 5, 3);
        assert_eq!(RawAddr::from(SocketAddr::from(labelled)).addr(), addr("[2001:db8::ff]:9"));
    }

    #[test]
    fn is_loopback__of_either_family_and_mapped() {
        let is_loopback = |text| RawAddr::from(addr(text)).is_loopback();
        assert!(
            ["127.0.0.1:1", "127.255.1.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"]
                .map(is_loopback)
                .iter()
                .all(|is| *is)
        );
        assert!(
            !["126.127.0.1:1", "10.0.0.127:1", "[::2]:1", "[::ffff:10.0.0.1]:1"]
                .map(is_loopback)
                .iter()
                .any(|is| *is)
        );
    }

    #[test]
    fn key__heeds_the_scope_of_link_local_addresses_only() {
        let key = |text| AddrKey::from(addr(text));
        assert_ne!(key("[fe80::1%3]:9"), key("[fe80::1%4]:9"));
        assert_eq!(key("[2001:db8::1%3]:9"), key("[2001:db8::1]:9"));
    }

    /// The table uses the low bits for the place and the high bits as a tag: addresses with a small
    /// difference, in whatever part, must differ in both.
    #[test]
    fn hash__spreads_addresses_that_differ_in_one_part() {
        const KEYS: u64 = 1_024;
        let of = |part: &dyn Fn(u128) -> (u128, u64)| {
            (0..u128::from(KEYS)).map(part).collect::<Vec<_>>()
        };
        let parts: [(&str, Vec<(u128, u64)>); 6] = [
            ("port", of(&|number| (0x7F00_0001, 1_024 + number as u64))),
            ("IPv4 address", of(&|number| (0x0A00_0000 + number, 9))),
            ("IPv4 network", of(&|number| (0x0A00_0000 + (number << 14), 9))),
            ("IPv6 host", of(&|number| ((0x2001_0DB8 << 96) + number, 9))),
            ("IPv6 network", of(&|number| ((0x2001_0DB8 << 96) + (number << 64) + 1, 9))),
            ("scope", of(&|number| ((0xFE80 << 112) + 1, 9 + ((number as u64) << 16)))),
        ];
        for (part, keys) in parts {
            for seed in [0, 1, 0x0123_4567_89AB_CDEF, u64::MAX] {
                let hashes: Vec<u64> = keys
                    .iter()
                    .map(|&(ip, port)| AddrHash { seed }.hash_one(AddrKey { ip, port }))
                    .collect();
                let distinct = |bits: &dyn Fn(u64) -> u64| {
                    hashes.iter().map(|hash| bits(*hash)).collect::<HashSet<_>>().len() as u64
                };
                assert_eq!(distinct(&|hash| hash), KEYS, "{part}, seed {seed:#x}");
                let low = distinct(&|hash| hash % KEYS);
                assert!(low > KEYS / 3, "{part}, seed {seed:#x}: {low} places");
                let high = distinct(&|hash| hash >> 57);
                assert!(high > 100, "{part}, seed {seed:#x}: {high} of 128 tags");
            }
        }
    }

    /// A link's terms contain more than an address.
    #[test]
    fn hash__heeds_each_part_of_a_key() {
        let key = AddrKey { ip: 1, port: 2 };
        let keys = [(key, 3, false), (key, 3, true), (key, 4, false), (key, 4 << 40, false)];
        let others =
            [AddrKey { ip: 2, ..key }, AddrKey { port: 3, ..key }].map(|key| (key, 3, false));
        let keys: Vec<(AddrKey, usize, bool)> = keys.into_iter().chain(others).collect();
        for seed in [0, 1, u64::MAX] {
            let hashes = keys.iter().map(|key| AddrHash { seed }.hash_one(key));
            assert_eq!(hashes.collect::<HashSet<_>>().len(), keys.len());
        }
        assert_ne!(AddrHash { seed: 1 }.hash_one(keys[0]), AddrHash { seed: 2 }.hash_one(keys[0]));
        assert_ne!(AddrHash::new().seed, AddrHash::new().seed, "nobody knows it");
    }

    #[test]
    fn usable__takes_the_families_of_the_port_and_single_peers() {
        let usable = |addr, v6| if v6 { Families::V6 } else { Families::V4 }.usable(addr);
        assert_eq!(usable(addr("10.0.0.1:5"), false), Ok(addr("10.0.0.1:5")));
        assert_eq!(usable(addr("[::ffff:10.0.0.1]:5"), false), Ok(addr("10.0.0.1:5")));
        assert_eq!(usable(addr("[fe80::1%3]:5"), true), Ok(addr("[fe80::1%3]:5")));
        let unusable = ["10.0.0.1:0", "0.0.0.0:5", "224.0.0.1:5", "255.255.255.255:5", "[::1]:5"];
        assert!(unusable.iter().all(|text| usable(addr(text), false).is_err()));
        let unusable = ["[::]:5", "[::1]:0", "[ff02::1]:5", "10.0.0.1:5", "[::ffff:10.0.0.1]:5"];
        assert!(unusable.iter().all(|text| usable(addr(text), true).is_err()));
        let both = Families::of(addr("[::]:9"));
        assert_eq!(both.usable(addr("10.0.0.1:5")), Ok(addr("[::ffff:10.0.0.1]:5")));
        assert_eq!(both.usable(addr("[::ffff:10.0.0.1]:5")), Ok(addr("[::ffff:10.0.0.1]:5")));
        assert_eq!(both.usable(addr("[fd00::1]:5")), Ok(addr("[fd00::1]:5")));
        let unusable = ["10.0.0.1:0", "0.0.0.0:5", "224.0.0.1:5", "[::]:5", "[ff02::1]:5"];
        assert!(unusable.iter().all(|text| both.usable(addr(text)).is_err()));
        assert_eq!(Families::of(addr("[::1]:9")), Families::V6);
        assert_eq!(Families::of(addr("0.0.0.0:9")), Families::V4);
    }
}
