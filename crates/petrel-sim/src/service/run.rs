//! The run of a seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::iter;
use std::rc::Rc;

use petrel::Time;
use petrel::endpoint::EndpointConfig;
use petrel::workers::{SteppedWorkers, Workers};

use super::{Body, Host, Report, Rule, Setup, Shared, SharedHandle, Start, faults};
use crate::control::{ControlConfig, ControlNetwork, CrashKind};
use crate::fabric::{
    ActorId, CpuConfig, FabricConfig, FabricHandle, HostId, LinkConfig, NicConfig, SimAddr,
    SwitchConfig, Topology,
};
use crate::rng::Rng;
use crate::simulation::{Actor, Simulation};
use crate::trace::Trace;
use crate::transport::SimTransportConfig;
use crate::world::{SimEndpoint, World, run_turn, start_endpoint};

/// Streams of the fabric's random numbers; endpoints have those from the last on.
const STREAM_NETWORK: u32 = 0;
const STREAM_FAULTS: u32 = 1;
const STREAM_CONTROL: u32 = 2;
const STREAM_HOSTS: u32 = 3;
const STREAM_ENDPOINTS: u32 = 4;

/// The virtual time in which clients come to their end after the last fault.
const END_LIMIT_NS: u64 = 300_000_000_000;

/// The longest time between two looks whether the clients have ended.
const LOOK_NS_MAX: u64 = 100_000_000;

/// An endpoint of a server or client.
pub(super) struct Node {
    endpoint: SimEndpoint,
    workers: SteppedWorkers,
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let is_busy = run_turn(&mut self.endpoint);
        let now = Time::from_ns(now_ns);
        let mut has_worked = false;
        while let Some(run) = self.workers.start(now) {
            self.workers.finish(run, now);
            has_worked = true;
        }
        match is_busy || has_worked {
            true => Some(now_ns),
            false => self.endpoint.next_due().map(Time::as_ns),
        }
    }
}

/// The simulated hosts, servers first, and the rules.
pub(super) struct Run {
    simulation: Simulation<Node>,
    control: ControlNetwork,
    servers: Vec<(String, Start)>,
    /// The names of clients that have not ended.
    running: Rc<RefCell<Vec<String>>>,
    always: Vec<Rule>,
    at_end: Vec<Rule>,
    endpoint: EndpointConfig,
    shared: SharedHandle,
    rng: Rng,
    /// Endpoints so far.
    started: u32,
    faults_end_ns: u64,
}

impl Run {
    /// Starts all servers and clients.
    pub(super) fn new(seed: u64, setup: Setup, trace: Trace) -> Result<Self, String> {
        let Setup { servers, clients, always, at_end, faults, endpoint, .. } = setup;
        let names =
            servers.iter().map(|(name, _)| name).chain(clients.iter().map(|(name, _)| name));
        let hosts = names.count();
        let (fabric, control) = network(seed, hosts)?;
        fabric.set_trace(trace);
        let addresses = servers
            .iter()
            .zip(0..)
            .map(|((name, _), host)| (name.clone(), ControlNetwork::address_of(HostId(host))));
        let addresses: BTreeMap<_, _> = addresses.collect();
        if addresses.len() < servers.len() {
            return Err("two servers have the same name".to_owned());
        }
        let rng = RefCell::new(fabric.rng(STREAM_HOSTS));
        let shared = Rc::new(Shared { servers: addresses, fabric: fabric.clone(), rng });
        let mut rng = fabric.rng(STREAM_FAULTS);
        let faults_end_ns = faults::schedule(&fabric, &mut rng, faults, servers.len() as u16);
        let mut run = Self {
            simulation: Simulation::new(fabric),
            control,
            servers,
            running: Rc::default(),
            always,
            at_end,
            endpoint,
            shared,
            rng,
            started: 0,
            faults_end_ns,
        };
        for host in 0..run.servers.len() {
            run.start_server(host)?;
        }
        for (host, (name, body)) in (run.servers.len()..).zip(clients) {
            run.start_client(HostId(host as u16), name, body)?;
        }
        Ok(run)
    }

    /// Runs until all clients have ended, and checks the rules.
    pub(super) fn run(mut self) -> Result<Report, String> {
        self.run_to(self.faults_end_ns)?;
        faults::end(&self.shared.fabric);
        let looks = iter::successors(Some(1_000_000), |ns| Some((ns * 2).min(LOOK_NS_MAX)));
        let have_ended =
            self.run_until(END_LIMIT_NS, looks, |run| Ok(run.running.borrow().is_empty()))?;
        if !have_ended {
            let names = self.running.borrow().join(", ");
            return Err(format!(
                "{names}: no end {} s after the last fault",
                END_LIMIT_NS / 1_000_000_000
            ));
        }
        self.at_end.iter_mut().try_for_each(|rule| rule())?;
        let stats = self.shared.fabric.stats();
        Ok(Report {
            digest: self.shared.fabric.digest(),
            ended_ns: self.shared.fabric.now_ns(),
            crashes: stats.crashes,
            packets_lost: stats.dropped_total(),
        })
    }

    fn start_server(&mut self, index: usize) -> Result<(), String> {
        let at = HostId(index as u16);
        let (mut endpoint, workers) = self.start_host(at)?;
        let (name, start) = &mut self.servers[index];
        let host = host(name, &endpoint, workers.workers(), &self.shared);
        start(&host, &mut endpoint);
        self.simulation.spawn(port(at), Node { endpoint, workers });
        Ok(())
    }

    fn start_client(&mut self, at: HostId, name: String, body: Body) -> Result<(), String> {
        let (endpoint, workers) = self.start_host(at)?;
        let host = host(&name, &endpoint, workers.workers(), &self.shared);
        let (running, fabric) = (Rc::clone(&self.running), self.shared.fabric.clone());
        running.borrow_mut().push(name.clone());
        drop(endpoint.handle().spawn(async move {
            body(host).await;
            fabric.note(format_args!("{name}: end"));
            running.borrow_mut().retain(|other| *other != name);
        }));
        self.simulation.spawn(port(at), Node { endpoint, workers });
        Ok(())
    }

    /// Starts the process of a host.
    fn start_host(&mut self, host: HostId) -> Result<(SimEndpoint, SteppedWorkers), String> {
        self.control.start_process(host);
        let fabric = &self.shared.fabric;
        let rng = fabric.rng(STREAM_ENDPOINTS + self.started);
        self.started += 1;
        let settings = SimTransportConfig::default();
        let endpoint =
            start_endpoint(fabric, &self.control, port(host), settings, rng, &self.endpoint)?;
        let workers = Workers::builder().threads(1).stepped();
        Ok((endpoint, workers.map_err(|error| error.to_string())?))
    }
}

fn host(name: &str, endpoint: &SimEndpoint, workers: &Workers, shared: &SharedHandle) -> Host {
    Host::new(name, endpoint.handle(), workers.clone(), Rc::clone(shared))
}

fn port(host: HostId) -> SimAddr {
    SimAddr::new(host, 1)
}

/// Draws a network of hosts around a switch, and the control planes.
fn network(seed: u64, hosts: usize) -> Result<(FabricHandle, ControlNetwork), String> {
    let rng = &mut Rng::stream(seed, u32::MAX, STREAM_NETWORK);
    let rate_bps = rng.between(1, 100) * 1_000_000_000;
    let link = LinkConfig { rate_bps, delay_ns: 1 << rng.between(7, 15) };
    let cpu = CpuConfig {
        poll_ns: rng.between(100, 2_000),
        poll_jitter_ns: rng.between(0, 500),
        frame_ns: rng.between(0, 200),
    };
    let config = FabricConfig { verify_checksums: true, cpu, ..FabricConfig::default() };
    let (nic, switch) = (NicConfig::default(), SwitchConfig::default());
    let topology = Topology::star(hosts, nic, switch, link);
    let fabric = FabricHandle::new(&topology, config, seed).map_err(|error| error.to_string())?;
    let control = ControlConfig::draw(rng, 6, 200_000);
    let control = ControlNetwork::new(&fabric, control, fabric.rng(STREAM_CONTROL));
    Ok((fabric, control))
}

impl World for Run {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.control.clone()
    }

    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Node)>) {
        self.control.stop_process(host, CrashKind::draw(&mut self.rng));
        drop(dead);
    }

    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        self.start_server(usize::from(host.0))
    }

    fn check(&mut self) -> Result<(), String> {
        self.always.iter_mut().try_for_each(|rule| rule())?;
        self.control.fault().map_or(Ok(()), Err)
    }
}
