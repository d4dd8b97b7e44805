//! Sessions with long requests over a network with several paths.

use std::rc::Rc;

use petrel::endpoint::SessionId;
use petrel_proto::limits::{PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES};

use super::super::caller::Load;
use super::super::cluster::{Cluster, FRAME_BYTES, Paths, Place, Settings};
use super::super::driver::Phase;
use super::super::incast::packet_bytes_mean;
use super::super::{ExperimentError, cpu};
use super::Variant;
use super::network::{BuiltNetwork, HOST_GBIT, PathNetwork};
use petrel_sim::fabric::{ActorId, FabricConfig, HostId, LinkId, SimAddr};

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

/// Sessions with requests back to back, to separate endpoints.
pub(super) struct Streams {
    pub(super) cluster: Cluster,
    pub(super) network: BuiltNetwork,
    paths: Paths,
    streams: Vec<Stream>,
}

struct Stream {
    client: ActorId,
    server: ActorId,
    /// Address of the server.
    to: SimAddr,
    session: SessionId,
    /// The phase of a stream that begins and ends by itself.
    own_phase: Option<Rc<Phase>>,
}

/// The differences of a stream from the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// Its paths.
    pub(super) paths: Paths,
    /// True if the stream sends only from [`Streams::set_sending`] on.
    pub(super) waits: bool,
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
        Ok(Self { cluster, network, paths: variant.paths(), streams: Vec::new() })
    }

    /// Adds a session from the client of a host to an endpoint, which serves this session only.
    pub(super) fn add(&mut self, from: HostId, to: Place) -> Result<(), ExperimentError> {
        self.add_own(from, to, Own { paths: self.paths, waits: false })
    }

    /// Like [`Streams::add`], for a different stream.
    pub(super) fn add_own(
        &mut self,
        from: HostId,
        to: Place,
        Own { paths, waits }: Own,
    ) -> Result<(), ExperimentError> {
        let server = self.cluster.add_with(to, paths)?;
        let client = self.cluster.add_with(Place::new(from, CLIENT), paths)?;
        let load = Load::one_by_one(REQUEST_BYTES, RESPONSE_BYTES).in_flight(REQUESTS_IN_FLIGHT);
        let own_phase = waits.then(Rc::<Phase>::default);
        let phase = own_phase.clone().unwrap_or_else(|| Rc::clone(&self.cluster.phase));
        let caller = self.cluster.add_caller_in(phase, client, &[to], load)?;
        let session = caller.sessions()[0];
        self.streams.push(Stream { client, server, to: to.data(), session, own_phase });
        Ok(())
    }

    /// Lets a stream that waits send, or no longer.
    pub(super) fn set_sending(&mut self, stream: usize, is_sending: bool) {
        let phase = self.streams[stream].own_phase.clone();
        let phase = phase.expect("a stream that begins by itself has a phase of its own");
        self.cluster.set_calling(&phase, is_sending);
    }

    /// Returns the packets that the client of a stream has sent over each path.
    pub(super) fn sent_by_path(&self, stream: usize) -> Vec<u64> {
        let mut sent = vec![0; self.network.paths.len()];
        let Stream { client, to, session, .. } = self.streams[stream];
        let endpoint = self.cluster.endpoint(client);
        for (port, counts) in (0u8..).zip(endpoint.path_counts(session)) {
            let path = self.path_of(endpoint.transport().source_addr(port), to);
            sent[path.expect("all paths work")] += counts.packets;
        }
        sent
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
    /// that take this path back. The choice of the server's port decides.
    pub(super) fn add_over(&mut self, path: usize, back: usize) -> Result<(), ExperimentError> {
        let own = Own { paths: self.paths, waits: false };
        self.add_own_over(0, (path, back), own)
    }

    /// Like [`Streams::add_over`] between other hosts, for a different stream.
    pub(super) fn add_own_over(
        &mut self,
        host: usize,
        (path, back): (usize, usize),
        own: Own,
    ) -> Result<(), ExperimentError> {
        let [from, to] = [0, 1].map(|leaf: usize| self.network.leaves[leaf][host]);
        let client = Place::new(from, CLIENT).data();
        let servers = (CLIENT + 1..ENDPOINTS_MAX).map(|endpoint| Place::new(to, endpoint));
        let is_over = |server: &Place| {
            let (there, back_again) =
                (self.path_of(client, server.data()), self.path_of(server.data(), client));
            (there, back_again) == (Some(path), Some(back))
        };
        match servers.into_iter().find(is_over) {
            Some(server) => self.add_own(from, server, own),
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
        for stream in &self.streams {
            stream.own_phase.iter().for_each(|phase| phase.is_calling.set(false));
        }
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
    let Variant { recovery, controller, .. } = variant;
    Settings {
        recovery,
        credits: CREDITS,
        one_way_ns: network.one_way_ns,
        paths: variant.paths(),
        ..Settings::new(seed, controller, HOST_GBIT, cpu::NEARLY_FREE)
    }
}
