//! Threads that run the endpoints of clients.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use petrel_proto::Status;

use crate::endpoint::{ClientShared, Driver, EndpointConfig, Stop};
use crate::error::Error;
use crate::nexus::{Nexus, NexusBuilder};
use crate::security::Security;
use crate::sync::{Arc, Mutex, MutexGuard, Weak, lock};
use crate::values::client::Target;

/// A set of threads that run an endpoint each, for [clients](super::Client). Clones are the same threads; they end
/// after the last clone and the last client on them.
///
/// Clients share one thread of the process by default:
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

/// Settings of a [`Background`]. Made by [`Background::builder`].
#[derive(Clone, Debug)]
pub struct BackgroundBuilder {
    threads: usize,
    nexus: NexusBuilder,
    endpoint: EndpointConfig,
}

struct Threads {
    settings: BackgroundBuilder,
    nexus: Nexus,
    /// The endpoints of each family of data ports; none before the first client of the family.
    endpoints: [Mutex<Vec<Running>>; 2],
    /// Assigns clients to endpoints in turn.
    turn: AtomicUsize,
}

/// An endpoint that runs on a thread.
type Running = (Arc<ClientShared>, Stop);

/// The address family of a data port. A port never has both: a loopback port of both families would have to be
/// reachable from other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns IPv6 if no server has an IPv4 address. Servers at addresses of the other family are reached through
    /// shared memory.
    pub(super) fn of(servers: &[Target]) -> Self {
        let is_v4 = |server: &Target| server.address.ip().to_canonical().is_ipv4();
        if servers.iter().any(is_v4) { Self::V4 } else { Self::V6 }
    }
}

/// The shared threads of clients without a [`Background`]: for loopback, and for [insecure](NexusBuilder::insecure)
/// networks; each for clients without callbacks, and for clients with callbacks, whose handlers stay on one thread.
static SHARED: [[Mutex<Weak<Threads>>; 2]; 2] =
    [const { [const { Mutex::new(Weak::new()) }; 2] }; 2];

impl Background {
    /// Returns a builder with default settings and one thread.
    pub fn builder() -> BackgroundBuilder {
        let (nexus, endpoint) = (Nexus::builder(), EndpointConfig::default());
        BackgroundBuilder { threads: 1, nexus, endpoint }
    }

    /// Returns the shared threads of clients without a [`Background`].
    pub(super) fn shared(
        (is_insecure, has_callbacks): (bool, bool),
        family: Family,
    ) -> Result<Self, Error> {
        let mut shared = lock(&SHARED[usize::from(has_callbacks)][usize::from(is_insecure)]);
        // Threads ended by a panic are replaced, though earlier clients still hold them.
        if let Some(threads) = shared.upgrade().filter(|threads| threads.are_running()) {
            return Ok(Self { threads });
        }
        let background = Self::builder().nexus(nexus(is_insecure, None)).start_for(family)?;
        *shared = Arc::downgrade(&background.threads);
        Ok(background)
    }

    /// Returns a thread for one client.
    pub(super) fn own(
        nexus: NexusBuilder,
        endpoint: Option<EndpointConfig>,
        family: Family,
    ) -> Result<Self, Error> {
        Self::builder().nexus(nexus).endpoint(endpoint.unwrap_or_default()).start_for(family)
    }

    pub(super) fn next_endpoint(&self, family: Family) -> Result<Arc<ClientShared>, Error> {
        let endpoints = self.threads.running(family)?;
        assert!(!endpoints.is_empty(), "the threads of clients run, or could not be started");
        let turn = self.threads.turn.fetch_add(1, Ordering::Relaxed) % endpoints.len();
        Ok(Arc::clone(&endpoints[turn].0))
    }
}

/// Returns the settings of the control plane of a client's own threads.
pub(super) fn nexus(
    is_insecure: bool,
    security: Option<std::sync::Arc<dyn Security>>,
) -> NexusBuilder {
    let nexus = Nexus::builder();
    let nexus = if is_insecure { nexus.insecure() } else { nexus };
    match security {
        Some(security) => nexus.credentials(security),
        None => nexus,
    }
}

impl BackgroundBuilder {
    /// Sets the number of threads, with an endpoint each; 1 by default. Each client is on one of them.
    ///
    /// # Panics
    /// When `count` is 0.
    #[must_use]
    pub fn threads(mut self, count: usize) -> Self {
        assert!(count > 0, "without a thread no call is made");
        self.threads = count;
        self
    }

    /// Sets the control plane's settings.
    #[must_use]
    pub fn nexus(mut self, nexus: NexusBuilder) -> Self {
        self.nexus = nexus;
        self
    }

    /// Sets the endpoints' settings. A data port has one address family. Without a `data_address`, the first client
    /// whose servers have only IPv6 addresses therefore starts the same number of endpoints again, on further threads.
    #[must_use]
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        self.endpoint = config;
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// UNAVAILABLE, with the objection of the system or the configuration.
    pub fn start(self) -> Result<Background, Error> {
        self.start_for(Family::V4)
    }

    /// Starts the threads, for clients with servers of this family.
    fn start_for(self, family: Family) -> Result<Background, Error> {
        let nexus = self.nexus.clone().start().map_err(|error| cannot_start(&error))?;
        let (endpoints, turn) = (Default::default(), AtomicUsize::new(0));
        let threads = Threads { settings: self, nexus, endpoints, turn };
        drop(threads.running(family)?);
        Ok(Background { threads: Arc::new(threads) })
    }
}

/// Starts a thread, and waits until its endpoint is ready.
fn start_thread(
    number: usize,
    nexus: Nexus,
    config: EndpointConfig,
) -> Result<(Arc<ClientShared>, Stop), Error> {
    let (tell, told) = mpsc::channel();
    let run = move || match nexus.endpoint(config) {
        Err(error) => drop(tell.send(Err(cannot_start(&error)))),
        Ok(mut endpoint) => {
            let shared = endpoint.client_shared();
            let driver = Arc::new(Driver::new(endpoint));
            shared.set_driver(Arc::clone(&driver));
            if tell.send(Ok((shared, driver.stop_handle()))).is_err() {
                driver.stop_handle().stop();
            }
            driver.run();
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
    /// Returns the endpoints with data ports for this family, and starts missing ones.
    fn running(&self, family: Family) -> Result<MutexGuard<'_, Vec<Running>>, Error> {
        let address = self.data_address(family);
        // A configured address is for all clients.
        let mut running = lock(&self.endpoints[usize::from(address.is_some())]);
        if running.is_empty() {
            let mut config = self.settings.endpoint.clone();
            if address.is_some() {
                // The wanted number may belong to the endpoints of the other family.
                (config.id, config.data_address) = (None, address);
            }
            let start = |number| start_thread(number, self.nexus.clone(), config.clone());
            for number in 0..self.settings.threads {
                match start(number) {
                    Ok(one) => running.push(one),
                    Err(error) => {
                        stop(&mut running);
                        return Err(error);
                    }
                }
            }
        }
        assert_eq!(running.len(), self.settings.threads, "each thread of clients has begun");
        Ok(running)
    }

    /// Returns the address of a data port for this family, unless the settings determine it. Other hosts reach the port
    /// only if they would reach an IPv4 port.
    fn data_address(&self, family: Family) -> Option<IpAddr> {
        let Self { settings, nexus, .. } = self;
        let is_set = settings.endpoint.data_address.is_some() || nexus.local_addr().is_some();
        if is_set || family == Family::V4 {
            return None;
        }
        let is_near = nexus.data_address().is_loopback();
        Some(if is_near { Ipv6Addr::LOCALHOST } else { Ipv6Addr::UNSPECIFIED }.into())
    }

    fn are_running(&self) -> bool {
        let is_open = |(endpoint, _): &Running| endpoint.is_open();
        self.endpoints.iter().all(|endpoints| lock(endpoints).iter().all(is_open))
    }
}

fn stop(endpoints: &mut Vec<Running>) {
    endpoints.drain(..).for_each(|(_, stop)| stop.stop());
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.endpoints.iter().for_each(|endpoints| stop(&mut lock(endpoints)));
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize =
            self.threads.endpoints.iter().map(|endpoints| lock(endpoints).len()).sum();
        write!(f, "Background({count} threads)")
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::endpoint::EndpointId;

    #[test]
    fn shared__is_another_when_its_thread_has_ended() {
        // No other test here has clients of insecure networks.
        let shared = || Background::shared((true, false), Family::V4).unwrap();
        let first = shared();
        assert!(Arc::ptr_eq(&shared().threads, &first.threads));
        first.threads.running(Family::V4).unwrap()[0].1.stop();
        while first.threads.are_running() {
            thread::yield_now();
        }
        let second = shared();
        assert!(second.threads.are_running() && !Arc::ptr_eq(&second.threads, &first.threads));
        assert!(Arc::ptr_eq(&shared().threads, &second.threads));
    }

    #[test]
    fn next_endpoint__takes_turns_from_the_first() {
        let background = Background::builder().threads(3).start().unwrap();
        let number_of = |endpoint: &Arc<ClientShared>| {
            let all = background.threads.running(Family::V4).unwrap();
            all.iter().position(|(one, _)| Arc::ptr_eq(one, endpoint)).unwrap()
        };
        let next = || background.next_endpoint(Family::V4).unwrap();
        let turns: Vec<_> = (0..5).map(|_| number_of(&next())).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
    }
    #[test]
    fn family__is_ipv6_where_no_server_has_another_address() {
        let of = |servers: &[&str]| {
            let server = |text: &&str| Target::from(text.parse::<SocketAddr>().unwrap());
            Family::of(&servers.iter().map(server).collect::<Vec<_>>())
        };
        for v4 in [&["127.0.0.1:1"][..], &["[::1]:1", "10.0.0.1:1"], &["[::ffff:10.0.0.1]:1"]] {
            assert_eq!(of(v4), Family::V4, "{v4:?}");
        }
        assert_eq!(of(&["[::1]:1", "[2001:db8::1]:1"]), Family::V6);
    }

    /// A port is reachable from other hosts only if the network is declared trusted.
    #[test]
    fn data_address__is_of_loopback_unless_the_network_is_trusted() {
        let addresses = |nexus: NexusBuilder, data_address| {
            let endpoint = EndpointConfig { data_address, ..Default::default() };
            let background = Background::builder().nexus(nexus).endpoint(endpoint).start().unwrap();
            let address = |family| background.threads.data_address(family);
            (background.threads.nexus.data_address(), address(Family::V4), address(Family::V6))
        };
        let (v4, v6) = (IpAddr::V4, |ip| Some(IpAddr::V6(ip)));
        let near = (v4(Ipv4Addr::LOCALHOST), None, v6(Ipv6Addr::LOCALHOST));
        assert_eq!(addresses(Nexus::builder(), None), near);
        let far = (v4(Ipv4Addr::UNSPECIFIED), None, v6(Ipv6Addr::UNSPECIFIED));
        assert_eq!(addresses(Nexus::builder().insecure(), None), far);
        // A configured address is the same for all.
        let set = Some(v4(Ipv4Addr::LOCALHOST));
        assert_eq!(addresses(Nexus::builder(), set), (v4(Ipv4Addr::LOCALHOST), None, None));
        let listens = Nexus::builder().listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_eq!(addresses(listens, None), (v4(Ipv4Addr::LOCALHOST), None, None));
    }

    /// Clients of both families side by side with the same settings, including the endpoint's number.
    #[test]
    fn next_endpoint__is_one_of_the_servers_family() {
        let endpoint = EndpointConfig { id: Some(EndpointId(3)), ..Default::default() };
        let background = Background::builder().endpoint(endpoint).start().unwrap();
        let next = |family| background.next_endpoint(family).unwrap();
        assert_eq!(format!("{background:?}"), "Background(1 threads)");
        if std::net::UdpSocket::bind("[::1]:0").is_err() {
            return petrel_skip::skip(petrel_skip::Need::Ipv6, "this host has no IPv6 loopback");
        }
        assert!(!Arc::ptr_eq(&next(Family::V4), &next(Family::V6)));
        assert!(Arc::ptr_eq(&next(Family::V6), &next(Family::V6)));
        assert_eq!(format!("{background:?}"), "Background(2 threads)");
    }
}
