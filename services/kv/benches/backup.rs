//! Saving and restoring beside puts: three replicas on threads, and a second cluster for the restore.
//!
//! ```sh
//! cargo bench --locked -p petrel-kv --bench backup
//! ```
//!
//! prints the times of saves and of a restore of a million keys, and the latency of 10 000 puts a second without and beside
//! each. Two arguments replace both numbers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use petrel::endpoint::EndpointConfig;
use petrel::task::Handle;
use petrel::{Endpoint, Nexus};
use petrel_kv::api::{Consistency, Pair, PairsBuffer};
use petrel_kv::backup::{Head, Reader, Writer};
use petrel_kv::persist::Volatile;
use petrel_kv::{KvClient, KvClientConfig, Replica, ReplicaConfig};

/// Time of a measurement.
const TIME: Duration = Duration::from_secs(5);

/// Time between two groups of puts.
const TICK: Duration = Duration::from_millis(1);

/// The longest latency in the histogram; longer ones count as this value.
const PUT_NS_MAX: u64 = 60_000_000_000;

fn main() {
    let mut numbers = std::env::args().filter_map(|word| word.parse().ok());
    let keys: u64 = numbers.next().unwrap_or(1_000_000);
    let rate: u64 = numbers.next().unwrap_or(10_000);
    let (first, second) = (cluster(), cluster());
    let (mut endpoint, client) = client(&first);
    let begin = Instant::now();
    let written = file(keys);
    endpoint.block_on(restore(&client, &written));
    println!("{keys} keys restored in {:.2?}, without other load", begin.elapsed());

    let load = Load::start(first.clone(), keys, rate);
    std::thread::sleep(TIME / 2);
    load.reset();
    std::thread::sleep(TIME);
    load.print("alone");
    let (begin, mut saves, mut saved) = (Instant::now(), 0, Vec::new());
    while begin.elapsed() < TIME || saves == 0 {
        saved = endpoint.block_on(save(&client));
        saves += 1;
    }
    println!("a save took {:.2?}, of {saves}", begin.elapsed() / saves);
    load.print("beside saves");

    let (mut other, client) = self::client(&second);
    let begin = Instant::now();
    other.block_on(restore(&client, &saved));
    println!("a restore took {:.2?}", begin.elapsed());
    load.print("beside a restore of another cluster");
    let mut scan = client.scan(b"", None);
    let found = other.block_on(async move {
        let mut found = 0;
        while let Some(page) = scan.next_page().await.expect("the cluster serves") {
            found += page.pairs().len() as u64;
        }
        found
    });
    assert_eq!(found, keys, "restored keys");
}

fn key(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

/// A file with this number of keys.
fn file(keys: u64) -> Vec<u8> {
    let head = Head { revision: 1, keys, bytes: keys * 80 };
    let mut writer = Writer::new(Vec::new(), head).expect("a vector takes all bytes");
    let mut buffer = PairsBuffer::default();
    for number in 0..keys {
        buffer.push(&Pair { key: &key(number), revision: 1, value: &[7; 64] });
        if buffer.bytes() > 60_000 || number + 1 == keys {
            writer.add(&buffer.pairs()).expect("keys are in order");
            buffer.clear();
        }
    }
    writer.finish().expect("all keys are there")
}

async fn save(client: &KvClient) -> Vec<u8> {
    let mut save = client.save(Consistency::Linearizable).await.expect("the leader saves");
    let mut writer = Writer::new(Vec::new(), save.head()).expect("a vector takes all bytes");
    while let Some(block) = save.next_block().await.expect("the leader has the save") {
        writer.add(&block.pairs()).expect("keys are in order");
    }
    writer.finish().expect("all keys are there")
}

async fn restore(client: &KvClient, file: &[u8]) {
    let mut reader = Reader::new(file).expect("a file");
    let begun = client.restore(reader.head().revision).await;
    let mut restore = begun.expect("the cluster is empty");
    while let Some(pairs) = reader.next_block().expect("the file is whole") {
        restore.add(pairs.iter()).await.expect("the leader restores");
    }
    restore.finish().await.expect("all keys have arrived");
}

/// Starts three replicas on threads, for as long as the process runs.
fn cluster() -> Vec<SocketAddr> {
    let nexuses: Vec<Nexus> = (0..3)
        .map(|_| {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            Nexus::builder().listen(listen).start().expect("a nexus")
        })
        .collect();
    let addresses: Vec<_> =
        nexuses.iter().map(|nexus| nexus.local_addr().expect("it listens")).collect();
    for (node, nexus) in (1..).zip(nexuses) {
        let (address, peers) = (addresses[usize::from(node) - 1], addresses.clone());
        std::thread::spawn(move || {
            let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
            let peers = (1..).zip(peers).collect();
            let config = ReplicaConfig::new(node, address, peers, u64::from(node));
            let replica = Replica::start(&mut endpoint, config, Box::<Volatile>::default(), None)
                .expect("the settings are right");
            replica.run(&mut endpoint, || false).expect("it goes on");
        });
    }
    addresses
}

fn client(addresses: &[SocketAddr]) -> (Endpoint, KvClient) {
    let nexus = Nexus::builder().start().expect("a nexus");
    let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
    let mut config = KvClientConfig::default();
    config.timeout = Duration::from_secs(60);
    let client = KvClient::on(addresses.iter().copied(), config, |named, config| {
        endpoint.client(named, config)
    });
    (endpoint, client.expect("it has addresses"))
}

/// Puts at a rate, on a thread of its own.
struct Load {
    times: Arc<Mutex<Histogram<u64>>>,
}

impl Load {
    fn start(addresses: Vec<SocketAddr>, keys: u64, rate: u64) -> Self {
        let bounds = Histogram::new_with_bounds(1, PUT_NS_MAX, 2);
        let histogram = bounds.expect("the bounds are right");
        let times = Arc::new(Mutex::new(histogram));
        let into = Arc::clone(&times);
        std::thread::spawn(move || {
            let (mut endpoint, client) = client(&addresses);
            let handle = endpoint.handle();
            endpoint.block_on(put_for_ever(&handle, &client, keys, rate, &into));
        });
        Self { times }
    }

    fn reset(&self) {
        self.times.lock().expect("no thread panics").reset();
    }

    /// Prints the latency since the last call.
    fn print(&self, name: &str) {
        let mut times = self.times.lock().expect("no thread panics");
        let at = |quantile| Duration::from_nanos(times.value_at_quantile(quantile));
        let (count, p50, p99) = (times.len(), at(0.5), at(0.99));
        println!("{count:>8} puts {name}: p50 {p50:.2?}, p99 {p99:.2?}");
        times.reset();
    }
}

/// The latency of a put counts from the moment when it is due.
async fn put_for_ever(
    handle: &Handle,
    client: &KvClient,
    keys: u64,
    rate: u64,
    times: &Arc<Mutex<Histogram<u64>>>,
) {
    let (begin, mut sent) = (Instant::now(), 0);
    loop {
        while sent < begin.elapsed().as_millis() as u64 * rate / 1_000 {
            let due = begin + Duration::from_nanos(sent * 1_000_000_000 / rate);
            let (client, times) = (client.clone(), Arc::clone(times));
            let key = key(sent.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys);
            handle.spawn(async move {
                client.put(&key, &[9; 64]).await.expect("the leader answers");
                let ns = due.elapsed().as_nanos() as u64;
                times.lock().expect("no thread panics").saturating_record(ns);
            });
            sent += 1;
        }
        handle.sleep(TICK).await;
    }
}
