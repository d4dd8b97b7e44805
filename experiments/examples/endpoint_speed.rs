//! The speed of the simulator with endpoints that do next to nothing: 100 hosts with ten transports each.
//! All transports are peers and keep 60 small requests outstanding.
//!
//! `cargo run --release --manifest-path experiments/Cargo.toml --example endpoint_speed [microseconds]`

use std::time::Instant;

use petrel_experiments::sim::LeafSpine;
use petrel_sim::fabric::{FabricConfig, FabricHandle, HostId, SimAddr};
use petrel_sim::{Actor, Rng, SimTransport, SimTransportConfig, Simulation};
use petrel_transport::{PeerId, TX_BURST_MAX, Transport, TxFrame};

const PORTS: u16 = 10;
const IN_FLIGHT: usize = 60;
/// A request of 32 bytes with a header of 16, as an endpoint would send it.
const FRAME: [u8; 48] = [0; 48];

/// Answers every request, and replaces every answer by a request to a random peer.
struct Chatter {
    transport: SimTransport,
    peers: u32,
    rng: Rng,
    /// Frames that the transport has not accepted yet: a peer, and the first byte of the frame.
    queue: Vec<(PeerId, u8)>,
    answered: u64,
}

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

impl Actor for Chatter {
    fn poll(&mut self, _now_ns: u64) -> Option<u64> {
        let Self { transport, peers, rng, queue, answered } = self;
        transport.rx_burst(32, |peer, frame| {
            if frame[0] == REQUEST {
                queue.push((peer, ANSWER));
            } else {
                *answered += 1;
                queue.push((PeerId(rng.below(u64::from(*peers)) as u32), REQUEST));
            }
        });
        self.send();
        None
    }
}

impl Chatter {
    fn send(&mut self) {
        let burst = self.queue.len().min(TX_BURST_MAX);
        let frames: Vec<TxFrame<'_>> = self.queue[..burst]
            .iter()
            .map(|(peer, kind)| TxFrame {
                peer: *peer,
                head: std::slice::from_ref(kind),
                body: &FRAME[1..],
            })
            .collect();
        let refused = self.transport.tx_burst(&frames);
        let mut place = 0;
        self.queue.retain(|_| {
            place += 1;
            place > burst || refused >> (place - 1) & 1 == 1
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let virtual_us: u64 = std::env::args().nth(1).map_or(Ok(1_000), |us| us.parse())?;
    let network = LeafSpine::cx4(20);
    let fabric = FabricHandle::new(&network.topology(), FabricConfig::default(), 1)?;
    let addresses: Vec<SimAddr> = (0..network.host_count() as u16)
        .flat_map(|host| (0..PORTS).map(move |port| SimAddr::new(HostId(host), port)))
        .collect();
    let mut simulation = Simulation::new(fabric);
    for (index, &at) in addresses.iter().enumerate() {
        let chatter = chatter(simulation.fabric(), at, index as u32, &addresses)?;
        simulation.spawn(at, chatter);
    }

    let start = Instant::now();
    simulation.run_until(virtual_us * 1_000);
    let seconds = start.elapsed().as_secs_f64();

    let (stats, events) = (simulation.fabric().stats(), simulation.fabric().events());
    assert!(stats.is_balanced(), "every packet is accounted for");
    let answered: u64 = simulation.actors().map(|(_, chatter)| chatter.answered).sum();
    println!(
        "{virtual_us} us of {} endpoints: {answered} answers, {} packets, digest {:016x}",
        addresses.len(),
        stats.sent,
        simulation.fabric().digest()
    );
    println!(
        "{seconds:.2} s: {:.2} M events/s, {:.2} M packets/s, {:.2} M answers/s",
        events as f64 / seconds / 1e6,
        stats.sent as f64 / seconds / 1e6,
        answered as f64 / seconds / 1e6,
    );
    Ok(())
}

fn chatter(
    fabric: &FabricHandle,
    at: SimAddr,
    index: u32,
    addresses: &[SimAddr],
) -> Result<Chatter, Box<dyn std::error::Error>> {
    let mut transport = SimTransport::bind(fabric, at, SimTransportConfig::default())?;
    for &other in addresses {
        transport.add_peer(other.into())?;
    }
    let peers = addresses.len() as u32;
    let mut rng = fabric.rng(index);
    let mut first = || (PeerId(rng.below(u64::from(peers)) as u32), REQUEST);
    let queue = (0..IN_FLIGHT).map(|_| first()).collect();
    Ok(Chatter { transport, peers, rng, queue, answered: 0 })
}
