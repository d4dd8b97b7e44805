//! A server process: threads with an endpoint each, drained at a signal.

mod inherited;
mod running;
mod successor;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

pub use inherited::{inherited_listeners, inherited_state};
pub use running::RunningServer;
pub use successor::start_successor;

use crate::endpoint::{
    AllowedTransports, CongestionControl, Device, Endpoint, EndpointConfig, EndpointId, IdlePolicy,
    PanicPolicy,
};
use crate::error::SetupError;
use crate::nexus::{Nexus, NexusBuilder, new_address_within_host};
use crate::security::{Authorize, Security};
use running::{Signalled, ThreadCode};

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
///         .serve(|_| (), |endpoint| {
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
pub struct ReadyServer<S, M, F, D = fn(ServerThread, S)> {
    server: Server,
    make_state: M,
    set_up: F,
    at_end: D,
    state: PhantomData<fn(S)>,
}

/// A thread of a server, for the closure that makes its state: a thread may own a part of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerThread {
    /// The thread's place among the threads, from 0 on. Clients see the endpoints in this order.
    pub index: usize,
    /// The number of threads.
    pub count: usize,
}

impl ServerThread {
    /// Returns true if the thread owns a key: calls [with this key](crate::client::Call::key) come to its endpoint.
    pub fn owns(&self, key: &[u8]) -> bool {
        crate::values::client::owner_of(key, self.count) == self.index
    }
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

    /// Returns a server for clients of this host alone, without a port or a data port: for tests, which need no network, and for services of
    /// one host. The processes meet by a Unix socket without a file, and share memory.
    ///
    /// ```
    /// # use petrel::Server;
    /// let server = Server::in_process().serve(|_| (), |endpoint| endpoint.on(1, |_, cx, request| request.reply(cx, b"hello"))).start()?;
    /// assert_eq!(server.client()?.call(1, "").wait()?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_process() -> Self {
        let address = new_address_within_host().map_err(|error| error.to_string());
        Self::new(address).transports(AllowedTransports::SHM)
    }

    /// Returns a server on a socket that is bound already.
    pub fn listen_on(socket: TcpListener) -> Self {
        let address = socket.local_addr().map_err(|error| error.to_string());
        let server = Self::new(address);
        Self { socket: Some(Arc::new(socket)), ..server }
    }

    /// Returns a server on the first [inherited socket](inherited_listeners), or at this address if there is none. A service can
    /// thus be replaced without a refused connection, by systemd's socket units, or by a parent that keeps the socket
    /// open ([`start_successor`]). Start the new process first, then ask the old one to end (SIGTERM). The old process
    /// stops listening at once, and sends the clients to the new.
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

    /// Sets the number of threads, with an endpoint each; 1 by default. Clients learn of the endpoints when they connect, and spread
    /// the calls over all endpoints. The endpoints are numbered 0, 1, and so on, for clients of a named endpoint.
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

    /// Gives the server credentials, as those of the crate `petrel-tls`: see [`NexusBuilder::credentials`]. It may then listen at any
    /// address, and [`Endpoint::authorize`] decides what a client may call.
    pub fn credentials(mut self, security: Arc<dyn Security>) -> Self {
        self.nexus = self.nexus.credentials(security);
        self
    }

    /// Sets the rights of clients, as a [`Policy`](crate::security::Policy) does: see [`NexusBuilder::authorize`].
    pub fn authorize(mut self, rules: Arc<dyn Authorize>) -> Self {
        self.nexus = self.nexus.authorize(rules);
        self
    }

    /// Sets all of the endpoints' settings; [`EndpointConfig::default`] by default. Call the method first: settings made before are
    /// replaced.
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        self.endpoint = config;
        self
    }

    /// Sets how long a stopping server waits for its clients to leave; 30 s by default.
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// Sets the service's name, of up to 255 bytes. A client with a [wanted name](crate::client::ClientBuilder::service) calls no server
    /// of a different name: an address may have passed to a different service.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.endpoint.service.name = Some(name.into());
        self
    }

    /// Sets the transports that clients may use; all by default.
    pub fn transports(mut self, allowed: AllowedTransports) -> Self {
        self.endpoint.transports = allowed;
        self
    }

    /// Names the IP address to which clients send datagrams, with the ports that the server has here, in place of the address to which
    /// clients have connected: for a server behind an address that passes TCP connections on, and no datagrams. Clients without an answer
    /// from there go on through TCP.
    pub fn data_ip(mut self, ip: IpAddr) -> Self {
        self.nexus = self.nexus.data_ip(ip);
        self
    }

    /// Sets the largest request and response, in bytes: up to 1 GiB, and 8 MiB by default. Clients have a limit of their own.
    pub fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.endpoint.sessions.message_bytes_max = bytes;
        self
    }

    /// Sends and receives datagrams by a network device, as `"xdp:eth0".parse()?` names it, and not by the kernel's network stack: see
    /// [`NexusBuilder::device`].
    pub fn device(mut self, device: Device) -> Self {
        self.endpoint.host.udp.device = Some(device);
        self
    }

    /// Sets how the threads wait when they are idle; by default they poll for 100 µs, then sleep.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.endpoint.idle = idle;
        self
    }

    /// Sets how sessions with the server as their client react to congestion; DCQCN by default.
    pub fn congestion(mut self, control: CongestionControl) -> Self {
        self.endpoint.protocol.congestion = control;
        self
    }

    /// Lets a panic of a handler, continuation or task end all threads of the server. By default a panic ends the call, and the server
    /// goes on ([`PanicPolicy::All`]).
    pub fn end_on_panic(mut self) -> Self {
        self.endpoint.panics = PanicPolicy::Unwind;
        self
    }

    /// Sets the endpoints' state and handlers. On each thread `make_state` makes the endpoint's own state, lent to
    /// handlers (`|_| ()` for none), and `set_up` registers the handlers.
    ///
    /// A server started within a tokio runtime enters the runtime's context on every thread: async handlers may use tokio's timers and
    /// sockets. The handlers still run on the endpoint's thread (crate feature `tokio`, on by default).
    pub fn serve<S, M, F>(self, make_state: M, set_up: F) -> ReadyServer<S, M, F>
    where
        S: 'static,
        M: Fn(ServerThread) -> S + Clone + Send + 'static,
        F: Fn(&mut Endpoint<S>) + Clone + Send + 'static,
    {
        let at_end = |_: ServerThread, state: S| drop(state);
        ReadyServer { server: self, make_state, set_up, at_end, state: PhantomData }
    }
}

impl<S, M, F, D> ReadyServer<S, M, F, D>
where
    S: 'static,
    M: Fn(ServerThread) -> S + Clone + Send + 'static,
    F: Fn(&mut Endpoint<S>) + Clone + Send + 'static,
    D: Fn(ServerThread, S) + Clone + Send + 'static,
{
    /// Passes the state of a thread to `keep` at the thread's end, after the last client or at the drain limit: to save the state,
    /// or to [hand the state over](start_successor). After a panic of the thread, `keep` is not called.
    ///
    /// ```
    /// # use petrel::{Client, Server};
    /// # use std::sync::{Arc, Mutex};
    /// let saved = Arc::new(Mutex::new(Vec::new()));
    /// let keep = Arc::clone(&saved);
    /// let server = Server::bind("127.0.0.1:0")
    ///     .threads(2)
    ///     .serve(|_| 0_u64, |endpoint| endpoint.on(1, |calls, cx, request| { *calls += 1; request.reply(cx, b"") }))
    ///     .at_end(move |thread, calls| keep.lock().unwrap().push((thread.index, calls)));
    /// let server = server.start()?;
    /// Client::connect_wait(server.local_addr())?.call(1, "").wait()?;
    /// server.stop();
    /// server.wait()?;
    /// assert_eq!(saved.lock().unwrap().iter().map(|(_, calls)| calls).sum::<u64>(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_end<E>(self, keep: E) -> ReadyServer<S, M, F, E>
    where
        E: Fn(ServerThread, S) + Clone + Send + 'static,
    {
        let Self { server, make_state, set_up, state, .. } = self;
        ReadyServer { server, make_state, set_up, at_end: keep, state }
    }

    /// Serves until the process gets a signal; see [`Server`].
    ///
    /// # Errors
    /// As [`ReadyServer::start`], and [`SetupError::Panicked`] when a thread of the server panics.
    pub fn run(self) -> Result<(), SetupError> {
        Signalled::start(|| self.start())?.wait()
    }

    /// Serves like [`run`](Self::run), as a future: the server has own threads, and does not block the executor's. Dropping the future ends
    /// the server at once.
    ///
    /// # Errors
    /// As [`ReadyServer::run`].
    pub async fn run_async(self) -> Result<(), SetupError> {
        Signalled::start(|| self.start())?.ended().await
    }

    /// Serves on its own threads, until [`RunningServer::stop`].
    ///
    /// # Errors
    /// The address cannot be listened on, an endpoint did not start, or a thread panicked at its start.
    pub fn start(self) -> Result<RunningServer, SetupError> {
        let Self { server, make_state, set_up, at_end, .. } = self;
        let Server { listen, socket, threads, nexus, mut endpoint, drain_limit } = server;
        let address =
            listen.map_err(|text| SetupError::refused(format!("cannot listen at {text}")))?;
        let nexus = match socket {
            Some(socket) => nexus.listen_on(socket.try_clone().map_err(cannot_start)?),
            None => nexus.listen(address),
        };
        if endpoint.service.endpoints.is_empty() {
            endpoint.service.endpoints = numbered(&endpoint, threads)?;
        }
        if endpoint.panics == PanicPolicy::Handlers {
            endpoint.panics = PanicPolicy::All;
        }
        let code = ThreadCode { make_state, set_up, at_end };
        RunningServer::start(&nexus.start()?, threads, &endpoint, drain_limit, &code)
    }
}

/// Returns the numbers of a server's endpoints: from the configured one on, or from 0.
fn numbered(config: &EndpointConfig, threads: usize) -> Result<Vec<EndpointId>, SetupError> {
    let first = config.id.map_or(0, |id| usize::from(id.0));
    let last = u16::try_from(first + threads - 1).ok().filter(|last| *last < EndpointId::ANY.0);
    let last = last.ok_or_else(|| SetupError::refused("an endpoint's number is at most 65534"))?;
    Ok((first as u16..=last).map(EndpointId).collect())
}

/// Returns the error of a system that lacks a thread or descriptor, or delivers no signals.
fn cannot_start(source: io::Error) -> SetupError {
    SetupError::System { message: format!("cannot start a server's threads: {source}"), source }
}

impl<S, M, F, D> fmt::Debug for ReadyServer<S, M, F, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)
    }
}
