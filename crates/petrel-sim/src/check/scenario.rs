//! The scenario of a seed: everything drawn before the run.

use petrel::endpoint::{EndpointConfig, SessionConfig};
use petrel_proto::Recovery;
use petrel_proto::congestion::{
    CongestionConfig, CongestionControl, DcqcnConfig, Rate, SwiftConfig, TimelyConfig,
};
use petrel_proto::limits::SLOTS_DEFAULT;
use petrel_proto::recovery::rtt::RtoBounds;
use petrel_transport::seal::OVERHEAD_BYTES;

use crate::control::ControlConfig;
use crate::fabric::{
    BufferPolicy, CpuConfig, EcnConfig, FabricConfig, FaultPlan, HostId, LinkConfig, NicConfig,
    SwitchConfig, Topology,
};
use crate::ring::WakeFaults;
use crate::rng::Rng;
use crate::transport::{FRAME_BYTES, Medium, SimTransportConfig};
pub(super) use crate::world::FaultLevel;

use super::several_paths::{Parts, Ways};
use super::swarm::{Feature, Swarm};

/// Maximum number of hosts: fault windows store hosts as bits of a word.
const HOSTS_MAX: u64 = 50;

/// Worlds with sealed links for each with a host whose processes have no credentials.
const WORLDS_PER_PLAIN_HOST: u64 = 2;

/// The settings of a world.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) fault_level: FaultLevel,
    /// Omitted features.
    pub(super) swarm: Swarm,
    pub(super) hosts: u16,
    pub(super) endpoints_per_host: u16,
    pub(super) topology: Topology,
    pub(super) path: Path,
    /// The settings of the network's parts, to build another network.
    pub(super) parts: Parts,
    pub(super) fabric: FabricConfig,
    pub(super) control: ControlConfig,
    pub(super) faults: FaultPlan,
    /// Whether an attacker injects frames.
    pub(super) is_attacked: bool,
    /// The duration of calls and faults.
    pub(super) active_ns: u64,
    /// Calls made by every endpoint.
    pub(super) calls: u32,
    /// Total bytes of all calls of an endpoint.
    pub(super) bytes: u64,
    /// Maximum number of calls made at once.
    pub(super) burst_max: u64,
    /// Maximum number of targets of an endpoint.
    pub(super) targets_max: u64,
    pub(super) sessions_per_target: u64,
    pub(super) message_bytes_max: u32,
    pub(super) deferred_ns_max: u64,
    /// Whether clients and servers close sessions with pending calls.
    pub(super) closes_sessions: bool,
    /// Whether all sessions begin with the same few request numbers.
    pub(super) numbers_collide: bool,
    /// Whether clients time out early enough for ordinary loss to make calls fail.
    pub(super) has_short_timeouts: bool,
    /// Whether the sessions of endpoints are too few, and some are refused.
    pub(super) has_few_sessions: bool,
    /// Whether pools are small enough to run out.
    pub(super) has_little_memory: bool,
    /// Whether some messages have the maximum size.
    pub(super) has_large: bool,
    /// Whether some endpoints use the simulated UDP medium.
    pub(super) has_udp: bool,
    /// Whether neighbours reach one another through rings in shared memory.
    pub(super) has_rings: bool,
    /// Whether some clients call services with a leader.
    pub(super) has_leaders: bool,
    /// Whether sessions keep an order, and most calls are ordered.
    pub(super) has_order: bool,
    /// Whether servers open sessions to their clients.
    pub(super) has_reverse: bool,
    /// The ways between the hosts, if endpoints have several source ports.
    pub(super) ways: Option<Ways>,
    /// Hosts whose first endpoint serves regions, from the first host on.
    pub(super) region_hosts: u16,
    /// In worlds with sealed links: the number of datagrams per key, as a power of two.
    pub(super) epoch_bits: Option<u32>,
    /// In worlds with sealed links: a host whose processes have no credentials. They call others, and only others without call them.
    pub(super) plain_host: Option<HostId>,
}

/// The path from host to host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    link: LinkConfig,
    links: u64,
}

/// The most time that a device takes until it reads a message in place.
pub(super) const READ_NS_MAX: u32 = 1 << 13;

impl Path {
    pub(super) fn new(link: LinkConfig, links: u64) -> Self {
        Self { link, links }
    }

    /// Returns the time of packets of this total size on a link.
    pub(super) fn sending_ns(&self, bytes: u64) -> u64 {
        (bytes * 8 * 1_000_000_000).div_ceil(self.link.rate_bps)
    }

    /// Returns the time of a packet of this size from host to host on an idle path, at most.
    pub(super) fn trip_ns(&self, bytes: u64) -> u64 {
        u64::from(READ_NS_MAX) + self.links * (self.link.delay_ns + self.sending_ns(bytes))
    }
}

impl Scenario {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let fault_level = match rng.below(20) {
            0..2 => FaultLevel::None,
            2..10 => FaultLevel::Recoverable,
            _ => FaultLevel::Full,
        };
        // A few worlds move messages of the largest size, and are small so as to be quick.
        let has_largest_messages = rng.below(100) == 0;
        let hosts = if has_largest_messages { 2 } else { rng.between(2, 5) as u16 };
        let endpoints_per_host = if has_largest_messages { 1 } else { rng.between(1, 2) as u16 };
        let endpoints = u64::from(hosts) * u64::from(endpoints_per_host);
        let message_bytes_max = match rng.below(4) {
            _ if has_largest_messages => 8 << 20,
            0 => rng.between(64 << 10, 512 << 10) as u32,
            _ => 8 << 20,
        };
        let (topology, path, parts) = draw_topology(rng, hosts, fault_level);
        let bytes_all = if has_largest_messages { 80 << 20 } else { 200_000 << rng.below(6) };
        Self {
            fault_level,
            swarm: Swarm::default(),
            hosts,
            endpoints_per_host,
            topology,
            path,
            parts,
            fabric: draw_fabric(rng),
            control: ControlConfig::draw(rng, 6, 1_000_000),
            faults: match fault_level {
                FaultLevel::None => FaultPlan::NONE,
                _ => FaultPlan::draw(rng, &FaultPlan::RECOVERABLE_MOST),
            },
            is_attacked: fault_level != FaultLevel::None && rng.below(3) == 0,
            active_ns: rng.between(2_000_000, 150_000_000),
            calls: (rng.between(50, if has_largest_messages { 100 } else { 600 }) / endpoints)
                .max(4) as u32,
            bytes: bytes_all / endpoints,
            burst_max: 1 << rng.below(7),
            targets_max: rng.between(1, 4),
            sessions_per_target: rng.between(1, 3),
            message_bytes_max,
            deferred_ns_max: 1 << rng.between(10, 26),
            closes_sessions: fault_level == FaultLevel::Full && rng.below(2) == 0,
            numbers_collide: rng.below(2) == 0,
            has_short_timeouts: fault_level == FaultLevel::Full && rng.below(4) == 0,
            has_few_sessions: rng.below(20) == 0,
            has_little_memory: rng.below(20) == 0,
            has_large: has_largest_messages,
            has_udp: false,
            has_rings: false,
            has_leaders: false,
            has_order: false,
            has_reverse: false,
            ways: None,
            region_hosts: 0,
            epoch_bits: None,
            plain_host: None,
        }
    }

    /// Makes this a large world: many hosts and some ten thousand calls, most of them small.
    pub(super) fn make_large(&mut self, rng: &mut Rng) {
        const CALLS: u64 = 10_000;
        const BYTES: u64 = 20 << 20;
        self.hosts = rng.between(20, HOSTS_MAX) as u16;
        self.endpoints_per_host = 1;
        let hosts = u64::from(self.hosts);
        (self.topology, self.path, self.parts) = draw_topology(rng, self.hosts, self.fault_level);
        // Client and group calls are a third of all calls.
        (self.calls, self.bytes) = ((CALLS / hosts) as u32, BYTES / hosts);
        self.message_bytes_max = 1 << 20;
        self.has_large = false;
        self.targets_max = rng.between(1, 8);
        self.sessions_per_target = 1;
    }

    /// Limits the messages of a world with the largest messages to ordinary sizes.
    pub(super) fn limit_messages(&mut self) {
        (self.has_large, self.bytes) = (false, 1 << 20);
    }

    pub(super) fn draw_endpoint(&self, rng: &mut Rng) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.sessions = SessionConfig::default();
        config.sessions.slots = match rng.below(7) {
            6 => SLOTS_DEFAULT,
            few => 1 << few,
        };
        config.sessions.credits = match rng.below(5) {
            0 => rng.between(1, 4),
            1 => rng.between(200, 1_000),
            2 => 32,
            _ => rng.between(2, 100),
        } as u16;
        config.sessions.message_bytes_max = self.message_bytes_max;
        config.protocol.rto = draw_rto(rng);
        let retries = if self.has_short_timeouts { rng.between(1, 9) } else { rng.between(10, 14) };
        config.protocol.retries_max = retries as u8;
        // A quarter of the endpoints take the general path for all frames, because both paths must keep the
        // rules. Derived without a draw: seeds on the regression list keep their meaning.
        let credits = config.sessions.credits;
        config.protocol.fast_path = credits % 4 != 3;
        if self.swarm.allows(Feature::Congestion) {
            config.protocol.congestion = congestion(controller_of(credits));
        }
        // All endpoints go back N, or none does: an endpoint that drops packets out of order needs their retransmission.
        if self.goes_back_n() {
            config.protocol.recovery = Recovery::GoBackN;
        }
        if self.has_few_sessions {
            config.protocol.sessions_max = rng.between(4, 30) as u32;
            config.protocol.backlog_max = rng.between(1, 20) as usize;
        }
        if self.has_little_memory {
            let max_bytes = rng.between(512 << 10, 3 << 20) as usize;
            config.memory.max_bytes = max_bytes;
        }
        config.memory.poison = true;
        config.sessions.ordered = self.has_order;
        config.sessions.reverse = self.has_reverse;
        config
    }

    pub(super) fn endpoints(&self) -> u32 {
        u32::from(self.hosts) * u32::from(self.endpoints_per_host)
    }

    /// Returns true if sessions of an endpoint have congestion control.
    pub(super) fn is_controlled(&self, config: &EndpointConfig) -> bool {
        self.swarm.allows(Feature::Congestion) && controller_of(config.sessions.credits) != 0
    }

    /// Returns the longest spacing of packets of this size under congestion control. Two of the three
    /// controllers have a minimum rate of 10 Mbit/s, and the third a longest pause of 1 ms.
    pub(super) fn gap_ns_max(packet_bytes: u32) -> u64 {
        const PAUSE_NS: u64 = 1_000_000;
        (u64::from(packet_bytes) * 1_000_000_000 / LEAST_RATE.get()).max(PAUSE_NS)
    }

    /// Returns true if all endpoints go back N, as in a quarter of the worlds. Also derived without a draw.
    pub(super) fn goes_back_n(&self) -> bool {
        self.active_ns % 4 == 3 && self.swarm.allows(Feature::GoBackN)
    }

    /// Returns true if callers use deadlines and cancels, as in two thirds of the worlds. Also derived without a draw.
    pub(super) fn uses_timeouts(&self) -> bool {
        !self.active_ns.is_multiple_of(3) && self.swarm.allows(Feature::Timeouts)
    }

    /// Returns true if nodes also make client and group calls, and workers answer; see `client_call`. Also
    /// derived without a draw.
    pub(super) fn has_client_calls(&self) -> bool {
        !(self.active_ns / 12).is_multiple_of(3) && self.swarm.allows(Feature::ClientCalls)
    }

    /// Returns how long after its deadline a call may end: a tick of the timer wheel, and the consecutive
    /// turns in which an endpoint under load skips its timers.
    pub(super) fn late_ns_max(&self) -> u64 {
        const TICK_NS: u64 = 1 << 16;
        const TURNS_MAX: u64 = 130;
        const FRAMES_MAX: u64 = 24 + 8 * 32;
        let CpuConfig { poll_ns, poll_jitter_ns, frame_ns } = self.fabric.cpu;
        TICK_NS + TURNS_MAX * (poll_ns + poll_jitter_ns + FRAMES_MAX * frame_ns)
    }

    /// Draws the transport settings of one endpoint.
    pub(super) fn draw_transport(&self, rng: &mut Rng) -> SimTransportConfig {
        let max_frame_bytes = match rng.below(6) {
            0 => 1_232,
            1 => rng.between(1_232, 9_000),
            2 => 8_972,
            3 => rng.between(9_000, 65_507),
            _ => 1_472,
        } as usize;
        // Smaller frames have no room for the records of ordered calls.
        let max_frame_bytes =
            if self.has_order { max_frame_bytes.max(1_242) } else { max_frame_bytes };
        let coalesce = rng.below(2) == 0;
        // Two thirds of the sizes are ECN-capable; again derived without a draw.
        let ecn_capable = !max_frame_bytes.is_multiple_of(3);
        SimTransportConfig { max_frame_bytes, coalesce, ecn_capable, ..Default::default() }
    }

    /// Draws the medium of an endpoint: UDP for half of them. Uses a separate stream to keep other draws unchanged.
    pub(super) fn draw_medium(&self, rng: &mut Rng) -> Medium {
        match rng.below(2) {
            1 if self.has_udp => Medium::Udp { seed: rng.next_u64() },
            _ => Medium::Packets,
        }
    }

    /// Seals links. Epochs are longer where faults may lose many datagrams in a row: a receiver opens nothing after the loss of a whole
    /// epoch. Epochs of 2²² datagrams, as in production, rule such losses out.
    pub(super) fn seal(&mut self, rng: &mut Rng) {
        let least = if self.fault_level == FaultLevel::Full { 9 } else { 5 };
        self.epoch_bits = Some(rng.between(least, least + 3) as u32);
        let has_plain = self.hosts > 2 && rng.below(WORLDS_PER_PLAIN_HOST) == 0;
        self.plain_host = has_plain.then(|| HostId(self.hosts - 1));
    }

    /// Returns true if the processes of a host have credentials: links between two such hosts are sealed.
    pub(super) fn seals(&self, host: HostId) -> bool {
        self.epoch_bits.is_some() && self.plain_host != Some(host)
    }

    /// Returns true if a process with credentials would not have to do without them.
    pub(super) fn may_call(&self, from: HostId, to: HostId) -> bool {
        !self.seals(from) || self.seals(to)
    }

    /// Gives an endpoint that seals its links a transport that can: over UDP, with room in the largest datagrams.
    pub(super) fn fit_for_sealing(rng: &mut Rng, settings: &mut SimTransportConfig) {
        let largest = FRAME_BYTES.end() - OVERHEAD_BYTES;
        settings.max_frame_bytes = settings.max_frame_bytes.min(largest);
        settings.medium = Medium::Udp { seed: rng.next_u64() };
    }

    /// Returns the faults of ring wake-ups, with probabilities taken from those of packets.
    pub(super) fn wake_faults(&self) -> WakeFaults {
        if self.fault_level == FaultLevel::None {
            return WakeFaults::default();
        }
        let FaultPlan { loss, reorder, reorder_within_ns, .. } = self.faults;
        WakeFaults { late: reorder, late_within_ns: reorder_within_ns, refused: loss }
    }

    /// Returns how long after a fault calls may fail because of it: missed heartbeats, timeouts of links
    /// and sessions, and the slowest retries.
    pub(super) fn aftermath_ns(&self) -> u64 {
        4 * self.control.heartbeat_ns + 4 * self.control.step_timeout_ns + 2 * RTO_NS_MAX
    }
}

fn controller_of(credits: u16) -> u16 {
    credits / 4 % 4
}

/// Returns one of the controllers, or none. A controller with a wrong estimate of the links holds back too
/// much or too little; the rules must hold nevertheless.
fn congestion(which: u16) -> CongestionControl {
    let line = Rate::gbit(25);
    let config = match which {
        0 => CongestionConfig::None,
        1 => CongestionConfig::Timely(TimelyConfig::for_line(line)),
        2 => CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
        _ => CongestionConfig::Swift(SwiftConfig::new()),
    };
    CongestionControl::new(config).expect("the defaults are sound")
}

/// The minimum rate of the controllers that have one.
const LEAST_RATE: Rate = Rate::mbit(10);

/// Largest timeout of any endpoint.
const RTO_NS_MAX: u64 = 100_000_000;

fn draw_rto(rng: &mut Rng) -> RtoBounds {
    let min_ns = 20_000 << rng.below(7);
    RtoBounds {
        min_ns,
        max_ns: rng.between(20_000_000, RTO_NS_MAX),
        initial_ns: rng.between(100_000, 10_000_000),
        // Without probes at the smallest minimum timeout.
        probe_min_ns: min_ns.max(40_000) / 2,
    }
}

/// Draws two linked hosts, or a star of all hosts, with queues that overflow in some worlds.
fn draw_topology(rng: &mut Rng, hosts: u16, fault_level: FaultLevel) -> (Topology, Path, Parts) {
    let link = LinkConfig {
        rate_bps: rng.between(1, 100) * 1_000_000_000,
        delay_ns: 1 << rng.between(7, 15),
    };
    let is_roomy = fault_level == FaultLevel::None || rng.below(2) == 0;
    let nic = if is_roomy {
        NicConfig { rx_packets: 1 << 16, rx_bytes: 64 << 20, ..NicConfig::default() }
    } else {
        NicConfig {
            tx_packets: rng.between(2, 100) as usize,
            rx_packets: rng.between(8, 200) as usize,
            ..NicConfig::default()
        }
    };
    let bytes = if is_roomy { 64 << 20 } else { rng.between(70_000, 200_000) };
    let buffer = BufferPolicy::PerPort { bytes };
    if hosts == 2 && rng.below(2) == 0 {
        let switch = SwitchConfig { buffer, ..SwitchConfig::default() };
        return (Topology::pair(nic, link), Path { link, links: 1 }, (nic, switch, link));
    }
    // Half of the rates have marks; again derived without a draw.
    let ecn = (link.rate_bps / 1_000_000_000).is_multiple_of(2).then_some(EcnConfig::DCQCN);
    let switch = SwitchConfig { buffer, ecn, ..SwitchConfig::default() };
    let star = Topology::star(usize::from(hosts), nic, switch, link);
    (star, Path { link, links: 2 }, (nic, switch, link))
}

fn draw_fabric(rng: &mut Rng) -> FabricConfig {
    let cpu = CpuConfig {
        poll_ns: rng.between(100, 2_000),
        poll_jitter_ns: rng.between(0, 500),
        frame_ns: rng.between(0, 200),
    };
    FabricConfig { verify_checksums: true, cpu, ..FabricConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw__gives_sound_settings() {
        for seed in 0..500 {
            let rng = &mut Rng::new(seed);
            let scenario = Scenario::draw(rng);
            assert!(scenario.hosts >= 2 && scenario.calls > 0);
            let config = scenario.draw_endpoint(rng);
            assert!(config.sessions.slots.is_power_of_two());
            assert!(config.sessions.credits > 0);
            assert!(config.protocol.rto.min_ns < config.protocol.rto.max_ns);
            let transport = scenario.draw_transport(rng);
            assert!(crate::transport::FRAME_BYTES.contains(&transport.max_frame_bytes));
        }
    }

    #[test]
    fn gap_ns_max__is_that_of_the_least_rates_or_a_millisecond() {
        let line = Rate::gbit(25);
        let least = [TimelyConfig::for_line(line).min_rate, DcqcnConfig::for_line(line).min_rate];
        assert_eq!(least, [LEAST_RATE; 2]);
        assert_eq!(
            [1_200, 1_250, 50_000].map(Scenario::gap_ns_max),
            [1_000_000, 1_000_000, 40_000_000]
        );
    }

    #[test]
    fn draw__has_every_fault_level() {
        let count = |fault_level| {
            (0..200)
                .filter(|&seed| Scenario::draw(&mut Rng::new(seed)).fault_level == fault_level)
                .count()
        };
        assert!(count(FaultLevel::None) > 5);
        assert!(count(FaultLevel::Recoverable) > 40);
        assert!(count(FaultLevel::Full) > 40);
    }
}
