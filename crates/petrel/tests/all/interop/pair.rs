//! A client in this process, with a server in the second process.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{CallKey, CallOptions, EndpointConfig, SessionId};
use petrel::{Endpoint, Error, MsgBuf, Reply};

use crate::common::{builder, device, each_medium};
use crate::interop::process::Process;
use crate::interop::service::{RELEASE, SEEN, Seen};

/// Longer than any test needs on a machine with ten times the load it can carry. It detects hangs, and does not measure
/// speed.
const HANG: Duration = Duration::from_secs(240);

/// Calls `ask` until it returns a value.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + HANG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "what is waited for never comes");
    }
}

pub(crate) struct Pair {
    pub(crate) server: Process,
    pub(crate) client: Endpoint,
    pub(crate) session: SessionId,
    /// A separate session, to ask the server for observations.
    observer: SessionId,
}

/// Over UDP, and over shared memory, with few slots, to make calls wait for one.
pub(crate) fn both() -> impl Iterator<Item = Pair> {
    both_with(|config| config.sessions.slots = 8)
}

/// The same with settings of the client's endpoint.
pub(crate) fn both_with(set: impl Fn(&mut EndpointConfig)) -> impl Iterator<Item = Pair> {
    each_medium().map(move |mut config| {
        set(&mut config);
        Pair::new(config)
    })
}

pub(crate) fn server() -> Process {
    Process::server("127.0.0.1:0".parse().unwrap())
}

pub(crate) fn client(config: EndpointConfig) -> Endpoint {
    builder().start().unwrap().endpoint(config).unwrap()
}

impl Pair {
    fn new(config: EndpointConfig) -> Self {
        let (server, mut client) = (server(), client(config));
        let [session, observer] = [(); 2].map(|()| client.connect_wait(server.address()).unwrap());
        Self { server, client, session, observer }
    }

    /// Makes a call and waits for its response.
    pub(crate) fn call(&mut self, method: u16, request: &[u8], response_max: usize) -> MsgBuf {
        let response = self.client.alloc(response_max).unwrap();
        self.client.call(self.session, method, request).into_buffer(response).wait().unwrap()
    }

    /// Makes a call that fails.
    pub(crate) fn fails(&mut self, method: u16, message: &[u8], how: CallOptions) -> Error {
        match self.client.call(self.session, method, message).options(how).wait() {
            Err(failure) => failure,
            other => panic!("expected a failed call, got {other:?}"),
        }
    }

    /// Makes a call without waiting.
    pub(crate) fn begin(&mut self, method: u16, message: &[u8]) -> Begun {
        let (end, options) = (Rc::new(RefCell::new(None)), CallOptions::new());
        let (request, response) =
            (self.client.alloc_message(message).unwrap(), self.client.alloc(100).unwrap());
        let ended = Rc::clone(&end);
        let called = self
            .client
            .call(self.session, method, request)
            .into_buffer(response)
            .options(options)
            .then_cancellable(move |_, _, reply| {
                let twice = ended.borrow_mut().replace(reply);
                assert!(twice.is_none(), "a call ends once");
            });
        Begun { key: called.unwrap(), end }
    }

    /// Waits until a call has failed.
    pub(crate) fn failure_of(&mut self, begun: &Begun) -> Error {
        self.client.run_until(|_, _| begun.end.borrow().is_some());
        begun.end.take().unwrap().outcome.expect_err("the call fails")
    }

    /// Waits until the server's observations satisfy the condition.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn(Seen) -> bool) {
        until(|| is_so(self.seen()).then_some(()));
    }

    pub(crate) fn seen(&mut self) -> Seen {
        Seen::from_bytes(&self.client.call(self.observer, SEEN, b"").wait().unwrap())
    }

    /// Has the server answer its kept requests.
    pub(crate) fn release(&mut self) {
        self.client.call(self.observer, RELEASE, b"").wait().unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        device::count(&self.client);
    }
}

/// An outstanding call.
pub(crate) struct Begun {
    pub(crate) key: CallKey,
    end: Rc<RefCell<Option<Reply>>>,
}

impl Begun {
    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }
}
