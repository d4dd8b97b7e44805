//! The conformance suite of all transports, in virtual time.

use crate::common::*;
use petrel_sim::fabric::{FabricHandle, FaultPlan, HostId, LinkConfig, SwitchConfig};
use petrel_sim::{DataLink, Probability, RingLink, SimTransport, SimTransportConfig};
use petrel_transport::Transport;
use petrel_transport::conformance::{End, Harness, Medium, Star, run_all};

/// Some packets at 25 Gbit/s.
const STEP_NS: u64 = 2_000;

struct Simulated {
    plan: FaultPlan,
    config: SimTransportConfig,
    fabric: FabricHandle,
    /// Bytes of the rings that replace packets.
    ring_bytes: Option<usize>,
    /// The length of epochs on sealed links.
    epoch_bits: Option<u32>,
    links: u64,
}

impl Simulated {
    fn new(plan: FaultPlan, coalesce: bool) -> Self {
        let config = SimTransportConfig { coalesce, ..SimTransportConfig::default() };
        Self { plan, config, fabric: fabric(), ring_bytes: None, epoch_bits: None, links: 0 }
    }

    /// Returns the links between the hub and a leaf.
    fn link(&mut self, hub: HostId, leaf: HostId) -> [DataLink; 2] {
        self.links += 1;
        if let Some(epoch_bits) = self.epoch_bits {
            return sealed_link(addr(hub), addr(leaf), self.links as u32, epoch_bits);
        }
        [leaf, hub].map(|host| match self.ring_bytes {
            None => addr(host).into(),
            Some(ring_bytes) => {
                let (number, max_frame_bytes) = (self.links, 1_472);
                DataLink::Ring(RingLink { peer: addr(host), number, ring_bytes, max_frame_bytes })
            }
        })
    }

    fn bind(&self, host: HostId) -> SimTransport {
        SimTransport::bind(&self.fabric, addr(host), self.config).unwrap()
    }
}

fn fabric() -> FabricHandle {
    star_with(3, SwitchConfig::default(), LinkConfig::default(), 1)
}

impl Harness for Simulated {
    type T = SimTransport;

    fn medium(&self) -> Medium {
        let medium =
            if self.plan == FaultPlan::NONE { Medium::lossless() } else { Medium::faulty() };
        // A quarter of a ring may be skipped, and small records have larger headers than bodies.
        let medium = self.ring_bytes.map_or(medium, |bytes| medium.with_capacity(bytes / 4));
        medium.in_virtual_time()
    }

    fn star(&mut self) -> Star<SimTransport> {
        self.fabric = fabric();
        self.fabric.set_faults(self.plan);
        let mut hub = self.bind(H0);
        let leaves = [H1, H2].map(|host| {
            let [to_leaf, to_hub] = self.link(H0, host);
            let mut transport = self.bind(host);
            let peer = transport.add_peer(to_hub).unwrap();
            (hub.add_peer(to_leaf).unwrap(), End { transport, peer })
        });
        let [(first, near), (second, far)] = leaves;
        Star { hub, peers: [first, second], leaves: [near, far] }
    }

    fn advance(&mut self) {
        self.fabric.advance(STEP_NS);
    }
}

#[test]
fn conformance__on_a_perfect_fabric() {
    run_all(&mut Simulated::new(FaultPlan::NONE, false));
}

#[test]
fn conformance__with_coalesced_frames() {
    run_all(&mut Simulated::new(FaultPlan::NONE, true));
}

#[test]
fn conformance__with_the_bundles_and_trains_of_udp() {
    for seed in 0..8 {
        let mut harness = Simulated::new(FaultPlan::NONE, false);
        harness.config.medium = petrel_sim::Medium::Udp { seed };
        run_all(&mut harness);
    }
}

#[test]
fn conformance__of_sealed_links() {
    for seed in 0..4 {
        let mut harness = Simulated::new(FaultPlan::NONE, false);
        harness.config.medium = petrel_sim::Medium::Udp { seed };
        harness.epoch_bits = Some(3 + seed as u32);
        run_all(&mut harness);
    }
}

#[test]
fn conformance__of_devices_that_read_in_place() {
    let media = (0..3).map(|seed| petrel_sim::Medium::Udp { seed });
    for medium in media.chain([petrel_sim::Medium::Packets]) {
        let mut harness = Simulated::new(FaultPlan::NONE, true);
        (harness.config.medium, harness.config.read_ns) = (medium, 2_000);
        run_all(&mut harness);
    }
}

/// A body that is changed between the flush and its reading is found, and a device without unread bodies waits for nothing.
#[test]
#[allow(unsafe_code, reason = "the contract of `push` is broken, without harm")]
fn await_reads__finds_bodies_that_have_changed() {
    for (body_bytes, is_changed) in [(1_024, false), (1_024, true), (1_023, true)] {
        let mut harness = Simulated::new(FaultPlan::NONE, false);
        harness.config.read_ns = 2_000;
        let [mut end, _] = harness.pair();
        let watch = end.transport.region_watch().expect("the device's");
        let (head, mut body) = ([7; 16], vec![7; body_bytes]);
        // SAFETY: a simulated device compares the bytes only, and they stay in place.
        assert!(unsafe { end.transport.push(end.peer, &head, &body) });
        end.transport.flush();
        let is_held = body_bytes == 1_024;
        assert_eq!(watch.unread().is_some(), is_held);
        body[50] ^= u8::from(is_changed);
        std::hint::black_box(&body);
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch.await_reads()));
        assert_eq!(found.is_err(), is_held && is_changed);
        assert_eq!(end.transport.stats().tx_waits, u64::from(is_held));
        assert_eq!(watch.unread(), None);
    }
}

#[test]
fn conformance__through_rings_in_shared_memory() {
    let mut harness = Simulated::new(FaultPlan::NONE, false);
    harness.ring_bytes = Some(64 << 10);
    run_all(&mut harness);
}

#[test]
fn conformance__on_a_faulty_fabric() {
    let some = Probability::percent(2);
    let plan = FaultPlan {
        loss: some,
        loss_continues: Probability::percent(50),
        duplicate: some,
        duplicate_within_ns: 20_000,
        reorder: some,
        reorder_within_ns: 20_000,
        spike: some,
        spike_within_ns: 50_000,
        ..FaultPlan::NONE
    };
    run_all(&mut Simulated::new(plan, false));
    run_all(&mut Simulated::new(plan, true));
}
