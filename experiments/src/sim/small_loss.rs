//! Small RPCs over a link that loses packets at random, and the effect on their latency.

use serde::Serialize;

use super::caller::Load;
use super::cluster::{Cluster, Place, Settings, tally_of};
use super::loss::one_switch;
use super::{Controller, ExperimentError, Latency, cpu};
use petrel_sim::Probability;
use petrel_sim::fabric::{Action, FaultPlan, HostId, LinkSet};

/// Bytes of request and answer.
const MESSAGE_BYTES: usize = 32;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct SmallLossConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Rate of the links, in Gbit/s.
    pub gbit: u64,
    /// Loss probabilities of the link, in parts per billion.
    pub loss_ppb: Vec<u32>,
    /// The client's congestion control.
    pub controller: Controller,
    /// Sessions; a call takes a random session.
    pub sessions: u16,
    /// Calls in flight, over all sessions.
    pub in_flight: usize,
    /// Calls of a row.
    pub calls: u64,
}

impl SmallLossConfig {
    /// Returns the settings of the documented table.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            gbit: 25,
            loss_ppb: vec![0, 100_000, 1_000_000, 10_000_000],
            controller: Controller::None,
            sessions: 8,
            in_flight: 8,
            calls: 3_000_000,
        }
    }

    /// Returns the settings of a short variant: a second.
    pub fn quick(seed: u64) -> Self {
        Self { calls: 50_000, ..Self::full(seed) }
    }
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallLossRow {
    /// The client's congestion control.
    pub controller: Controller,
    /// The loss probability, in either direction.
    pub loss: f64,
    /// Sessions.
    pub sessions: u16,
    /// Calls in flight.
    pub in_flight: usize,
    /// Calls, all answered correctly.
    pub calls: u64,
    /// Packets that were lost.
    pub losses: u64,
    /// Latencies of the calls.
    pub latency: Latency,
    /// Calls per second, in millions.
    pub rate_mrps: f64,
    /// Retransmitted packets.
    pub retransmissions: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Number of times that congestion control limited a session.
    pub sessions_limited: u64,
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &SmallLossConfig,
    mut on_row: impl FnMut(&SmallLossRow),
) -> Result<Vec<SmallLossRow>, ExperimentError> {
    let mut rows = Vec::new();
    for &parts in &config.loss_ppb {
        let row = run_one(config, Probability::per_billion(parts))?;
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn run_one(config: &SmallLossConfig, loss: Probability) -> Result<SmallLossRow, ExperimentError> {
    let settings =
        Settings::new(config.seed, config.controller, config.gbit, cpu::of_frames(MESSAGE_BYTES));
    let mut cluster = Cluster::new(&one_switch(config.gbit, config.controller), settings)?;
    let (client, server) = (HostId(0), Place::new(HostId(1), 0));
    cluster.add(server)?;
    let actor = cluster.add(Place::new(client, 0))?;
    let load = Load::one_by_one(MESSAGE_BYTES, MESSAGE_BYTES as u32).in_flight(config.in_flight);
    let targets = vec![server; usize::from(config.sessions)];
    let caller = cluster.add_caller(actor, &targets, Load { calls_max: config.calls, ..load })?;
    cluster.begin()?;
    let plan = FaultPlan { loss, ..FaultPlan::NONE };
    cluster.fabric.apply(Action::Faults { links: LinkSet::Host(client), plan });
    cluster.begin_measuring();
    cluster.run_until("the calls", |_| Ok(caller.is_done()))?;
    cluster.drain()?;

    let tally = tally_of([&caller]);
    let elapsed_ns = tally.last_ns - tally.first_ns.unwrap_or(0);
    let counters = cluster.all_counters();
    Ok(SmallLossRow {
        controller: config.controller,
        loss: loss.as_f64(),
        sessions: config.sessions,
        in_flight: config.in_flight,
        calls: tally.succeeded,
        losses: cluster.fabric.stats().dropped_total(),
        latency: Latency::from(&tally.latency),
        rate_mrps: tally.succeeded as f64 * 1e3 / elapsed_ns as f64,
        retransmissions: counters.packets_retransmitted,
        timeouts: counters.timeouts,
        sessions_limited: cluster.all_congestion_counters().sessions_limited,
    })
}
