//! The threads of a server, from start to end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::cannot_start;
use crate::endpoint::{Endpoint, EndpointConfig, Stop};
use crate::error::SetupError;
use crate::nexus::Nexus;

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
}

/// The handles that stop the threads of a server.
#[derive(Clone, Default)]
struct StopHandles {
    stops: Arc<Mutex<Vec<Stop>>>,
    /// Whether they end without a drain.
    is_over: Arc<AtomicBool>,
}

impl RunningServer {
    pub(super) fn start<S: 'static>(
        nexus: &Nexus,
        threads: usize,
        config: &EndpointConfig,
        drain_limit: Duration,
        make_state: &(impl Fn() -> S + Clone + Send + 'static),
        set_up: &(impl Fn(&mut Endpoint<S>) + Clone + Send + 'static),
    ) -> Result<Self, SetupError> {
        let address = nexus.local_addr().expect("a server's nexus listens");
        let mut server =
            Self { address, stop_handles: StopHandles::default(), threads: Vec::new() };
        for number in 0..threads {
            let thread = Thread {
                nexus: nexus.clone(),
                config: config.clone(),
                stop_handles: server.stop_handles.clone(),
                drain_limit,
            };
            server.threads.push(thread.start(number, make_state.clone(), set_up.clone())?);
        }
        Ok(server)
    }

    /// Returns the address at which the server listens, with the port chosen by the system.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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

/// Runs a server until it has ended: by the first signal when its clients have left, by the second at once.
pub(super) fn run_until_signals(
    start: impl FnOnce() -> Result<RunningServer, SetupError>,
) -> Result<(), SetupError> {
    // Before the server listens: a process may signal a listening server.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(cannot_start)?;
    let handle = signals.handle();
    let server = start()?;
    let stop_handles = server.stop_handles.clone();
    let watcher = thread::Builder::new().name("petrel-signals".to_owned()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stop_handles.stop();
        }
        if signals.next().is_some() {
            stop_handles.end();
        }
    });
    let watcher = watcher.map_err(cannot_start)?;
    let ended = server.wait();
    handle.close();
    // It contains nothing that could panic.
    let _ = watcher.join();
    ended
}

/// A thread to be started.
struct Thread {
    nexus: Nexus,
    config: EndpointConfig,
    stop_handles: StopHandles,
    drain_limit: Duration,
}

impl Thread {
    /// Starts the thread, and waits until its endpoint serves.
    fn start<S: 'static>(
        self,
        number: usize,
        make_state: impl Fn() -> S + Send + 'static,
        set_up: impl Fn(&mut Endpoint<S>) + Send + 'static,
    ) -> Result<JoinHandle<()>, SetupError> {
        let (sender, receiver) = mpsc::channel();
        let named = thread::Builder::new().name(format!("petrel-{number}"));
        let handle = named.spawn(move || {
            match self.nexus.endpoint_with(self.config.clone(), make_state()) {
                Err(error) => drop(sender.send(Err(error))),
                Ok(mut endpoint) => {
                    let _stops_others = StopAllOnPanic(self.stop_handles.clone());
                    set_up(&mut endpoint);
                    let stop = endpoint.stop_handle();
                    self.stop_handles.stops().push(stop.clone());
                    if sender.send(Ok(())).is_ok() {
                        endpoint.run(&stop);
                        self.drain(&mut endpoint);
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
