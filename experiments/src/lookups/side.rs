//! The servers of a form and their clients take turns on the thread.

use std::thread;
use std::time::{Duration, Instant};

use petrel::endpoint::{EndpointId, SessionState};
use petrel::{Endpoint, Nexus};
use petrel_cache::{Hasher, KeyRange};
use petrel_command::failure::Failure;
use petrel_transport::clock;

use super::Form;
use super::handlers::{Served, Slot, register};
use petrel_command::args::BenchTransport;

use crate::args::LookupsArgs;
use crate::endpoints::polling;
use crate::turns::Turns;
use petrel_bench::cache::{Kind, Load, SESSION_CALLS};

/// How long to wait for sessions.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The servers, with a partition each, and the clients.
pub(super) struct Side {
    form: Form,
    servers: Vec<Endpoint<Slot>>,
    client: Endpoint<Load>,
}

/// The figures of a window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) calls: u64,
    /// The time of each server.
    pub(super) servers_ns: Vec<f64>,
    pub(super) client_ns: f64,
    /// Operations of each partition.
    pub(super) operations: Vec<u64>,
    pub(super) wrong: u64,
    pub(super) missed: u64,
}

impl Window {
    /// Calls per second of servers with separate CPUs.
    pub(super) fn rate(&self) -> f64 {
        let busiest_ns = self.servers_ns.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        self.calls as f64 * 1e9 / busiest_ns
    }

    /// The servers' time for a call.
    pub(super) fn server_ns(&self) -> f64 {
        self.servers_ns.iter().sum::<f64>() / self.calls as f64
    }

    /// The operations of the partition with the most, over those of the partition with the fewest.
    pub(super) fn imbalance(&self) -> f64 {
        let most = self.operations.iter().max().copied().unwrap_or_default();
        let fewest = self.operations.iter().min().copied().unwrap_or_default();
        most as f64 / fewest.max(1) as f64
    }
}

impl Side {
    /// Starts the servers and clients of a form. The handlers are set with the memory in place, which is returned.
    pub(super) fn start(
        form: Form,
        args: &LookupsArgs,
        transport: BenchTransport,
        hasher: &Hasher,
        served: Vec<Served>,
    ) -> Result<(Self, Vec<Served>), Failure> {
        let listen = ([127, 0, 0, 1], 0).into();
        let nexus = Nexus::builder().listen(listen).transports(transport.only()).start()?;
        let mut servers = Vec::new();
        for (number, memory) in served.into_iter().enumerate() {
            let server = nexus.endpoint_with(polling(transport, true), Some(memory));
            let mut server = server.map_err(Failure::because)?;
            register(
                &mut server,
                form,
                &KeyRange::new(hasher.clone(), number, args.mix.partitions),
            );
            servers.push(server);
        }
        let served = take(&mut servers);
        let address = nexus.local_addr().unwrap_or(listen);
        let nexus = Nexus::builder().transports(transport.only()).start()?;
        let client =
            nexus.endpoint_with(polling(transport, false), Load::new(args.mix.item_sizes()));
        let mut side = Self { form, servers, client: client.map_err(Failure::because)? };
        let mut sessions = Vec::new();
        for partition in 0..args.mix.partitions {
            let count = args.mix.in_flight.div_ceil(SESSION_CALLS);
            let opened = (0..count).map(|_| side.client.connect_to(address, EndpointId(partition)));
            sessions.push(opened.collect::<Result<Vec<_>, _>>()?);
        }
        side.run_until(|client| {
            let is_open = |session| client.session_state(session) == SessionState::Open;
            sessions.iter().flatten().all(|session| is_open(*session))
        })?;
        let (hasher, in_flight) = (hasher.clone(), args.mix.in_flight);
        side.client.with(|load, cx| load.set_sessions(cx, sessions, hasher, in_flight))?;
        Ok((side, served))
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Runs all ends until a condition holds.
    fn run_until(&mut self, holds: impl Fn(&Endpoint<Load>) -> bool) -> Result<(), Failure> {
        let end = Instant::now() + WAIT_MAX;
        while !holds(&self.client) {
            if Instant::now() > end {
                return Err(Failure::because(format!(
                    "{WAIT_MAX:?} passed before all sessions were open"
                )));
            }
            self.client.run_once();
            self.servers.iter_mut().for_each(|server| {
                server.run_once();
            });
            // The control plane's threads need the CPU as well.
            thread::yield_now();
        }
        Ok(())
    }

    /// Makes calls for a while, and times the turns of the servers. Takes the servers' memory, and returns it.
    pub(super) fn window(
        &mut self,
        kind: &Kind,
        length: Duration,
        served: Vec<Served>,
    ) -> Result<(Window, Vec<Served>), Failure> {
        let before: Vec<_> = served.iter().map(operations).collect();
        let servers = &mut self.servers;
        for (server, memory) in servers.iter_mut().zip(served) {
            *server.state_mut() = Some(memory);
        }
        let mut turns: Vec<_> = servers.iter().map(|_| Turns::default()).collect();
        let work = Load::window(&mut self.client, kind.clone(), length, || {
            let mut now_ns = clock::now_ns();
            for (server, turns) in servers.iter_mut().zip(&mut turns) {
                server.run_once();
                now_ns = turns.add(now_ns);
            }
        })?;
        let served = take(servers);
        let after = served.iter().map(operations);
        let servers_ns: Vec<_> = turns.into_iter().map(Turns::total_ns).collect();
        let client_ns = work.elapsed_ns as f64 - servers_ns.iter().sum::<f64>();
        let window = Window {
            calls: work.count,
            client_ns: client_ns / work.count as f64,
            servers_ns,
            operations: after.zip(before).map(|(after, before)| after - before).collect(),
            wrong: work.wrong,
            missed: work.missed,
        };
        Ok((window, served))
    }
}

/// Takes the memory out of the servers' states.
fn take(servers: &mut [Endpoint<Slot>]) -> Vec<Served> {
    servers.iter_mut().filter_map(|server| server.state_mut().take()).collect()
}

/// The look-ups and stores of a partition so far.
fn operations(served: &Served) -> u64 {
    let counters = served.partition.counters();
    counters.cmd_get + counters.cmd_set
}
