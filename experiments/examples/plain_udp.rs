//! Plain UDP sources over store-and-forward switches with short queues: the same scenarios, in the same
//! table, as `bench/ns3/plain-udp.cc` on ns-3. `bench/ns3/README.md` compares the results.
//!
//! `cargo run --release --manifest-path experiments/Cargo.toml --example plain_udp [runs]`

use petrel_experiments::sim::LeafSpine;
use petrel_sim::fabric::{
    Arrivals, BufferPolicy, FabricConfig, FabricError, FabricHandle, Histogram, HostId, LinkConfig,
    NicConfig, SimAddr, SourceConfig, SourceId, SwitchConfig, Topology,
};

const PAYLOAD_BYTES: u32 = 1_000;
/// ns-3's overhead on a point-to-point link: PPP 2, IPv4 20, UDP 8.
const OVERHEAD_BYTES: u32 = 30;
const WIRE_BYTES: u64 = (PAYLOAD_BYTES + OVERHEAD_BYTES) as u64;
/// ns-3 does not count the packet in transmission; Petrel does.
const SWITCH_QUEUE_PACKETS: u64 = 30 + 1;
const LINK: LinkConfig = LinkConfig::gbit(10, 1_000);
const PACKET_PS: u64 = WIRE_BYTES * 800;
const WARM_UP_NS: u64 = 2_000_000;
const STOP_NS: u64 = 22_000_000;
const DRAINED_NS: u64 = 24_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Network {
    /// Sixteen hosts send to a seventeenth.
    Star,
    /// Four leaves of four hosts, which send to all remaining hosts; 2:1 oversubscribed.
    Tiers,
}

#[derive(Clone, Copy)]
enum Pattern {
    Poisson,
    /// Bursts at half the rate of the link, 20 packets on average.
    OnOff,
}

/// The load in percent: of the one port in the star, and of each host's link in two tiers.
const SCENARIOS: [(&str, Network, Pattern, u64); 8] = [
    ("star, Poisson, 0.50", Network::Star, Pattern::Poisson, 50),
    ("star, Poisson, 0.80", Network::Star, Pattern::Poisson, 80),
    ("star, Poisson, 0.95", Network::Star, Pattern::Poisson, 95),
    ("star, on/off, 0.50", Network::Star, Pattern::OnOff, 50),
    ("star, on/off, 0.80", Network::Star, Pattern::OnOff, 80),
    ("two tiers, Poisson, 0.40", Network::Tiers, Pattern::Poisson, 40),
    ("two tiers, Poisson, 0.60", Network::Tiers, Pattern::Poisson, 60),
    ("two tiers, on/off, 0.40", Network::Tiers, Pattern::OnOff, 40),
];

/// Mean in µs, 99th percentile in µs, dropped packets in percent.
type Figures = [f64; 3];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runs: u64 = std::env::args().nth(1).map_or(Ok(10), |runs| runs.parse())?;
    println!("| scenario, load | mean µs | p99 µs | dropped % |");
    println!("| --- | --- | --- | --- |");
    for (name, network, pattern, load_percent) in SCENARIOS {
        let figures = (0..runs.max(2)).map(|seed| run(network, pattern, load_percent, seed));
        let figures = figures.collect::<Result<Vec<_>, _>>()?;
        let columns = [0, 1, 2].map(|column| mean_and_error(&figures, column));
        println!("| {name} | {} |", columns.join(" | "));
    }
    Ok(())
}

fn run(
    network: Network,
    pattern: Pattern,
    load_percent: u64,
    seed: u64,
) -> Result<Figures, Box<dyn std::error::Error>> {
    let fabric = fabric(network, seed)?;
    let host_count = fabric.host_count() as u16;
    let target = HostId(host_count - 1);
    let hosts = || (0..host_count).map(HostId);
    let senders: Vec<HostId> = match network {
        Network::Star => hosts().filter(|&host| host != target).collect(),
        Network::Tiers => hosts().collect(),
    };
    let share = if network == Network::Star { senders.len() as u64 } else { 1 };
    let arrivals = arrivals(pattern, PACKET_PS * 100 * share / load_percent);
    let mut sources = Vec::new();
    for &host in &senders {
        let to = hosts().filter(|&to| to != host && (network == Network::Tiers || to == target));
        let to = to.map(at).collect();
        let config = SourceConfig::new(at(host), at(host), PAYLOAD_BYTES, arrivals);
        sources.push(fabric.add_source(SourceConfig { to, stop_ns: STOP_NS, ..config })?);
    }
    fabric.advance(WARM_UP_NS);
    fabric.begin_measuring();
    fabric.advance(DRAINED_NS - WARM_UP_NS);
    assert_eq!(fabric.stats().in_flight, 0, "everything has arrived or was dropped");
    Ok(figures(&fabric, &sources))
}

fn fabric(network: Network, seed: u64) -> Result<FabricHandle, FabricError> {
    let nic = NicConfig { tx_packets: usize::MAX, tx_bytes: u64::MAX, ..NicConfig::default() };
    let buffer = BufferPolicy::PerPort { bytes: SWITCH_QUEUE_PACKETS * WIRE_BYTES };
    let switch = SwitchConfig { buffer, ..SwitchConfig::default() };
    let topology = match network {
        Network::Star => Topology::star(17, nic, switch, LINK),
        Network::Tiers => LeafSpine {
            leaves: 4,
            hosts_per_leaf: 4,
            spines: 1,
            links_per_spine: 1,
            nic,
            host_link: LINK,
            spine_link: LINK,
            leaf: switch,
            spine: switch,
        }
        .oversubscribed(2, 1)
        .topology(),
    };
    let config = FabricConfig { overhead_bytes: OVERHEAD_BYTES, ..FabricConfig::default() };
    FabricHandle::new(&topology, config, seed)
}

fn arrivals(pattern: Pattern, mean_ps: u64) -> Arrivals {
    match pattern {
        Pattern::Poisson => Arrivals::Poisson { mean_ps },
        Pattern::OnOff => {
            let every_ps = 2 * PACKET_PS;
            let on_mean_ps = 20 * every_ps;
            Arrivals::OnOff { every_ps, on_mean_ps, off_mean_ps: 20 * (mean_ps - every_ps) }
        }
    }
}

fn at(host: HostId) -> SimAddr {
    SimAddr::new(host, 9)
}

fn figures(fabric: &FabricHandle, sources: &[SourceId]) -> Figures {
    let (mut delays, mut sent, mut lost) = (Histogram::new(), 0, 0);
    for &source in sources {
        let stats = fabric.source_stats(source);
        delays.add(&stats.delay);
        sent += stats.sent;
        lost += stats.lost;
    }
    [
        delays.mean_ps() / 1e6,
        delays.quantile_ps(0.99) as f64 / 1e6,
        100.0 * lost as f64 / sent as f64,
    ]
}

/// Returns the average of the runs, and the standard error of that average.
fn mean_and_error(runs: &[Figures], column: usize) -> String {
    let count = runs.len() as f64;
    let mean = runs.iter().map(|run| run[column]).sum::<f64>() / count;
    let squares = runs.iter().map(|run| (run[column] - mean).powi(2)).sum::<f64>();
    format!("{mean:.3} ± {:.3}", (squares / (count - 1.0) / count).sqrt())
}
