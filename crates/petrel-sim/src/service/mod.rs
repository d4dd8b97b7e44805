//! An application's service in the simulator: its servers and clients on a virtual clock, under faults that a seed draws.
//!
//! A closure describes a run: the servers, the clients, and what must hold at the end. [`check`] runs it for many seeds. Each seed draws
//! the network, and faults: packets that are lost, late, repeated and out of order, servers that crash and start again, hosts without a
//! connection, and hosts that stop for a while. Then the faults end, and all clients have to come to their end. Servers and clients are
//! the code of production: only packets, the control plane and the clock are simulated. A run of seconds takes milliseconds.
//!
//! ```
//! use std::cell::Cell;
//! use std::rc::Rc;
//!
//! use petrel::service::Raw;
//! use petrel::{Context, Error};
//! use petrel_sim::service::{self, Setup};
//!
//! #[petrel::service(codec = Raw)]
//! trait Counter {
//!     #[dispatch]
//!     fn add(&self, cx: &mut Context<'_>, _: ()) -> Result<(), Error>;
//! }
//!
//! /// A counter on a disk, which outlives its server.
//! struct OnDisk(Rc<Cell<u64>>);
//!
//! impl Counter for OnDisk {
//!     fn add(&self, _: &mut Context<'_>, (): ()) -> Result<(), Error> {
//!         self.0.set(self.0.get() + 1);
//!         Ok(())
//!     }
//! }
//!
//! fn three_clients(setup: &mut Setup) {
//!     let (disk, added) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
//!     let of_server = Rc::clone(&disk);
//!     setup.server("counter", move |_, endpoint| {
//!         endpoint.serve(CounterServer::new(OnDisk(Rc::clone(&of_server))));
//!     });
//!     for number in 0..3 {
//!         let added = Rc::clone(&added);
//!         setup.client(format!("client {number}"), async move |host| {
//!             let counter = CounterClient::new(host.client("counter"));
//!             for _ in 0..10 {
//!                 if counter.add(()).wait_for_ready().await.is_ok() {
//!                     added.set(added.get() + 1);
//!                 }
//!             }
//!         });
//!     }
//!     setup.at_end(move || match disk.get() >= added.get() {
//!         true => Ok(()),
//!         false => Err(format!("{} were added, and the counter has {}", added.get(), disk.get())),
//!     });
//! }
//!
//! service::check(0..20, three_clients);
//! ```
//!
//! A failure names its seed, and `PETREL_SIM_SEED=7` makes [`check`] run this seed alone, with a record of all packets. The run of a seed is
//! always the same, if the application draws random numbers by [`Host::rng`], reads the clock by [`Host::now`], waits by [`Host::sleep`],
//! and iterates over no map in the order of its hashes.
//!
//! **Crashes.** A server that crashes loses all that its closure has made. Values that the closure shares with the run, like `disk` above,
//! outlive it like a disk that has written everything. Clients do not crash; they lose packets and connections.
//!
//! **Limits.** There are no threads: a handler on workers runs by [`Host::workers`], and may not wait for a call. Time of tokio and of the
//! standard library is not the simulator's.

mod faults;
mod host;
mod run;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::rc::Rc;
use std::thread::available_parallelism;

use petrel::endpoint::EndpointConfig;

use crate::check::describe;
use crate::rng::Rng;
use crate::seeds::{self, run_many};
use crate::trace::Trace;
use crate::world::SimEndpoint;
pub use faults::Faults;
pub use host::Host;
use run::Run;

/// The variable of the environment with the only seed to be run.
const SEED_VARIABLE: &str = "PETREL_SIM_SEED";

type Start = Box<dyn FnMut(&Host, &mut SimEndpoint)>;
type Body = Box<dyn FnOnce(Host) -> Pin<Box<dyn Future<Output = ()>>>>;
type Rule = Box<dyn FnMut() -> Result<(), String>>;

/// The description of a run: servers, clients, faults and rules.
pub struct Setup {
    servers: Vec<(String, Start)>,
    clients: Vec<(String, Body)>,
    always: Vec<Rule>,
    at_end: Vec<Rule>,
    faults: Faults,
    endpoint: EndpointConfig,
    rng: Rng,
}

/// A run that kept all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Equal for runs of equal packets at equal times.
    pub digest: u64,
    /// The virtual time of the run, in nanoseconds.
    pub ended_ns: u64,
    /// Servers that crashed.
    pub crashes: u64,
    /// Packets that did not arrive.
    pub packets_lost: u64,
}

/// A run that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The rule, or the text of a panic.
    pub violation: String,
}

impl Setup {
    fn new(seed: u64) -> Self {
        Self {
            servers: Vec::new(),
            clients: Vec::new(),
            always: Vec::new(),
            at_end: Vec::new(),
            faults: Faults::ALL,
            endpoint: EndpointConfig::default(),
            rng: Rng::stream(seed, u32::MAX, 2),
        }
    }

    /// Adds a server on a host of its own. `start` registers the handlers, at the begin and again after each crash.
    pub fn server(
        &mut self,
        name: impl Into<String>,
        start: impl FnMut(&Host, &mut SimEndpoint) + 'static,
    ) {
        self.servers.push((name.into(), Box::new(start)));
    }

    /// Adds a client on a host of its own. The run ends when the futures of all clients have ended. A panic breaks a rule.
    pub fn client(&mut self, name: impl Into<String>, run: impl AsyncFnOnce(Host) + 'static) {
        self.clients.push((name.into(), Box::new(|host| Box::pin(async move { run(host).await }))));
    }

    /// Adds a rule that must hold at any time.
    pub fn always(&mut self, rule: impl FnMut() -> Result<(), String> + 'static) {
        self.always.push(Box::new(rule));
    }

    /// Adds a rule that must hold when all clients have ended.
    pub fn at_end(&mut self, rule: impl FnMut() -> Result<(), String> + 'static) {
        self.at_end.push(Box::new(rule));
    }

    /// Sets the kinds of faults; all by default.
    pub fn faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Returns the settings of all endpoints, to change them.
    pub fn endpoint(&mut self) -> &mut EndpointConfig {
        &mut self.endpoint
    }

    /// Returns random numbers of the seed, for runs of different shapes.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

/// Runs a seed.
///
/// # Errors
/// The first rule that the run broke.
pub fn run(seed: u64, set_up: impl FnOnce(&mut Setup)) -> Result<Report, Failure> {
    run_traced(seed, Trace::off(), set_up)
}

/// Runs a seed with a record of all packets and faults: a sink of the trace ([`Trace::with_sink`]) gets each line.
///
/// # Errors
/// As [`run`].
pub fn run_traced(
    seed: u64,
    trace: Trace,
    set_up: impl FnOnce(&mut Setup),
) -> Result<Report, Failure> {
    let trace = if trace.is_on() { trace.with_decoder(describe) } else { trace };
    let run = || {
        let mut setup = Setup::new(seed);
        set_up(&mut setup);
        Run::new(seed, setup, trace)?.run()
    };
    seeds::run_one(seed, SEED_VARIABLE, run).map_err(Failure::from)
}

/// Runs seeds on all processors, and returns the first failure, if any.
pub fn find(seeds: Range<u64>, set_up: impl Fn(&mut Setup) + Sync) -> Option<Failure> {
    let jobs = available_parallelism().map_or(1, Into::into);
    let run = |seed| match run(seed, &set_up) {
        Ok(_) => Ok([]),
        Err(Failure { seed, violation }) => {
            Err(seeds::Failure { seed, violation, command: SEED_VARIABLE })
        }
    };
    let summary = run_many(seeds, jobs, false, || run, |_| ControlFlow::Continue(()));
    summary.failures.into_iter().next().map(Failure::from)
}

/// Runs seeds on all processors: for tests. With `PETREL_SIM_SEED` in the environment this seed runs alone, and the record of its packets
/// goes to the standard error.
///
/// # Panics
/// When a run breaks a rule: the message has the seed.
pub fn check(seeds: Range<u64>, set_up: impl Fn(&mut Setup) + Sync) {
    let failure = match std::env::var(SEED_VARIABLE).ok() {
        None => find(seeds, set_up),
        Some(seed) => {
            let seed = seed.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={seed}: no number"));
            run_traced(seed, Trace::off().with_sink(|line| eprintln!("{line}")), set_up).err()
        }
    };
    if let Some(failure) = failure {
        panic!("{failure}");
    }
}

impl From<seeds::Failure> for Failure {
    fn from(seeds::Failure { seed, violation, .. }: seeds::Failure) -> Self {
        Self { seed, violation }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, violation } = self;
        write!(
            f,
            "seed {seed}: {violation}\nto repeat the run, with its packets: {SEED_VARIABLE}={seed}"
        )
    }
}

impl std::error::Error for Failure {}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (servers, clients) = (self.servers.len(), self.clients.len());
        write!(f, "Setup({servers} servers, {clients} clients, {:?})", self.faults)
    }
}

/// The addresses of servers by name, and the random numbers of hosts.
#[derive(Debug)]
struct Shared {
    servers: BTreeMap<String, std::net::SocketAddr>,
    fabric: crate::fabric::FabricHandle,
    rng: RefCell<Rng>,
}

type SharedHandle = Rc<Shared>;
