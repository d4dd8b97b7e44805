//! Replicas on threads of the process, with a nexus each, and a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use petrel::endpoint::EndpointConfig;
use petrel::task::Handle;
use petrel::{Endpoint, Nexus};
use petrel_kv::api::{MemberKind, Role, Status};
use petrel_kv::client::{KvClient, KvClientConfig, Put};
use petrel_kv::persist::{Batch, Checkpoint, LogFailure, LogStore, Volatile};
use petrel_kv::{ReadMode, Replica, ReplicaConfig};

/// Timeout of the tests, far longer than any step takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// A client with an endpoint.
pub(crate) struct TestClient {
    endpoint: Endpoint,
    pub(crate) client: KvClient,
}

impl TestClient {
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let mut config = KvClientConfig::default();
        config.timeout = TEST_TIMEOUT;
        Self::with_config(addresses, config)
    }

    pub(crate) fn with_config(
        addresses: impl IntoIterator<Item = SocketAddr>,
        config: KvClientConfig,
    ) -> Self {
        let nexus = Nexus::builder().start().unwrap();
        let mut endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
        let on = |named, config| endpoint.client(named, config);
        let client = KvClient::on(addresses, config, on).unwrap();
        Self { endpoint, client }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.endpoint.handle()
    }

    /// Runs an operation with the client.
    pub(crate) fn run<R>(&mut self, operation: impl AsyncFnOnce(KvClient) -> R) -> R {
        let client = self.client.clone();
        self.endpoint.block_on(operation(client))
    }

    /// Runs the event loop until `holds` returns true.
    pub(crate) fn run_until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        self.endpoint.run_until(|_, _| holds() || begin.elapsed() > TEST_TIMEOUT);
        assert!(holds(), "{what} in {TEST_TIMEOUT:?}");
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Put {
        self.run(async |client| client.put(key, value).await.unwrap())
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.run(async |client| client.get(key).await.unwrap().map(|value| value.to_vec()))
    }
}

/// Settings that tests change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// 0 for the default.
    pub(crate) log_entries_max: usize,
    pub(crate) has_leases: bool,
    /// 0 for the defaults.
    pub(crate) history_bytes_max: usize,
    pub(crate) watchers_max: usize,
    /// Whether replicas acknowledge only what their disks have.
    pub(crate) has_disks: bool,
}

/// A disk that syncs at once, unless its node's disk is stuck.
struct TestDisk {
    node: u16,
    stuck: Arc<AtomicU16>,
    last: u64,
    durable: u64,
}

impl LogStore for TestDisk {
    fn is_volatile(&self) -> bool {
        false
    }

    fn write(&mut self, batch: Batch) {
        self.last = batch.number;
    }

    fn checkpoint(&mut self, _: Checkpoint) {}

    fn durable(&mut self) -> Result<u64, LogFailure> {
        if self.stuck.load(Ordering::Relaxed) != self.node {
            self.durable = self.last;
        }
        Ok(self.durable)
    }

    fn set_waker(&mut self, _: std::task::Waker) {}
}

pub(crate) struct Cluster {
    addresses: Vec<SocketAddr>,
    nodes: Vec<Option<Node>>,
    options: Options,
    /// The node whose disk is stuck; 0 for none.
    stuck: Arc<AtomicU16>,
    seed: u64,
}

struct Node {
    ask: Sender<Sender<View>>,
    thread: JoinHandle<()>,
}

/// The state of a replica.
pub(crate) struct View {
    pub(crate) status: Status,
    pub(crate) digest: Option<(u64, u64)>,
}

impl Cluster {
    pub(crate) fn start(count: usize, options: Options) -> Self {
        let addresses = free_addresses(count);
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { addresses, nodes, options, stuck: Arc::default(), seed: 1 };
        (0..count).for_each(|place| cluster.restart(place));
        cluster
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Ends a replica abruptly. Its state is lost.
    pub(crate) fn kill(&mut self, place: usize) {
        let Node { ask, thread } = self.nodes[place].take().expect("it runs");
        drop(ask);
        thread.join().expect("the replica did not panic");
    }

    /// Lets the disk of a replica sync nothing any more.
    pub(crate) fn stick(&self, place: usize) {
        self.stuck.store(place as u16 + 1, Ordering::Relaxed);
    }

    /// Starts another machine with the number of a killed one, at a new address.
    pub(crate) fn replace(&mut self, place: usize) {
        self.addresses[place] = free_addresses(1)[0];
        self.restart(place);
    }

    /// Returns the address of a further node, not yet started.
    pub(crate) fn reserve(&mut self) -> SocketAddr {
        let address = free_addresses(1)[0];
        self.addresses.push(address);
        self.nodes.push(None);
        address
    }

    pub(crate) fn restart(&mut self, place: usize) {
        self.seed += 1;
        let peers = (1..).zip(self.addresses.iter().copied()).collect();
        let node = place as u16 + 1;
        let mut config = ReplicaConfig::new(node, self.addresses[place], peers, self.seed << 32);
        // On a busy machine, threads may be paused for long.
        config.election = Duration::from_secs(1);
        if self.options.log_entries_max > 0 {
            config.log_entries_max = self.options.log_entries_max;
            config.log_entries_kept = self.options.log_entries_max / 4;
        }
        if self.options.history_bytes_max > 0 {
            config.history_bytes_max = self.options.history_bytes_max;
        }
        if self.options.watchers_max > 0 {
            config.watchers_max = self.options.watchers_max;
        }
        if self.options.has_leases {
            config.reads = ReadMode::Lease;
        }
        let (ask, asked) = channel();
        let stuck = Arc::clone(&self.stuck);
        let disk = TestDisk { node, stuck, last: 0, durable: 0 };
        let has_disks = self.options.has_disks;
        let thread = std::thread::spawn(move || match has_disks {
            true => run(config, Box::new(disk), &asked),
            false => run(config, Box::<Volatile>::default(), &asked),
        });
        self.nodes[place] = Some(Node { ask, thread });
    }

    /// The state of a replica, if it runs.
    pub(crate) fn view(&self, place: usize) -> Option<View> {
        let (tell, told) = channel();
        self.nodes[place].as_ref()?.ask.send(tell).expect("the replica runs");
        Some(told.recv().expect("the replica answers"))
    }

    fn views(&self) -> Vec<(usize, View)> {
        let view = |place| Some((place, self.view(place)?));
        (0..self.nodes.len()).filter_map(view).collect()
    }

    /// Waits until the running replicas agree on the leader.
    pub(crate) fn wait_for_leader(&self) -> usize {
        loop {
            let views = self.views();
            let leads = |view: &View| view.status.role == Role::Leader;
            let leader = views.iter().find(|(_, view)| leads(view));
            if let Some((place, view)) = leader
                && views.iter().all(|(_, other)| other.status.leader == Some(view.status.raft_id))
            {
                return *place;
            }
            std::thread::yield_now();
        }
    }

    /// Waits until all running replicas have applied the same entries.
    pub(crate) fn wait_for_equal_digests(&self) {
        let all_equal = || {
            let digests: Vec<_> = self.views().iter().map(|(_, view)| view.digest).collect();
            digests.iter().all(|digest| digest.is_some() && *digest == digests[0])
        };
        while !all_equal() {
            std::thread::yield_now();
        }
    }

    /// Waits until the cluster has `count` voters, including the present replica of this place.
    pub(crate) fn wait_for_voters(&self, count: usize, place: usize) {
        let is_so = || {
            let own = self.view(place)?.status.raft_id;
            let leads = |view: &(usize, View)| view.1.status.role == Role::Leader;
            let (_, leader) = self.views().into_iter().find(leads)?;
            let voters: Vec<_> = leader
                .status
                .members
                .iter()
                .filter(|member| member.kind == MemberKind::Voter)
                .map(|member| member.raft_id)
                .collect();
            (voters.len() == count && voters.contains(&own)).then_some(())
        };
        while is_so().is_none() {
            std::thread::yield_now();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().filter_map(Option::take) {
            drop(node.ask);
            // A replica's panic has already failed the test.
            let _ = node.thread.join();
        }
    }
}

fn run(config: ReplicaConfig, disk: Box<dyn LogStore>, asked: &Receiver<Sender<View>>) {
    let nexus = Nexus::builder().listen(config.address).start().expect("the address is free");
    let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
    let replica =
        Replica::start(&mut endpoint, config, disk, None).expect("the settings are right");
    let stop = || match asked.try_recv() {
        Ok(tell) => {
            let view = View { status: replica.status(), digest: replica.digest() };
            // The asking thread may have given up.
            let _ = tell.send(view);
            false
        }
        Err(error) => error == std::sync::mpsc::TryRecvError::Disconnected,
    };
    replica.run(&mut endpoint, stop).expect("the replica goes on");
}

/// Addresses of this process alone, returned only once. The ports are below the system's own range, because the system
/// could assign a freed port to another test before its use here.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let [_, b, c, d] = std::process::id().to_be_bytes();
    let host = std::net::Ipv4Addr::new(127, b, c, d.max(1));
    (0..count).map(|_| (host, NEXT.fetch_add(1, Ordering::Relaxed)).into()).collect()
}
