//! The cost of the client beyond the call: puts by [`KvClient`], and equal bytes by [`petrel::task::Session::start`],
//! to a server with immediate answers.
//!
//! Both ends run on a single thread and never wait. The difference between the times is therefore the client's.
//!
//! ```sh
//! cargo bench --locked -p petrel-kv --bench client
//! ```
//!
//! With arguments, `start 20000` or `put 20000`, the program makes this number of calls and prints nothing. Two runs
//! under `valgrind --tool=callgrind` yield the instructions of a call: the difference of their counts divided by the
//! difference of their calls.

use std::future::Future;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use petrel::endpoint::EndpointConfig;
use petrel::task::Handle;
use petrel::{Endpoint, Nexus};
use petrel_kv::api::{Applied, Outcome, Role, Status, WriteReply, methods};
use petrel_kv::client::{KvClient, KvClientConfig};
use petrel_kv::command::{Command, Op};

const KEY: &[u8] = &[7; 16];
const VALUE: &[u8] = &[9; 64];

/// Calls of a measurement, and measurements of every kind. The kinds alternate, because then load on the machine
/// affects both equally.
const CALLS: u32 = 20_000;
const ROUNDS: usize = 11;

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let mut ends = Ends::new();
    match &arguments[..] {
        [kind, calls] => {
            let calls = calls.parse().expect("a number of calls");
            match kind.as_str() {
                "start" => drop(ends.start(calls)),
                "put" => drop(ends.put(calls)),
                _ => panic!("start or put"),
            }
        }
        _ => print(&mut ends),
    }
}

fn print(ends: &mut Ends) {
    let (mut starts, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        starts.push(ends.start(CALLS));
        puts.push(ends.put(CALLS));
    }
    let (start, put) = (median_ns(&mut starts), median_ns(&mut puts));
    println!("Session::start      {start:7.1} ns, both ends on one thread");
    println!("KvClient::put       {put:7.1} ns");
    println!("the client's part   {:7.1} ns", put - start);
}

fn median_ns(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / f64::from(CALLS)
}

/// A server and a client.
struct Ends {
    server: Endpoint,
    client: Endpoint,
    handle: Handle,
    address: SocketAddr,
}

impl Ends {
    fn new() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let nexus = Nexus::builder().listen(listen).start().expect("a nexus");
        let address = nexus.local_addr().expect("it listens");
        let mut server = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
        register(&mut server);
        let client = Nexus::builder().start().expect("a nexus");
        let client = client.endpoint(EndpointConfig::default()).expect("an endpoint");
        let handle = client.handle();
        Self { server, client, handle, address }
    }

    /// Runs both ends until the future is ready.
    fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let mut task = std::pin::pin!(self.handle.spawn(future));
        let cx = &mut Context::from_waker(Waker::noop());
        loop {
            self.client.run_once();
            self.server.run_once();
            if let Poll::Ready(result) = task.as_mut().poll(cx) {
                return result;
            }
        }
    }

    fn start(&mut self, calls: u32) -> Duration {
        let (handle, address) = (self.handle.clone(), self.address);
        let session = self.run(async move { handle.connect(address).await }).expect("it is there");
        self.run(async move {
            let op = Op::Put { key: KEY, value: VALUE };
            let request = Command::Write { session: 1, sequence: 1, first_pending: 1, op }.to_vec();
            let begin = Instant::now();
            for _ in 0..calls {
                let reply = session.call(methods::WRITE, &request).await.expect("an answer");
                assert!(matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(_))));
            }
            let elapsed = begin.elapsed();
            session.close();
            elapsed
        })
    }

    fn put(&mut self, calls: u32) -> Duration {
        let client = KvClient::on([self.address], KvClientConfig::default(), |named, config| {
            self.client.client(named, config)
        });
        let client = client.expect("an address");
        self.run(async move {
            client.put(KEY, VALUE).await.expect("an answer");
            let begin = Instant::now();
            for _ in 0..calls {
                client.put(KEY, VALUE).await.expect("an answer");
            }
            begin.elapsed()
        })
    }
}

fn register(server: &mut Endpoint) {
    server.on(methods::WRITE, |_, cx, request| {
        let outcome = match Command::decode(request.data()) {
            Ok(Command::OpenSession) => Outcome::SessionOpened,
            _ => Outcome::Put { replaced: true },
        };
        let mut reply = Vec::with_capacity(16);
        WriteReply::Applied(Applied { index: 1, outcome }).encode(&mut reply);
        request.reply(cx, &reply)
    });
    server.on(methods::STATUS, |_, cx, request| {
        let reply = Status { role: Role::Leader, ..Status::default() }.to_vec();
        request.reply(cx, &reply)
    });
}
