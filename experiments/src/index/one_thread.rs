//! Clients and dispatch endpoints take turns on one thread; workers run on the other CPU.
//!
//! Three dispatch endpoints serve one store. The first passes scans on to workers, the second runs scans
//! itself, and the third, without prefetching, answers the echoes. A window gives turns to one endpoint;
//! the other endpoints are idle.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use petrel::Time;
use petrel::endpoint::EndpointId;
use petrel::endpoint::{IdlePolicy, SessionId, SessionState};
use petrel::workers::{SteppedWorkers, Workers};
use petrel::{Endpoint, Nexus};
use petrel_command::cores::CpuPlacement;
use petrel_command::failure::Failure;
use petrel_index::{Metrics, Store, StoreConfig, prefetch_words, register};
use petrel_transport::clock;

use super::IndexArgs;
use super::keys::{Keys, value_of};
use super::load::{Load, OfferedLoad, Outcome};
use super::{Clients, Kind, endpoint, endpoint_config};
use petrel_command::args::BenchTransport;

/// How long to wait for sessions.
const OPEN_MAX: Duration = Duration::from_secs(30);

/// The dispatch endpoints with their clients.
pub(super) struct OneThread {
    echo: Side,
    with_workers: Side,
    in_dispatch: Side,
    /// The pool of the endpoint that runs scans itself.
    own: SteppedWorkers,
    _workers: Workers,
}

struct Side {
    server: Endpoint,
    clients: Clients,
}

impl OneThread {
    pub(super) fn start(
        args: &IndexArgs,
        transport: BenchTransport,
        cpus: Option<[usize; 2]>,
        keys: &Rc<Keys>,
    ) -> Result<Self, Failure> {
        let words_expected = u64::from(args.keys);
        let store = Arc::new(Store::new(StoreConfig { words_expected, ..StoreConfig::default() }));
        for number in 0..keys.count() {
            let key = keys.key(number);
            store.words.put(key, value_of(key)).map_err(Failure::because)?;
        }
        let workers = start_workers(args, cpus)?;
        let prefetches = !args.no_prefetch;
        let own = Workers::builder().threads(1).stepped()?;
        let side = |workers: &Workers, prefetches| {
            Side::start(args, transport, keys, &store, (workers, prefetches))
        };
        Ok(Self {
            echo: side(&workers, false)?,
            with_workers: side(&workers, prefetches)?,
            in_dispatch: side(own.workers(), prefetches)?,
            own,
            _workers: workers,
        })
    }

    pub(super) fn window(
        &mut self,
        kind: Kind,
        offered_load: OfferedLoad,
    ) -> Result<Outcome, Failure> {
        let (Side { server, clients }, own) = match kind {
            Kind::EchoOneThread => (&mut self.echo, None),
            Kind::ScansInDispatch => (&mut self.in_dispatch, Some(&self.own)),
            _ => (&mut self.with_workers, None),
        };
        clients.call(offered_load, || {
            server.run_once();
            while let Some((pool, run)) = own.and_then(|own| Some((own, own.start(now())?))) {
                pool.finish(run, now());
            }
        })
    }
}

impl Side {
    fn start(
        args: &IndexArgs,
        transport: BenchTransport,
        keys: &Rc<Keys>,
        store: &Arc<Store>,
        (workers, prefetches): (&Workers, bool),
    ) -> Result<Self, Failure> {
        let listen = ([127, 0, 0, 1], 0).into();
        let nexus = Nexus::builder().listen(listen).transports(transport.only()).start()?;
        let config = endpoint_config(transport, true);
        let mut server = nexus.endpoint(config).map_err(Failure::because)?;
        register(&mut server, store, &Arc::new(Metrics::new(1)), 0, workers);
        if prefetches {
            prefetch_words(&mut server, store);
        }
        let mut endpoint = endpoint(transport, keys)?;
        let address = nexus.local_addr().unwrap_or(listen);
        let sessions = (0..args.clients).map(|_| endpoint.connect_to(address, EndpointId(0)));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        open(&mut endpoint, &mut server, &sessions)?;
        Ok(Self { server, clients: Clients::new(endpoint, &sessions, args)? })
    }
}

fn now() -> Time {
    Time::from_ns(clock::now_ns())
}

/// Runs client and server until all sessions are open.
fn open(
    clients: &mut Endpoint<Load>,
    server: &mut Endpoint,
    sessions: &[SessionId],
) -> Result<(), Failure> {
    let end = Instant::now() + OPEN_MAX;
    for session in sessions {
        while is_opening(clients, *session)?.is_continue() {
            clients.run_once();
            server.run_once();
            // The control plane's threads need the CPU as well.
            thread::yield_now();
            if Instant::now() > end {
                return Err(Failure::because(format!("no session within {OPEN_MAX:?}")));
            }
        }
    }
    Ok(())
}

fn is_opening(clients: &Endpoint<Load>, session: SessionId) -> Result<ControlFlow<()>, Failure> {
    match clients.session_state(session) {
        SessionState::Open => Ok(ControlFlow::Break(())),
        SessionState::Opening => Ok(ControlFlow::Continue(())),
        other => Err(Failure::because(format!("a session ended: {other:?}"))),
    }
}

/// Starts workers on the other CPU, with real-time priority if allowed. Threads inherit the priority
/// from their starter.
fn start_workers(args: &IndexArgs, cpus: Option<[usize; 2]>) -> Result<Workers, Failure> {
    let idle = IdlePolicy::SpinThenBlock(args.worker_spin);
    let cpu = cpus.map(|[_, other]| other);
    let start = || {
        let guard = CpuPlacement { cpu, is_realtime: true }.apply();
        let _placement_guard = match guard {
            Ok(guard) => guard,
            Err(_) => CpuPlacement { cpu, is_realtime: false }.apply()?,
        };
        Workers::builder().threads(args.workers.into()).idle(idle).start()
    };
    let started = thread::scope(|scope| scope.spawn(start).join());
    Ok(started.map_err(|_| Failure::because("a thread has panicked"))??)
}
