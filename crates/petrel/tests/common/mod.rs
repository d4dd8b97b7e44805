//! A miniature server process: a nexus and an endpoint on a separate thread.

// Not every program starts others, or runs over devices.
#[allow(dead_code)]
pub(crate) mod device;
// Not every test has a client handle.
#[allow(dead_code)]
pub(crate) mod remote;
// Nor its own network.
#[allow(dead_code)]
pub(crate) mod own_network;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, Responder, SessionId, SessionState, Stop};
use petrel::nexus::NexusBuilder;
use petrel::unstable::control::ControlPlane;
use petrel::workers::WorkerRequest;
use petrel::{Context, Endpoint, Nexus};
#[allow(unused_imports, reason = "not every test that includes this module uses it")]
pub(crate) use petrel_hostile::spray::noise as pattern;
use petrel_transport::Transport;

pub(crate) const ECHO: u16 = 1;

/// Registers a handler that echoes.
pub(crate) fn echo<S: 'static, T: Transport, C: ControlPlane<T::Link>>(
    endpoint: &mut Endpoint<S, T, C>,
    method: u16,
) {
    endpoint.on(method, |_, cx, request| {
        let len = request.data().len();
        request.reply_with(cx, len, |data, out| {
            out.copy_from_slice(data);
            len
        })
    });
}

/// Registers a handler that never answers.
#[allow(dead_code, reason = "not every program has such calls")]
pub(crate) fn keep<S: 'static>(endpoint: &mut Endpoint<S>, method: u16) {
    keep_with(endpoint, method, |_, _| ());
}

/// Registers a handler that never answers; `seen` gets each request's context and responder.
#[allow(dead_code, reason = "not every program has such calls")]
pub(crate) fn keep_with<S: 'static>(
    endpoint: &mut Endpoint<S>,
    method: u16,
    mut seen: impl FnMut(&mut Context<'_, S>, &Responder) + 'static,
) {
    let mut kept = Vec::new();
    endpoint.on(method, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        seen(cx, &responder);
        kept.push(responder);
        handled
    });
}

/// Registers a handler that passes its requests to the test.
#[allow(dead_code, reason = "not every program answers on other threads")]
pub(crate) fn hold(endpoint: &mut Endpoint, method: u16, keep: mpsc::Sender<WorkerRequest>) {
    endpoint.on(method, move |_, cx, request| {
        let (request, handled) = request.detach(cx);
        // The test may have ended.
        let _ = keep.send(request);
        handled
    });
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server; `set_up` registers its handlers.
    pub(crate) fn start(
        config: EndpointConfig,
        listen: &str,
        set_up: impl FnOnce(&mut Endpoint) + Send + 'static,
    ) -> Self {
        let listen = device::address_of(listen.parse().unwrap());
        let (ready, started) = mpsc::channel();
        let thread = device::spawn(move || {
            let nexus = nexus(Some(listen));
            let mut endpoint = nexus.endpoint(config).unwrap();
            echo(&mut endpoint, ECHO);
            set_up(&mut endpoint);
            let stop = endpoint.stop_handle();
            ready.send((nexus.local_addr().unwrap(), stop.clone())).unwrap();
            endpoint.run(&stop);
            device::count(&endpoint);
        });
        let (address, stop) = started.recv().unwrap();
        Self { address, stop, thread: Some(thread) }
    }

    /// Ends the server, and returns when nexus and endpoint are gone.
    pub(crate) fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Begins a nexus, which uses the device of a run over devices.
pub(crate) fn builder() -> NexusBuilder {
    let builder = Nexus::builder();
    if device::is_used() { builder.insecure().device("xdp".parse().unwrap()) } else { builder }
}

pub(crate) fn nexus(listen: Option<SocketAddr>) -> Nexus {
    let builder = builder().heartbeat(Duration::from_millis(500));
    match listen {
        Some(address) => builder.listen(address),
        None => builder,
    }
    .start()
    .unwrap()
}

pub(crate) fn client(config: EndpointConfig) -> Endpoint {
    nexus(None).endpoint(config).unwrap()
}

/// Runs the endpoint until another thread has acted, in a way that does not wake the endpoint.
#[allow(dead_code, reason = "not every program waits for another thread")]
pub(crate) fn run_until_seen(endpoint: &mut Endpoint, mut is_seen: impl FnMut() -> bool) {
    while !endpoint.run_for(Duration::from_millis(1), |_, _| is_seen()) {}
}

/// Takes turns of both ends until a session is open.
#[allow(dead_code, reason = "not every program runs both ends on one thread")]
pub(crate) fn open<S: 'static>(
    client: &mut Endpoint,
    server: &mut Endpoint<S>,
    session: SessionId,
) {
    while client.session_state(session) != SessionState::Open {
        client.run_once();
        server.run_once();
        std::thread::yield_now();
    }
}

/// Waits for another thread or process.
#[allow(dead_code, reason = "not every program waits for others")]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "it never comes true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a counter of fetched statistics.
#[allow(dead_code, reason = "not every program fetches them")]
pub(crate) fn counter(json: &str, name: &str) -> u64 {
    let (_, rest) = json.split_once(&format!("\"{name}\":")).expect(json);
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

pub(crate) fn over(udp: bool, shm: bool) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    let is_far = device::is_used();
    let (udp, shm) = (udp || is_far, shm && !is_far);
    config.transports = AllowedTransports { udp, shm, stream: false, verbs: false };
    config
}

/// UDP alone and shared memory alone; in a run over devices UDP.
#[allow(dead_code, reason = "not every program tries both")]
pub(crate) fn each_medium() -> impl Iterator<Item = EndpointConfig> {
    let count = if device::is_used() { 1 } else { 2 };
    [over(true, false), over(false, true)].into_iter().take(count)
}

/// Returns a loopback address without a listener, a new address at every call. The port is below the ephemeral ports:
/// the system could give an ephemeral port to another test before its use.
#[allow(dead_code, reason = "not every program needs one")]
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let [_, b, c, d] = std::process::id().to_be_bytes();
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    device::address_of((Ipv4Addr::new(127, b, c, d.max(1)), port).into())
}
