//! A server process: threads with an endpoint each, drained at a signal.

mod inherited;
mod running;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

pub use inherited::inherited_listeners;
pub use running::RunningServer;

use crate::endpoint::{Endpoint, EndpointConfig};
use crate::error::SetupError;
use crate::nexus::{Nexus, NexusBuilder};

/// Default limit of the time that a stopping server waits for clients to leave.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// A server to be started: an address, and a number of threads with an endpoint each.
///
/// ```no_run
/// use petrel::Server;
///
/// const GREET: u16 = 1;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     Server::bind("127.0.0.1:31850")
///         .threads(2)
///         .serve(|| (), |endpoint| {
///             endpoint.on(GREET, |_, cx, request| request.reply(cx, b"hello"));
///         })
///         .run()?;
///     Ok(())
/// }
/// ```
///
/// # Shutdown
///
/// SIGTERM or SIGINT makes a server that [`run`](ReadyServer::run)s **drain**: clients finish their outstanding calls
/// and go to other servers. The process ends when they have left, or after [`Server::drain_limit`]. A second signal
/// ends it at once.
#[derive(Clone, Debug)]
#[must_use = "it serves when it is run"]
pub struct Server {
    listen: Result<SocketAddr, String>,
    /// The socket, if the caller has bound one.
    socket: Option<Arc<TcpListener>>,
    threads: usize,
    nexus: NexusBuilder,
    endpoint: EndpointConfig,
    drain_limit: Duration,
}

/// A server with its handlers: to be [run](ReadyServer::run), or [started](ReadyServer::start).
#[must_use = "it serves when it is run"]
pub struct ReadyServer<M, F> {
    server: Server,
    make_state: M,
    set_up: F,
}

impl Server {
    /// Returns a server with one thread at this address: `"127.0.0.1:31850"`, a name and a port, or a [`SocketAddr`].
    /// Port 0 lets the system choose.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Self {
        let listen = match address.to_socket_addrs() {
            Ok(mut found) => found.next().ok_or_else(|| format!("{address:?}: it has no address")),
            Err(error) => Err(format!("{address:?}: {error}")),
        };
        Self::new(listen)
    }

    /// Returns a server on a socket that is bound already.
    pub fn listen_on(socket: TcpListener) -> Self {
        let address = socket.local_addr().map_err(|error| error.to_string());
        let server = Self::new(address);
        Self { socket: Some(Arc::new(socket)), ..server }
    }

    /// Returns a server on the first [inherited socket](inherited_listeners), or at this address if there is none. A
    /// service can thus be replaced without a refused connection, by systemd's socket units or any parent that keeps
    /// the socket open. Start the new process first, then ask the old one to end (SIGTERM). The old process stops
    /// listening at once, and sends the clients to the new.
    pub fn inherit_or_bind(address: impl ToSocketAddrs + fmt::Debug) -> Self {
        match inherited_listeners().map(|sockets| sockets.into_iter().next()) {
            Ok(Some(socket)) => Self::listen_on(socket),
            Ok(None) => Self::bind(address),
            Err(error) => Self::new(Err(error.to_string())),
        }
    }

    fn new(listen: Result<SocketAddr, String>) -> Self {
        Self {
            listen,
            socket: None,
            threads: 1,
            nexus: Nexus::builder(),
            endpoint: EndpointConfig::default(),
            drain_limit: DRAIN_LIMIT,
        }
    }

    /// Sets the number of threads, with an endpoint each; 1 by default. The endpoints are numbered 0, 1, and so on; a
    /// client names the endpoints to call.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn threads(mut self, count: usize) -> Self {
        assert!(count > 0, "without a thread no request is served");
        self.threads = count;
        self
    }

    /// Sets the control plane's settings, except the address; those of [`Nexus::builder`] by default.
    pub fn nexus(mut self, nexus: NexusBuilder) -> Self {
        self.nexus = nexus;
        self
    }

    /// Accepts calls from other hosts, without authentication; see [`NexusBuilder::insecure`]. By default a server
    /// accepts calls from the local host alone, and refuses to start at an address other than loopback.
    pub fn insecure(mut self) -> Self {
        self.nexus = self.nexus.insecure();
        self
    }

    /// Sets the endpoints' settings; [`EndpointConfig::default`] by default.
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        self.endpoint = config;
        self
    }

    /// Sets how long a stopping server waits for its clients to leave; 30 s by default.
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// Sets the endpoints' state and handlers. On each thread `make_state` makes the endpoint's own state, lent to
    /// handlers (`|| ()` for none), and `set_up` registers the handlers.
    pub fn serve<S, M, F>(self, make_state: M, set_up: F) -> ReadyServer<M, F>
    where
        S: 'static,
        M: Fn() -> S + Clone + Send + 'static,
        F: Fn(&mut Endpoint<S>) + Clone + Send + 'static,
    {
        ReadyServer { server: self, make_state, set_up }
    }
}

impl<S, M, F> ReadyServer<M, F>
where
    S: 'static,
    M: Fn() -> S + Clone + Send + 'static,
    F: Fn(&mut Endpoint<S>) + Clone + Send + 'static,
{
    /// Serves until the process gets a signal; see [`Server`].
    ///
    /// # Errors
    /// As [`ReadyServer::start`], and [`SetupError::Panicked`] when a thread of the server panics.
    pub fn run(self) -> Result<(), SetupError> {
        running::run_until_signals(|| self.start())
    }

    /// Serves on its own threads, until [`RunningServer::stop`].
    ///
    /// # Errors
    /// The address cannot be listened on, an endpoint did not start, or a thread panicked at its start.
    pub fn start(self) -> Result<RunningServer, SetupError> {
        let Server { listen, socket, threads, nexus, endpoint, drain_limit } = self.server;
        let address =
            listen.map_err(|text| SetupError::refused(format!("cannot listen at {text}")))?;
        let nexus = match socket {
            Some(socket) => nexus.listen_on(socket.try_clone().map_err(cannot_start)?),
            None => nexus.listen(address),
        };
        let nexus = nexus.start()?;
        RunningServer::start(
            &nexus,
            threads,
            &endpoint,
            drain_limit,
            &self.make_state,
            &self.set_up,
        )
    }
}

/// The system lacked a thread or descriptor, or does not deliver signals.
fn cannot_start(source: io::Error) -> SetupError {
    SetupError::System { message: format!("cannot start a server's threads: {source}"), source }
}

impl<M, F> fmt::Debug for ReadyServer<M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}
