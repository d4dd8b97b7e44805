//! Large requests over a link that loses packets at random (eRPC's Table 4).

use petrel_proto::Recovery;
use petrel_proto::limits::{PACKET_OVERHEAD_BYTES, packets_of};
use petrel_proto::recovery::rtt::RtoBounds;
use serde::Serialize;

use super::caller::Load;
use super::cluster::{Cluster, Place, Settings, tally_of};
use super::{Controller, ExperimentError, cpu, recovery_name};
use petrel_sim::Probability;
use petrel_sim::fabric::{
    Action, FaultPlan, Forwarding, HostId, LinkConfig, LinkSet, SwitchConfig, Topology,
};

/// The request of the paper: 8 MiB.
const REQUEST_BYTES: u32 = 8 << 20;
const RESPONSE_BYTES: u32 = 32;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct LossConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Rates of the links, in Gbit/s.
    pub gbit: Vec<u64>,
    /// Loss probabilities of the link, in parts per billion.
    pub loss_ppb: Vec<u32>,
    /// The client's congestion control.
    pub controller: Controller,
    /// Least retransmission timeouts to compare, in nanoseconds.
    pub rto_min_ns: Vec<u64>,
    /// Losses that a row should cover.
    pub losses_wanted: u64,
    /// Maximum number of requests of a row, for rare losses.
    pub requests_max: u64,
}

impl LossConfig {
    /// Returns the settings of the documented table.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            gbit: vec![25, 100],
            loss_ppb: vec![0, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000],
            controller: Controller::None,
            rto_min_ns: vec![RtoBounds::default().min_ns],
            losses_wanted: 1_000,
            requests_max: 2_000,
        }
    }

    /// Returns the settings of a short variant: seconds.
    pub fn quick(seed: u64) -> Self {
        Self {
            gbit: vec![25],
            loss_ppb: vec![0, 100_000, 10_000_000],
            losses_wanted: 20,
            requests_max: 8,
            ..Self::full(seed)
        }
    }

    /// Returns everything to compare, in the order of the table.
    fn variants(&self) -> impl Iterator<Item = Variant> + '_ {
        const RECOVERIES: [Recovery; 2] = [Recovery::Selective, Recovery::GoBackN];
        let links = self.gbit.iter().flat_map(|&gbit| RECOVERIES.map(|recovery| (gbit, recovery)));
        links.flat_map(|(gbit, recovery)| {
            self.rto_min_ns.iter().map(move |&rto_min_ns| Variant { gbit, recovery, rto_min_ns })
        })
    }

    fn requests(&self, loss: Probability, packets: u64) -> u64 {
        let per_request = loss.as_f64() * packets as f64;
        let wanted = (self.losses_wanted as f64 / per_request.max(1e-9)).ceil() as u64;
        match loss {
            Probability::NEVER => self.requests_max.min(REQUESTS_UNHARMED),
            _ => wanted.clamp(REQUESTS_MIN.min(self.requests_max), self.requests_max),
        }
    }
}

/// A link, and the client's recovery on it.
#[derive(Clone, Copy, Debug)]
struct Variant {
    gbit: u64,
    recovery: Recovery,
    rto_min_ns: u64,
}

/// Requests if losses are frequent: enough for the start of the first to be negligible.
const REQUESTS_MIN: u64 = 8;

/// Requests without loss, which are all alike.
const REQUESTS_UNHARMED: u64 = 50;

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossRow {
    /// Rate of the links.
    pub gbit: u64,
    /// `selective` or `go-back-n`.
    pub recovery: &'static str,
    /// The least retransmission timeout.
    pub rto_min_ns: u64,
    /// The client's congestion control.
    pub controller: Controller,
    /// The loss probability.
    pub loss: f64,
    /// Requests, all answered correctly.
    pub requests: u64,
    /// Packets that were lost, in both directions.
    pub losses: u64,
    /// Virtual time from the first request to the last answer.
    pub elapsed_ns: u64,
    /// Bits of requests per second.
    pub goodput_gbit: f64,
    /// The goodput, divided by the goodput without loss.
    pub relative: f64,
    /// Additional time for each lost packet, in nanoseconds, from which the effect of rarer losses can be
    /// estimated.
    pub cost_ns_per_loss: f64,
    /// Retransmitted data packets.
    pub retransmissions: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Losses that were detected without a timeout.
    pub found_early: u64,
    /// Frames received twice.
    pub duplicates: u64,
    /// Payload of a UDP datagram, which is a packet.
    pub frame_bytes: usize,
}

/// Runs the experiment, and passes every complete row to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &LossConfig,
    mut on_row: impl FnMut(&LossRow),
) -> Result<Vec<LossRow>, ExperimentError> {
    let mut rows = Vec::new();
    for variant in config.variants() {
        let unharmed = run_one(config, variant, Probability::NEVER)?;
        for &parts in &config.loss_ppb {
            let loss = Probability::per_billion(parts);
            let row = match loss {
                Probability::NEVER => unharmed.clone(),
                _ => run_one(config, variant, loss)?.beside(&unharmed),
            };
            on_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

impl LossRow {
    fn beside(mut self, unharmed: &Self) -> Self {
        self.relative = self.goodput_gbit / unharmed.goodput_gbit;
        let expected_ns =
            unharmed.elapsed_ns as f64 / unharmed.requests as f64 * self.requests as f64;
        self.cost_ns_per_loss = (self.elapsed_ns as f64 - expected_ns) / self.losses.max(1) as f64;
        self
    }
}

/// Returns the payload of a datagram: Ethernet's at 25 Gbit/s, and 4 KiB beyond, as in the paper's 100
/// Gbit/s network.
fn frame_bytes(gbit: u64) -> usize {
    if gbit <= 25 { 1_472 } else { 4_096 }
}

fn run_one(
    config: &LossConfig,
    variant: Variant,
    loss: Probability,
) -> Result<LossRow, ExperimentError> {
    let Variant { gbit, recovery, rto_min_ns } = variant;
    let frame_bytes = frame_bytes(gbit);
    let packets = packets_of(REQUEST_BYTES, (frame_bytes - PACKET_OVERHEAD_BYTES) as u32);
    let requests = config.requests(loss, packets.into());
    let (controller, cpu) = (config.controller, cpu::of_frames(frame_bytes));
    let settings = Settings {
        recovery,
        rto: RtoBounds { min_ns: rto_min_ns, ..RtoBounds::default() },
        frame_bytes,
        ..Settings::new(config.seed, controller, gbit, cpu)
    };
    let mut cluster = Cluster::new(&one_switch(gbit, config.controller), settings)?;
    let (client, server) = (HostId(0), Place::new(HostId(1), 0));
    cluster.add(server)?;
    let actor = cluster.add(Place::new(client, 0))?;
    let load = Load::one_by_one(REQUEST_BYTES as usize, RESPONSE_BYTES);
    let caller = cluster.add_caller(actor, &[server], Load { calls_max: requests, ..load })?;
    cluster.begin()?;
    let plan = FaultPlan { loss, ..FaultPlan::NONE };
    cluster.fabric.apply(Action::Faults { links: LinkSet::Host(client), plan });
    cluster.begin_measuring();
    cluster.run_until("the requests", |_| Ok(caller.is_done()))?;
    cluster.drain()?;

    let tally = tally_of([&caller]);
    let elapsed_ns = tally.last_ns - tally.first_ns.unwrap_or(0);
    let counters = cluster.all_counters();
    Ok(LossRow {
        gbit,
        recovery: recovery_name(recovery),
        rto_min_ns,
        controller: config.controller,
        loss: loss.as_f64(),
        requests: tally.succeeded,
        losses: cluster.fabric.stats().dropped_total(),
        elapsed_ns,
        goodput_gbit: (tally.succeeded * u64::from(REQUEST_BYTES) * 8) as f64 / elapsed_ns as f64,
        relative: 1.0,
        cost_ns_per_loss: 0.0,
        retransmissions: counters.packets_retransmitted,
        timeouts: counters.timeouts,
        found_early: counters.losses_detected,
        duplicates: counters.dropped_duplicate,
        frame_bytes,
    })
}

/// Makes two hosts under a cut-through switch, as under a leaf of [`LeafSpine::cx4`].
///
/// [`LeafSpine::cx4`]: crate::sim::LeafSpine::cx4
pub(super) fn one_switch(gbit: u64, controller: Controller) -> Topology {
    let switch = SwitchConfig {
        ecn: controller.marks(gbit),
        forwarding: Forwarding::CutThrough,
        latency_ns: 400,
        ..SwitchConfig::default()
    };
    Topology::star(2, Default::default(), switch, LinkConfig::gbit(gbit, 450))
}
