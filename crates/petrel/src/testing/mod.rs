//! Tests without a network: a server and its client in one process, without sockets, ports and shared memory.
//!
//! The endpoints, sessions and messages are those of production, on two threads of the test. Only the medium and the control plane differ:
//! frames pass through queues in memory. A test needs no set-up, and any number of tests run at the same time.
//!
//! ```
//! use petrel::service::{Ctx, Raw};
//! use petrel::{Error, Status, testing};
//!
//! #[petrel::service(codec = Raw)]
//! trait Greeter {
//!     async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn hello(&self, _: &Ctx, name: String) -> Result<String, Error> {
//!         match name.as_str() {
//!             "" => Err(Error::new(Status::InvalidArgument, "who is it?")),
//!             name => Ok(format!("Hello, {name}!")),
//!         }
//!     }
//! }
//!
//! let server = testing::serve(|endpoint| endpoint.serve(GreeterServer::new(Polite)));
//! let client = GreeterClient::new(server.client());
//! assert_eq!(client.hello("petrel".to_owned()).wait()?, "Hello, petrel!");      // or .await, in any executor
//! assert_eq!(client.hello(String::new()).wait().unwrap_err().status, Status::InvalidArgument);
//! # Ok::<(), Error>(())
//! ```
//!
//! A network that loses packets, servers that crash, and a virtual clock are in the simulator: the module `service` of the crate
//! `petrel-sim`. [`Server::in_process`](crate::Server::in_process) has the settings of a [`Server`](crate::Server), and needs shared memory.

mod control;
mod queues;

use std::fmt;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::client::Client;
use crate::endpoint::{Endpoint, EndpointConfig, IdlePolicy, PanicPolicy, Stop};
use crate::runtime::Runtime;
use crate::values::client::ClientConfig;
pub use control::InMemory;
use control::{SERVER, Side};
pub use queues::Queues;

/// An endpoint of a test, for the application's handlers.
pub type TestEndpoint = Endpoint<(), Queues, InMemory>;

/// A server with a client, made by [`serve`]. Dropping it ends both: outstanding and later calls end with UNAVAILABLE.
#[must_use = "a server that is dropped ends"]
pub struct TestServer {
    client: Client,
    /// The threads of the client and of the server.
    _threads: [Thread; 2],
}

/// A thread that runs an endpoint.
struct Thread {
    stop: Stop,
    handle: Option<JoinHandle<()>>,
}

/// Starts a server on a thread of its own, with the handlers that `set_up` registers, and connects a client. The thread keeps the result of
/// `set_up` until its end: [`Workers`](crate::workers::Workers), for example.
///
/// Async handlers run on this thread, within the tokio runtime around the call, if there is one. A panic of a handler ends its call with
/// INTERNAL, as in a [`Server`](crate::Server).
///
/// # Panics
/// As `set_up`, and when the process has no thread or descriptor left.
pub fn serve<K: 'static>(
    set_up: impl FnOnce(&mut TestEndpoint) -> K + Send + 'static,
) -> TestServer {
    let [near, far] = InMemory::pair();
    let (server, ()) = Thread::start("server", far, |endpoint| ((), set_up(endpoint)));
    let connect = |endpoint: &mut TestEndpoint| endpoint.client([SERVER], ClientConfig::default());
    let (client, first) = Thread::start("client", near, move |endpoint| (connect(endpoint), ()));
    let threads = [client, server];
    // A client beside the first waits for its session.
    let client = Client::builder().beside(&first).connect_wait(SERVER);
    let client = client.expect("a server in memory accepts its client");
    TestServer { client, _threads: threads }
}

impl TestServer {
    /// Returns the client of the server. Clones are the same client. `Client::builder().beside(&client)` makes a client with other settings
    /// at [`address`](Self::address).
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the name of the server for clients beside its client. It names nothing outside.
    pub fn address(&self) -> std::net::SocketAddr {
        SERVER
    }
}

impl Thread {
    /// Starts a thread with an endpoint, and returns the first result of `begin` on it. The thread keeps the second.
    fn start<R: Send + 'static, K>(
        name: &str,
        side: Side,
        begin: impl FnOnce(&mut TestEndpoint) -> (R, K) + Send + 'static,
    ) -> (Self, R) {
        let (tell, told) = mpsc::channel();
        let runtime = Runtime::current();
        let run = move || {
            let _entered = runtime.enter();
            let mut config = EndpointConfig::default();
            // Many tests share the processors.
            (config.idle, config.panics) = (IdlePolicy::Block, PanicPolicy::All);
            let (queues, control) = side.parts();
            let endpoint = Endpoint::new(queues, control, &config);
            let mut endpoint = endpoint.expect("the default settings are sound");
            let (begun, kept) = begin(&mut endpoint);
            let stop = endpoint.stop_handle();
            if tell.send((stop.clone(), begun)).is_ok() {
                endpoint.run(&stop);
            }
            // Workers may wait for calls of the endpoint, which end with it.
            drop(endpoint);
            drop(kept);
        };
        let named = thread::Builder::new().name(format!("petrel-test-{name}"));
        let handle = named.spawn(run).expect("the process has room for a thread");
        match told.recv() {
            Ok((stop, begun)) => (Self { stop, handle: Some(handle) }, begun),
            Err(mpsc::RecvError) => match handle.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("the thread has told of its begin, or has panicked"),
            },
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(handle) = self.handle.take()
            && handle.thread().id() != thread::current().id()
        {
            // A panic has been printed.
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestServer({:?})", self.client)
    }
}
