//! Groups over the loopback device.

use super::*;

use petrel_skip::{Need, skip};

/// A hub and two leaves linked to it, with an unused group address, whose port is a leaf's.
struct Group {
    hub: Udp,
    leaves: [(Udp, PeerId); 2],
    address: SocketAddr,
}

impl Group {
    fn new(ip: &str, group: &str) -> Self {
        let mut hub = Udp::bind(bind_to(ip)).unwrap();
        let leaves = [(); 2].map(|()| Udp::bind(bind_to(ip)).unwrap());
        let address = SocketAddr::new(group.parse().unwrap(), leaves[0].local_addr().port());
        for leaf in &leaves {
            hub.add_peer(link(leaf)).unwrap();
        }
        let leaves = leaves.map(|mut leaf| {
            let peer = leaf.add_peer(link(&hub)).unwrap();
            (leaf, peer)
        });
        Self { hub, leaves, address }
    }

    /// Opens the group on the hub; `None`, with a message, if the host has no multicast.
    fn open(&mut self) -> Option<PeerId> {
        unless_host_lacks(self.hub.open_group(self.address, PeerId(0), 1))
    }
}

/// The result of opening or joining a group; `None`, with a message, if the host has no multicast.
/// Errors other than the kernel's about devices and routes are failures of the library.
fn unless_host_lacks<T>(result: Result<T, LinkError>) -> Option<T> {
    const LACKS: [i32; 5] =
        [libc::ENODEV, libc::EADDRNOTAVAIL, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENOSYS];
    let error = match result {
        Ok(done) => return Some(done),
        Err(LinkError::Io(error)) => error,
        Err(error) => panic!("{error}"),
    };
    assert!(error.raw_os_error().is_some_and(|code| LACKS.contains(&code)), "{error}");
    skip(Need::Multicast, format!("no multicast on loopback: {error}"));
    None
}

/// The frames a transport receives until it has `bytes` bytes.
fn receive(from: &mut Udp, bytes: usize) -> Vec<(PeerId, Vec<u8>)> {
    let mut frames: Vec<(PeerId, Vec<u8>)> = Vec::new();
    while frames.iter().map(|(_, frame)| frame.len()).sum::<usize>() < bytes {
        from.rx_burst(64, |peer, frame| frames.push((peer, frame.to_vec())));
        from.wait(Some(100_000_000));
    }
    frames
}

fn reaches_all_members(ip: &str, address: &str) {
    let mut group = Group::new(ip, address);
    let Some(to) = group.open() else { return };
    for (leaf, hub) in &mut group.leaves {
        leaf.join_group(group.address, *hub).unwrap();
    }
    let frames: Vec<Vec<u8>> = (0..40u8).map(|n| vec![0x10 + n % 16; 1200]).collect();
    let burst: Vec<_> = frames.iter().map(|bytes| frame(to, bytes)).collect();
    assert_eq!(group.hub.tx_burst(&burst), 0);
    for (leaf, hub) in &mut group.leaves {
        let received = receive(leaf, 40 * 1200);
        assert!(received.iter().map(|(_, frame)| frame).eq(&frames));
        assert!(received.iter().all(|(peer, _)| peer == hub));
    }
}

#[test]
fn open_group__sends_one_datagram_to_all_members() {
    reaches_all_members("127.0.0.1", "239.77.1.1");
}

#[test]
fn open_group__sends_by_the_address_of_its_socket_and_over_so_many_routers() {
    let mut group = Group::new("127.0.0.1", "239.77.1.4");
    for hops in [7, 1, 255] {
        let opened = group.hub.open_group(group.address, PeerId(0), hops);
        let Some(to) = unless_host_lacks(opened) else { return };
        let socket = socket2::SockRef::from(&group.hub.socket);
        assert_eq!(socket.multicast_ttl_v4().unwrap(), hops);
        assert_eq!(socket.multicast_if_v4().unwrap(), std::net::Ipv4Addr::LOCALHOST);
        group.hub.remove_peer(to);
    }
}

#[test]
fn open_group__over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return skip(Need::Ipv6, "this host has no IPv6 loopback");
    }
    let mut group = Group::new("::1", "ff15::7701");
    // Over IPv6 the host's routes choose the interface, so nothing is sent here.
    if group.open().is_some() {
        let (leaf, hub) = &mut group.leaves[0];
        if unless_host_lacks(leaf.join_group(group.address, *hub)).is_some() {
            assert!(leaf.listeners.waits().is_some());
        }
    }
}

#[test]
fn join_group__hears_its_peer_only_and_only_as_long_as_it_wants() {
    let mut group = Group::new("127.0.0.1", "239.77.1.2");
    let Some(to) = group.open() else { return };
    let mut stranger = Udp::bind(bind_to("127.0.0.1")).unwrap();
    let some_peer = stranger.add_peer(link(&group.hub)).unwrap();
    let by_stranger = stranger.open_group(group.address, some_peer, 1).unwrap();
    let (leaf, hub) = &mut group.leaves[0];
    leaf.join_group(group.address, *hub).unwrap();
    leaf.join_group(group.address, *hub).unwrap();
    leaf.leave_group(group.address, *hub);
    let (foreign, own) = ([0x11; 700], [0x12; 800]);
    stranger.tx_burst(&[frame(by_stranger, &foreign)]);
    group.hub.tx_burst(&[frame(to, &own)]);
    assert_eq!(receive(leaf, 1), [(*hub, own.to_vec())]);
    assert_eq!(leaf.stats().rx_dropped_unknown_peer, 1);
    leaf.leave_group(group.address, *hub);
    assert!(leaf.listeners.waits().is_none(), "no endpoint listens any more");
}

#[test]
fn groups__that_cannot_be() {
    let mut group = Group::new("127.0.0.1", "239.77.1.3");
    let refused =
        |result: Result<PeerId, LinkError>| matches!(result, Err(LinkError::Unsupported(_)));
    for address in ["127.0.0.1:5", "224.0.0.7:5", "239.77.1.3:0", "[ff15::1]:5"] {
        let address: SocketAddr = address.parse().unwrap();
        assert!(refused(group.hub.open_group(address, PeerId(0), 1)), "{address}");
        let (leaf, hub) = &mut group.leaves[0];
        assert!(matches!(leaf.join_group(address, *hub), Err(LinkError::Unsupported(_))));
    }
    assert!(refused(group.hub.open_group(group.address, PeerId(77), 1)), "no such peer");
    let (leaf, hub) = &mut group.leaves[0];
    for nth in 0..16u8 {
        leaf.join_group(SocketAddr::from(([239, 77, 2, nth], 5000)), *hub).unwrap();
    }
    let full = leaf.join_group(group.address, *hub).unwrap_err().to_string();
    assert!(full.contains("16 multicast addresses"), "{full}");
}

/// `docs/wire-protocol.md` §12.2.
#[test]
fn usable__leaves_the_networks_own_groups_alone() {
    use crate::udp::multicast::usable;

    let is_usable = |ip: &str| usable(SocketAddr::new(ip.parse().unwrap(), 7700), ip.contains(':'));
    for ip in [
        "224.0.1.0",
        "232.1.1.1",
        "239.255.0.1",
        // Transient: of a link, a site, everywhere, by a small number and by a prefix (RFC 3306).
        "ff12::7701",
        "ff15::1",
        "ff1e::7701",
        "ff35:40:fd00:77::7701",
        "ff3e::8000:1",
        // Assigned to an application.
        "ff05::1:3",
        "ff0e::8000:7701",
    ] {
        assert_eq!(is_usable(ip), Ok(()), "{ip}");
    }
    for ip in [
        "224.0.0.1",
        "224.0.0.255",
        "10.0.0.1",
        // All nodes, all routers, a solicited node, time servers of the site.
        "ff02::1",
        "ff05::2",
        "ff02::1:ff00:7701",
        "ff05::101",
        // Scopes that are reserved or never leave a host; no group at all.
        "ff10::7701",
        "ff11::7701",
        "ff1f::7701",
        "ff15::",
        "fe80::1",
    ] {
        assert!(is_usable(ip).is_err(), "{ip}");
    }
}
