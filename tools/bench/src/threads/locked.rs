//! One endpoint for several threads, behind a mutex: the network under a lock, of RAMCloud's slides on threading.
//!
//! A thread takes the lock for each call, and for each turn of the event loop until its answer has come. A turn also ends
//! the calls of other threads, whose answers wait in their places.
//!
//! # Why the unsafe code is sound
//!
//! An endpoint is not `Send`, because it shares objects without locks with its tasks, clients, responders and message
//! buffers. Here none of these objects leaves [`Inside`]: the buffers are in the endpoint, in its calls and in its state,
//! and neither tasks nor clients nor responders exist. So all of them change threads together, with the lock, which orders
//! the accesses. Nothing in an endpoint belongs to the thread of its creation: thread-local variables hold a value
//! during a turn or a poll only.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use petrel::endpoint::{EndpointConfig, SessionId};
use petrel::{Endpoint, MsgBuf, Nexus, Reply};
use petrel_command::failure::Failure;
use petrel_transport::clock::now_ns;

use super::{Calls, Counts, WORK};

/// An endpoint that threads share.
pub(super) struct LockedEndpoint {
    inside: Mutex<Inside>,
}

/// The endpoint with everything that shares its objects.
struct Inside {
    /// The state has a place for each thread.
    endpoint: Endpoint<Vec<Place>>,
    session: SessionId,
}

// SAFETY: no part of the endpoint is accessible without the lock, and none belongs to a thread; see the module.
unsafe impl Send for Inside {}

/// The part of the state that belongs to one of the threads.
#[derive(Default)]
struct Place {
    ended: Vec<Ended>,
    /// Requests and responses of former calls.
    buffers: Vec<(MsgBuf, MsgBuf)>,
}

struct Ended {
    number: u64,
    started_ns: u64,
    reply: Reply,
}

impl LockedEndpoint {
    /// Opens a session that `threads` threads share.
    pub(super) fn start(
        config: &EndpointConfig,
        server: SocketAddr,
        threads: usize,
    ) -> Result<Arc<Self>, Failure> {
        let places = (0..threads).map(|_| Place::default()).collect();
        let endpoint = Nexus::builder().start()?.endpoint_with(config.clone(), places);
        let mut endpoint = endpoint.map_err(Failure::because)?;
        let session = endpoint.connect_wait(server)?;
        Ok(Arc::new(Self { inside: Mutex::new(Inside { endpoint, session }) }))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no thread has panicked with the lock")
    }
}

impl Inside {
    fn call(&mut self, place: usize, number: u64, started_ns: u64) -> Result<(), Failure> {
        let buffers = match self.endpoint.state_mut()[place].buffers.pop() {
            Some(buffers) => Ok(buffers),
            None => {
                self.endpoint.alloc(8).and_then(|request| Ok((request, self.endpoint.alloc(8)?)))
            }
        };
        let (mut request, response) = buffers.map_err(Failure::because)?;
        request.set_message(&number.to_le_bytes());
        let called = self.endpoint.call(self.session, WORK, request).into_buffer(response).then(
            move |places: &mut Vec<Place>, _, reply| {
                places[place].ended.push(Ended { number, started_ns, reply });
            },
        );
        called.map_err(|rejected| Failure::because(rejected.error))
    }

    /// Runs a turn of the event loop, and counts the calls of this place that have ended. Returns their number.
    fn turn(&mut self, place: usize, counts: &mut Counts) -> usize {
        self.endpoint.run_once();
        let Place { ended, buffers } = &mut self.endpoint.state_mut()[place];
        let count = ended.len();
        for Ended { number, started_ns, reply } in ended.drain(..) {
            counts.count(number, now_ns() - started_ns, reply.message().ok());
            buffers.push((reply.request, reply.response));
        }
        count
    }
}

/// A thread that calls through the shared endpoint.
pub(super) struct LockedCaller {
    shared: Arc<LockedEndpoint>,
    place: usize,
    next: u64,
}

impl LockedCaller {
    /// Makes the only caller of a place.
    pub(super) fn new(shared: Arc<LockedEndpoint>, place: usize) -> Self {
        Self { shared, place, next: 0 }
    }

    fn call(&mut self) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        let started_ns = now_ns();
        self.shared.lock().call(self.place, number, started_ns)
    }
}

impl Calls for LockedCaller {
    /// Between two turns without an answer, the thread offers its CPU to the others: the one with the lock could not sleep
    /// without keeping them from calling.
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        for _ in 0..in_flight {
            self.call()?;
        }
        let (begin, mut done, mut outstanding) = (Instant::now(), 0_u64, in_flight);
        while outstanding > 0 {
            let is_over = begin.elapsed() >= length;
            let ended = self.shared.lock().turn(self.place, counts);
            done += ended as u64;
            match (ended, is_over) {
                (0, _) => thread::yield_now(),
                (_, true) => outstanding -= ended,
                (_, false) => (0..ended).try_for_each(|_| self.call())?,
            }
        }
        counts.rates.push(done as f64 / begin.elapsed().as_secs_f64());
        Ok(())
    }
}
