//! Open-loop flows of published sizes between all hosts of a fabric, and their completion times.

use std::rc::Rc;

use serde::Serialize;

use super::super::ExperimentError;
use super::super::cluster::{Cluster, Place};
use super::flow_caller::{FlowCaller, FlowLoad, Target};
use super::network::{BuiltNetwork, HOST_GBIT, PathNetwork};
use super::streams::{payload_share, settings};
use super::{PathsConfig, Setting, Variant};
use crate::sim::traffic::{FlowSummary, SizeClass, SizeDistribution, mean_interval_ps};
use petrel_sim::fabric::{ActorId, HostId};

/// A row of results: the flows of a class of sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowsRow {
    /// The number of hosts.
    pub network: &'static str,
    /// The distribution of sizes.
    pub sizes: &'static str,
    /// Bytes that hosts offer, headers included, as a share of their links' rate.
    pub load: f64,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Times of the flows that began during the measurement.
    #[serde(flatten)]
    pub flows: FlowSummary,
    /// Packets dropped by switches, from the first flow to the last.
    pub drops: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Calls from the first to the last, all answered correctly.
    pub calls: u64,
    /// Time from the first flow until the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement. New flows begin for as long again.
    pub measured_ns: u64,
}

/// The settings of `flows`, in addition to those of all experiments with paths.
#[derive(Clone, Debug)]
pub struct FlowsConfig {
    /// Loads to offer, in percent of the hosts' links.
    pub loads_percent: Vec<u32>,
    /// The distribution of sizes.
    pub sizes: SizeDistribution,
}

impl Default for FlowsConfig {
    fn default() -> Self {
        Self { loads_percent: vec![30, 50, 80], sizes: SizeDistribution::WebSearch }
    }
}

/// The times and the network of a run.
struct Scale {
    network: PathNetwork,
    warm_up_ns: u64,
    measured_ns: u64,
}

/// Runs `flows`, and passes every complete row to `on_row`: a row for each class of sizes that has flows.
///
/// # Errors
/// See [`ExperimentError`].
pub fn flows(
    config: &PathsConfig,
    what: &FlowsConfig,
    mut on_row: impl FnMut(&FlowsRow),
) -> Result<Vec<FlowsRow>, ExperimentError> {
    let scale = match config.is_quick {
        true => Scale { network: PathNetwork::Hosts25, warm_up_ns: 200_000, measured_ns: 500_000 },
        false => {
            Scale { network: PathNetwork::Hosts80, warm_up_ns: 3_000_000, measured_ns: 10_000_000 }
        }
    };
    let mut rows = Vec::new();
    for &percent in &what.loads_percent {
        for variant in config.variants() {
            for row in run_one(config.seed, &scale, what.sizes, percent, variant)? {
                on_row(&row);
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn run_one(
    seed: u64,
    scale: &Scale,
    sizes: SizeDistribution,
    load_percent: u32,
    variant: Variant,
) -> Result<Vec<FlowsRow>, ExperimentError> {
    if load_percent == 0 {
        return Err(ExperimentError::Parameters("a load of 0 % has no flows".to_owned()));
    }
    let network = scale.network.build(variant.controller);
    let mut cluster = Cluster::new(&network.topology, settings(variant, &network, seed))?;
    let load = f64::from(load_percent) / 100.0;
    let callers = add_callers(&mut cluster, &network, sizes, load)?;
    cluster.begin()?;
    cluster.run_for(scale.warm_up_ns);
    cluster.begin_measuring();
    cluster.run_for(scale.measured_ns);
    cluster.end_measuring();
    // The last flows of the measurement share the network with as many others as the first.
    cluster.run_for(scale.measured_ns);
    cluster.drain()?;

    let (mut records, mut calls) = (Vec::new(), 0);
    for caller in callers {
        let (flows, made) = caller.results().map_err(|what| cluster.broken(what))?;
        records.extend(flows);
        calls += made;
    }
    let (drops, timeouts) =
        (cluster.fabric.stats().dropped_total(), cluster.all_counters().timeouts);
    let row = |flows: FlowSummary| FlowsRow {
        network: scale.network.name(),
        sizes: sizes.name(),
        load,
        setting: variant.setting(),
        flows,
        drops,
        timeouts,
        calls,
        warm_up_ns: scale.warm_up_ns,
        measured_ns: scale.measured_ns,
    };
    let classes = SizeClass::EVERY.into_iter();
    Ok(classes.filter_map(|class| FlowSummary::of(&records, class)).map(row).collect())
}

/// Adds a caller to every host, with a session to every other host.
fn add_callers(
    cluster: &mut Cluster,
    network: &BuiltNetwork,
    sizes: SizeDistribution,
    load: f64,
) -> Result<Vec<Rc<FlowCaller>>, ExperimentError> {
    let rate_bps = HOST_GBIT * 1_000_000_000;
    let bytes_mean = sizes.mean_bytes() / payload_share();
    let mean_interval_ps = mean_interval_ps(bytes_mean, rate_bps, load);
    let flow_load = FlowLoad { sizes, mean_interval_ps, rate_bps };
    let places: Vec<Place> =
        network.leaves.concat().into_iter().map(|host: HostId| Place::new(host, 0)).collect();
    let actors = places.iter().map(|&place| cluster.add(place)).collect::<Result<Vec<_>, _>>()?;
    let mut callers = Vec::new();
    for (&actor, own) in actors.iter().zip(&places) {
        let others = places.iter().filter(|place| *place != own);
        let targets = others.map(|&other| target(cluster, actor, *own, other));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        let sessions: Vec<_> = targets.iter().map(|target| target.session).collect();
        let (phase, rng) = (Rc::clone(&cluster.phase), cluster.next_rng());
        let caller = Rc::new(FlowCaller::new(flow_load, targets, phase, rng));
        cluster.add_driver(actor, Rc::clone(&caller), &sessions);
        callers.push(caller);
    }
    Ok(callers)
}

fn target(
    cluster: &mut Cluster,
    actor: ActorId,
    own: Place,
    other: Place,
) -> Result<Target, ExperimentError> {
    let fabric = &cluster.fabric;
    let there = fabric.latency_ns(own.data(), other.data());
    let back = fabric.latency_ns(other.data(), own.data());
    let Some(round_trip_ns) = there.zip(back).map(|(there, back)| there + back) else {
        return Err(cluster.broken(format!("no path joins {} and {}", own.host, other.host)));
    };
    Ok(Target { session: cluster.connect(actor, other)?, round_trip_ns })
}
