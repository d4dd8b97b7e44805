//! Many senders of large requests, one receiver (eRPC's Table 5 and §6.5).

use std::rc::Rc;

use petrel_proto::SessionId;
use petrel_proto::limits::PACKET_OVERHEAD_BYTES;
use serde::Serialize;

use super::caller::{Caller, Load};
use super::cluster::{Cluster, FRAME_BYTES, Place, Settings, tally_of};
use super::{Controller, ExperimentError, Latency, LeafSpine, cpu};
use petrel_sim::fabric::{ActorId, Histogram, HostId, LinkStats};

/// Rate of the hosts' links, including the victim's, in Gbit/s.
const LINE_GBIT: u64 = 25;

/// Bytes of a request in a full packet.
const PACKET_BYTES: u64 = (FRAME_BYTES - PACKET_OVERHEAD_BYTES) as u64;

/// Small calls from every sender to the receiver, which show the delay of the sender's packets. At two
/// calls a millisecond they take less than a hundredth of the port.
const PROBE: Load =
    Load { pause_ns: (250_000, 750_000), ..Load::one_by_one(PROBE_BYTES, PROBE_BYTES as u32) };
const PROBE_BYTES: usize = 32;

/// §6.5: "latency-sensitive RPCs (64 kB request and response), keeping one RPC outstanding".
const BACKGROUND_BYTES: usize = 64_000;

/// Sampling interval of the sessions' smoothed round trips.
const SAMPLE_NS: u64 = 50_000;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct IncastConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Numbers of concurrently sending hosts; zero for the background alone.
    pub senders: Vec<u16>,
    /// The controllers to compare.
    pub controllers: Vec<Controller>,
    /// Whether all hosts except the receiver exchange calls meanwhile.
    pub background: bool,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Time from the first request until the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement.
    pub measured_ns: u64,
}

impl IncastConfig {
    /// Returns the settings of the first documented table: senders alone.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            senders: vec![20, 50, 100],
            controllers: Controller::ALL.to_vec(),
            background: false,
            request_bytes: 8 << 20,
            warm_up_ns: 20_000_000,
            measured_ns: 200_000_000,
        }
    }

    /// Returns the settings of the second table: with background traffic, which is also measured alone. The
    /// background has fifty times the packets of the incast; a tenth of the time has to suffice.
    pub fn with_background(self) -> Self {
        let senders = [0].into_iter().chain(self.senders).collect();
        Self { background: true, senders, measured_ns: self.measured_ns / 10, ..self }
    }

    /// Returns the settings of a short variant: seconds.
    pub fn quick(seed: u64) -> Self {
        Self {
            senders: vec![10],
            request_bytes: 1 << 20,
            warm_up_ns: 6_000_000,
            measured_ns: 10_000_000,
            ..Self::full(seed)
        }
    }
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IncastRow {
    /// Hosts that send.
    pub senders: u16,
    /// Their congestion control.
    pub controller: Controller,
    /// Goodput of all senders' requests in Gbit/s: packets that were sent for the first time.
    pub goodput_gbit: f64,
    /// The goodput, as a share of the port's capacity for requests in packets of this size.
    pub share: f64,
    /// Round trips of small calls from every sender to the receiver.
    pub probe: Latency,
    /// Smoothed round trips of the sessions with the requests, sampled every 50 µs.
    pub session_rtt: Latency,
    /// The average queue before the receiver's port, as its transmission time.
    pub queue_mean_ns: f64,
    /// The longest queue there.
    pub queue_max_ns: f64,
    /// Packets that switches and NICs dropped during the measurement.
    pub drops: u64,
    /// Packets marked before the receiver's port.
    pub marked: u64,
    /// Retransmitted data packets.
    pub retransmissions: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Jain's index of the senders' shares; 1 is fair.
    pub jain: f64,
    /// The average rate of senders under the receiver's leaf, divided by the rate of senders under other
    /// leaves, with two more switches on the path. `None` unless both groups have senders.
    pub near_over_far: Option<f64>,
    /// Calls from the first to the last, including probes and background: all answered correctly.
    pub calls: u64,
    /// Latencies of the background's calls.
    pub background: Option<Latency>,
    /// Time from the first request until the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement.
    pub measured_ns: u64,
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &IncastConfig,
    mut on_row: impl FnMut(&IncastRow),
) -> Result<Vec<IncastRow>, ExperimentError> {
    let mut rows = Vec::new();
    for &senders in &config.senders {
        for &controller in &config.controllers {
            let row = Incast::new(config, senders, controller)?.run(config)?;
            on_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

struct Incast {
    cluster: Cluster,
    network: LeafSpine,
    victim: HostId,
    controller: Controller,
    senders: Vec<Sender>,
    background: Vec<Rc<Caller>>,
}

/// A host that sends.
struct Sender {
    host: HostId,
    actor: ActorId,
    requests: Rc<Caller>,
    probe: Rc<Caller>,
}

/// Counters at the beginning of the measurement.
struct Before {
    packets: Vec<u64>,
    drops: u64,
    retransmissions: u64,
    timeouts: u64,
}

/// Hosts of the network under each leaf: the receiver, and up to 100 senders.
const HOSTS_PER_LEAF: u16 = 21;
const SENDERS_MAX: u16 = 5 * HOSTS_PER_LEAF - 1;

impl Incast {
    fn new(
        config: &IncastConfig,
        senders: u16,
        controller: Controller,
    ) -> Result<Self, ExperimentError> {
        if senders > SENDERS_MAX {
            let what = format!("{senders} senders: the network has hosts for {SENDERS_MAX}");
            return Err(ExperimentError::Parameters(what));
        }
        let mut network = LeafSpine::cx4(HOSTS_PER_LEAF);
        network.leaf.ecn = controller.marks(LINE_GBIT);
        network.spine.ecn = controller.marks(network.spine_link.rate_bps / 1_000_000_000);
        let settings =
            Settings::new(config.seed, controller, LINE_GBIT, cpu::of_frames(FRAME_BYTES));
        let cluster = Cluster::new(&network.topology(), settings)?;
        let (victim, senders_of) = (network.host(0, 0), Vec::new());
        let background = Vec::new();
        let mut incast =
            Self { cluster, network, victim, controller, senders: senders_of, background };
        incast.add_senders(config, senders)?;
        if config.background {
            incast.add_background()?;
        }
        Ok(incast)
    }

    fn add_senders(&mut self, config: &IncastConfig, count: u16) -> Result<(), ExperimentError> {
        let victim = Place::new(self.victim, 0);
        self.cluster.add(victim)?;
        let hosts: Vec<HostId> = self.other_hosts().take(usize::from(count)).collect();
        for host in hosts {
            let actor = self.cluster.add(Place::new(host, 0))?;
            let load = Load::one_by_one(config.request_bytes, PROBE_BYTES as u32);
            let requests = self.cluster.add_caller(actor, &[victim], load)?;
            let probe = self.cluster.add_caller(actor, &[victim], PROBE)?;
            self.senders.push(Sender { host, actor, requests, probe });
        }
        Ok(())
    }

    /// Returns all hosts except the receiver, from leaf to leaf in turn.
    fn other_hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        let (network, victim) = (self.network, self.victim);
        let places = (0..network.hosts_per_leaf)
            .flat_map(move |place| (0..network.leaves).map(move |leaf| network.host(leaf, place)));
        places.filter(move |&host| host != victim)
    }

    /// Adds a second endpoint to every host except the receiver. These endpoints call one another.
    fn add_background(&mut self) -> Result<(), ExperimentError> {
        let places: Vec<Place> = self.other_hosts().map(|host| Place::new(host, 1)).collect();
        let actors = places.iter().map(|&place| self.cluster.add(place));
        let actors = actors.collect::<Result<Vec<_>, _>>()?;
        let load = Load::one_by_one(BACKGROUND_BYTES, BACKGROUND_BYTES as u32);
        for (actor, own) in actors.into_iter().zip(&places) {
            let others: Vec<Place> = places.iter().copied().filter(|place| place != own).collect();
            self.background.push(self.cluster.add_caller(actor, &others, load)?);
        }
        Ok(())
    }

    fn run(mut self, config: &IncastConfig) -> Result<IncastRow, ExperimentError> {
        self.cluster.begin()?;
        self.cluster.run_for(config.warm_up_ns);
        self.cluster.begin_measuring();
        let before = self.counters();
        let session_rtt = self.sample_round_trips(config.measured_ns);
        let after = self.counters();
        let port = self.victim_port();
        self.cluster.end_measuring();
        self.cluster.drain()?;
        Ok(self.row(config, &before, &after, &session_rtt, &port))
    }

    fn sample_round_trips(&mut self, duration_ns: u64) -> Histogram {
        let mut times = Histogram::new();
        let end_ns = self.cluster.fabric.now_ns() + duration_ns;
        while self.cluster.fabric.now_ns() < end_ns {
            self.cluster.run_for(SAMPLE_NS.min(end_ns - self.cluster.fabric.now_ns()));
            for sender in &self.senders {
                let core = self.cluster.endpoint(sender.actor).core();
                let session: SessionId = sender.requests.sessions()[0];
                if let Some(srtt_ns) = core.srtt_ns(session) {
                    times.record(srtt_ns * 1_000);
                }
            }
        }
        times
    }

    fn counters(&self) -> Before {
        let all = self.cluster.all_counters();
        let packets = self.senders.iter().map(|sender| {
            let sent = self.cluster.counters(sender.actor).packets_sent;
            // The probes are one packet each.
            sent - sender.probe.tally().started
        });
        Before {
            packets: packets.collect(),
            drops: self.cluster.fabric.stats().dropped_total(),
            retransmissions: all.packets_retransmitted,
            timeouts: all.timeouts,
        }
    }

    fn victim_port(&self) -> LinkStats {
        let leaf = self.network.leaf_of(self.victim);
        let links = self.cluster.fabric.links_between(leaf, self.victim);
        self.cluster.fabric.link_stats(links[0])
    }

    fn near_over_far(&self, shares: &[f64]) -> Option<f64> {
        let leaf = self.network.leaf_of(self.victim);
        let senders = self.senders.iter().zip(shares);
        let (near, far): (Vec<_>, Vec<_>) =
            senders.partition(|(sender, _)| self.network.leaf_of(sender.host) == leaf);
        let mean = |of: &[(&Sender, &f64)]| {
            let sum = of.iter().fold(0.0, |sum, (_, share)| sum + *share);
            (sum > 0.0).then(|| sum / of.len() as f64)
        };
        Some(mean(&near)? / mean(&far)?)
    }

    fn row(
        &self,
        config: &IncastConfig,
        before: &Before,
        after: &Before,
        session_rtt: &Histogram,
        port: &LinkStats,
    ) -> IncastRow {
        let sent = after.packets.iter().zip(&before.packets);
        let shares: Vec<f64> = sent.map(|(after, before)| (after - before) as f64).collect();
        let packets = shares.iter().fold(0.0, |sum, share| sum + share);
        let bits = packets * packet_bytes_mean(config.request_bytes) * 8.0;
        let goodput_gbit = bits / config.measured_ns as f64;
        let probes = tally_of(self.senders.iter().map(|sender| &sender.probe));
        let requests = tally_of(self.senders.iter().map(|sender| &sender.requests));
        let background = tally_of(&self.background);
        let ns_of = |bytes: f64| bytes * 8.0 / LINE_GBIT as f64;
        IncastRow {
            senders: self.senders.len() as u16,
            controller: self.controller,
            goodput_gbit,
            share: goodput_gbit / port_gbit(),
            probe: Latency::from(&probes.latency),
            session_rtt: Latency::from(session_rtt),
            queue_mean_ns: ns_of(port.queued_bytes_mean()),
            queue_max_ns: ns_of(port.queued_bytes_max as f64),
            drops: after.drops - before.drops,
            marked: port.marked,
            retransmissions: after.retransmissions - before.retransmissions,
            timeouts: after.timeouts - before.timeouts,
            jain: jain(&shares),
            near_over_far: self.near_over_far(&shares),
            calls: probes.succeeded + requests.succeeded + background.succeeded,
            background: config.background.then(|| Latency::from(&background.latency)),
            warm_up_ns: config.warm_up_ns,
            measured_ns: config.measured_ns,
        }
    }
}

/// Returns the average request bytes of a packet: the last packet is shorter.
pub(super) fn packet_bytes_mean(request_bytes: usize) -> f64 {
    request_bytes as f64 / (request_bytes as u64).div_ceil(PACKET_BYTES) as f64
}

/// Returns the capacity of the receiver's port for requests, in Gbit/s.
fn port_gbit() -> f64 {
    let wire =
        FRAME_BYTES as u64 + u64::from(petrel_sim::fabric::FabricConfig::ETHERNET_OVERHEAD_BYTES);
    LINE_GBIT as f64 * PACKET_BYTES as f64 / wire as f64
}

/// Jain's index: 1 if all shares are equal, 1/n if one has everything.
pub(super) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares
        .iter()
        .fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain__is_one_for_equals_and_a_share_for_one_that_has_all() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[3.0, 0.0, 0.0]), 1.0 / 3.0);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn run__more_senders_than_hosts_are_refused() {
        let config = IncastConfig { senders: vec![105], ..IncastConfig::quick(1) };
        assert!(run(&config, |_| {}).unwrap_err().to_string().contains("104"));
    }
}
