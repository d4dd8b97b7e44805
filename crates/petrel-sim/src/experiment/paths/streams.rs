//! Sessions with long requests over a network with several paths.

use petrel_proto::limits::{PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES};

use super::super::caller::Load;
use super::super::cluster::{Cluster, Place, Settings};
use super::super::incast::packet_bytes_mean;
use super::super::{ExperimentError, cpu};
use super::network::{BuiltNetwork, HOST_GBIT, PathNetwork};
use super::{Policy, Variant};
use crate::fabric::{ActorId, FabricConfig, HostId, LinkId, SimAddr};

/// Payload of the largest datagram: Ethernet's.
pub(super) const FRAME_BYTES: usize = 1_472;

/// Bytes of a message in a full packet.
pub(super) const PACKET_BYTES: u64 = (FRAME_BYTES - PACKET_OVERHEAD_BYTES) as u64;

/// A request: large enough for its last, shorter packet to be rare.
const REQUEST_BYTES: usize = 1 << 20;
const RESPONSE_BYTES: u32 = 32;

/// Requests of a session in flight: the second fills the line while the first waits for its response.
const REQUESTS_IN_FLIGHT: usize = 2;

/// Credits of a session: four times the bandwidth-delay product at 40 Gbit/s and 16 µs.
const CREDITS: u16 = 256;

/// Endpoint of a host's client; servers have higher numbers.
const CLIENT: u16 = 0;

/// Endpoints tried for a server on a wanted path. Each has one chance in four.
const ENDPOINTS_MAX: u16 = 1_000;

/// Returns the part of a link's rate that requests can have: the payload of a full packet, divided by its
/// bytes on the wire.
pub(super) fn payload_share() -> f64 {
    let wire =
        PACKET_BYTES + PART_HEADER_BYTES as u64 + u64::from(FabricConfig::ETHERNET_OVERHEAD_BYTES);
    PACKET_BYTES as f64 / wire as f64
}

/// Sessions that send requests back to back, each to an endpoint of its own.
pub(super) struct Streams {
    pub(super) cluster: Cluster,
    pub(super) network: BuiltNetwork,
    streams: Vec<Stream>,
}

struct Stream {
    client: ActorId,
    server: ActorId,
}

/// Counters of all streams since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Packets of requests that arrived for the first time, by stream.
    pub(super) arrived: Vec<u64>,
    pub(super) dropped: u64,
    pub(super) sent: u64,
    pub(super) retransmitted: u64,
    pub(super) needless: u64,
    pub(super) timeouts: u64,
}

impl Streams {
    pub(super) fn new(
        network: PathNetwork,
        variant: Variant,
        seed: u64,
    ) -> Result<Self, ExperimentError> {
        let network = network.build(variant.controller);
        let cluster = Cluster::new(&network.topology, settings(variant, &network, seed))?;
        Ok(Self { cluster, network, streams: Vec::new() })
    }

    /// Adds a session from the client of a host to an endpoint, which serves this session only.
    pub(super) fn add(&mut self, from: HostId, to: Place) -> Result<(), ExperimentError> {
        let server = self.cluster.add(to)?;
        let client = self.cluster.add(Place::new(from, CLIENT))?;
        let load = Load::one_by_one(REQUEST_BYTES, RESPONSE_BYTES).in_flight(REQUESTS_IN_FLIGHT);
        self.cluster.add_caller(client, &[to], load)?;
        self.streams.push(Stream { client, server });
        Ok(())
    }

    /// Adds a session to the `number`th server of a host.
    pub(super) fn add_to_host(
        &mut self,
        from: HostId,
        to: HostId,
        number: u16,
    ) -> Result<(), ExperimentError> {
        self.add(from, Place::new(to, CLIENT + 1 + number))
    }

    /// Adds a session between the first hosts of two leaves, with packets that take this path, and answers
    /// that take this path back. The choice of the server's port leads them there.
    pub(super) fn add_over(&mut self, path: usize, back: usize) -> Result<(), ExperimentError> {
        let [from, to] = [0, 1].map(|leaf| self.network.leaves[leaf][0]);
        let client = Place::new(from, CLIENT).data();
        let servers = (CLIENT + 1..ENDPOINTS_MAX).map(|endpoint| Place::new(to, endpoint));
        let is_over = |server: &Place| {
            let (there, back_again) =
                (self.path_of(client, server.data()), self.path_of(server.data(), client));
            (there, back_again) == (Some(path), Some(back))
        };
        match servers.into_iter().find(is_over) {
            Some(server) => self.add(from, server),
            None => Err(self.cluster.broken(format!("no port leads over path {path}"))),
        }
    }

    /// Returns the path that packets between two addresses take at present.
    fn path_of(&self, from: SimAddr, to: SimAddr) -> Option<usize> {
        let route = self.cluster.fabric.route(from, to)?;
        // Both directions of a cable belong to its path; a cable's links have neighbouring numbers.
        let is_on = |path: &Vec<LinkId>| {
            path.iter().any(|link| route.iter().any(|used| used.0 / 2 == link.0 / 2))
        };
        self.network.paths.iter().position(is_on)
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts =
            Counts { dropped: self.cluster.fabric.stats().dropped_total(), ..Counts::default() };
        for stream in &self.streams {
            let (client, server) =
                (self.cluster.counters(stream.client), self.cluster.counters(stream.server));
            // The endpoint only serves, and every accepted frame is a new packet of a request.
            counts.arrived.push(server.frames_accepted);
            counts.sent += client.packets_sent + client.packets_retransmitted;
            counts.retransmitted += client.packets_retransmitted;
            counts.timeouts += client.timeouts;
            counts.needless += server.dropped_duplicate + server.dropped_stale;
        }
        counts
    }

    /// Ends the calls, all of which must be answered correctly. Returns their number.
    pub(super) fn finish(mut self) -> Result<u64, ExperimentError> {
        self.cluster.end_measuring();
        self.cluster.drain()?;
        Ok(self.cluster.calls())
    }
}

/// Returns the goodput of this number of packets in a time, in Gbit/s.
pub(super) fn gbit(packets: u64, elapsed_ns: u64) -> f64 {
    packets as f64 * packet_bytes_mean(REQUEST_BYTES) * 8.0 / elapsed_ns as f64
}

/// Returns the settings of all endpoints of a run.
pub(super) fn settings(variant: Variant, network: &BuiltNetwork, seed: u64) -> Settings {
    let Variant { policy: Policy::Single, recovery, controller } = variant;
    Settings {
        seed,
        controller,
        recovery,
        line_gbit: HOST_GBIT,
        frame_bytes: FRAME_BYTES,
        cpu: cpu::NEARLY_FREE,
        credits: CREDITS,
        one_way_ns: network.one_way_ns,
    }
}
