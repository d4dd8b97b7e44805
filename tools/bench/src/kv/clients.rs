//! The store's own client, as applications use it: on the endpoint's thread, and from another thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use petrel::Endpoint;
use petrel::client::wait;
use petrel_command::failure::Failure;
use petrel_kv::client::{KvClient, KvClientConfig, KvError};
use petrel_sim::Rng;

use super::cluster::Cluster;
use super::workload::{Counts, Kind, is_next, is_value_of, key_of, value_of};

pub(super) struct Clients {
    clients: Vec<KvClient>,
    keys: u64,
    /// Windows so far: every window draws other keys.
    windows: u64,
}

/// The state that the operations of one window share.
struct Window {
    kind: Kind,
    keys: u64,
    end: Instant,
    under_way: Cell<usize>,
    counts: RefCell<Counts>,
    failure: RefCell<Option<KvError>>,
}

impl Clients {
    /// Creates the clients, and makes all of them put once, to learn the leader and open their sessions.
    pub(super) fn connect(
        endpoint: &mut Endpoint,
        cluster: &Cluster,
        count: usize,
        keys: u64,
    ) -> Result<Self, Failure> {
        let client = |_| {
            let (addresses, config) = (cluster.addresses.clone(), KvClientConfig::default());
            KvClient::on(addresses, config, |named, config| endpoint.client(named, config))
        };
        let clients = (0..count).map(client).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        for client in &clients {
            let key = key_of(0);
            endpoint.block_on(client.put(&key, &value_of(&key, 0))).map_err(failed)?;
        }
        Ok(Self { clients, keys, windows: 0 })
    }

    /// Keeps `count` operations in flight for the length of a window.
    pub(super) fn run(
        &mut self,
        endpoint: &mut Endpoint,
        kind: Kind,
        count: usize,
        window: Duration,
    ) -> Result<Counts, Failure> {
        self.windows += 1;
        if kind == Kind::RemotePut {
            return self.run_remote(endpoint, count, window);
        }
        let begin = Instant::now();
        let window = Rc::new(Window {
            kind,
            keys: self.keys,
            end: begin + window,
            under_way: Cell::new(count),
            counts: RefCell::default(),
            failure: RefCell::default(),
        });
        for number in 0..count {
            let client = match kind {
                Kind::OneClientPut | Kind::OneClientGet => self.clients[0].clone(),
                _ => self.clients[number].clone(),
            };
            let rng = Rng::stream(self.windows, number as u32, 0);
            endpoint.handle().spawn(Rc::clone(&window).operate(client, rng));
        }
        endpoint.run_until(|_, _| window.under_way.get() == 0);
        if let Some(error) = window.failure.take() {
            return Err(failed(error));
        }
        let mut counts = window.counts.take();
        counts.elapsed = begin.elapsed();
        Ok(counts)
    }

    fn run_remote(
        &self,
        endpoint: &mut Endpoint,
        count: usize,
        window: Duration,
    ) -> Result<Counts, Failure> {
        let (client, keys) = (self.clients[0].clone(), self.keys);
        let rng = Rng::stream(self.windows, 0, 1);
        let stop = endpoint.stop_handle();
        let thread = thread::spawn({
            let stop = stop.clone();
            move || {
                let counts = put_remotely(&client, count, window, keys, rng);
                stop.stop();
                counts
            }
        });
        endpoint.run(&stop);
        let counts = thread.join().map_err(|_| Failure::because("a thread has panicked"))?;
        counts.map_err(failed)
    }
}

impl Window {
    /// Runs one operation after the other.
    async fn operate(self: Rc<Self>, client: KvClient, mut rng: Rng) {
        let mut revision = 0;
        let mut now = Instant::now();
        while now < self.end && self.failure.borrow().is_none() {
            let key = key_of(rng.below(self.keys));
            let outcome = match self.kind {
                Kind::Get | Kind::OneClientGet => client
                    .get(&key)
                    .await
                    .map(|value| value.is_some_and(|value| is_value_of(&key, &value))),
                _ => client
                    .put(&key, &value_of(&key, 7))
                    .await
                    .map(|put| is_next(put, &mut revision)),
            };
            let end = Instant::now();
            match outcome {
                Ok(is_right) => self.counts.borrow_mut().note(end - now, is_right),
                Err(error) => *self.failure.borrow_mut() = Some(error),
            }
            now = end;
        }
        self.under_way.set(self.under_way.get() - 1);
    }
}

/// Keeps `count` puts in flight, from a thread other than the endpoint's.
fn put_remotely(
    client: &KvClient,
    count: usize,
    window: Duration,
    keys: u64,
    rng: Rng,
) -> Result<Counts, KvError> {
    let begin = Instant::now();
    let (rng, counts) = (RefCell::new(rng), RefCell::new(Counts::default()));
    let client_loop = async || {
        let mut revision = 0;
        while begin.elapsed() < window {
            let key = key_of(rng.borrow_mut().below(keys));
            let begun = Instant::now();
            let put = client.put(&key, &value_of(&key, 7)).await?;
            let is_right = is_next(put, &mut revision);
            counts.borrow_mut().note(begun.elapsed(), is_right);
        }
        Ok(())
    };
    wait(try_join_all((0..count).map(|_| client_loop())))?;
    let mut counts = counts.into_inner();
    counts.elapsed = begin.elapsed();
    Ok(counts)
}

fn failed(error: KvError) -> Failure {
    Failure::because(error)
}
