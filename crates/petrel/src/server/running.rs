//! The threads of a server, from start to end.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::{ServerThread, cannot_start};
use crate::client::Client;
use crate::endpoint::{AllowedTransports, Endpoint, EndpointConfig, EndpointId, Stop};
use crate::error::{Error, SetupError};
use crate::nexus::{Nexus, is_within_host};
use crate::runtime::Runtime;

/// How often a draining endpoint checks whether it should end at once.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A thread has panicked and lost its endpoint, and the others were stopped.
const PANICKED: SetupError = SetupError::Panicked("a thread of the server panicked");

/// A running server. Dropping it ends it at once.
#[must_use = "a server that is dropped ends"]
pub struct RunningServer {
    address: SocketAddr,
    stop_handles: StopHandles,
    threads: Vec<JoinHandle<()>>,
    ends: Arc<Ends>,
}

/// The application's code of a server's threads.
#[derive(Clone)]
pub(super) struct ThreadCode<M, F, D> {
    pub(super) make_state: M,
    pub(super) set_up: F,
    pub(super) at_end: D,
}

/// The threads of a server that have not ended, for a future of the end.
#[derive(Default)]
struct Ends {
    waiting: Mutex<(usize, Option<Waker>)>,
}

impl Ends {
    /// Counts a thread that starts, until the returned value is dropped.
    fn count(self: &Arc<Self>) -> Running {
        self.lock().0 += 1;
        Running(Arc::clone(self))
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = self.lock();
        if waiting.0 == 0 {
            return Poll::Ready(());
        }
        waiting.1 = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Option<Waker>)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread of a server that has not ended.
struct Running(Arc<Ends>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.0 -= 1;
        if waiting.0 == 0
            && let Some(waker) = waiting.1.take()
        {
            waker.wake();
        }
    }
}

/// The handles that stop the threads of a server.
#[derive(Clone, Default)]
struct StopHandles {
    stops: Arc<Mutex<Vec<Stop>>>,
    /// Whether they end without a drain.
    is_over: Arc<AtomicBool>,
}

impl RunningServer {
    /// Starts the threads. The endpoints' numbers are those of the service's description.
    pub(super) fn start<S: 'static>(
        nexus: &Nexus,
        threads: usize,
        config: &EndpointConfig,
        drain_limit: Duration,
        code: &ThreadCode<
            impl Fn(ServerThread) -> S + Clone + Send + 'static,
            impl Fn(&mut Endpoint<S>) + Clone + Send + 'static,
            impl Fn(ServerThread, S) + Clone + Send + 'static,
        >,
    ) -> Result<Self, SetupError> {
        let address = nexus.local_addr().expect("a server's nexus listens");
        let mut server = Self {
            address,
            stop_handles: StopHandles::default(),
            threads: Vec::new(),
            ends: Arc::default(),
        };
        let first = config.id.map_or(0, |id| id.0);
        for (index, number) in (first..).enumerate().take(threads) {
            let thread = Thread {
                nexus: nexus.clone(),
                config: EndpointConfig { id: Some(EndpointId(number)), ..config.clone() },
                of: ServerThread { index, count: threads },
                stop_handles: server.stop_handles.clone(),
                drain_limit,
                runtime: Runtime::current(),
            };
            server.threads.push(thread.start(server.ends.count(), code.clone())?);
        }
        Ok(server)
    }

    /// Returns the address at which the server listens, with the port chosen by the system.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client of the server, connected. A client of a server [within the process](super::Server::in_process) has a thread of its own.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn client(&self) -> Result<Client, Error> {
        if !is_within_host(self.address) {
            let builder = Client::builder();
            let builder =
                if self.address.ip().is_loopback() { builder } else { builder.insecure() };
            return builder.connect_wait(self.address);
        }
        Client::builder().transports(AllowedTransports::SHM).connect_wait(self.address)
    }

    /// Starts a drain; the server ends when its clients have left. [`RunningServer::wait`] waits for the end.
    pub fn stop(&self) {
        self.stop_handles.stop();
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// [`SetupError::Panicked`] if a thread panicked.
    pub fn wait(mut self) -> Result<(), SetupError> {
        self.join()
    }

    /// Waits like [`wait`](Self::wait), as a future. Dropping the future ends the server at once.
    ///
    /// # Errors
    /// As [`RunningServer::wait`].
    pub async fn ended(mut self) -> Result<(), SetupError> {
        poll_fn(|cx| self.ends.poll(cx)).await;
        // The threads have run their last line.
        self.join()
    }

    fn join(&mut self) -> Result<(), SetupError> {
        let joined = self.threads.drain(..).map(JoinHandle::join);
        // Joins all threads, whatever the first returned.
        match joined.filter(Result::is_err).count() {
            0 => Ok(()),
            _ => Err(PANICKED),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.stop_handles.end();
        // A panic has been printed.
        let _ = self.join();
    }
}

impl StopHandles {
    fn stop(&self) {
        self.stops().iter().for_each(Stop::stop);
    }

    fn stops(&self) -> MutexGuard<'_, Vec<Stop>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the threads without a drain.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.stop();
    }
}

/// Ends all threads of a server when one panics: a partial failure would be noticed late.
struct StopAllOnPanic(StopHandles);

impl Drop for StopAllOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end();
        }
    }
}

/// A server that ends by the process's signals: after the first when its clients have left, after the second at once.
pub(super) struct Signalled {
    server: RunningServer,
    watcher: Watcher,
}

/// The thread that waits for signals.
struct Watcher {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            // It contains nothing that could panic.
            let _ = thread.join();
        }
    }
}

impl Signalled {
    pub(super) fn start(
        start: impl FnOnce() -> Result<RunningServer, SetupError>,
    ) -> Result<Self, SetupError> {
        // Signals are handled before the server listens: a process may signal a listening server.
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(cannot_start)?;
        let handle = signals.handle();
        let server = start()?;
        let stop_handles = server.stop_handles.clone();
        let thread = thread::Builder::new().name("petrel-signals".to_owned()).spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                stop_handles.stop();
            }
            if signals.next().is_some() {
                stop_handles.end();
            }
        });
        let thread = Some(thread.map_err(cannot_start)?);
        Ok(Self { server, watcher: Watcher { signals: handle, thread } })
    }

    /// Waits for the end.
    pub(super) fn wait(self) -> Result<(), SetupError> {
        let Self { server, watcher } = self;
        let ended = server.wait();
        drop(watcher);
        ended
    }

    /// Waits for the end of the server, as a future.
    pub(super) async fn ended(self) -> Result<(), SetupError> {
        let Self { server, watcher } = self;
        let ended = server.ended().await;
        drop(watcher);
        ended
    }
}

/// A thread to be started.
struct Thread {
    nexus: Nexus,
    config: EndpointConfig,
    of: ServerThread,
    stop_handles: StopHandles,
    drain_limit: Duration,
    runtime: Runtime,
}

impl Thread {
    /// Starts the thread, and waits until its endpoint serves.
    fn start<S: 'static>(
        self,
        running: Running,
        code: ThreadCode<
            impl Fn(ServerThread) -> S + Send + 'static,
            impl Fn(&mut Endpoint<S>) + Send + 'static,
            impl Fn(ServerThread, S) + Send + 'static,
        >,
    ) -> Result<JoinHandle<()>, SetupError> {
        let (sender, receiver) = mpsc::channel();
        let named = thread::Builder::new().name(format!("petrel-{}", self.of.index));
        let handle = named.spawn(move || {
            let _running = running;
            let _entered = self.runtime.enter();
            let _stops_others = StopAllOnPanic(self.stop_handles.clone());
            let state = (code.make_state)(self.of);
            match self.nexus.endpoint_with(self.config.clone(), state) {
                Err(error) => drop(sender.send(Err(error))),
                Ok(mut endpoint) => {
                    (code.set_up)(&mut endpoint);
                    let stop = endpoint.stop_handle();
                    self.stop_handles.stops().push(stop.clone());
                    if sender.send(Ok(())).is_ok() {
                        endpoint.run(&stop);
                        self.drain(&mut endpoint);
                        (code.at_end)(self.of, endpoint.into_state());
                    }
                }
            }
        });
        let handle = handle.map_err(cannot_start)?;
        match receiver.recv() {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error),
            // The thread ended without a message.
            Err(mpsc::RecvError) => Err(PANICKED),
        }
    }

    /// Asks the clients to leave, and serves their outstanding calls.
    fn drain<S: 'static>(&self, endpoint: &mut Endpoint<S>) {
        // A process that shares the socket gets all connections from now on; any other can listen at the address.
        self.nexus.stop_listening();
        endpoint.begin_drain();
        let begin = Instant::now();
        let is_over = || {
            self.stop_handles.is_over.load(Ordering::Acquire) || begin.elapsed() >= self.drain_limit
        };
        while endpoint.sessions_served() > 0 && !is_over() {
            endpoint.run_for(CHECK_INTERVAL, |_, _| false);
        }
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningServer({}, {} threads)", self.address, self.threads.len())
    }
}
