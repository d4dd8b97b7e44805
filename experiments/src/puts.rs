//! The latency of a replicated put in a network with a round trip of 2.3 µs (eRPC §7.1, Table 6).
//!
//! Three replicas, with a core each, are connected to a switch; a client puts values consecutively. The fabric charges
//! the cost of Petrel's own work, as in the experiments of `petrel-sim`. The cost of the replicas' work beyond an echo
//! is measured first, by the wall clock, on the same code in the same simulation. The second simulation charges this
//! cost: before the resulting messages leave, or after, if the work is done while they are in flight. The figures
//! therefore hold for the machine that runs the simulation.

mod node;

use petrel::endpoint::EndpointConfig;
use petrel_kv::ReplicaConfig;
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{
    CpuConfig, FabricConfig, FabricHandle, HostId, LinkConfig, NicConfig, SimAddr, SwitchConfig,
    Topology,
};
use petrel_sim::{SimEndpoint, SimTransportConfig, Simulation, start_endpoint};
use serde::Serialize;

use node::{ClientNode, LatencyNode, ServerNode};

/// The paper's round trip, of an echo with the size of a put.
pub(crate) const ROUND_TRIP_NS: u64 = 2_300;

/// The cost of Petrel by `PERFORMANCE.md`: a turn, and a small frame, as in the experiments of `petrel-sim`.
const CPU: CpuConfig = CpuConfig { poll_ns: 65, poll_jitter_ns: 16, frame_ns: 40 };

/// The mean cost of a pass of a node.
const PASS_NS: u64 = CPU.poll_ns + CPU.poll_jitter_ns / 2;

/// Links as fast as in the paper's CX5 cluster; the delay is only the time on the wire.
const RATE_GBIT: u64 = 40;

const REPLICAS: u16 = 3;
const CLIENT: HostId = HostId(REPLICAS);

/// Keys, and bytes of keys and values (eRPC §7.1).
const KEYS: u64 = 1_000_000;

/// The delay of links before the required delay is known.
const FIRST_DELAY_NS: u64 = 300;

/// Difference between the hosts' links during the measurement of costs, to separate the arrivals of answers.
const APART_NS: u64 = 300;

/// Virtual time within which a cluster has certainly started.
const WAIT_TIMEOUT_NS: u64 = 60_000_000_000;

/// The cost of replicas' work beyond an echo, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Costs {
    /// The leader's work from a put to the appends.
    pub(crate) propose_ns: u64,
    /// The leader's work while the appends are in flight.
    pub(crate) propose_after_ns: u64,
    /// A follower's work from an append to the answer.
    pub(crate) append_ns: u64,
    /// A follower's work after the answer.
    pub(crate) append_after_ns: u64,
    /// The leader's work from the first answer to its answer to the client.
    pub(crate) commit_ns: u64,
    /// The leader's work after that answer.
    pub(crate) commit_after_ns: u64,
    /// The leader's work for the other follower's answer, which is no longer needed.
    pub(crate) late_ns: u64,
}

/// A distribution of times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Times {
    /// The number of times.
    pub(crate) count: usize,
    /// The median.
    pub(crate) p50_ns: u64,
    /// The 99th percentile.
    pub(crate) p99_ns: u64,
}

/// The results.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LatencyReport {
    /// The costs measured by the wall clock, and charged.
    pub(crate) costs: Costs,
    /// An echo's round trip.
    pub(crate) echo: Times,
    /// A put's time, at the client.
    pub(crate) client: Times,
    /// From a put's arrival at the leader until its answer leaves.
    pub(crate) leader: Times,
}

/// Measures the costs of the replicas' work, and then the latency of puts with these costs.
///
/// # Errors
/// The failure, in words.
pub(crate) fn simulate_latency(seed: u64, puts: usize) -> Result<LatencyReport, String> {
    let apart = |host: HostId| FIRST_DELAY_NS + u64::from(host.0) * APART_NS;
    let costs = World::new(seed, Costs::default(), apart, KEYS)?.run(puts)?.costs;
    let delay_ns = find_delay(seed)?;
    let report = World::new(seed, costs, |_| delay_ns, KEYS)?.run(puts)?;
    Ok(LatencyReport { costs, ..report })
}

/// The link delay that makes an echo take [`ROUND_TRIP_NS`].
fn find_delay(seed: u64) -> Result<u64, String> {
    let echo = World::new(seed, Costs::default(), |_| FIRST_DELAY_NS, 1)?.run(1_000)?.echo;
    // A round trip crosses four links.
    (FIRST_DELAY_NS + ROUND_TRIP_NS / 4)
        .checked_sub(echo.p50_ns / 4)
        .ok_or_else(|| format!("an echo takes {} ns without delays", echo.p50_ns))
}

struct World {
    simulation: Simulation<LatencyNode>,
    /// Keeps the processes of the hosts.
    control: ControlNetwork,
    fabric: FabricHandle,
}

impl World {
    /// `delay_of` returns the delay of a host's link in nanoseconds.
    fn new(
        seed: u64,
        costs: Costs,
        delay_of: impl Fn(HostId) -> u64,
        keys: u64,
    ) -> Result<Self, String> {
        let mut topology = Topology::new();
        let switch = topology.add_switch(SwitchConfig::default());
        for _ in 0..=REPLICAS {
            let host = topology.add_host(NicConfig::default());
            topology.connect(host, switch, LinkConfig::gbit(RATE_GBIT, delay_of(host)));
        }
        let overhead_bytes = FabricConfig::ETHERNET_OVERHEAD_BYTES;
        let config = FabricConfig { overhead_bytes, cpu: CPU, ..FabricConfig::default() };
        let fabric =
            FabricHandle::new(&topology, config, seed).map_err(|error| error.to_string())?;
        let control = ControlConfig {
            heartbeat_ns: 1_000_000_000,
            step_timeout_ns: 1_000_000_000,
            ..ControlConfig::default()
        };
        let control = ControlNetwork::new(&fabric, control, fabric.rng(0));
        let simulation = Simulation::new(fabric.clone());
        let mut world = Self { simulation, control, fabric };
        for host in (0..REPLICAS).map(HostId) {
            world.control.start_process(host);
            let endpoint = world.endpoint(host)?;
            let node = ServerNode::start(endpoint, replica_config(seed, host), costs)?;
            world.simulation.spawn(port(host), LatencyNode::Server(Box::new(node)));
        }
        world.control.start_process(CLIENT);
        let endpoint = world.endpoint(CLIENT)?;
        let addresses =
            (0..REPLICAS).map(|host| ControlNetwork::address_of(HostId(host))).collect();
        let client = ClientNode::start(endpoint, addresses, keys, seed);
        world.simulation.spawn(port(CLIENT), LatencyNode::Client(Box::new(client)));
        Ok(world)
    }

    fn endpoint(&mut self, host: HostId) -> Result<SimEndpoint, String> {
        let (settings, config) = (SimTransportConfig::default(), EndpointConfig::default());
        let rng = self.fabric.rng(1 + u32::from(host.0));
        start_endpoint(&self.fabric, &self.control, port(host), settings, rng, &config)
    }

    /// Makes this number of puts, and reports the times.
    fn run(mut self, puts: usize) -> Result<LatencyReport, String> {
        self.wait_for("the leader", ClientNode::has_leader)?;
        self.client(|client| client.begin_echoes(puts));
        self.wait_for("the echoes", ClientNode::is_done)?;
        let echo = self.client(ClientNode::take_times);
        // The first puts allocate memory that later puts reuse.
        for count in [puts / 10 + 1, puts] {
            self.servers(|server| {
                server.serves_puts = true;
                server.forget_times();
            });
            self.client(|client| client.begin_puts(count));
            self.wait_for("the puts", ClientNode::is_done)?;
        }
        let client = self.client(ClientNode::take_times);
        let mut nodes = Vec::new();
        self.servers(|server| nodes.push(server.take_times()));
        let mispredicted: usize = nodes.iter().map(|times| times.mispredicted).sum();
        if mispredicted > puts / 100 {
            return Err(format!(
                "{mispredicted} passes of {puts} puts were charged for other work"
            ));
        }
        let costs = node::costs_of(&nodes)?;
        let leader = nodes.iter().find_map(|times| times.leader.clone());
        let leader = leader.ok_or("no replica answered a put")?;
        Ok(LatencyReport {
            costs,
            echo: times(echo)?,
            client: times(client)?,
            leader: times(leader)?,
        })
    }

    fn wait_for(&mut self, what: &str, is_so: impl Fn(&ClientNode) -> bool) -> Result<(), String> {
        let end_ns = self.fabric.now_ns() + WAIT_TIMEOUT_NS;
        loop {
            let next_ns = self.control.next_ns().min(end_ns);
            let control = &self.control;
            let keeps_running = |node: &LatencyNode| {
                control.next_ns() >= next_ns
                    && !matches!(node, LatencyNode::Client(client) if is_so(client))
            };
            self.simulation.run_while(next_ns, keeps_running);
            self.control.run();
            if self.client_is(&is_so) {
                return Ok(());
            }
            if self.fabric.now_ns() >= end_ns {
                return Err(format!("{what}: it takes too long"));
            }
        }
    }

    fn client_is(&self, is_so: impl Fn(&ClientNode) -> bool) -> bool {
        let mut nodes = self.simulation.actors();
        nodes.any(|(_, node)| matches!(node, LatencyNode::Client(client) if is_so(client)))
    }

    fn client<R>(&mut self, act: impl FnOnce(&mut ClientNode) -> R) -> R {
        let id = petrel_sim::fabric::ActorId(u32::from(REPLICAS));
        let Some(LatencyNode::Client(client)) = self.simulation.actor_mut(id) else {
            unreachable!("the client was spawned last, and stays")
        };
        let done = act(client);
        self.simulation.wake(id);
        done
    }

    fn servers(&mut self, mut act: impl FnMut(&mut ServerNode)) {
        for id in (0..u32::from(REPLICAS)).map(petrel_sim::fabric::ActorId) {
            if let Some(LatencyNode::Server(server)) = self.simulation.actor_mut(id) {
                act(server);
            }
        }
    }
}

fn port(host: HostId) -> SimAddr {
    SimAddr::new(host, 1)
}

fn replica_config(seed: u64, host: HostId) -> ReplicaConfig {
    let peers =
        (0..REPLICAS).map(|host| (host + 1, ControlNetwork::address_of(HostId(host)))).collect();
    let seed = seed.wrapping_mul(31).wrapping_add(u64::from(host.0));
    ReplicaConfig::new(host.0 + 1, ControlNetwork::address_of(host), peers, seed)
}

fn times(mut all: Vec<u64>) -> Result<Times, String> {
    all.sort_unstable();
    let at = |percent: usize| all.get((all.len().saturating_sub(1)) * percent / 100).copied();
    let (Some(p50_ns), Some(p99_ns)) = (at(50), at(99)) else {
        return Err("nothing was measured".to_owned());
    };
    Ok(Times { count: all.len(), p50_ns, p99_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency__two_round_trips_and_what_the_work_costs() {
        let costs = Costs { propose_ns: 400, append_ns: 300, commit_ns: 200, ..Costs::default() };
        let delay_ns = find_delay(1).unwrap();
        let report = World::new(1, costs, |_| delay_ns, 1_000).unwrap().run(300).unwrap();
        assert!(report.echo.p50_ns.abs_diff(ROUND_TRIP_NS) < 30, "{report:?}");
        let expected_ns = 2 * ROUND_TRIP_NS + 900;
        // The turns of a put beyond those of two echoes have a cost, too.
        let turns_ns = report.client.p50_ns - expected_ns;
        assert!((0..200).contains(&turns_ns), "{report:?}");
        assert!(report.leader.p50_ns + ROUND_TRIP_NS / 2 < report.client.p50_ns, "{report:?}");
        assert_eq!(report.client.count, 300);
    }
}
