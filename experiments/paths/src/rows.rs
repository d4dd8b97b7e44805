//! The measurements: each is a world, and the share of the possible goodput that the flow reached in it.

use std::ops::RangeInclusive;

use petrel_proto::path::PathPolicy;

use crate::{Change, Link, Marking, PAYLOAD_BYTES, Setup, WIRE_BYTES, World};

const MS: u64 = 1_000_000;

/// The settings that all measurements of a table share.
#[derive(Clone, Debug)]
pub struct Table {
    /// How senders choose paths.
    pub policy: PathPolicy,
    /// Source ports of each sender.
    pub ports: usize,
    /// Packets in flight at most.
    pub packets_most: u32,
    /// Later packets of a path that show a loss.
    pub threshold: u16,
    /// Marks of all switches.
    pub marking: Marking,
    /// Every measurement is a run per seed.
    pub seeds: RangeInclusive<u64>,
}

impl Default for Table {
    /// MP-RDMA's testbed (§5.1), with 16 ports.
    fn default() -> Self {
        Self {
            policy: PathPolicy::Coupled,
            ports: 16,
            packets_most: 128,
            threshold: 1,
            marking: crate::STEP,
            seeds: 11..=16,
        }
    }
}

/// The result of a measurement: of all seeds together, and of the worst one.
#[derive(Clone, Debug)]
pub struct Row {
    /// The measurement.
    pub name: String,
    /// The goodput that the row is compared with, in Gbit/s.
    pub possible_gbit: f64,
    /// Mean goodput, in Gbit/s.
    pub mean_gbit: f64,
    /// Goodput of the worst seed, in Gbit/s.
    pub least_gbit: f64,
    /// Packets that came more than once, of 1 000 copies sent.
    pub needless_per_mille: f64,
    /// Packets sent again, of 1 000 copies sent.
    pub repeated_per_mille: f64,
}

impl Row {
    /// Returns the mean share of the possible goodput.
    pub fn mean_share(&self) -> f64 {
        self.mean_gbit / self.possible_gbit
    }

    /// Returns the share of the worst seed.
    pub fn least_share(&self) -> f64 {
        self.least_gbit / self.possible_gbit
    }
}

/// The goodput of links with this sum of rates, in Gbit/s.
pub(crate) fn goodput_of(wire_gbit: f64) -> f64 {
    wire_gbit * PAYLOAD_BYTES as f64 / WIRE_BYTES as f64
}

/// The result of one run.
struct Run {
    gbit: f64,
    needless: u64,
    repeated: u64,
    sent: u64,
}

impl Table {
    pub(crate) fn setup(&self, seed: u64, rates_gbit: &[f64]) -> Setup {
        let marking = Some(self.marking);
        Setup {
            links: rates_gbit.iter().map(|gbit| Link::new(*gbit, marking)).collect(),
            ports: self.ports,
            flows: 1,
            host_gbit: 40.0,
            receiver_gbit: 40.0,
            back_ns: 6_000,
            is_endless: false,
            marking: self.marking,
            policy: self.policy,
            packets_most: self.packets_most,
            threshold: self.threshold,
            changes: Vec::new(),
            seed,
        }
    }

    /// Runs a world for each seed, and measures between two times.
    fn row(
        &self,
        name: impl Into<String>,
        possible_gbit: f64,
        times_ns: [u64; 2],
        setup: impl Fn(u64) -> Setup,
    ) -> Row {
        let runs = self.seeds.clone().map(|seed| measure(&setup(seed), times_ns));
        let runs: Vec<Run> = runs.collect();
        let goodputs = || runs.iter().map(|run| run.gbit);
        let sum = |count: fn(&Run) -> u64| runs.iter().map(count).sum::<u64>() as f64;
        let sent = sum(|run| run.sent);
        Row {
            name: name.into(),
            possible_gbit,
            mean_gbit: goodputs().sum::<f64>() / runs.len() as f64,
            least_gbit: goodputs().fold(f64::INFINITY, f64::min),
            needless_per_mille: 1_000.0 * sum(|run| run.needless) / sent,
            repeated_per_mille: 1_000.0 * sum(|run| run.repeated) / sent,
        }
    }

    /// Steady worlds are measured from 2 to 22 ms.
    fn steady(&self, name: &str, possible_gbit: f64, setup: impl Fn(u64) -> Setup) -> Row {
        self.row(name, possible_gbit, [2 * MS, 22 * MS], setup)
    }

    /// Four paths without loss: of 10 Gbit/s each, and of 40.
    pub fn no_loss(&self) -> Vec<Row> {
        let of = |gbit: f64| move |seed| self.setup(seed, &[gbit; 4]);
        let possible = goodput_of(40.0);
        vec![self.steady("4 × 10", possible, of(10.0)), self.steady("4 × 40", possible, of(40.0))]
    }

    /// Four paths of `gbit` each, of which the first `lossy` lose packets. The row is compared with goodput
    /// without loss.
    pub fn loss(&self, gbit: f64, lossy: usize, loss: f64) -> Row {
        let setup = |seed| {
            let mut setup = self.setup(seed, &[gbit; 4]);
            setup.links[..lossy].iter_mut().for_each(|link| link.loss = loss);
            setup
        };
        let free = self.steady("", 1.0, |seed| self.setup(seed, &[gbit; 4])).mean_gbit;
        let name = format!("4 × {gbit}, {} % loss on {lossy}", loss * 100.0);
        self.steady(&name, free, setup)
    }

    /// Paths of different rates.
    pub fn unequal(&self) -> Row {
        let rates = [20.0, 10.0, 5.0, 5.0];
        self.steady("20/10/5/5", goodput_of(40.0), |seed| self.setup(seed, &rates))
    }

    /// Three paths of 10 Gbit/s, and a fourth at 1/40 of that. The row is compared with the three alone.
    pub fn slow_path(&self) -> Row {
        let rates = [10.0, 10.0, 10.0, 0.25];
        let alone = self.steady("", 1.0, |seed| self.setup(seed, &rates[..3])).mean_gbit;
        self.steady("10/10/10/0.25, of the three", alone, |seed| self.setup(seed, &rates))
    }

    /// One path of four is cut without notice from 5 to 25 ms: goodput from 1 ms after the cut, and from 10 ms
    /// after the return.
    pub fn cut(&self) -> Vec<Row> {
        let setup = |seed| Setup {
            changes: vec![(5 * MS, Change::Cut(0)), (25 * MS, Change::Return(0))],
            ..self.setup(seed, &[10.0; 4])
        };
        let first = "4 × 10, one cut: from 1 ms after";
        let back = "4 × 10: from 10 ms after the return";
        vec![
            self.row(first, goodput_of(30.0), [6 * MS, 25 * MS], setup),
            self.row(back, goodput_of(40.0), [35 * MS, 45 * MS], setup),
        ]
    }

    /// Jain's index of several senders to one receiver over a span of time from 10 ms on: of the worst seed, and the mean.
    pub fn fairness(&self, flows: usize, span_ms: u64) -> [f64; 2] {
        let index = |seed| {
            let mut world = World::new(&Setup { flows, ..self.setup(seed, &[40.0; 4]) });
            world.run_until(10 * MS);
            let before = world.delivered();
            world.run_until((10 + span_ms) * MS);
            let shares =
                world.delivered().into_iter().zip(before).map(|(after, before)| after - before);
            jain_index(&shares.collect::<Vec<_>>())
        };
        let all: Vec<f64> = self.seeds.clone().map(index).collect();
        let least = all.iter().copied().fold(1.0, f64::min);
        [least, all.iter().sum::<f64>() / all.len() as f64]
    }

    /// Several senders to one receiver: goodput, Jain's index of the worst seed, and the mean queue.
    pub fn incast(&self, flows: usize) -> (Row, f64, f64) {
        let setup = |seed| Setup { flows, ..self.setup(seed, &[40.0; 4]) };
        let name = format!("incast of {flows}");
        let row = self.row(name, goodput_of(40.0), [4 * MS, 24 * MS], setup);
        let (mut jain, mut queue) = (1.0f64, 0.0f64);
        for seed in self.seeds.clone() {
            let mut world = World::new(&setup(seed));
            world.run_until(4 * MS);
            let before = world.delivered();
            world.run_until(24 * MS);
            let after = world.delivered();
            let shares: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
            jain = jain.min(jain_index(&shares));
            queue = queue.max(world.receiver_queue_packets());
        }
        (row, jain, queue)
    }
}

fn measure(setup: &Setup, [from_ns, to_ns]: [u64; 2]) -> Run {
    let mut world = World::new(setup);
    world.run_until(to_ns);
    let counts = world.counts();
    Run {
        gbit: world.goodput_gbit(from_ns, to_ns),
        needless: world.needless(),
        repeated: counts.repeated,
        sent: counts.sent,
    }
}

/// Returns 1 if all shares are equal, and 1/n if one has everything.
fn jain_index(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (squares * shares.len() as f64)
}
