//! Ordered calls over several paths, beside callers that wait for all earlier calls.

use serde::Serialize;

use super::super::ExperimentError;
use super::super::caller::{Load, Order};
use super::super::cluster::{Cluster, Place};
use super::network::PathNetwork;
use super::streams::{PACKET_BYTES, settings};
use super::throughput::{PLACES_STREAM, permuted};
use super::{PathsConfig, Setting, Variant};

/// A row of results: the mean of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderedRow {
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Percent of the calls that run only when all earlier ones of their session have run.
    pub ordered_percent: u32,
    /// `ordered`, or `stop-and-wait`: the caller waits for the earlier calls.
    pub method: &'static str,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Runs with different seeds and places.
    pub runs: u64,
    /// Sessions of a run.
    pub sessions: usize,
    /// Goodput of a session on average, in Gbit/s.
    pub session_gbit: f64,
    /// Goodput, divided by that without ordered calls.
    pub relative: f64,
    /// Calls from the first to the last, all answered correctly.
    pub calls: u64,
    /// Duration of the measurement of a run.
    pub measured_ns: u64,
}

/// Bytes of a session's requests in flight: more than the bandwidth-delay product, with full queues.
const BYTES_IN_FLIGHT: usize = 1 << 20;

const RESPONSE_BYTES: u32 = 32;

/// Runs `ordered`: the permutation of 25 hosts, with requests of 512 and 32 KiB of which a share is ordered.
/// Variants with go-back-N are left out.
///
/// # Errors
/// See [`ExperimentError`].
pub fn ordered(
    config: &PathsConfig,
    mut on_row: impl FnMut(&OrderedRow),
) -> Result<Vec<OrderedRow>, ExperimentError> {
    let percents: &[u32] = if config.is_quick { &[0, 50] } else { &[0, 20, 50, 80, 100] };
    let sizes: &[usize] = if config.is_quick { &[32 << 10] } else { &[512 << 10, 32 << 10] };
    let variants = config.variants();
    let variants =
        variants.iter().filter(|variant| variant.recovery == petrel_proto::Recovery::Selective);
    let mut rows: Vec<OrderedRow> = Vec::new();
    for &request_bytes in sizes {
        for &variant in variants.clone() {
            for stops in [false, true] {
                let mut first = None;
                for &percent in percents {
                    let order = Order { percent, stops };
                    let mut row = run_all(config, request_bytes, order, variant)?;
                    row.relative = row.session_gbit / *first.get_or_insert(row.session_gbit);
                    on_row(&row);
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

fn run_all(
    config: &PathsConfig,
    request_bytes: usize,
    order: Order,
    variant: Variant,
) -> Result<OrderedRow, ExperimentError> {
    let (runs, measured_ns) = if config.is_quick { (1, 1_000_000) } else { (2, 5_000_000) };
    let (mut session_gbit, mut calls, mut sessions) = (0.0, 0, 0);
    for run in 0..runs {
        let network = PathNetwork::Hosts25.build(variant.controller);
        let settings = settings(variant, &network, config.seed.wrapping_add(run));
        let mut cluster = Cluster::new(&network.topology, settings)?;
        if !order.stops {
            cluster.keep_order();
        }
        let mut rng = cluster.fabric.rng(PLACES_STREAM);
        let in_flight = (BYTES_IN_FLIGHT / request_bytes).min(8);
        let load = Load::one_by_one(request_bytes, RESPONSE_BYTES).in_flight(in_flight);
        let load = Load { order, ..load };
        let mut servers = Vec::new();
        for (from, to) in permuted(&network.leaves, &mut rng) {
            let to = Place::new(to, 1);
            servers.push(cluster.add(to)?);
            let client = cluster.add(Place::new(from, 0))?;
            cluster.add_caller(client, &[to], load)?;
        }
        cluster.begin()?;
        cluster.run_for(2_000_000);
        let arrived = |cluster: &Cluster| -> u64 {
            servers.iter().map(|server| cluster.counters(*server).frames_accepted).sum()
        };
        let before = arrived(&cluster);
        cluster.run_for(measured_ns);
        let packets = arrived(&cluster) - before;
        cluster.drain()?;
        calls += cluster.calls();
        sessions = servers.len();
        let packet_bytes =
            request_bytes as f64 / (request_bytes as u64).div_ceil(PACKET_BYTES) as f64;
        let gbit = packets as f64 * packet_bytes * 8.0 / measured_ns as f64;
        session_gbit += gbit / sessions as f64 / runs as f64;
    }
    Ok(OrderedRow {
        request_bytes,
        ordered_percent: order.percent,
        method: if order.stops { "stop-and-wait" } else { "ordered" },
        setting: variant.setting(),
        runs,
        sessions,
        session_gbit,
        relative: 1.0,
        calls,
        measured_ns,
    })
}
