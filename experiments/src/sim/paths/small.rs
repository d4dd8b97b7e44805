//! Small calls while one of four paths is dead: their latency.

use serde::Serialize;

use super::super::caller::Load;
use super::super::cluster::{Cluster, Place, tally_of};
use super::super::{ExperimentError, Latency};
use super::network::PathNetwork;
use super::streams::settings;
use super::{PathsConfig, Setting, Variant};
use petrel_sim::fabric::{Action, Histogram, LinkSet};

/// Bytes of request and answer.
const MESSAGE_BYTES: usize = 32;

/// Most time between the end of a session's call and its next one; the mean is half of it.
const PAUSE_NS: u64 = 200_000;

/// The shortest timeout, by default.
const TIMEOUT_NS: u64 = 1_000_000;

/// Round trips that a call may take in addition to a timeout.
const ROUND_TRIPS: u64 = 4;

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallRow {
    /// The state of the network.
    pub case: &'static str,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Runs with different seeds.
    pub runs: u64,
    /// Sessions of a run, with a call at a time.
    pub sessions: u16,
    /// Latencies of the calls that ended from the beginning of the measurement on.
    pub latency: Latency,
    /// The shortest timeout and four round trips.
    pub limit_ns: u64,
    /// Calls that took longer.
    pub over_limit: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Duration of the measurement of a run.
    pub measured_ns: u64,
}

/// The length of a run, and the number of them.
struct Scale {
    runs: u64,
    sessions: u16,
    warm_up_ns: u64,
    measured_ns: u64,
}

/// Runs `small`: sessions that make one small call at a time over four paths, of which none is dead, or one
/// without notice.
///
/// A dead path returns at the end of the measurement, so that every call ends. Calls that were under way at its
/// beginning or its end count too.
///
/// # Errors
/// See [`ExperimentError`].
pub fn small(
    config: &PathsConfig,
    mut on_row: impl FnMut(&SmallRow),
) -> Result<Vec<SmallRow>, ExperimentError> {
    let scale = match config.is_quick {
        true => Scale { runs: 1, sessions: 16, warm_up_ns: 1_000_000, measured_ns: 4_000_000 },
        false => Scale { runs: 5, sessions: 64, warm_up_ns: 5_000_000, measured_ns: 20_000_000 },
    };
    let mut rows = Vec::new();
    for (case, is_dead) in [("none", false), ("one of four", true)] {
        for variant in config.variants() {
            let row = run_all(config.seed, &scale, (case, is_dead), variant)?;
            on_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn run_all(
    seed: u64,
    scale: &Scale,
    (case, is_dead): (&'static str, bool),
    variant: Variant,
) -> Result<SmallRow, ExperimentError> {
    let mut times = Histogram::new();
    let (mut timeouts, mut retransmissions, mut round_trip_ns) = (0, 0, 0);
    for run in 0..scale.runs {
        let network = PathNetwork::FourFull.build(variant.controller);
        round_trip_ns = 2 * network.one_way_ns;
        let settings = settings(variant, &network, seed.wrapping_add(run));
        let mut cluster = Cluster::new(&network.topology, settings)?;
        let [from, to] = [0, 1].map(|leaf: usize| network.leaves[leaf][0]);
        let client = cluster.add(Place::new(from, 0))?;
        let mut callers = Vec::new();
        for number in 0..scale.sessions {
            let server = Place::new(to, number);
            cluster.add(server)?;
            let load = Load::one_by_one(MESSAGE_BYTES, MESSAGE_BYTES as u32);
            let load = Load { pause_ns: (0, PAUSE_NS), ..load };
            callers.push(cluster.add_caller(client, &[server], load)?);
        }
        cluster.begin()?;
        cluster.run_for(scale.warm_up_ns);
        cluster.begin_measuring();
        let before = cluster.all_counters();
        let links = LinkSet::Cable(network.paths[0][0]);
        let change = |is_up| Action::Link { links, is_up, reconverge_ns: None };
        if is_dead {
            cluster.fabric.apply(change(false));
        }
        cluster.run_for(scale.measured_ns);
        if is_dead {
            cluster.fabric.apply(change(true));
        }
        cluster.drain()?;
        let after = cluster.all_counters();
        times.add(&tally_of(&callers).latency);
        timeouts += after.timeouts - before.timeouts;
        retransmissions += after.packets_retransmitted - before.packets_retransmitted;
    }
    let limit_ns = TIMEOUT_NS + ROUND_TRIPS * round_trip_ns;
    Ok(SmallRow {
        case,
        setting: variant.setting(),
        runs: scale.runs,
        sessions: scale.sessions,
        latency: Latency::from(&times),
        limit_ns,
        over_limit: times.count_above_ps(limit_ns * 1_000),
        timeouts,
        retransmissions,
        measured_ns: scale.measured_ns,
    })
}
