//! Groups over the loopback device.

use super::*;

/// A hub and two leaves that know it, with an address for a group that nobody else uses: its port is that of
/// one of the leaves.
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

    /// Has the hub open the group; `None`, with a word, where the host has no multicast.
    fn open(&mut self) -> Option<PeerId> {
        match self.hub.open_group(self.address, PeerId(0), 1) {
            Ok(group) => Some(group),
            Err(error) => {
                println!("skipped: no multicast on loopback: {error}");
                None
            }
        }
    }
}

/// What comes in at a transport until it has so many bytes.
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
fn open_group__over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return println!("skipped: this host has no IPv6 loopback");
    }
    let mut group = Group::new("::1", "ff15::7701");
    // Over IPv6 the interface is the one that the host's routes choose: nothing is sent here.
    if group.open().is_some() {
        let (leaf, hub) = &mut group.leaves[0];
        if let Err(error) = leaf.join_group(group.address, *hub) {
            println!("skipped: {error}");
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
    assert!(leaf.listeners().is_none(), "nobody listens any more");
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
