//! Helpers shared by the tests.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use petrel_sim::fabric::{
    CpuConfig, FabricConfig, FabricHandle, HostId, LinkConfig, NicConfig, SimAddr, SwitchConfig,
    Topology,
};
use petrel_sim::{Actor, DataLink, Rng, SealedPath, SimEndpoint, SimTransport, SimTransportConfig};
use petrel_transport::{PeerId, TX_BURST_MAX, Transport, TxFrame};

pub const H0: HostId = HostId(0);
pub const H1: HostId = HostId(1);
pub const H2: HostId = HostId(2);
pub const OVERHEAD_BYTES: u64 = 42;

/// An endpoint as an actor of a simulation.
pub struct Node(pub SimEndpoint);

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if self.0.run_once() { Some(now_ns) } else { self.0.next_due().map(petrel::Time::as_ns) }
    }
}

pub const fn addr(host: HostId) -> SimAddr {
    SimAddr::new(host, 1)
}

pub fn exact_cpu() -> FabricConfig {
    let cpu = CpuConfig { poll_ns: 100, poll_jitter_ns: 0, frame_ns: 0 };
    FabricConfig { cpu, ..FabricConfig::default() }
}

pub fn pair_with(nic: NicConfig, link: LinkConfig, seed: u64) -> FabricHandle {
    FabricHandle::new(&Topology::pair(nic, link), exact_cpu(), seed).unwrap()
}

pub fn star_with(hosts: usize, switch: SwitchConfig, link: LinkConfig, seed: u64) -> FabricHandle {
    let topology = Topology::star(hosts, NicConfig::default(), switch, link);
    FabricHandle::new(&topology, exact_cpu(), seed).unwrap()
}

/// Binds a transport that knows all other hosts; host `n` is peer `n`.
pub fn bind(fabric: &FabricHandle, host: HostId) -> SimTransport {
    bind_with(fabric, host, SimTransportConfig::default())
}

pub fn bind_with(fabric: &FabricHandle, host: HostId, config: SimTransportConfig) -> SimTransport {
    let mut transport = SimTransport::bind(fabric, addr(host), config).unwrap();
    for other in 0..fabric.host_count() as u16 {
        assert_eq!(
            transport.add_peer(addr(HostId(other)).into()).unwrap(),
            PeerId(u32::from(other))
        );
    }
    transport
}

/// Returns the link of both sides of a sealed link, the opener's first. Both sides have the path `path`.
pub fn sealed_link(
    opener: SimAddr,
    acceptor: SimAddr,
    path: u32,
    epoch_bits: u32,
) -> [DataLink; 2] {
    [(acceptor, true), (opener, false)].map(|(peer, is_opener)| {
        let secret = u64::from(path) + 7;
        DataLink::Sealed(SealedPath {
            peer,
            max_frame_bytes: 1_472,
            paths: [path; 2],
            secret,
            is_opener,
            epoch_bits,
        })
    })
}

/// Sends `count` numbered frames of `length` bytes; returns the number of accepted frames.
pub fn send(from: &mut SimTransport, to: HostId, first: u32, count: u32, length: usize) -> u32 {
    let bodies: Vec<Vec<u8>> = (first..first + count).map(|n| numbered(n, length)).collect();
    let mut taken = 0;
    for burst in bodies.chunks(TX_BURST_MAX) {
        let frames: Vec<TxFrame> = burst.iter().map(|bytes| frame(to, bytes)).collect();
        taken += burst.len() as u32 - from.tx_burst(&frames).count_ones();
    }
    taken
}

pub fn frame(to: HostId, bytes: &[u8]) -> TxFrame<'_> {
    let (head, body) = bytes.split_at(bytes.len().min(16));
    TxFrame { peer: PeerId(u32::from(to.0)), head, body }
}

/// Makes a frame of a number and pseudo-random bytes seeded by the number.
pub fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(u64::from(number)).fill(&mut bytes);
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

pub fn number_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// Takes all received frames.
pub fn receive(at: &mut SimTransport) -> Vec<(PeerId, Vec<u8>)> {
    let mut got = Vec::new();
    while at.rx_burst(64, |peer, bytes| got.push((peer, bytes.to_vec()))) > 0 {}
    got
}

pub fn receive_numbers(at: &mut SimTransport) -> Vec<u32> {
    receive(at).iter().map(|(_, bytes)| number_of(bytes)).collect()
}
