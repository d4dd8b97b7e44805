//! A server process: endpoints on threads, that end when the process is asked to.

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

/// How long a server that is asked to end waits for its clients to leave, unless set.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// A server to be started: an address, and threads that run an endpoint each.
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
/// # How it ends
///
/// SIGTERM or SIGINT makes a server that [`run`](ReadyServer::run)s **drain**: clients finish what is on the way and go to other
/// servers; the process ends when they have left, or after [`Server::drain_limit`]. A second signal ends it at once.
#[derive(Clone, Debug)]
#[must_use = "it serves when it is run"]
pub struct Server {
    listen: Result<SocketAddr, String>,
    /// The socket, if somebody has bound it.
    socket: Option<Arc<TcpListener>>,
    threads: usize,
    nexus: NexusBuilder,
    endpoint: EndpointConfig,
    drain_limit: Duration,
}

/// A server with what its endpoints do: to be [run](ReadyServer::run), or [started](ReadyServer::start).
#[must_use = "it serves when it is run"]
pub struct ReadyServer<M, F> {
    server: Server,
    make_state: M,
    set_up: F,
}

impl Server {
    /// A server at this address, with one thread: `"127.0.0.1:31850"`, or a name and a port, or a [`SocketAddr`]. With port 0 the
    /// system chooses one.
    pub fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Self {
        let listen = match address.to_socket_addrs() {
            Ok(mut found) => found.next().ok_or_else(|| format!("{address:?}: it has no address")),
            Err(error) => Err(format!("{address:?}: {error}")),
        };
        Self::new(listen)
    }

    /// A server on a socket that is bound already.
    pub fn listen_on(socket: TcpListener) -> Self {
        let address = socket.local_addr().map_err(|error| error.to_string());
        let server = Self::new(address);
        Self { socket: Some(Arc::new(socket)), ..server }
    }

    /// A server on the first socket that the process was [started with](inherited_listeners), or at this address if there is
    /// none: for services that are replaced without a refused connection, by systemd's socket units or who else keeps the
    /// socket open. The new process is started first; then the old one is asked to end (SIGTERM): it leaves the
    /// socket to the other at once, and sends its clients there.
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

    /// How many threads, with an endpoint each; 1 by default. They are the process's endpoints 0, 1, and so on, and a client
    /// names those that it calls.
    ///
    /// # Panics
    /// When it is 0.
    pub fn threads(mut self, count: usize) -> Self {
        assert!(count > 0, "without a thread no request is served");
        self.threads = count;
        self
    }

    /// Settings of the control plane, but for the address; those of [`Nexus::builder`] by default.
    pub fn nexus(mut self, nexus: NexusBuilder) -> Self {
        self.nexus = nexus;
        self
    }

    /// Takes calls of other hosts, though none proves who it is; see [`NexusBuilder::insecure`]. By default a server takes calls
    /// of this host alone, and does not start at an address that others can reach.
    pub fn insecure(mut self) -> Self {
        self.nexus = self.nexus.insecure();
        self
    }

    /// Settings of the endpoints; [`EndpointConfig::default`] by default.
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        self.endpoint = config;
        self
    }

    /// How long a server that is asked to end waits for its clients to leave; 30 s by default.
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// What each endpoint does. On each thread `make_state` makes the state that the endpoint owns and lends to its handlers
    /// (`|| ()` for none), and `set_up` registers these.
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
    /// Serves until the process is asked to end; see [`Server`].
    ///
    /// # Errors
    /// As [`ReadyServer::start`], and [`SetupError::Panicked`] when a thread of the server panics.
    pub fn run(self) -> Result<(), SetupError> {
        running::run_until_signals(|| self.start())
    }

    /// Serves on threads of its own, until [`RunningServer::stop`].
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

/// The system gave no thread or descriptor, or does not tell of signals.
fn cannot_start(source: io::Error) -> SetupError {
    SetupError::System { message: format!("cannot start a server's threads: {source}"), source }
}

impl<M, F> fmt::Debug for ReadyServer<M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}
