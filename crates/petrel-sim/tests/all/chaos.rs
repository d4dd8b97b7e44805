//! Random scenarios on random fabrics: in all of them every packet is accounted for, and every received
//! frame was sent.

use std::collections::BTreeMap;

use crate::common::*;
use petrel_sim::fabric::{
    Action, Arrivals, BufferPolicy, CpuConfig, EcnConfig, FabricConfig, FabricHandle, FaultPlan,
    Forwarding, HostId, LinkConfig, LinkSet, NicConfig, SimAddr, SourceConfig, SwitchConfig,
    Topology,
};
use petrel_sim::{Actor, Probability, Rng, SimTransport, SimTransportConfig, Simulation, Stop};
use petrel_transport::{PeerId, TX_BURST_MAX, Transport, TxFrame};

const SEEDS: u64 = 40;
const END_NS: u64 = 3_000_000;

/// Sends numbered frames to random hosts, and checks the received frames.
struct Chatter {
    transport: SimTransport,
    rng: Rng,
    hosts: u16,
    /// The first number of this incarnation; numbers increase by one per frame.
    next: u32,
    /// The latest number from every peer.
    last: BTreeMap<PeerId, u32>,
    rules: Rules,
}

#[derive(Clone, Copy)]
struct Rules {
    corrupts: bool,
    reorders: bool,
}

impl Chatter {
    fn check(&mut self) {
        for (peer, bytes) in receive(&mut self.transport) {
            assert!(peer.0 < u32::from(self.hosts));
            if self.rules.corrupts {
                continue;
            }
            let number = number_of(&bytes);
            assert_eq!(bytes, numbered(number, bytes.len()), "bytes changed on the way");
            let last = self.last.insert(peer, number);
            let is_later = last.is_none_or(|last| number > last);
            assert!(is_later || self.rules.reorders, "{number} after {last:?} from {peer:?}");
        }
    }

    fn chat(&mut self) {
        let count = self.rng.below(TX_BURST_MAX as u64) as u32;
        let bodies: Vec<_> = (0..count)
            .map(|index| numbered(self.next + index, self.rng.between(4, 1_472) as usize))
            .collect();
        self.next += count;
        let frames: Vec<TxFrame> = bodies
            .iter()
            .map(|bytes| frame(HostId(self.rng.below(u64::from(self.hosts)) as u16), bytes))
            .collect();
        self.transport.tx_burst(&frames);
    }
}

impl Actor for Chatter {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        self.check();
        if now_ns >= END_NS {
            return None;
        }
        if self.rng.chance(Probability::percent(30)) {
            self.chat();
        }
        Some(now_ns + self.rng.between(0, 50_000))
    }
}

fn topology(rng: &mut Rng) -> Topology {
    let nic = NicConfig {
        tx_packets: rng.between(1, 100) as usize,
        rx_packets: rng.between(1, 100) as usize,
        ..NicConfig::default()
    };
    let link = LinkConfig::gbit(rng.between(1, 100), rng.between(0, 5_000));
    if rng.chance(Probability::percent(20)) {
        return Topology::pair(nic, link);
    }
    if rng.chance(Probability::percent(50)) {
        return Topology::star(rng.between(2, 6) as usize, nic, switch(rng), link);
    }
    let mut few = || rng.between(1, 3) as u16;
    let (leaves, hosts_per_leaf, spines, links_per_spine) = (few(), few() + 1, few(), few());
    let spine_link = LinkConfig::gbit(rng.between(1, 100), rng.between(0, 5_000));
    let (leaf_switch, spine_switch) = (switch(rng), switch(rng));
    let mut topology = Topology::new();
    let leaf_ids: Vec<_> = (0..leaves).map(|_| topology.add_switch(leaf_switch)).collect();
    let spine_ids: Vec<_> = (0..spines).map(|_| topology.add_switch(spine_switch)).collect();
    for leaf in leaf_ids {
        for _ in 0..hosts_per_leaf {
            let host = topology.add_host(nic);
            topology.connect(host, leaf, link);
        }
        for spine in &spine_ids {
            for _ in 0..links_per_spine {
                topology.connect(leaf, *spine, spine_link);
            }
        }
    }
    topology
}

fn switch(rng: &mut Rng) -> SwitchConfig {
    let bytes = rng.between(1_600, 100_000);
    let (alpha_num, alpha_den) = (rng.between(1, 8) as u32, rng.between(1, 4) as u32);
    let k_min_bytes = rng.below(30_000);
    let ecn = EcnConfig {
        k_min_bytes,
        k_max_bytes: k_min_bytes + rng.below(30_000),
        p_max: Probability::percent(rng.below(101) as u32),
    };
    let mut half = || rng.chance(Probability::percent(50));
    SwitchConfig {
        buffer: if half() {
            BufferPolicy::PerPort { bytes }
        } else {
            BufferPolicy::Shared { bytes: 4 * bytes, alpha_num, alpha_den }
        },
        forwarding: if half() { Forwarding::CutThrough } else { Forwarding::StoreAndForward },
        ecn: half().then_some(ecn),
        latency_ns: rng.below(1_000),
    }
}

/// Synthetic packets in addition to the endpoints' packets.
fn add_background(fabric: &FabricHandle, rng: &mut Rng, hosts: u16) {
    for _ in 0..rng.below(4) {
        let from = SimAddr::new(HostId(rng.below(u64::from(hosts)) as u16), 99);
        let to = (0..hosts).map(|host| SimAddr::new(HostId(host), 98)).collect();
        let arrivals = match rng.below(4) {
            0 => Arrivals::Periodic { every_ps: rng.between(100_000, 10_000_000) },
            1 => Arrivals::Poisson { mean_ps: rng.between(100_000, 10_000_000) },
            2 => Arrivals::OnOff { every_ps: 100_000, on_mean_ps: 5_000_000, off_mean_ps: 1 << 26 },
            _ => Arrivals::Window { packets: rng.between(1, 50) as u32, reply_bytes: 0 },
        };
        let config = SourceConfig::new(from, from, rng.between(0, 1_472) as u32, arrivals);
        let ecn_capable = rng.chance(Probability::percent(50));
        let source = SourceConfig { to, ecn_capable, stop_ns: END_NS, ..config };
        fabric.add_source(source).unwrap();
    }
}

fn plan(rng: &mut Rng) -> FaultPlan {
    let mut some = || Probability::per_million(rng.below(50_000) as u32);
    FaultPlan {
        loss: some(),
        loss_continues: some(),
        duplicate: some(),
        reorder: some(),
        corrupt: some(),
        spike: some(),
        duplicate_within_ns: 200_000,
        reorder_within_ns: 20_000,
        spike_within_ns: 30_000,
    }
}

fn some_hosts(rng: &mut Rng, hosts: u16) -> Vec<HostId> {
    (0..hosts).filter(|_| rng.chance(Probability::percent(40))).map(HostId).collect()
}

fn schedule_faults(fabric: &FabricHandle, rng: &mut Rng, hosts: u16, rules: Rules) {
    for _ in 0..rng.below(8) {
        let host = HostId(rng.below(u64::from(hosts)) as u16);
        let for_ns = rng.between(1, 300_000);
        let action = match rng.below(5) {
            0 => Action::Pause { host, for_ns },
            1 => Action::Crash { host, down_ns: for_ns },
            2 => {
                let (from, to) = (some_hosts(rng, hosts), some_hosts(rng, hosts));
                let one_way = rng.chance(Probability::percent(50));
                Action::Partition { from, to, one_way, for_ns }
            }
            3 => Action::HealAll,
            _ => Action::Faults { links: LinkSet::Host(host), plan: allowed(plan(rng), rules) },
        };
        fabric.schedule(rng.below(END_NS), action);
    }
}

fn allowed(mut plan: FaultPlan, rules: Rules) -> FaultPlan {
    if !rules.corrupts {
        plan.corrupt = Probability::NEVER;
    }
    if !rules.reorders {
        plan.reorder = Probability::NEVER;
        plan.duplicate = Probability::NEVER;
    }
    plan
}

fn spawn(
    simulation: &mut Simulation<Chatter>,
    rng: &mut Rng,
    host: HostId,
    next: u32,
    rules: Rules,
) {
    let fabric = simulation.fabric().clone();
    let coalesce = rng.chance(Probability::percent(50));
    let ecn_capable = rng.chance(Probability::percent(50));
    let config = SimTransportConfig { coalesce, ecn_capable, ..SimTransportConfig::default() };
    let transport = bind_with(&fabric, host, config);
    let rng = Rng::new(rng.next_u64());
    let (hosts, last) = (fabric.host_count() as u16, BTreeMap::new());
    simulation.spawn(addr(host), Chatter { transport, rng, hosts, next, last, rules });
}

/// Runs a scenario to the end, and returns the digest.
fn scenario(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let cpu = CpuConfig { poll_ns: rng.below(500), poll_jitter_ns: rng.below(100), frame_ns: 20 };
    let rules = Rules {
        corrupts: rng.chance(Probability::percent(50)),
        reorders: rng.chance(Probability::percent(50)),
    };
    let topology = topology(&mut rng);
    let hosts = topology.host_count() as u16;
    let config = FabricConfig { cpu, ..FabricConfig::default() };
    let fabric = FabricHandle::new(&topology, config, seed).unwrap();
    fabric.set_faults(allowed(plan(&mut rng), rules));
    add_background(&fabric, &mut rng, hosts);
    schedule_faults(&fabric, &mut rng, hosts, rules);
    let mut simulation = Simulation::new(fabric.clone());
    (0..hosts).for_each(|host| spawn(&mut simulation, &mut rng, HostId(host), 0, rules));
    loop {
        let stop = simulation.run_until(u64::MAX);
        assert!(fabric.stats().is_balanced(), "seed {seed}: {:?}", fabric.stats());
        match stop {
            Stop::Idle => break,
            Stop::Crashed { dead, .. } => assert!(dead.len() <= 1),
            // Numbers beyond the reach of the last incarnation.
            Stop::Restarted { host } => {
                let next = fabric.now_ns() as u32 * 100;
                spawn(&mut simulation, &mut rng, host, next, rules);
            }
            other => panic!("seed {seed}: {:?}", std::mem::discriminant(&other)),
        }
    }
    assert_eq!(fabric.stats().in_flight, 0, "seed {seed}: packets are stuck");
    assert_eq!(fabric.switch_bytes(), 0, "seed {seed}: a switch leaks memory");
    fabric.digest()
}

#[test]
fn random_scenarios__lose_nothing_without_a_reason() {
    let digests: Vec<u64> = (0..SEEDS).map(scenario).collect();
    let again: Vec<u64> = (0..SEEDS / 10).map(scenario).collect();
    assert_eq!(digests[..again.len()], again);
    let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(distinct.len(), digests.len());
}
