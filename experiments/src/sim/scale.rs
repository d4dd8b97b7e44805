//! A hundred hosts with calls from every endpoint to all endpoints of further hosts (eRPC's Figure 5).

use serde::Serialize;

use super::caller::{Load, Tally};
use super::cluster::{Cluster, Place, Settings, tally_of};
use super::{Controller, ExperimentError, Latency, LeafSpine, cpu};
use petrel_sim::fabric::HostId;

/// Bytes of request and answer.
const MESSAGE_BYTES: usize = 32;

/// Concurrent calls of a group, to random endpoints.
const BATCH: usize = 3;

/// Groups of outstanding calls: 60 calls.
const GROUPS: usize = 20;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct ScaleConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Numbers of endpoints per host.
    pub threads: Vec<u16>,
    /// Hosts under each of the five leaves.
    pub hosts_per_leaf: u16,
    /// The load that the hosts of a leaf can offer, in multiples of its uplinks' capacity.
    pub oversubscription: u64,
    /// The endpoints' congestion control.
    pub controller: Controller,
    /// Time from the first call until the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement.
    pub measured_ns: u64,
}

impl ScaleConfig {
    /// Returns the settings of the documented table.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            threads: vec![1, 2, 4, 6, 8, 10],
            hosts_per_leaf: 20,
            // 20 hosts of 25 Gbit/s and five uplinks of 100: the paper used half of the 40 places under
            // each leaf of its cluster.
            oversubscription: 1,
            controller: Controller::Timely,
            warm_up_ns: 500_000,
            measured_ns: 2_000_000,
        }
    }

    /// Returns the settings of a short variant: ten hosts, seconds.
    pub fn quick(seed: u64) -> Self {
        Self {
            threads: vec![1, 3],
            hosts_per_leaf: 2,
            warm_up_ns: 200_000,
            measured_ns: 300_000,
            ..Self::full(seed)
        }
    }
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleRow {
    /// Hosts.
    pub hosts: u16,
    /// Endpoints per host.
    pub threads: u16,
    /// The load that the hosts of a leaf can offer, in multiples of its uplinks' capacity.
    pub oversubscription: u64,
    /// The endpoints' congestion control.
    pub controller: Controller,
    /// Sessions of a host as a client; as a server it has as many.
    pub sessions_per_host: u64,
    /// Calls that ended during the measurement.
    pub calls: u64,
    /// Calls from the first to the last, all answered correctly.
    pub calls_checked: u64,
    /// Millions of calls per second made, and also answered, by a host.
    pub rate_per_host_mrps: f64,
    /// Latencies of the calls.
    pub latency: Latency,
    /// Packets that a host retransmits per second.
    pub retransmissions_per_host_s: f64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Number of times that congestion control limited a session.
    pub sessions_limited: u64,
    /// Time from the first call until the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement.
    pub measured_ns: u64,
    /// Total number of packets, from the first session to the last answer.
    pub packets: u64,
    /// A number that differs between two runs unless all their packets behaved identically.
    pub digest: String,
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &ScaleConfig,
    mut on_row: impl FnMut(&ScaleRow),
) -> Result<Vec<ScaleRow>, ExperimentError> {
    let mut rows = Vec::new();
    for &threads in &config.threads {
        let row = run_one(config, threads)?;
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn run_one(config: &ScaleConfig, threads: u16) -> Result<ScaleRow, ExperimentError> {
    if config.oversubscription == 0 {
        let what = "an oversubscription of 0 needs links without end".to_owned();
        return Err(ExperimentError::Parameters(what));
    }
    let network = LeafSpine::cx4(config.hosts_per_leaf).oversubscribed(config.oversubscription, 1);
    let hosts = network.host_count() as u16;
    let mut cluster = make_cluster(config, network)?;
    let callers = add_endpoints(&mut cluster, hosts, threads)?;
    cluster.begin()?;
    cluster.run_for(config.warm_up_ns);
    cluster.begin_measuring();
    let before = (cluster.all_counters(), cluster.fabric.stats());
    cluster.run_for(config.measured_ns);
    let after = (cluster.all_counters(), cluster.fabric.stats());
    cluster.end_measuring();
    let Tally { latency, .. } = tally_of(&callers);
    cluster.drain()?;

    let host_seconds = f64::from(hosts) * config.measured_ns as f64 / 1e9;
    let retransmitted = after.0.packets_retransmitted - before.0.packets_retransmitted;
    Ok(ScaleRow {
        hosts,
        threads,
        oversubscription: config.oversubscription,
        controller: config.controller,
        sessions_per_host: u64::from(threads) * u64::from(hosts - 1) * u64::from(threads),
        calls: latency.count(),
        calls_checked: tally_of(&callers).succeeded,
        rate_per_host_mrps: latency.count() as f64 / host_seconds / 1e6,
        latency: Latency::from(&latency),
        retransmissions_per_host_s: retransmitted as f64 / host_seconds,
        timeouts: after.0.timeouts - before.0.timeouts,
        drops: after.1.dropped_total() - before.1.dropped_total(),
        sessions_limited: cluster.all_congestion_counters().sessions_limited,
        warm_up_ns: config.warm_up_ns,
        measured_ns: config.measured_ns,
        packets: cluster.fabric.stats().sent,
        digest: format!("{:016x}", cluster.fabric.digest()),
    })
}

fn make_cluster(config: &ScaleConfig, mut network: LeafSpine) -> Result<Cluster, ExperimentError> {
    let line_gbit = network.host_link.rate_bps / 1_000_000_000;
    network.leaf.ecn = config.controller.marks(line_gbit);
    network.spine.ecn = config.controller.marks(network.spine_link.rate_bps / 1_000_000_000);
    let settings =
        Settings::new(config.seed, config.controller, line_gbit, cpu::of_frames(MESSAGE_BYTES));
    Cluster::new(&network.topology(), settings)
}

/// Adds endpoints with a session to every endpoint of all other hosts.
fn add_endpoints(
    cluster: &mut Cluster,
    hosts: u16,
    threads: u16,
) -> Result<Vec<std::rc::Rc<super::caller::Caller>>, ExperimentError> {
    let on_host = |host| (0..threads).map(move |endpoint| Place::new(HostId(host), endpoint));
    let places: Vec<Place> = (0..hosts).flat_map(on_host).collect();
    let actors = places.iter().map(|&place| cluster.add(place)).collect::<Result<Vec<_>, _>>()?;
    let load = Load {
        groups: GROUPS,
        batch: BATCH,
        ..Load::one_by_one(MESSAGE_BYTES, MESSAGE_BYTES as u32)
    };
    let callers = actors.into_iter().zip(&places).map(|(actor, own)| {
        let others: Vec<Place> =
            places.iter().copied().filter(|place| place.host != own.host).collect();
        cluster.add_caller(actor, &others, load)
    });
    callers.collect()
}
