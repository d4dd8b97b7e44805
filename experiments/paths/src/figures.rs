//! MP-RDMA's figures that show its window and its limits to disorder: 4, 5, 11b and 14.

use petrel_proto::path::{Disorder, PathPolicy};

use crate::rows::{Table, goodput_of};
use crate::{Change, Link, Marking, STEP, Setup, WIRE_BYTES, World};

const MS: u64 = 1_000_000;

/// A rate of links that limit nothing.
const UNLIMITED_GBIT: f64 = 1e6;

fn red(from_packets: u64, all_packets: u64, most: f64) -> Marking {
    Marking { from_bytes: from_packets * WIRE_BYTES, all_bytes: all_packets * WIRE_BYTES, most }
}

/// Figure 4: the queue of eight flows before a link.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// The marks.
    pub name: &'static str,
    /// Share of the link's goodput.
    pub share: f64,
    /// Mean queue in packets.
    pub mean_packets: f64,
    /// Standard deviation of the queue.
    pub deviation_packets: f64,
    /// The paper's fixed point (equations 4 and 5), for marks on a slope.
    pub predicted_packets: Option<f64>,
}

/// Runs Figure 4: eight flows of 10 Gbit/s over one link of this rate, with a round trip of 100 µs.
pub fn queues(seed: u64) -> Vec<QueueRow> {
    let row = |name, marking: Marking, predicted_packets| {
        let mut world = World::new(&Setup {
            flows: 8,
            ports: 1,
            host_gbit: 10.0,
            receiver_gbit: UNLIMITED_GBIT,
            back_ns: 94_000,
            is_endless: true,
            ..setup(seed, Disorder::WINDOW, vec![Link::new(10.0, Some(marking))])
        });
        world.run_until(20 * MS);
        world.begin_span();
        world.run_until(120 * MS);
        let link = &world.links()[0];
        QueueRow {
            name,
            share: world.goodput_gbit(20 * MS, 120 * MS) / goodput_of(10.0),
            mean_packets: link.mean_queue_packets(),
            deviation_packets: link.queue_deviation_packets(),
            predicted_packets,
        }
    };
    vec![
        row("RED, 20 to 200 packets", red(20, 200, 0.8), Some(fixed_point(8.0, 10.0, 100.0))),
        row("step at 65 packets", red(65, 65, 1.0), None),
    ]
}

/// Solves q = N (1 - F) / F - C d / 2 with F = 0.8 (q - 20) / 180, in packets.
fn fixed_point(flows: f64, gbit: f64, rtt_us: f64) -> f64 {
    let in_flight = gbit * 1e3 * rtt_us / 8.0 / WIRE_BYTES as f64;
    let (mut low, mut high) = (20.0, 200.0);
    for _ in 0..60 {
        let queue = (low + high) / 2.0;
        let marked = 0.8 * (queue - 20.0) / 180.0;
        let is_low = flows * (1.0 - marked) / marked - in_flight / 2.0 > queue;
        (low, high) = if is_low { (queue, high) } else { (low, queue) };
    }
    low
}

/// Runs Figure 5: ten flows over four unequal paths with unequal marks. Returns the share of marked packets of each path.
pub fn mark_ratios(seed: u64) -> Vec<f64> {
    let rates = [(20.0, 0.2), (40.0, 0.4), (60.0, 0.6), (80.0, 0.8)];
    let links = rates.map(|(gbit, most)| Link::new(gbit, Some(red(20, 200, most))));
    let mut world = World::new(&Setup {
        flows: 10,
        ports: 8,
        receiver_gbit: UNLIMITED_GBIT,
        back_ns: 10_000,
        ..setup(seed, Disorder::WINDOW, links.to_vec())
    });
    world.run_until(20 * MS);
    world.begin_span();
    world.run_until(120 * MS);
    world.links().iter().map(Link::mark_ratio).collect()
}

/// A network of Figure 14: five flows over four paths of 40 Gbit/s.
#[derive(Clone, Copy, Debug)]
pub struct Disordered {
    /// The name in the paper.
    pub name: &'static str,
    /// Rate of the fourth path in Gbit/s.
    pub fourth_gbit: f64,
    /// Queue from which the fourth path marks, in bytes.
    pub fourth_marks_from: u64,
}

/// The three networks of Figure 14.
pub const DISORDERED: [Disordered; 3] = [
    Disordered { name: "normal", fourth_gbit: 40.0, fourth_marks_from: 20_000 },
    Disordered { name: "ECN mis-configured", fourth_gbit: 40.0, fourth_marks_from: 240_000 },
    Disordered { name: "link degraded", fourth_gbit: 1.0, fourth_marks_from: 20_000 },
];

impl Disordered {
    fn setup(self, seed: u64, disorder: Disorder) -> Setup {
        let marks_from = self.fourth_marks_from;
        let marking = Marking { from_bytes: marks_from, all_bytes: marks_from, most: 1.0 };
        let mut links = vec![Link::new(40.0, Some(STEP)); 3];
        links.push(Link::new(self.fourth_gbit, Some(marking)));
        let receiver_gbit = UNLIMITED_GBIT;
        Setup { flows: 5, receiver_gbit, ..setup(seed, disorder, links) }
    }

    /// Runs Figure 14a: the distance from the first missing packet that one packet in 1 000 exceeds, without a bitmap's
    /// limit.
    pub fn tail_packets(self, seed: u64, disorder: Disorder) -> usize {
        let mut world = World::new(&Setup { is_endless: true, ..self.setup(seed, disorder) });
        world.run_until(5 * MS);
        world.begin_span();
        world.run_until(25 * MS);
        world.disorder_packets(1_000)
    }

    /// Runs Figure 14b: the goodput, as a share of the links', with a bitmap of 64 packets.
    pub fn share(self, seed: u64, disorder: Disorder) -> f64 {
        let mut world = World::new(&self.setup(seed, disorder));
        world.run_until(25 * MS);
        world.goodput_gbit(5 * MS, 25 * MS) / goodput_of(120.0 + self.fourth_gbit)
    }
}

/// Runs Figure 11b: cuts of one, two and three of four paths of 10 Gbit/s, 20 ms each. Returns the goodput between two cuts as a share
/// of the paths that are left.
pub fn cuts(table: &Table, seed: u64) -> [f64; 3] {
    let cut = |path: usize| ((5 + 20 * path as u64) * MS, Change::Cut(path));
    let setup = Setup { changes: (0..3).map(cut).collect(), ..table.setup(seed, &[10.0; 4]) };
    let mut world = World::new(&setup);
    world.run_until(65 * MS);
    [1, 2, 3].map(|cut: u64| {
        let from_ns = (20 * cut - 15) * MS;
        let left = 10.0 * (4 - cut) as f64;
        world.goodput_gbit(from_ns, from_ns + 20 * MS) / goodput_of(left)
    })
}

fn setup(seed: u64, disorder: Disorder, links: Vec<Link>) -> Setup {
    let policy = PathPolicy::MpRdma(disorder);
    Setup { links, ..Table { policy, ..Table::default() }.setup(seed, &[]) }
}
