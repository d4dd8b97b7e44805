//! Sealed links of simulated transports, and what an attacker may send to them (`docs/wire-protocol.md` §17.3).

use crate::common::*;
use petrel_sim::fabric::{Attack, FabricHandle, NicConfig, Recorded};
use petrel_sim::{Medium, SimTransport, SimTransportConfig};
use petrel_transport::{PeerId, Transport, TransportStats, TxFrame};

/// Two sealed links between two hosts, and a third host.
struct World {
    fabric: FabricHandle,
    hosts: [SimTransport; 3],
}

impl World {
    fn new(epoch_bits: u32) -> Self {
        let fabric = star_with(3, Default::default(), Default::default(), 1);
        fabric.start_recording(1_000);
        let medium = Medium::Udp { seed: 1 };
        let config = SimTransportConfig { medium, ..SimTransportConfig::default() };
        let mut hosts =
            [H0, H1, H2].map(|host| SimTransport::bind(&fabric, addr(host), config).unwrap());
        for path in [1, 2] {
            let links = sealed_link(addr(H0), addr(H1), path, epoch_bits);
            links.into_iter().zip(&mut hosts).for_each(|(link, host)| {
                host.add_peer(link).unwrap();
            });
        }
        hosts[2].add_peer(addr(H0).into()).unwrap();
        Self { fabric, hosts }
    }

    /// Sends a frame over the first link, and returns its datagram.
    fn send(&mut self, frame: &[u8]) -> Recorded {
        let frame = TxFrame { peer: PeerId(0), head: frame, body: &[] };
        assert_eq!(self.hosts[0].tx_burst(&[frame]), 0);
        self.fabric.recorded(|count| count - 1).unwrap()
    }

    fn receive(&mut self, host: usize) -> Vec<Vec<u8>> {
        self.fabric.advance(100_000);
        let mut frames = Vec::new();
        self.hosts[host].rx_burst(1_000, |_, bytes| frames.push(bytes.to_vec()));
        frames
    }

    /// Sends an attacker's packet, which must not be accepted. Returns the counters of its receiver.
    fn attack(&mut self, attack: Attack, packet: &Recorded) -> TransportStats {
        let before = self.fabric.stats().attacks(attack);
        self.fabric.attack(attack, packet, 1);
        let host = usize::from(packet.to.host.0);
        assert_eq!(self.receive(host), [[0; 0]; 0]);
        assert_eq!(self.fabric.stats().attacks(attack), before + 1);
        self.hosts[host].stats()
    }
}

#[test]
fn attacks__of_each_kind_are_dropped_and_counted() {
    let mut world = World::new(3);
    let sent = world.send(&[0x10; 100]);
    assert_eq!(world.receive(1), [[0x10; 100]]);
    let (bytes, h1) = (&sent.frames[0], addr(H1));
    let changed = |place: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[place] = to;
        Recorded { frames: vec![bytes], ..sent.clone() }
    };
    assert_eq!(world.attack(Attack::Replay, &sent).rx_dropped_replayed, 1);
    assert_eq!(world.attack(Attack::Flip, &changed(50, !bytes[50])).rx_dropped_replayed, 2);
    // With another number, or under the path of the other link, it is new, and not authentic.
    assert_eq!(world.attack(Attack::Flip, &changed(4, 5)).rx_dropped_forged, 1);
    assert_eq!(world.attack(Attack::Mix, &changed(1, 2)).rx_dropped_forged, 2);
    assert_eq!(world.attack(Attack::Mix, &changed(1, 3)).rx_dropped_unknown_peer, 1);
    let elsewhere = Recorded { from: addr(H2), ..sent.clone() };
    assert_eq!(world.attack(Attack::Mix, &elsewhere).rx_dropped_unknown_peer, 2);
    let short = Recorded { frames: vec![bytes[..28].to_vec()], ..sent.clone() };
    assert_eq!(world.attack(Attack::Truncate, &short).rx_dropped_malformed, 1);
    let plain = Recorded { frames: vec![vec![0x10; 100]], ..sent.clone() };
    assert_eq!(world.attack(Attack::Plain, &plain).rx_dropped_plain, 1);
    let back = Recorded { from: h1, to: sent.from, frames: sent.frames.clone() };
    assert_eq!(world.attack(Attack::Reflect, &back).rx_dropped_forged, 1);
    assert_eq!(world.hosts[1].stats().rx_frames, 1);
}

#[test]
fn attacks__on_a_plain_link_reach_its_endpoint() {
    let mut world = World::new(3);
    let sent = world.send(&[0x10; 100]);
    let to_plain = Recorded { to: addr(H2), ..sent.clone() };
    world.fabric.attack(Attack::ToPlain, &to_plain, 1);
    assert_eq!(world.receive(2), sent.frames, "a plain link has no seal to check");
    assert_eq!(world.fabric.stats().strange_on_plain_links, 1);
}

#[test]
fn attacks__a_copy_that_overtakes_its_original_is_accepted_in_its_place() {
    let mut world = World::new(3);
    let original = world.send(&[0x11; 50]);
    world.fabric.attack(Attack::Replay, &original, 1);
    assert_eq!(world.receive(1), [[0x11; 50]]);
    assert_eq!(world.hosts[1].stats().rx_dropped_replayed, 1, "the original came behind it");
    assert_eq!(world.fabric.stats().attacks_first, 1);
}

#[test]
fn keys__change_every_few_datagrams_and_old_ones_open_nothing() {
    let mut world = World::new(2);
    let first = world.send(&[0x12; 20]);
    assert_eq!(world.receive(1).len(), 1);
    for _ in 0..20 {
        (0..10).for_each(|_| drop(world.send(&[0x10; 30])));
        assert_eq!(world.receive(1).len(), 10);
    }
    assert_eq!(world.attack(Attack::Replay, &first).rx_dropped_replayed, 1);
    assert_eq!(world.fabric.stats().attacks_of_former_keys, 1);
}

#[test]
fn add_peer__of_a_sealed_link_needs_the_medium_of_udp() {
    let fabric = pair_with(NicConfig::default(), Default::default(), 1);
    let mut transport =
        SimTransport::bind(&fabric, addr(H0), SimTransportConfig::default()).unwrap();
    let [link, _] = sealed_link(addr(H0), addr(H1), 1, 3);
    let error = transport.add_peer(link).unwrap_err().to_string();
    assert!(error.contains("medium of UDP"), "{error}");
}
