//! Calls from an endpoint's own thread.

use std::cell::{Cell, RefCell};
use std::mem;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, SessionId};
use petrel::{Context, Endpoint, MsgBuf, Nexus, Reply};
use petrel_command::failure::Failure;
use petrel_transport::clock::now_ns;

use super::{Calls, Counts, WORK};

/// A thread with an endpoint, and sessions to all endpoints of the server.
pub(super) struct Caller {
    endpoint: Endpoint,
    sessions: Vec<SessionId>,
    next: u64,
    ended: Rc<Ended>,
}

/// Calls that have ended since the last `wait`.
#[derive(Default)]
struct Ended {
    list: RefCell<Vec<(u64, u64, Reply)>>,
    count: Cell<usize>,
}

impl Caller {
    pub(super) fn start(
        config: &EndpointConfig,
        server: SocketAddr,
        endpoints: usize,
    ) -> Result<Self, Failure> {
        let endpoint = Nexus::builder().start()?.endpoint(config.clone());
        let mut endpoint = endpoint.map_err(Failure::because)?;
        let connect = |number| endpoint.connect_wait_to(server, EndpointId(number as u16));
        let sessions = (0..endpoints).map(connect).collect::<Result<_, _>>()?;
        Ok(Self { endpoint, sessions, next: 0, ended: Rc::default() })
    }

    fn call(&mut self, mut request: MsgBuf, response: MsgBuf) -> Result<(), Failure> {
        let number = self.next;
        self.next += 1;
        request.set_message(&number.to_le_bytes());
        let session = self.sessions[number as usize % self.sessions.len()];
        let (ended, started_ns) = (Rc::clone(&self.ended), now_ns());
        let end = move |_: &mut Context<'_>, reply| {
            ended.list.borrow_mut().push((number, now_ns() - started_ns, reply));
            ended.count.set(ended.count.get() + 1);
        };
        let called = self
            .endpoint
            .call(session, WORK, request)
            .into_buffer(response)
            .then(move |_, cx, reply| end(cx, reply));
        called.map_err(|rejected| Failure::because(rejected.error))
    }

    fn alloc(&self) -> Result<MsgBuf, Failure> {
        self.endpoint.alloc(8).map_err(Failure::because)
    }

    /// Runs the event loop until calls have ended; counts the calls, and returns their buffers.
    fn wait(&mut self, counts: &mut Counts) -> Vec<(MsgBuf, MsgBuf)> {
        let ended = Rc::clone(&self.ended);
        self.endpoint.run_until(|_, _| ended.count.get() > 0);
        ended.count.set(0);
        let mut buffers = Vec::new();
        for (number, latency_ns, reply) in mem::take(&mut *ended.list.borrow_mut()) {
            counts.count(number, latency_ns, reply.message().ok());
            buffers.push((reply.request, reply.response));
        }
        buffers
    }
}

impl Calls for Caller {
    fn window(
        &mut self,
        in_flight: usize,
        length: Duration,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        for _ in 0..in_flight {
            let (request, response) = (self.alloc()?, self.alloc()?);
            self.call(request, response)?;
        }
        let (begin, mut done, mut outstanding) = (Instant::now(), 0, in_flight);
        while outstanding > 0 {
            let is_over = begin.elapsed() >= length;
            for (request, response) in self.wait(counts) {
                done += 1;
                match is_over {
                    true => outstanding -= 1,
                    false => self.call(request, response)?,
                }
            }
        }
        counts.rates.push(f64::from(done) / begin.elapsed().as_secs_f64());
        Ok(())
    }
}
