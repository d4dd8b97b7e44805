//! The library's two ends: a calling and an answering endpoint.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use petrel::endpoint::{Device, EndpointConfig, EndpointId, EndpointStats, IdlePolicy, SessionId};
use petrel::nexus::NexusBuilder;
use petrel::{Endpoint, Nexus};
use petrel_command::client::{data_address, wait_until_open};
use petrel_command::credentials;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_proto::limits::{CREDITS_DEFAULT, SLOTS_DEFAULT, SLOTS_MAX, WINDOW_PACKETS};

use super::ends::{ClientEnd, ServerEnd};
use super::load::Load;
use super::window::{Traffic, Window};
use petrel_command::args::BenchTransport;

/// How long to wait for sessions.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest interval of heartbeats, for ends on different hosts. The control connection has one path: an experiment
/// that cuts this path must not end the connection, however long a busy machine takes for a window.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Memory for messages in bytes, mapped on demand: 64 requests of 8 MiB in flight, and their responses, twice.
const MEMORY_BYTES_MAX: usize = 2 << 30;

/// Changes a configuration, for instance to switch an optimisation off.
pub type Adjust = fn(&mut EndpointConfig);

/// The configuration of an end.
#[derive(Clone, Copy, Debug)]
pub struct EndConfig {
    pub transport: BenchTransport,
    /// Address of this end's data port.
    pub data_address: IpAddr,
    pub slots: u16,
    pub credits: u16,
    /// Whether the end uses the process's credentials.
    pub is_sealed: bool,
    /// Further changes of the configuration.
    pub adjust: Adjust,
}

/// The calling end, with the state of its calls.
pub struct Caller<S: 'static = ()> {
    pub endpoint: Endpoint<S>,
    pub sessions: Vec<SessionId>,
}

/// The answering end.
pub struct Answerer {
    endpoint: Endpoint,
    address: SocketAddr,
}

impl EndConfig {
    /// Returns the defaults of an end whose data port is at `data_address`.
    pub fn new(transport: BenchTransport, data_address: IpAddr) -> Self {
        let (slots, credits) = (SLOTS_DEFAULT, CREDITS_DEFAULT);
        Self { transport, data_address, slots, credits, is_sealed: false, adjust: |_| () }
    }

    /// Returns the defaults of a calling end for `server`: the data port must be of the server's family,
    /// and on loopback only if the server is.
    pub fn towards(transport: BenchTransport, server: IpAddr) -> Self {
        Self::new(transport, data_address(server))
    }

    /// Has a control plane reach an address. A user who names another host wants to call it, as in `Client::connect_to`.
    fn reaching(&self, builder: NexusBuilder, ip: IpAddr) -> NexusBuilder {
        let is_far = !ip.to_canonical().is_loopback();
        let builder = if is_far { builder.heartbeat(HEARTBEAT) } else { builder };
        let mut device = device::get();
        if let Device::Xdp(xdp) = &mut device {
            // A figure is of the device, or there is none.
            xdp.is_required = true;
        }
        let builder = builder.device(device);
        match self.is_sealed {
            true => credentials::apply(builder, false),
            false if is_far => builder.insecure(),
            false => builder,
        }
    }

    fn endpoint(&self) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.data_address = Some(self.data_address);
        config.transports = self.transport.only();
        // The benchmark itself drives the endpoints without sleeping, so no thread has to be woken.
        config.idle = IdlePolicy::Poll;
        config.host.shm.never_sleeps = true;
        config.memory.max_bytes = MEMORY_BYTES_MAX;
        config.sessions.slots = self.slots;
        config.sessions.credits = self.credits;
        (self.adjust)(&mut config);
        config
    }
}

impl Answerer {
    /// Creates an end that listens at an address, where port 0 selects any free port.
    pub fn start(
        listen: SocketAddr,
        config: &EndConfig,
        register: fn(&mut Endpoint),
    ) -> Result<Self, Failure> {
        let builder = Nexus::builder().listen(listen).transports(config.transport.only());
        let nexus = config.reaching(builder, listen.ip()).start()?;
        let address = nexus.local_addr().unwrap_or(listen);
        // The server offers the maxima; clients decide how much they use.
        let config = EndConfig { slots: SLOTS_MAX, credits: WINDOW_PACKETS as u16, ..*config };
        let mut endpoint = nexus.endpoint(config.endpoint()).map_err(Failure::because)?;
        register(&mut endpoint);
        Ok(Self { endpoint, address })
    }

    /// Returns the control address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl ServerEnd for Answerer {
    #[inline]
    fn poll_once(&mut self) {
        self.endpoint.run_once();
    }

    fn traffic(&self) -> Traffic {
        traffic(&self.endpoint.stats())
    }
}

impl<S: 'static> Caller<S> {
    /// Creates an end that calls `server`.
    pub fn start(server: SocketAddr, config: &EndConfig, state: S) -> Result<Self, Failure> {
        let builder =
            Nexus::builder().transports(config.transport.only()).connect_timeout(OPEN_TIMEOUT);
        let builder = config.reaching(builder, server.ip());
        let mut endpoint_config = config.endpoint();
        endpoint_config.sessions.accept = false;
        let endpoint = builder.start()?.endpoint_with(endpoint_config, state);
        Ok(Self { endpoint: endpoint.map_err(Failure::because)?, sessions: Vec::new() })
    }

    /// Opens sessions. `meanwhile` is called repeatedly, for instance to give the other end turns.
    pub fn open(
        &mut self,
        (server, endpoint): (SocketAddr, u16),
        count: usize,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), Failure> {
        for _ in 0..count {
            self.sessions.push(self.endpoint.connect_to(server, EndpointId(endpoint))?);
        }
        let opened = &self.sessions[self.sessions.len() - count..];
        wait_until_open(&mut self.endpoint, opened, server, OPEN_TIMEOUT, |endpoint| {
            if !endpoint.run_once() {
                // The control plane's threads need the CPU as well.
                thread::yield_now();
            }
            meanwhile();
        })
    }
}

impl ClientEnd for Caller<Load> {
    fn begin(&mut self, end_ns: u64) {
        self.endpoint.with(|load, cx| load.begin(cx, end_ns));
    }

    #[inline]
    fn poll_once(&mut self) {
        self.endpoint.run_once();
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.endpoint.state().is_over()
    }

    fn give_up(&mut self, timeout: Duration) {
        self.endpoint.state_mut().give_up(timeout);
        self.sessions.iter().for_each(|session| self.endpoint.close(*session));
    }

    fn finish(&mut self) -> Window {
        self.endpoint.state_mut().finish()
    }

    fn traffic(&self) -> Traffic {
        traffic(&self.endpoint.stats())
    }
}

/// Sums up the drop counters, and copies the others.
fn traffic(stats: &EndpointStats) -> Traffic {
    let counters = stats.protocol.iter().chain(stats.transport.iter());
    let drops = counters.filter(|(name, _)| name.contains("dropped_"));
    Traffic {
        retransmissions: stats.protocol.packets_retransmitted,
        drops: drops.map(|(_, count)| count).sum(),
        dropped_by_kernel: stats.transport.rx_dropped_kernel,
        duplicates: stats.protocol.dropped_duplicate,
        datagrams: stats.transport.tx_datagrams,
        timeouts: stats.protocol.timeouts,
        probes: stats.protocol.probes,
        found_early: stats.protocol.losses_detected,
    }
}
