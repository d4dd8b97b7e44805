//! What it costs to cross a thread, apart from what a machine with few CPUs makes of many threads: both
//! ends share one thread, which never sleeps, and a second thread has a CPU to itself.
//!
//! | way | the handler runs | the call is made |
//! | --- | --- | --- |
//! | `local` | in the event loop | on the endpoint's thread |
//! | `worker` | on the second thread, which looks for work without end | on the endpoint's thread |
//! | `client` | in the event loop | on the second thread, which looks for the outcome without end |
//! | `client-parked` | in the event loop | on the second thread, which is parked meanwhile |

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use petrel::transport::clock::now_ns;
use petrel::{
    Endpoint, EndpointConfig, IdlePolicy, Nexus, RemoteCall, SessionClient, SessionId,
    SessionState, Workers,
};

use super::work::Job;
use super::{Tally, WORK};
use crate::failure::Failure;

/// The ways, in the order in which they are measured.
pub(super) const WAYS: [&str; 4] = ["local", "worker", "client", "client-parked"];

/// A window of each way, one call at a time.
pub(super) fn round(
    config: &EndpointConfig,
    job: Job,
    length: Duration,
    tallies: &mut [Tally; 4],
) -> Result<(), Failure> {
    let [local, worker, client, parked] = tallies;
    let mut ends = Ends::connect(config)?;
    ends.serve_here(job);
    ends.window(length, local)?;
    let workers = Workers::builder().threads(1).idle(IdlePolicy::Poll).start();
    let workers = workers.map_err(Failure::because)?;
    ends.server.register_worker(WORK, &workers, move |request| {
        let answer = job.execute(request.data());
        request.reply(&answer);
    });
    ends.window(length, worker)?;
    drop(workers);
    drop(ends);
    remote_window(config, job, length, client, poll)?;
    remote_window(config, job, length, parked, |call| call.wait().ok())
}

/// Both ends of calls, in one thread.
struct Ends {
    server: Endpoint,
    client: Endpoint,
    session: SessionId,
}

impl Ends {
    fn connect(config: &EndpointConfig) -> Result<Self, Failure> {
        let endpoint = |nexus: &Nexus| nexus.endpoint(config.clone()).map_err(Failure::because);
        let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start()?;
        let address = nexus.local_addr().ok_or_else(|| Failure::because("nobody listens"))?;
        let (server, mut client) = (endpoint(&nexus)?, endpoint(&Nexus::builder().start()?)?);
        let session = client.connect(address)?;
        let mut ends = Self { server, client, session };
        loop {
            match ends.client.session_state(session) {
                SessionState::Open => return Ok(ends),
                SessionState::Ended(_) => return Err(Failure::because("the session ended")),
                _ => ends.turn(),
            }
        }
    }

    fn serve_here(&mut self, job: Job) {
        self.server.register(WORK, move |cx, request| {
            let answer = job.execute(request.data());
            request.reply(cx, &answer)
        });
    }

    fn turn(&mut self) {
        self.client.run_once();
        self.server.run_once();
    }

    fn window(&mut self, length: Duration, tally: &mut Tally) -> Result<(), Failure> {
        let begin = Instant::now();
        for number in 0.. {
            if begin.elapsed() >= length {
                break;
            }
            self.one(number, tally)?;
        }
        Ok(())
    }

    fn one(&mut self, number: u64, tally: &mut Tally) -> Result<(), Failure> {
        let started_ns = now_ns();
        let request = self.client.alloc_message(&number.to_le_bytes()).map_err(Failure::because)?;
        let response = self.client.alloc(8).map_err(Failure::because)?;
        let ended = Rc::new(RefCell::new(None));
        let end = Rc::clone(&ended);
        let called = self.client.call(self.session, WORK, request, response, move |_, reply| {
            *end.borrow_mut() = Some(reply);
        });
        called.map_err(|rejected| Failure::because(rejected.error))?;
        while ended.borrow().is_none() {
            self.turn();
        }
        let reply = ended.take();
        let message = reply.as_ref().and_then(|reply| reply.message().ok());
        tally.count(number, now_ns() - started_ns, message);
        Ok(())
    }
}

/// A window in which another thread runs both ends, and this one calls.
fn remote_window(
    config: &EndpointConfig,
    job: Job,
    length: Duration,
    tally: &mut Tally,
    wait: fn(RemoteCall) -> Option<Vec<u8>>,
) -> Result<(), Failure> {
    let (ready, started) = mpsc::channel::<Result<SessionClient, Failure>>();
    let (stop, stopped) = mpsc::channel::<()>();
    let config = config.clone();
    let thread = thread::spawn(move || match Ends::connect(&config) {
        Err(failure) => drop(ready.send(Err(failure))),
        Ok(mut ends) => {
            ends.serve_here(job);
            // If nobody waits the measurement is over.
            let _ = ready.send(Ok(ends.client.session_client(ends.session)));
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                (0..100).for_each(|_| ends.turn());
            }
        }
    });
    let client = started.recv().map_err(Failure::because)??;
    let begin = Instant::now();
    for number in (0u64..).take_while(|_| begin.elapsed() < length) {
        let started_ns = now_ns();
        let call = client.start(WORK, number.to_le_bytes(), 8).map_err(Failure::because)?;
        let reply = wait(call);
        tally.count(number, now_ns() - started_ns, reply.as_deref());
    }
    drop(stop);
    // A thread that panicked has said why.
    let _ = thread.join();
    Ok(())
}

fn poll(mut call: RemoteCall) -> Option<Vec<u8>> {
    loop {
        if let Some(outcome) = call.try_take() {
            return outcome.ok();
        }
        std::hint::spin_loop();
    }
}
