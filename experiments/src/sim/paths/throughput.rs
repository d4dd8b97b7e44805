//! Goodput of sessions with long requests: under loss, over unequal paths, in permutations, in an incast.

use serde::Serialize;

use super::super::ExperimentError;
use super::super::incast::jain;
use super::network::{HOST_GBIT, PathNetwork};
use super::streams::{Counts, Streams, gbit, payload_share};
use super::{PathsConfig, Policy, Setting, Variant};
use petrel_sim::fabric::{Action, FaultPlan, HostId, LinkSet, LinkStats};
use petrel_sim::{Probability, Rng};

/// A row of results: the mean of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThroughputRow {
    /// `loss`, `unequal`, `permutation`, `fabric` or `incast`.
    pub experiment: &'static str,
    /// The paths' rates in Gbit/s, or the number of hosts.
    pub network: &'static str,
    /// The difference from the other rows of the experiment.
    pub case: String,
    /// The same as a number: loss in percent, senders, or the number of the case.
    pub level: f64,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Runs with different seeds and places.
    pub runs: u64,
    /// Sessions of a run.
    pub sessions: usize,
    /// Request bits that arrived for the first time, of all sessions, in Gbit/s.
    pub goodput_gbit: f64,
    /// Goodput that the links could carry.
    pub capacity_gbit: f64,
    /// Goodput divided by this capacity.
    pub share: f64,
    /// Goodput, relative to the experiment's first case with this setting.
    pub relative: f64,
    /// Goodput of each session of all runs, ascending.
    pub session_gbit: Vec<f64>,
    /// Jain's index of the sessions' goodput, averaged over the runs; 1 is fair.
    pub jain: f64,
    /// Packets of requests sent during the measurements, repetitions included.
    pub packets: u64,
    /// Of these, repetitions.
    pub retransmissions: u64,
    /// Packets that receivers had already.
    pub needless: u64,
    /// Timeouts of requests.
    pub timeouts: u64,
    /// Packets of all kinds dropped by links and switches.
    pub drops: u64,
    /// Calls from the first to the last, all answered correctly.
    pub calls: u64,
    /// Events of the simulation: a measure of its work.
    pub events: u64,
    /// The paths' links, averaged over the runs.
    pub paths: Vec<PathUse>,
    /// Time from the first request until the measurement, in each run.
    pub warm_up_ns: u64,
    /// Duration of the measurement of a run.
    pub measured_ns: u64,
}

/// The use of one path, away from the senders: all links of a spine, or one of several parallel links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PathUse {
    /// Bits on its links per second, headers included.
    pub gbit: f64,
    /// Packets lost or dropped.
    pub drops: f64,
    /// Packets marked.
    pub marked: f64,
    /// Mean bytes before a link.
    pub queue_bytes_mean: f64,
    /// Standard deviation of these bytes over time.
    pub queue_bytes_deviation: f64,
}

impl PathUse {
    fn add(&mut self, links: &[LinkStats], runs: u64) {
        let (runs, count) = (runs as f64, links.len() as f64);
        for link in links {
            self.gbit += link.rate_bps() / 1e9 / runs;
            self.drops += (link.refused() + link.lost + link.dropped_down) as f64 / runs;
            self.marked += link.marked as f64 / runs;
            self.queue_bytes_mean += link.queued_bytes_mean() / runs / count;
            self.queue_bytes_deviation += link.queued_bytes_deviation() / runs / count;
        }
    }
}

/// Prepares a run: adds sessions, and changes links.
type Prepare<'a> = dyn Fn(&mut Streams, &mut Rng, u64) -> Result<(), ExperimentError> + 'a;

/// Most runs with several paths: a session uses all of them, so chance has less effect than on the one path of others.
const SEVERAL_RUNS: u64 = 4;

/// A case of an experiment.
struct Case<'a> {
    experiment: &'static str,
    network: PathNetwork,
    name: String,
    level: f64,
    /// Rate that the links carry for the sessions, headers included.
    capacity_gbit: f64,
    runs: u64,
    warm_up_ns: u64,
    measured_ns: u64,
    prepare: Box<Prepare<'a>>,
}

/// The stream of a fabric's random numbers from which runs draw hosts and places.
pub(super) const PLACES_STREAM: u32 = u32::MAX;

/// Pairs of a path there and a path back: every pair once, or only the equal ones.
fn path_pairs(is_quick: bool) -> Vec<(usize, usize)> {
    let pairs = (0..4).flat_map(|there| (0..4).map(move |back| (there, back)));
    pairs.filter(|(there, back)| !is_quick || there == back).collect()
}

/// Runs `loss`: four paths of which each could carry the host, and loss on three of them.
///
/// Every run places the session on another pair of paths there and back, so that the mean is what chance
/// gives a session.
///
/// # Errors
/// See [`ExperimentError`].
pub fn loss(
    config: &PathsConfig,
    on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let pairs = path_pairs(config.is_quick);
    let per_mille: &[u32] = if config.is_quick { &[0, 10] } else { &[0, 5, 10, 50, 100] };
    let case = |&parts: &u32| {
        let pairs = &pairs;
        let prepare = move |streams: &mut Streams, _: &mut Rng, run: u64| {
            let (there, back) = pairs[run as usize];
            streams.add_over(there, back)?;
            let loss = Probability::per_million(parts * 1_000);
            let plan = FaultPlan { loss, ..FaultPlan::NONE };
            for path in &streams.network.paths[..3] {
                let links = LinkSet::Cable(path[0]);
                streams.cluster.fabric.apply(Action::Faults { links, plan });
            }
            Ok(())
        };
        Case {
            experiment: "loss",
            network: PathNetwork::FourFull,
            name: format!("{} % on 3 of 4", f64::from(parts) / 10.0),
            level: f64::from(parts) / 10.0,
            capacity_gbit: HOST_GBIT as f64,
            runs: pairs.len() as u64,
            warm_up_ns: 2_000_000,
            measured_ns: if config.is_quick { 2_000_000 } else { 20_000_000 },
            prepare: Box::new(prepare),
        }
    };
    run_cases(config, per_mille.iter().map(case), on_row)
}

/// Runs `unequal`: equal paths, then unequal ones, then one that is nearly useless.
///
/// Runs place the session as in [`loss`].
///
/// # Errors
/// See [`ExperimentError`].
pub fn unequal(
    config: &PathsConfig,
    on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let pairs = path_pairs(config.is_quick);
    let networks = [PathNetwork::FourEqual, PathNetwork::FourUnequal, PathNetwork::OneSlow];
    let case = |(network, number): (PathNetwork, u32)| {
        let pairs = &pairs;
        let path_bps = network.build(config.controller).path_bps;
        let sum_gbit = path_bps.iter().sum::<u64>() as f64 / 1e9;
        Case {
            experiment: "unequal",
            network,
            name: network.name().to_owned(),
            level: f64::from(number),
            capacity_gbit: sum_gbit.min(HOST_GBIT as f64),
            runs: pairs.len() as u64,
            warm_up_ns: 5_000_000,
            measured_ns: if config.is_quick { 5_000_000 } else { 20_000_000 },
            prepare: Box::new(move |streams: &mut Streams, _: &mut Rng, run| {
                let (there, back) = pairs[run as usize];
                streams.add_over(there, back)
            }),
        }
    };
    run_cases(config, networks.into_iter().zip(1..).map(case), on_row)
}

/// Runs `permutation`: each of 25 hosts sends to one host of another leaf, and each receives from one.
///
/// # Errors
/// See [`ExperimentError`].
pub fn permutation(
    config: &PathsConfig,
    on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let leaves = 5;
    let case = Case {
        experiment: "permutation",
        network: PathNetwork::Hosts25,
        name: "25 to 25".to_owned(),
        level: 1.0,
        // Four uplinks of 40 Gbit/s from each leaf.
        capacity_gbit: (leaves * 4 * HOST_GBIT) as f64,
        runs: if config.is_quick { 2 } else { 10 },
        warm_up_ns: 2_000_000,
        measured_ns: if config.is_quick { 1_000_000 } else { 10_000_000 },
        prepare: Box::new(|streams: &mut Streams, rng: &mut Rng, _| {
            let pairs = permuted(&streams.network.leaves, rng);
            pairs.into_iter().try_for_each(|(from, to)| streams.add_to_host(from, to, 0))
        }),
    };
    run_cases(config, std::iter::once(case), on_row)
}

/// Runs `fabric`: all hosts of the first half of the leaves send to hosts of the other half.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fabric(
    config: &PathsConfig,
    on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let (network, sessions) = match config.is_quick {
        true => (PathNetwork::Hosts80, 40),
        false => (PathNetwork::Hosts320, 160),
    };
    let case = Case {
        experiment: "fabric",
        network,
        name: format!("{sessions} sessions"),
        level: 1.0,
        capacity_gbit: (sessions * HOST_GBIT) as f64,
        runs: 1,
        warm_up_ns: if config.is_quick { 300_000 } else { 2_000_000 },
        measured_ns: if config.is_quick { 300_000 } else { 10_000_000 },
        prepare: Box::new(|streams: &mut Streams, rng: &mut Rng, _| {
            let hosts: Vec<HostId> = streams.network.leaves.concat();
            let (senders, receivers) = hosts.split_at(hosts.len() / 2);
            let mut receivers = receivers.to_vec();
            shuffle(&mut receivers, rng);
            for (&from, to) in senders.iter().zip(receivers) {
                streams.add_to_host(from, to, 0)?;
            }
            Ok(())
        }),
    };
    run_cases(config, std::iter::once(case), on_row)
}

/// Runs `incast`: one to nine hosts of the other leaves send to one.
///
/// # Errors
/// See [`ExperimentError`].
pub fn incast(
    config: &PathsConfig,
    on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let senders: &[u16] = if config.is_quick { &[1, 4] } else { &[1, 2, 3, 5, 7, 9] };
    let case = |&count: &u16| Case {
        experiment: "incast",
        network: PathNetwork::Hosts25,
        name: format!("{count} to 1"),
        level: f64::from(count),
        capacity_gbit: HOST_GBIT as f64,
        runs: if config.is_quick { 1 } else { 5 },
        warm_up_ns: 5_000_000,
        measured_ns: if config.is_quick { 2_000_000 } else { 20_000_000 },
        prepare: Box::new(move |streams: &mut Streams, rng: &mut Rng, _| {
            let victim = streams.network.leaves[0][0];
            let mut others = streams.network.leaves[1..].concat();
            shuffle(&mut others, rng);
            let mut numbered = others.into_iter().zip(0..count);
            numbered.try_for_each(|(from, number)| streams.add_to_host(from, victim, number))
        }),
    };
    run_cases(config, senders.iter().map(case), on_row)
}

/// Returns a receiver for each host: a random host of the leaf that follows by a random distance. So all leaves
/// send and receive equally much.
pub(super) fn permuted(leaves: &[Vec<HostId>], rng: &mut Rng) -> Vec<(HostId, HostId)> {
    let distance = 1 + rng.below(leaves.len() as u64 - 1) as usize;
    let mut pairs = Vec::new();
    for (index, senders) in leaves.iter().enumerate() {
        let mut receivers = leaves[(index + distance) % leaves.len()].clone();
        shuffle(&mut receivers, rng);
        pairs.extend(senders.iter().copied().zip(receivers));
    }
    pairs
}

/// Brings items into a random order (Fisher and Yates).
fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

fn run_cases<'a>(
    config: &PathsConfig,
    cases: impl Iterator<Item = Case<'a>>,
    mut on_row: impl FnMut(&ThroughputRow),
) -> Result<Vec<ThroughputRow>, ExperimentError> {
    let mut rows: Vec<ThroughputRow> = Vec::new();
    for case in cases {
        for variant in config.variants() {
            let mut row = case.run(config.seed, variant)?;
            let is_same = |first: &&ThroughputRow| first.setting == row.setting;
            let first = rows.iter().find(is_same).map_or(row.goodput_gbit, |row| row.goodput_gbit);
            row.relative = row.goodput_gbit / first;
            on_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

impl ThroughputRow {
    /// Returns the goodput of the slowest and of the fastest session of any run.
    pub fn session_range_gbit(&self) -> (f64, f64) {
        let ends = (self.session_gbit.first(), self.session_gbit.last());
        ends.0.zip(ends.1).map_or((0.0, 0.0), |(least, most)| (*least, *most))
    }
}

impl Case<'_> {
    fn run(&self, seed: u64, variant: Variant) -> Result<ThroughputRow, ExperimentError> {
        let mut row = self.empty_row(variant);
        for run in 0..row.runs {
            let seed = seed.wrapping_add(run);
            let mut streams = Streams::new(self.network, variant, seed)?;
            let mut rng = streams.cluster.fabric.rng(PLACES_STREAM);
            (self.prepare)(&mut streams, &mut rng, run)?;
            streams.cluster.begin()?;
            streams.cluster.run_for(self.warm_up_ns);
            streams.cluster.begin_measuring();
            let before = streams.counts();
            streams.cluster.run_for(self.measured_ns);
            self.add_run(&mut row, &streams, &before);
            row.events += streams.cluster.fabric.events();
            row.calls += streams.finish()?;
        }
        row.share = row.goodput_gbit / row.capacity_gbit;
        row.session_gbit.sort_unstable_by(f64::total_cmp);
        Ok(row)
    }

    fn empty_row(&self, variant: Variant) -> ThroughputRow {
        let is_single = variant.policy == Policy::SINGLE;
        ThroughputRow {
            experiment: self.experiment,
            network: self.network.name(),
            case: self.name.clone(),
            level: self.level,
            setting: variant.setting(),
            runs: if is_single { self.runs } else { self.runs.min(SEVERAL_RUNS) },
            sessions: 0,
            goodput_gbit: 0.0,
            capacity_gbit: self.capacity_gbit * payload_share(),
            share: 0.0,
            relative: 1.0,
            session_gbit: Vec::new(),
            jain: 0.0,
            packets: 0,
            retransmissions: 0,
            needless: 0,
            timeouts: 0,
            drops: 0,
            calls: 0,
            events: 0,
            paths: Vec::new(),
            warm_up_ns: self.warm_up_ns,
            measured_ns: self.measured_ns,
        }
    }

    /// Adds the measurement of a run to the row.
    fn add_run(&self, row: &mut ThroughputRow, streams: &Streams, before: &Counts) {
        let after = streams.counts();
        let arrived = after.arrived.iter().zip(&before.arrived);
        let rates: Vec<f64> =
            arrived.map(|(after, before)| gbit(after - before, self.measured_ns)).collect();
        let runs = row.runs as f64;
        row.sessions = rates.len();
        row.goodput_gbit += rates.iter().fold(0.0, |sum, rate| sum + rate) / runs;
        row.session_gbit.extend_from_slice(&rates);
        row.jain += jain(&rates) / runs;
        row.packets += after.sent - before.sent;
        row.retransmissions += after.retransmitted - before.retransmitted;
        row.needless += after.needless - before.needless;
        row.timeouts += after.timeouts - before.timeouts;
        row.drops += after.dropped - before.dropped;
        row.paths.resize(streams.network.paths.len(), PathUse::default());
        for (path, links) in row.paths.iter_mut().zip(&streams.network.paths) {
            let stats = links.iter().map(|&link| streams.cluster.fabric.link_stats(link));
            path.add(&stats.collect::<Vec<_>>(), row.runs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle__keeps_all_items_and_reaches_every_order() {
        let mut rng = Rng::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [0, 1, 2];
            shuffle(&mut items, &mut rng);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn path_pairs__are_all_or_the_equal_ones() {
        assert_eq!(path_pairs(false).len(), 16);
        assert_eq!(path_pairs(true), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    }
}
