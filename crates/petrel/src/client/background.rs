//! Threads that run the endpoints of clients.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use petrel_proto::Status;

use super::ClientShared;
use crate::endpoint::{EndpointConfig, Stop};
use crate::error::Error;
use crate::nexus::{Nexus, NexusBuilder};
use crate::sync::{Arc, Mutex, Weak, lock};

/// Threads that run an endpoint each, for [clients](super::Client). Clones are the same threads; they end when the last
/// clone and the last client of theirs is gone.
///
/// Clients share one thread of the process unless they are given others:
///
/// ```
/// use petrel::client::{Background, Client};
/// # fn main() -> Result<(), petrel::Error> {
/// let background = Background::builder().threads(2).start()?;
/// let client = Client::builder().background(&background).connect_wait("localhost:31850");
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Background {
    threads: Arc<Threads>,
}

/// How threads of clients are set up. Made by [`Background::builder`].
#[derive(Clone, Debug)]
pub struct BackgroundBuilder {
    threads: usize,
    nexus: NexusBuilder,
    endpoint: EndpointConfig,
}

struct Threads {
    endpoints: Vec<(Arc<ClientShared>, Stop)>,
    /// Clients take turns.
    turn: AtomicUsize,
}

/// The threads of the clients that were given none: for the same host, and for [insecure](NexusBuilder::insecure) networks.
static SHARED: [Mutex<Weak<Threads>>; 2] = [const { Mutex::new(Weak::new()) }; 2];

impl Background {
    /// One thread, with defaults.
    pub fn builder() -> BackgroundBuilder {
        let (nexus, endpoint) = (Nexus::builder(), EndpointConfig::default());
        BackgroundBuilder { threads: 1, nexus, endpoint }
    }

    /// The threads of all clients that were given none.
    pub(super) fn shared(is_insecure: bool) -> Result<Self, Error> {
        let mut shared = lock(&SHARED[usize::from(is_insecure)]);
        // One that a panic has ended is as good as none, though clients of before have it.
        if let Some(threads) = shared.upgrade().filter(|threads| threads.are_running()) {
            return Ok(Self { threads });
        }
        let nexus = Nexus::builder();
        let nexus = if is_insecure { nexus.insecure() } else { nexus };
        let background = Self::builder().nexus(nexus).start()?;
        *shared = Arc::downgrade(&background.threads);
        Ok(background)
    }

    /// The endpoint of one more client.
    pub(super) fn next_endpoint(&self) -> &Arc<ClientShared> {
        let Threads { endpoints, turn } = &*self.threads;
        &endpoints[turn.fetch_add(1, Ordering::Relaxed) % endpoints.len()].0
    }
}

impl BackgroundBuilder {
    /// How many threads, and endpoints; 1 by default. Each client is on one of them.
    ///
    /// # Panics
    /// When it is 0.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        assert!(count > 0, "without a thread no call is made");
        self.threads = count;
        self
    }

    /// The control plane of these endpoints.
    #[must_use]
    pub fn nexus(mut self, nexus: NexusBuilder) -> Self {
        self.nexus = nexus;
        self
    }

    /// Settings of the endpoints.
    #[must_use]
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        self.endpoint = config;
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// UNAVAILABLE, with what the system or the configuration has against it.
    pub fn start(self) -> Result<Background, Error> {
        let nexus = self.nexus.start().map_err(|error| cannot_start(&error))?;
        let start = |number| start_thread(number, nexus.clone(), self.endpoint.clone());
        // Those that have started before one fails are stopped with the list.
        let mut threads = Threads { endpoints: Vec::new(), turn: AtomicUsize::new(0) };
        for number in 0..self.threads {
            threads.endpoints.push(start(number)?);
        }
        Ok(Background { threads: Arc::new(threads) })
    }
}

/// Starts a thread, and waits until its endpoint takes orders.
fn start_thread(
    number: usize,
    nexus: Nexus,
    config: EndpointConfig,
) -> Result<(Arc<ClientShared>, Stop), Error> {
    let (tell, told) = mpsc::channel();
    let run = move || match nexus.endpoint(config) {
        Err(error) => drop(tell.send(Err(cannot_start(&error)))),
        Ok(mut endpoint) => {
            let stop = endpoint.stop_handle();
            if tell.send(Ok((endpoint.client_shared(), stop.clone()))).is_ok() {
                endpoint.run(&stop);
            }
        }
    };
    let named = thread::Builder::new().name(format!("petrel-{number}"));
    named.spawn(run).map_err(|error| cannot_start(&error))?;
    told.recv().unwrap_or_else(|error| Err(cannot_start(&error)))
}

#[cold]
fn cannot_start(error: &dyn fmt::Display) -> Error {
    Error::not_sent(Status::Unavailable, format!("cannot start the threads of clients: {error}"))
}

impl Threads {
    fn are_running(&self) -> bool {
        self.endpoints.iter().all(|(endpoint, _)| endpoint.poster.is_open())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.endpoints.iter().for_each(|(_, stop)| stop.stop());
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Background({} threads)", self.threads.endpoints.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared__is_another_when_its_thread_has_ended() {
        // No other test here has clients of insecure networks.
        let first = Background::shared(true).unwrap();
        assert!(Arc::ptr_eq(&Background::shared(true).unwrap().threads, &first.threads));
        first.threads.endpoints[0].1.stop();
        while first.threads.are_running() {
            thread::yield_now();
        }
        let second = Background::shared(true).unwrap();
        assert!(second.threads.are_running() && !Arc::ptr_eq(&second.threads, &first.threads));
        assert!(Arc::ptr_eq(&Background::shared(true).unwrap().threads, &second.threads));
    }

    #[test]
    fn next_endpoint__takes_turns_from_the_first() {
        let background = Background::builder().threads(3).start().unwrap();
        let number_of = |endpoint: &Arc<ClientShared>| {
            let all = &background.threads.endpoints;
            all.iter().position(|(one, _)| Arc::ptr_eq(one, endpoint)).unwrap()
        };
        let turns: Vec<_> = (0..5).map(|_| number_of(background.next_endpoint())).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
    }
}
