//! The cost of crossing a thread, separated from the scheduling of many threads on few CPUs: the two
//! ends share a thread, which never sleeps, and a second thread has a CPU to itself.
//!
//! | way | the handler runs | the call is made |
//! | --- | --- | --- |
//! | `local` | in the event loop | on the endpoint's thread |
//! | `worker` | on the second thread, which polls for work | on the endpoint's thread |
//! | `client` | in the event loop | on the second thread, by a client, polling for the outcome |
//! | `client-parked` | in the event loop | on the second thread, which is parked meanwhile |

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use petrel::client::ClientConfig;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId, SessionState};
use petrel::workers::Workers;
use petrel::{Endpoint, Nexus};
use petrel_command::failure::Failure;
use petrel_transport::clock::now_ns;

use super::work::Job;
use super::{Counts, WORK};

/// The ways, in the order of their measurement.
pub(super) const WAYS: [&str; 4] = ["local", "worker", "client", "client-parked"];

/// Runs a window for every way, one call at a time.
pub(super) fn round(
    config: &EndpointConfig,
    job: Job,
    length: Duration,
    all_counts: &mut [Counts; WAYS.len()],
) -> Result<(), Failure> {
    let [local, worker, client, client_parked] = all_counts;
    let mut ends = Ends::connect(config)?;
    ends.serve_here(job);
    ends.window(length, local)?;
    let workers = Workers::builder().threads(1).idle(IdlePolicy::Poll).start();
    let workers = workers.map_err(Failure::because)?;
    ends.server.on_worker(WORK, &workers, move |request| {
        let answer = job.execute(request.data());
        request.reply(&answer);
    });
    ends.window(length, worker)?;
    drop(workers);
    drop(ends);
    let service = |ends: &mut Ends| ends.client.client([ends.address], ClientConfig::default());
    remote_window(config, job, length, client, service, |client, number| {
        let mut call = pin!(client.call(WORK, number.to_le_bytes()));
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(outcome) = call.as_mut().poll(&mut cx) {
                return outcome.ok().map(Vec::from);
            }
            std::hint::spin_loop();
        }
    })?;
    remote_window(config, job, length, client_parked, service, |client, number| {
        client.call(WORK, number.to_le_bytes()).wait().ok().map(Vec::from)
    })
}

/// The two ends of calls, in one thread.
struct Ends {
    server: Endpoint,
    client: Endpoint,
    session: SessionId,
    address: SocketAddr,
}

impl Ends {
    fn connect(config: &EndpointConfig) -> Result<Self, Failure> {
        let endpoint = |nexus: &Nexus| nexus.endpoint(config.clone()).map_err(Failure::because);
        let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start()?;
        let address =
            nexus.local_addr().ok_or_else(|| Failure::because("the server has no address"))?;
        let (server, mut client) = (endpoint(&nexus)?, endpoint(&Nexus::builder().start()?)?);
        let session = client.connect(address)?;
        let mut ends = Self { server, client, session, address };
        loop {
            match ends.client.session_state(session) {
                SessionState::Open => return Ok(ends),
                SessionState::Ended(_) => return Err(Failure::because("the session ended")),
                _ => ends.poll_once(),
            }
        }
    }

    fn serve_here(&mut self, job: Job) {
        self.server.on(WORK, move |_, cx, request| {
            let answer = job.execute(request.data());
            request.reply(cx, &answer)
        });
    }

    fn poll_once(&mut self) {
        self.client.run_once();
        self.server.run_once();
    }

    fn window(&mut self, length: Duration, counts: &mut Counts) -> Result<(), Failure> {
        let begin = Instant::now();
        for number in 0.. {
            if begin.elapsed() >= length {
                break;
            }
            self.one(number, counts)?;
        }
        Ok(())
    }

    fn one(&mut self, number: u64, counts: &mut Counts) -> Result<(), Failure> {
        let started_ns = now_ns();
        let request = self.client.alloc_message(&number.to_le_bytes()).map_err(Failure::because)?;
        let response = self.client.alloc(8).map_err(Failure::because)?;
        let ended = Rc::new(RefCell::new(None));
        let end = Rc::clone(&ended);
        let called = self.client.call(self.session, WORK, request).into_buffer(response).then(
            move |_, _, reply| {
                *end.borrow_mut() = Some(reply);
            },
        );
        called.map_err(|rejected| Failure::because(rejected.error))?;
        while ended.borrow().is_none() {
            self.poll_once();
        }
        let reply = ended.take();
        let message = reply.as_ref().and_then(|reply| reply.message().ok());
        counts.count(number, now_ns() - started_ns, message);
        Ok(())
    }
}

/// Runs a window with the two ends on another thread; the calling thread makes calls through `make`'s
/// value.
fn remote_window<K: Send + 'static>(
    config: &EndpointConfig,
    job: Job,
    length: Duration,
    counts: &mut Counts,
    make: fn(&mut Ends) -> K,
    call: fn(&K, u64) -> Option<Vec<u8>>,
) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel::<Result<K, Failure>>();
    let (stop, stopped) = mpsc::channel::<()>();
    let config = config.clone();
    let thread = thread::spawn(move || match Ends::connect(&config) {
        Err(failure) => drop(sender.send(Err(failure))),
        Ok(mut ends) => {
            ends.serve_here(job);
            // If the receiver is gone, the measurement is over.
            let _ = sender.send(Ok(make(&mut ends)));
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                (0..100).for_each(|_| ends.poll_once());
            }
        }
    });
    let client = receiver.recv().map_err(Failure::because)??;
    // The first call may have to wait for a session.
    counts.checks.failed += u64::from(call(&client, 0).is_none());
    let begin = Instant::now();
    for number in (0u64..).take_while(|_| begin.elapsed() < length) {
        let started_ns = now_ns();
        let reply = call(&client, number);
        counts.count(number, now_ns() - started_ns, reply.as_deref());
    }
    drop((client, stop));
    // A thread that panicked has printed its message.
    let _ = thread.join();
    Ok(())
}
