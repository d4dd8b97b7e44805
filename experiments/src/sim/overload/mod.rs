//! A server with more load than capacity, and the goodput of its clients.
//!
//! Clients have Poisson arrivals and a latency objective for every answer; the server has workers that take
//! virtual time. Two mechanisms refuse calls: admission control at the server's queue ([`Admission`]), and
//! a limit in the client ([`ConcurrencyLimit`]).
//!
//! [`Admission`]: petrel::overload::Admission
//! [`ConcurrencyLimit`]: petrel::overload::ConcurrencyLimit

mod client;
mod server;
mod service;

use std::rc::Rc;
use std::time::Duration;

use petrel::overload::{Admission, ConcurrencyLimit};
use serde::Serialize;

use self::client::{Client, Demand, Outcomes};
use self::server::{Plan, Server};
pub use self::service::Service;
use super::cluster::{Cluster, Place, Settings};
use super::{Controller, ExperimentError, Latency, cpu};
pub use crate::overload::Policy;
use petrel_sim::fabric::{ActorId, Forwarding, HostId, LinkConfig, SwitchConfig, Topology};

/// Bytes of a small message with its header, for the price of a frame.
const MESSAGE_BYTES: usize = 32;

const LINE_GBIT: u64 = 25;

/// Above this time, calls would not end within the time limit of an experiment.
const LONGEST_NS: u64 = 10_000_000_000;

/// The settings of the experiment.
#[derive(Clone, Debug)]
pub struct OverloadConfig {
    /// Everything random follows from this seed.
    pub seed: u64,
    /// Number of hosts, with one client each.
    pub clients: u16,
    /// Number of concurrently executed requests.
    pub workers: u16,
    /// Average service time of a request.
    pub service_ns: u64,
    /// Distributions of the service time.
    pub services: Vec<Service>,
    /// The latency objective of answers.
    pub slo_ns: u64,
    /// Offered loads, in percent of the workers' capacity.
    pub loads_percent: Vec<u32>,
    /// The overload policies of the server.
    pub policies: Vec<Policy>,
    /// The target for queueing delays, for policies with a target.
    pub target_ns: u64,
    /// Whether clients reduce the load on a refusing server.
    pub back_pressure: Vec<bool>,
    /// Time before the measurement.
    pub warm_up_ns: u64,
    /// Duration of the measurement.
    pub measured_ns: u64,
}

impl OverloadConfig {
    /// Returns the settings of the documented table.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            clients: 100,
            workers: 8,
            service_ns: 10_000,
            services: vec![Service::Exponential],
            slo_ns: 200_000,
            loads_percent: vec![20, 50, 80, 90, 100, 120, 150, 200, 300],
            policies: Policy::ALL.to_vec(),
            target_ns: 50_000,
            back_pressure: vec![false, true],
            warm_up_ns: 20_000_000,
            measured_ns: 100_000_000,
        }
    }

    /// Returns the settings of a short variant: seconds.
    pub fn quick(seed: u64) -> Self {
        Self {
            clients: 20,
            workers: 2,
            loads_percent: vec![50, 100, 200],
            warm_up_ns: 10_000_000,
            measured_ns: 30_000_000,
            ..Self::full(seed)
        }
    }

    /// Checks for impossible settings.
    fn check(&self) -> Result<(), ExperimentError> {
        let problem = match self {
            Self { clients: 0, .. } | Self { workers: 0, .. } => "there is a client and a worker",
            Self { service_ns: 0 | LONGEST_NS.., .. } => "the mean is above zero and below 10 s",
            Self { slo_ns: LONGEST_NS.., .. } => "the slo is below 10 s",
            Self { loads_percent, .. } if loads_percent.contains(&0) => "no load is nothing",
            _ => return Ok(()),
        };
        Err(ExperimentError::Parameters(problem.to_owned()))
    }

    /// Returns the requests per second that the workers can serve.
    pub fn capacity_per_s(&self) -> f64 {
        f64::from(self.workers) * 1e9 / self.service_ns as f64
    }
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverloadRow {
    /// Distribution of service times.
    pub service: &'static str,
    /// The overload policy of the server.
    pub policy: &'static str,
    /// Whether clients reduce the load on a refusing server.
    pub back_pressure: bool,
    /// Offered load, divided by the workers' capacity.
    pub load: f64,
    /// Calls that arrived, per second.
    pub offered_per_s: f64,
    /// Answers in time, per second.
    pub goodput_per_s: f64,
    /// Goodput, divided by the workers' capacity.
    pub of_capacity: f64,
    /// Goodput, divided by the best goodput of this policy at any load.
    pub of_best: f64,
    /// Time from the arrival of a call to its answer, over all answered calls.
    pub latency: Latency,
    /// Time from the arrival of a call to its refusal by the server.
    pub refusal: Latency,
    /// Calls that arrived during the measurement; the sum of all fields from here to `unsent`.
    pub offered: u64,
    /// Answered in time.
    pub good: u64,
    /// Answered too late.
    pub late: u64,
    /// Refused because of overload.
    pub refused: u64,
    /// Expired at the client or at the server.
    pub expired: u64,
    /// Not sent because of the client's limit.
    pub held_back: u64,
    /// Not sent because the session's queue was full.
    pub unsent: u64,
    /// Requests that were run during the measurement.
    pub executed: u64,
    /// Executed requests that ended after their deadline: wasted work.
    pub wasted: u64,
    /// Share of the time in which the workers were busy.
    pub busy: f64,
}

/// The parameters of a series of rows.
#[derive(Clone, Copy)]
struct Series {
    service: Service,
    policy: Policy,
    back_pressure: bool,
}

/// Runs the experiment, and passes the rows of every complete series to `on_row`.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    config: &OverloadConfig,
    mut on_row: impl FnMut(&OverloadRow),
) -> Result<Vec<OverloadRow>, ExperimentError> {
    config.check()?;
    let mut rows = Vec::new();
    for series in all_series(config) {
        let figures = run_series(config, series)?;
        figures.iter().for_each(&mut on_row);
        rows.extend(figures);
    }
    Ok(rows)
}

fn all_series(config: &OverloadConfig) -> impl Iterator<Item = Series> + '_ {
    config.services.iter().flat_map(move |&service| {
        config.policies.iter().flat_map(move |&policy| {
            config.back_pressure.iter().map(move |&back_pressure| Series {
                service,
                policy,
                back_pressure,
            })
        })
    })
}

fn run_series(
    config: &OverloadConfig,
    series: Series,
) -> Result<Vec<OverloadRow>, ExperimentError> {
    let loads = config.loads_percent.iter().map(|&percent| f64::from(percent) / 100.0);
    let rows = loads.map(|load| run_one(config, series, load));
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let best = rows.iter().map(|row| row.goodput_per_s).fold(f64::MIN_POSITIVE, f64::max);
    rows.iter_mut().for_each(|row| row.of_best = row.goodput_per_s / best);
    Ok(rows)
}

fn run_one(
    config: &OverloadConfig,
    series: Series,
    load: f64,
) -> Result<OverloadRow, ExperimentError> {
    let mut cluster = Cluster::new(&one_switch(config.clients), settings(config.seed))?;
    let (place, server) = add_server(&mut cluster, config, series)?;
    let clients = add_clients(&mut cluster, config, series, load, place)?;
    cluster.begin()?;
    cluster.run_for(config.warm_up_ns);
    cluster.begin_measuring();
    cluster.run_for(config.measured_ns);
    cluster.end_measuring();
    cluster.drain()?;

    let outcomes = outcomes_of(&cluster, &clients)?;
    Ok(row(config, series, load, &outcomes, server.work()))
}

fn settings(seed: u64) -> Settings {
    Settings::new(seed, Controller::Dcqcn, LINE_GBIT, cpu::of_frames(MESSAGE_BYTES))
}

/// Makes a topology with the server and all clients under one switch, with the settings of all experiments.
fn one_switch(clients: u16) -> Topology {
    let switch = SwitchConfig {
        ecn: Controller::Dcqcn.marks(LINE_GBIT),
        forwarding: Forwarding::CutThrough,
        latency_ns: 400,
        ..SwitchConfig::default()
    };
    let link = LinkConfig::gbit(LINE_GBIT, 450);
    Topology::star(usize::from(clients) + 1, Default::default(), switch, link)
}

fn add_server(
    cluster: &mut Cluster,
    config: &OverloadConfig,
    series: Series,
) -> Result<(Place, Rc<Server>), ExperimentError> {
    let place = Place::new(HostId(0), 0);
    let actor = cluster.add(place)?;
    let workers = usize::from(config.workers);
    let target = Duration::from_nanos(config.target_ns);
    let plan = Plan { service: series.service, service_ns: config.service_ns, workers };
    let admission = Admission::new(series.policy.admission(target), workers);
    let (phase, rng) = (Rc::clone(&cluster.phase), cluster.next_rng());
    let server = Server::new(plan, admission, phase, rng);
    let server = Rc::new(server);
    cluster.add_driver(actor, Rc::clone(&server), &[]);
    let handler = Rc::clone(&server);
    let endpoint = cluster.endpoint_mut(actor);
    endpoint.on(server::METHOD, move |_, cx, request| handler.handle(cx, request));
    Ok((place, server))
}

fn add_clients(
    cluster: &mut Cluster,
    config: &OverloadConfig,
    series: Series,
    load: f64,
    server: Place,
) -> Result<Vec<Rc<Client>>, ExperimentError> {
    let per_s = config.capacity_per_s() * load / f64::from(config.clients);
    let demand = Demand {
        gap_mean_ps: (1e12 / per_s) as u64,
        slo_ns: config.slo_ns,
        has_deadlines: series.policy.has_deadlines(),
    };
    let places = (1..=config.clients).map(|host| Place::new(HostId(host), 0));
    let clients = places.map(|place| {
        let actor = cluster.add(place)?;
        add_client(cluster, actor, demand, series.back_pressure, server)
    });
    clients.collect()
}

fn add_client(
    cluster: &mut Cluster,
    actor: ActorId,
    demand: Demand,
    back_pressure: bool,
    server: Place,
) -> Result<Rc<Client>, ExperimentError> {
    let session = cluster.connect(actor, server)?;
    let limit = back_pressure.then(|| ConcurrencyLimit::new(Default::default()));
    let (phase, rng) = (Rc::clone(&cluster.phase), cluster.next_rng());
    let client = Rc::new(Client::new(demand, session, limit, phase, rng));
    cluster.add_driver(actor, Rc::clone(&client), &[session]);
    Ok(client)
}

fn outcomes_of(cluster: &Cluster, clients: &[Rc<Client>]) -> Result<Outcomes, ExperimentError> {
    let mut all = Outcomes::default();
    for client in clients {
        all.add(&client.outcomes().map_err(|what| cluster.broken(what))?);
    }
    match all.is_balanced() {
        true => Ok(all),
        false => Err(cluster.broken(format!("calls were lost count of: {all:?}"))),
    }
}

fn row(
    config: &OverloadConfig,
    series: Series,
    load: f64,
    outcomes: &Outcomes,
    work: server::Work,
) -> OverloadRow {
    let per_s = |count: u64| count as f64 * 1e9 / config.measured_ns as f64;
    let goodput_per_s = per_s(outcomes.good);
    OverloadRow {
        service: series.service.name(),
        policy: series.policy.name(),
        back_pressure: series.back_pressure,
        load,
        offered_per_s: per_s(outcomes.offered),
        goodput_per_s,
        of_capacity: goodput_per_s / config.capacity_per_s(),
        of_best: 1.0,
        latency: Latency::from(&outcomes.latency),
        refusal: Latency::from(&outcomes.refusal),
        offered: outcomes.offered,
        good: outcomes.good,
        late: outcomes.late,
        refused: outcomes.refused,
        expired: outcomes.expired,
        held_back: outcomes.held_back,
        unsent: outcomes.unsent,
        executed: work.executed,
        wasted: work.wasted,
        busy: work.busy_ns as f64 / (config.measured_ns * u64::from(config.workers)) as f64,
    }
}
