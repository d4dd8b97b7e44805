//! Streams of typed services under faults: each ends once at both ends, and its messages are a prefix, in order.
//!
//! `PETREL_STREAM_SEEDS=10000` runs as many seeds, from `PETREL_STREAM_SEED` on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use petrel::client::ClientConfig;
use petrel::endpoint::EndpointConfig;
use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};
use petrel::task::Handle;
use petrel::{Error, Status};
use petrel_sim::control::{ControlConfig, ControlNetwork, CrashKind};
use petrel_sim::fabric::{
    Action, ActorId, FabricHandle, FaultPlan, HostId, LinkConfig, SwitchConfig,
};
use petrel_sim::{
    Probability, Rng, SimEndpoint, SimTransportConfig, Simulation, World as _, start_endpoint,
};

/// Seeds of a usual run.
const SEEDS: u64 = 80;
const MS: u64 = 1_000_000;

/// Streams of a client.
const STREAMS: u32 = 12;

/// When faults end, and when every stream has ended.
const FAULTS_NS: u64 = 120 * MS;
const LIMIT_NS: u64 = 30_000 * MS;

#[petrel::service(codec = Raw)]
trait Feed {
    /// Sends the number of messages that the request asks for.
    async fn watch(&self, cx: &Ctx, request: Vec<u8>, out: Sender<Vec<u8>>) -> Result<(), Error>;
    /// Counts messages.
    async fn load(
        &self,
        cx: &Ctx,
        request: Vec<u8>,
        rows: Receiver<Vec<u8>>,
    ) -> Result<Vec<u8>, Error>;
    /// Returns messages.
    async fn talk(
        &self,
        cx: &Ctx,
        request: Vec<u8>,
        input: Receiver<Vec<u8>>,
        output: Sender<Vec<u8>>,
    ) -> Result<(), Error>;
}

/// The records of both ends of all streams.
#[derive(Debug, Default)]
struct Ledger {
    /// Handlers that have begun, and that run, by stream.
    begun: BTreeMap<u32, u32>,
    runs: BTreeMap<u32, u64>,
    /// Messages that the handler has sent when it returned without an error.
    done: BTreeMap<u32, u32>,
    /// The ends at clients.
    ended: BTreeMap<u32, Result<(), Status>>,
    messages: u64,
}

type Shared = Rc<RefCell<Ledger>>;

/// The handlers of a process.
struct Server {
    ledger: Shared,
    process: u64,
}

/// A handler that runs.
struct Running(Shared, u32);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.borrow_mut().runs.remove(&self.1);
    }
}

impl Server {
    /// Notes that a handler has begun. Returns the number of messages asked for, and the pause between them.
    fn begin(&self, request: &[u8]) -> (Running, u32, u64) {
        let word = |at: usize| u32::from_le_bytes(request[4 * at..4 * at + 4].try_into().unwrap());
        let (id, mut ledger) = (word(0), self.ledger.borrow_mut());
        let begun = ledger.begun.entry(id).or_default();
        *begun += 1;
        assert_eq!(*begun, 1, "the handler of stream {id} begins once");
        ledger.runs.insert(id, self.process);
        (Running(Rc::clone(&self.ledger), id), word(1), word(2).into())
    }
}

impl Feed for Server {
    async fn watch(
        &self,
        cx: &Ctx,
        request: Vec<u8>,
        mut out: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        let (running, count, pause_ns) = self.begin(&request);
        for number in 0..count {
            out.send(message(number)).await?;
            if pause_ns > 0 {
                cx.handle().sleep(Duration::from_nanos(pause_ns)).await;
            }
        }
        self.ledger.borrow_mut().done.insert(running.1, count);
        Ok(())
    }

    async fn load(
        &self,
        _: &Ctx,
        request: Vec<u8>,
        mut rows: Receiver<Vec<u8>>,
    ) -> Result<Vec<u8>, Error> {
        let (running, ..) = self.begin(&request);
        let mut count = 0;
        while let Some(row) = rows.next().await {
            assert_eq!(row?, message(count), "rows come in order, once");
            count += 1;
        }
        self.ledger.borrow_mut().done.insert(running.1, 1);
        Ok(count.to_le_bytes().to_vec())
    }

    async fn talk(
        &self,
        _: &Ctx,
        request: Vec<u8>,
        mut input: Receiver<Vec<u8>>,
        mut output: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        let (running, ..) = self.begin(&request);
        let mut count = 0;
        while let Some(line) = input.next().await {
            let line = line?;
            assert_eq!(line, message(count), "lines come in order, once");
            output.send(line).await?;
            count += 1;
        }
        self.ledger.borrow_mut().done.insert(running.1, count);
        Ok(())
    }
}

/// A message, of a length by its number: some are longer than a piece.
fn message(number: u32) -> Vec<u8> {
    let len = match number % 64 {
        63 => 70_000,
        other => 4 + other as usize * 9 % 200,
    };
    let mut bytes = vec![number as u8; len];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A stream of a client, as drawn.
#[derive(Clone, Copy, Debug)]
struct Errand {
    id: u32,
    kind: u64,
    count: u32,
    pause_ns: u32,
    timeout_ns: Option<u64>,
    /// Messages after which the client drops the stream.
    drop_after: Option<u32>,
}

impl Errand {
    fn draw(rng: &mut Rng, id: u32) -> Self {
        Self {
            id,
            kind: rng.below(3),
            count: rng.below(300) as u32,
            pause_ns: if rng.below(2) == 0 { 0 } else { rng.below(MS) as u32 },
            timeout_ns: (rng.below(3) == 0).then(|| rng.between(MS, 100 * MS)),
            drop_after: (rng.below(5) == 0).then(|| rng.below(50) as u32),
        }
    }

    fn request(&self) -> Vec<u8> {
        [self.id, self.count, self.pause_ns].map(u32::to_le_bytes).concat()
    }

    /// Runs the stream to its end. Returns how it ended, and the messages received.
    async fn run(self, client: &FeedClient, handle: &Handle) -> Result<u32, (Error, u32)> {
        let none = |error| (error, 0);
        match self.kind {
            0 => {
                let call = self.limited(client.watch(self.request()));
                receive(call.start().await.map_err(none)?, self.drop_after).await
            }
            1 => {
                let call = self.limited(client.load(self.request()));
                let (rows, reply) = call.start().await.map_err(none)?;
                self.send(rows, handle).await;
                let reply = reply.await.map_err(none)?;
                assert_eq!(reply, self.count.to_le_bytes(), "all rows were counted");
                Ok(1)
            }
            _ => {
                let call = self.limited(client.talk(self.request()));
                let (input, output) = call.start().await.map_err(none)?;
                let mut sending = pin!(self.send(input, handle));
                let mut receiving = pin!(receive(output, self.drop_after));
                let mut is_sending = true;
                poll_fn(|cx| {
                    if is_sending && sending.as_mut().poll(cx).is_ready() {
                        is_sending = false;
                    }
                    receiving.as_mut().poll(cx)
                })
                .await
            }
        }
    }

    fn limited<T>(&self, call: petrel::stream::StreamCall<T>) -> petrel::stream::StreamCall<T> {
        match self.timeout_ns {
            Some(ns) => call.timeout(Duration::from_nanos(ns)),
            None => call,
        }
    }

    /// Sends all messages, or those up to the end of the stream.
    async fn send(&self, mut rows: Sender<Vec<u8>>, handle: &Handle) {
        for number in 0..self.count {
            if rows.send(message(number)).await.is_err() {
                return;
            }
            if self.pause_ns > 0 {
                handle.sleep(Duration::from_nanos(self.pause_ns.into())).await;
            }
        }
    }
}

/// Receives messages up to the end, or drops the stream earlier.
async fn receive(
    mut messages: Receiver<Vec<u8>>,
    drop_after: Option<u32>,
) -> Result<u32, (Error, u32)> {
    let mut count = 0;
    while drop_after != Some(count) {
        match messages.next().await {
            Some(Ok(bytes)) => assert_eq!(bytes, message(count), "messages come in order, once"),
            Some(Err(error)) => {
                assert!(messages.next().await.is_none(), "a stream ends once");
                return Err((error, count));
            }
            None => return Ok(count),
        }
        count += 1;
    }
    Err((Error::new(Status::Cancelled, "dropped"), count))
}

/// A server on the first host, and clients on the others.
struct World {
    fabric: FabricHandle,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    ledger: Shared,
    seed: u64,
    processes: u64,
    /// The kinds of the crashes to come.
    crash: CrashKind,
    server: Option<ActorId>,
}

impl World {
    fn new(seed: u64) -> Self {
        let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), seed);
        let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(seed));
        let simulation = Simulation::new(fabric.clone());
        let (ledger, crash) = (Shared::default(), CrashKind::draw(&mut Rng::stream(seed, 3, 0)));
        let processes = 0;
        let mut world =
            Self { fabric, control, simulation, ledger, seed, processes, crash, server: None };
        [H0, H1, H2].into_iter().for_each(|host| world.start(host));
        world
    }

    /// Starts the process of a host. A client's process has its errands, unless it comes back after a crash.
    fn start(&mut self, host: HostId) {
        let is_first = self.processes < 3;
        self.processes += 1;
        self.control.start_process(host);
        let rng = Rng::stream(self.seed, 1, self.processes as u32);
        let mut config = EndpointConfig::default();
        config.memory.poison = true;
        config.protocol.fast_path = !self.seed.is_multiple_of(3);
        let settings = SimTransportConfig::default();
        let (fabric, control) = (&self.fabric, &self.control);
        let started = start_endpoint(fabric, control, addr(host), settings, rng, &config);
        let mut endpoint = started.unwrap();
        if host == H0 {
            let ledger = Rc::clone(&self.ledger);
            endpoint.serve(FeedServer::new(Server { ledger, process: self.processes }));
        } else if is_first {
            self.begin_errands(host, &mut endpoint);
        }
        let actor = self.simulation.spawn(addr(host), Node(endpoint));
        if host == H0 {
            self.server = Some(actor);
        }
    }

    fn begin_errands(&self, host: HostId, endpoint: &mut SimEndpoint) {
        let mut rng = Rng::stream(self.seed, 2, host.0.into());
        let to = ControlNetwork::address_of(H0);
        let client = FeedClient::new(endpoint.client([to], ClientConfig::default()));
        let handle = endpoint.handle();
        for number in 0..STREAMS {
            let errand = Errand::draw(&mut rng, u32::from(host.0) * 1_000 + number);
            let begin_ns = rng.below(FAULTS_NS);
            let (client, own, ledger) = (client.clone(), handle.clone(), Rc::clone(&self.ledger));
            let run = async move {
                own.sleep(Duration::from_nanos(begin_ns)).await;
                let outcome = errand.run(&client, &own).await;
                let mut ledger = ledger.borrow_mut();
                let (end, received) = match outcome {
                    Ok(received) => (Ok(()), received),
                    Err((error, received)) => (Err(error.status), received),
                };
                ledger.messages += u64::from(received);
                if end.is_ok() {
                    let done = ledger.done.get(&errand.id);
                    assert_eq!(done, Some(&received), "{errand:?} ended well");
                }
                let before = ledger.ended.insert(errand.id, end);
                assert_eq!(before, None, "a stream ends once");
            };
            drop(handle.spawn(run));
        }
    }

    /// Draws faults of packets, and crashes, partitions and a drain.
    fn fault(&mut self) {
        let rng = &mut Rng::stream(self.seed, 4, 0);
        let mut some = |per_million| Probability::per_million(rng.below(per_million) as u32);
        let plan = FaultPlan {
            loss: some(20_000),
            duplicate: some(50_000),
            reorder: some(100_000),
            duplicate_within_ns: MS,
            reorder_within_ns: 50_000,
            ..FaultPlan::NONE
        };
        self.fabric.set_faults(plan);
        for _ in 0..rng.below(4) {
            let at_ns = rng.below(FAULTS_NS);
            let host = HostId(rng.below(3) as u16);
            let down_ns = rng.between(MS, 40 * MS);
            let for_ns = rng.between(MS, 60 * MS);
            let action = match rng.below(3) {
                0 => Action::Crash { host, down_ns },
                1 => Action::Pause { host, for_ns },
                _ => {
                    let (from, to) = (vec![host], vec![HostId((host.0 + 1) % 3)]);
                    Action::Partition { from, to, one_way: rng.below(2) == 0, for_ns }
                }
            };
            self.fabric.schedule(at_ns, action);
        }
    }

    /// Returns true when the errands of clients that have not crashed have ended, and no handler of the server runs.
    fn is_over(&self) -> bool {
        let ledger = self.ledger.borrow();
        let alive = [H1, H2].into_iter().filter(|host| self.is_first(*host));
        let all = alive
            .flat_map(|host| (0..STREAMS).map(move |number| u32::from(host.0) * 1_000 + number));
        all.into_iter().all(|id| ledger.ended.contains_key(&id)) && ledger.runs.is_empty()
    }

    /// Returns true if the first process of a host runs.
    fn is_first(&self, host: HostId) -> bool {
        self.simulation.actor(ActorId(host.0.into())).is_some()
    }
}

impl petrel_sim::World for World {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.control.clone()
    }

    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Node)>) {
        self.control.stop_process(host, self.crash);
        drop(dead);
    }

    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        self.start(host);
        Ok(())
    }
}

/// Runs a world to its end. Returns the digest of its packets, and the ledger.
fn run(seed: u64) -> (u64, Shared) {
    let mut world = World::new(seed);
    world.fault();
    let drain_ns = Rng::stream(seed, 5, 0).below(4 * FAULTS_NS);
    if drain_ns < FAULTS_NS {
        world.run_for(drain_ns).unwrap();
        let server = world.server.expect("it has started");
        if let Some(node) = world.simulation.actor_mut(server) {
            node.0.begin_drain();
            world.simulation.wake(server);
        }
    }
    world.run_to(FAULTS_NS).unwrap();
    world.fabric.set_faults(FaultPlan::NONE);
    world.fabric.apply(Action::HealAll);
    let is_over = world.run_until(LIMIT_NS, std::iter::repeat(5 * MS), |world| Ok(world.is_over()));
    assert!(is_over.unwrap(), "seed {seed}: {:?}", world.ledger.borrow());
    (world.fabric.digest(), world.ledger)
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, usual: u64| match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")),
        Err(_) => usual,
    };
    let first = number("PETREL_STREAM_SEED", 0);
    first..first + number("PETREL_STREAM_SEEDS", SEEDS)
}

#[test]
fn streams__end_once_at_both_ends_with_a_prefix_of_their_messages() {
    let (mut ended, mut messages) = (BTreeMap::<_, u64>::new(), 0);
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| run(seed));
        let (_, ledger) = run.unwrap_or_else(|_| panic!("PETREL_STREAM_SEED={seed} repeats it"));
        let ledger = ledger.borrow();
        messages += ledger.messages;
        ledger.ended.values().for_each(|end| *ended.entry(*end).or_default() += 1);
    }
    println!("{messages} messages; {ended:?}");
    // Faults end streams, and most end well.
    let count = |end| ended.get(&end).copied().unwrap_or(0);
    let well = count(Ok(()));
    assert!(well > seeds().count() as u64, "{ended:?}");
    for status in [Status::Unavailable, Status::DeadlineExceeded, Status::Cancelled] {
        assert!(count(Err(status)) > 0, "{status:?}: {ended:?}");
    }
}

#[test]
fn a_seed__gives_the_same_packets_again() {
    assert_eq!(run(3).0, run(3).0);
}
