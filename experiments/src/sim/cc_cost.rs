//! The cost of congestion control without congestion: call rate, and how often it limits sessions.

use serde::Serialize;

use super::caller::Load;
use super::cluster::{Cluster, FRAME_BYTES, Place, Settings, tally_of};
use super::loss::one_switch;
use super::{Controller, ExperimentError, Latency, cpu};
use petrel_sim::fabric::HostId;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct CostConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Rate of the links, in Gbit/s.
    pub gbit: u64,
    /// Number of small calls of a row.
    pub small_calls: u64,
    /// Number of requests of 8 MiB of a row.
    pub large_calls: u64,
}

impl CostConfig {
    /// Returns the settings of the documented table.
    pub fn full(seed: u64) -> Self {
        Self { seed, gbit: 25, small_calls: 2_000_000, large_calls: 100 }
    }

    /// Returns the settings of a short variant: a second.
    pub fn quick(seed: u64) -> Self {
        Self { small_calls: 30_000, large_calls: 2, ..Self::full(seed) }
    }
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostRow {
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Calls in flight.
    pub in_flight: usize,
    /// The client's congestion control.
    pub controller: Controller,
    /// Calls, all answered correctly.
    pub calls: u64,
    /// Calls per second.
    pub calls_per_s: f64,
    /// The call rate, divided by the rate without control.
    pub relative: f64,
    /// Latencies of the calls.
    pub latency: Latency,
    /// Acknowledgements that changed nothing in an uncongested session.
    pub acks_bypassed: u64,
    /// Acknowledgements processed by the controller.
    pub updates: u64,
    /// Number of times that the controller limited a session.
    pub sessions_limited: u64,
}

/// A kind of call.
#[derive(Clone, Copy, Debug)]
struct Workload {
    sessions: usize,
    load: Load,
}

impl CostConfig {
    fn workloads(&self) -> [Workload; 2] {
        let small =
            Load { groups: 20, batch: 3, calls_max: self.small_calls, ..Load::one_by_one(32, 32) };
        let large = Load { calls_max: self.large_calls, ..Load::one_by_one(8 << 20, 32) };
        [Workload { sessions: 8, load: small }, Workload { sessions: 1, load: large }]
    }
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &CostConfig,
    mut on_row: impl FnMut(&CostRow),
) -> Result<Vec<CostRow>, ExperimentError> {
    let mut rows: Vec<CostRow> = Vec::new();
    for workload in config.workloads() {
        let mut without = None;
        for controller in Controller::ALL {
            let mut row = run_one(config, workload, controller)?;
            row.relative = row.calls_per_s / *without.get_or_insert(row.calls_per_s);
            on_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn run_one(
    config: &CostConfig,
    workload: Workload,
    controller: Controller,
) -> Result<CostRow, ExperimentError> {
    let Workload { sessions, load } = workload;
    let settings = Settings::new(
        config.seed,
        controller,
        config.gbit,
        cpu::of_frames(load.request_bytes.min(FRAME_BYTES)),
    );
    let mut cluster = Cluster::new(&one_switch(config.gbit, controller), settings)?;
    let server = Place::new(HostId(1), 0);
    cluster.add(server)?;
    let actor = cluster.add(Place::new(HostId(0), 0))?;
    let caller = cluster.add_caller(actor, &vec![server; sessions], load)?;
    cluster.begin()?;
    cluster.begin_measuring();
    cluster.run_until("the calls", |_| Ok(caller.is_done()))?;
    cluster.drain()?;

    let tally = tally_of([&caller]);
    let elapsed_ns = tally.last_ns - tally.first_ns.unwrap_or(0);
    let congestion = cluster.all_congestion_counters();
    Ok(CostRow {
        request_bytes: load.request_bytes,
        in_flight: load.groups * load.batch,
        controller,
        calls: tally.succeeded,
        calls_per_s: tally.succeeded as f64 * 1e9 / elapsed_ns as f64,
        relative: 1.0,
        latency: Latency::from(&tally.latency),
        acks_bypassed: congestion.acks_bypassed,
        updates: congestion.updates,
        sessions_limited: congestion.sessions_limited,
    })
}
