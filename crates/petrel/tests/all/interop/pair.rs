//! A client in this process, with a server in the second process.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{CallOptions, EndpointConfig, SessionId};
use petrel::{Endpoint, Error, MsgBuf, Reply};

use crate::common::{builder, device, each_medium};
use crate::interop::process::Process;
use crate::interop::service::KEPT;

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
    each_medium().map(|mut config| {
        config.sessions.slots = 8;
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
            .then(move |_, _, reply| {
                let twice = ended.borrow_mut().replace(reply);
                assert!(twice.is_none(), "a call ends once");
            });
        called.unwrap();
        Begun { end }
    }

    /// Waits until a call has failed.
    pub(crate) fn failure_of(&mut self, begun: &Begun) -> Error {
        self.client.run_until(|_, _| begun.end.borrow().is_some());
        begun.end.take().unwrap().outcome.expect_err("the call fails")
    }

    /// Waits until the server has kept this number of requests.
    pub(crate) fn wait_until_kept(&mut self, count: u64) {
        until(|| {
            let kept = self.client.call(self.observer, KEPT, b"").wait().unwrap();
            (kept[..] == count.to_le_bytes()).then_some(())
        });
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        device::count(&self.client);
    }
}

/// An outstanding call.
pub(crate) struct Begun {
    end: Rc<RefCell<Option<Reply>>>,
}

impl Begun {
    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }
}
