//! The counted program: a client and a server endpoint in one thread, taking turns.
//!
//! Counting covers only [`client_turn`] and [`server_turn`], which callgrind finds by name. The application's part is
//! included: a continuation that checks the reply and makes the next calls, and a handler that answers.

use std::hint::black_box;
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, PathPolicy, SessionId, SessionState};
use petrel::nexus::NexusBuilder;
use petrel::region::{Access, Region, RegionKey, RegionMemory, Regions};
use petrel::task::{Handle, Session};
use petrel::{Client, Context, Endpoint, MsgBuf, Reply};

use super::typed::{Echo, SamplesClient, SamplesServer};

/// Answers with [`sample`] of the request; an echo, if the request is small.
const SAMPLE: u16 = 1;

/// Bytes of a small message, and of every reply.
pub(crate) const SMALL_BYTES: usize = 32;
const LARGE_BYTES: usize = 8 << 20;

/// Timeouts are far off: the program runs some fifty times slower under valgrind, and a timeout would change the count.
/// Any loss ends the run.
const TIMEOUT_NS: u64 = 10_000_000_000;

/// The unit of a row's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Rpc,
    /// A packet of a large request, without the copying of its data.
    Packet,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Rpc => "rpc",
            Unit::Packet => "packet",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Shm,
    Udp,
}

/// The library's interface used for calls and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A function as continuation, and a handler that answers at once: no convenience.
    Function,
    /// A continuation that captures a value.
    Boxed,
    /// A function, with a deadline.
    Deadline,
    /// A future, awaited in a task.
    Future,
    /// A future with a deadline.
    FutureDeadline,
    /// A call of a client, awaited in a task of its endpoint.
    Client,
    /// A call of a typed service, by the same client.
    Typed,
    /// A handler that is a future.
    AsyncHandler,
    /// A handler that gets the requests of a burst together.
    Batch,
    /// READ of a region, which the endpoint executes.
    Read,
}

/// The values of [`Way`] for calls by continuations, as constants: the choice at compile time costs `shm-60` nothing.
const FUNCTION: u8 = 0;
const BOXED: u8 = 1;
const DEADLINE: u8 = 2;
const READ: u8 = 3;

/// Source ports besides the first, in the rows of several paths.
const FURTHER_PORTS: u8 = 3;

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) medium: Medium,
    /// The policy of sessions over four source ports on each side, or `Single` with one port.
    pub(crate) policy: PathPolicy,
    pub(crate) way: Way,
    pub(crate) sessions: usize,
    pub(crate) in_flight: usize,
    /// Calls started together, when as many have ended. Divides `in_flight` and `calls`.
    pub(crate) batch: usize,
    pub(crate) unit: Unit,
    /// Calls of the short run; the long run makes three times as many.
    pub(crate) calls: u64,
}

pub(crate) const WORKLOADS: &[Workload] = &[
    small("shm-60", Medium::Shm, 60, 3),
    small("shm-3", Medium::Shm, 3, 3),
    small("shm-1", Medium::Shm, 1, 1),
    small("udp-60", Medium::Udp, 60, 3),
    small("udp-3", Medium::Udp, 3, 3),
    small("udp-1", Medium::Udp, 1, 1),
    large("shm-8MiB", Medium::Shm),
    large("udp-8MiB", Medium::Udp),
    over_paths("udp-60-paths", PathPolicy::Plb, small("", Medium::Udp, 60, 3)),
    over_paths("udp-8MiB-paths", PathPolicy::Coupled, large("", Medium::Udp)),
    with("boxed", Way::Boxed),
    with("deadline", Way::Deadline),
    with("future", Way::Future),
    with("future+dl", Way::FutureDeadline),
    with("client", Way::Client),
    Workload { sessions: 1, ..with("client-1", Way::Client) },
    with("zerocopy", Way::Typed),
    with("async-fn", Way::AsyncHandler),
    with("batch", Way::Batch),
    read("udp-read", small("", Medium::Udp, 60, 3)),
];

const fn small(name: &'static str, medium: Medium, in_flight: usize, batch: usize) -> Workload {
    let (way, unit, calls, policy) = (Way::Function, Unit::Rpc, 6_000, PathPolicy::Single);
    Workload { name, medium, policy, way, sessions: 8, in_flight, batch, unit, calls }
}

/// Returns the workload of a convenience, whose cost is compared with `shm-60`.
const fn with(name: &'static str, way: Way) -> Workload {
    Workload { name, way, ..small(name, Medium::Shm, 60, 3) }
}

/// A workload in sessions of several paths.
const fn over_paths(name: &'static str, policy: PathPolicy, workload: Workload) -> Workload {
    Workload { name, policy, ..workload }
}

/// Reads of a region in place of calls.
const fn read(name: &'static str, workload: Workload) -> Workload {
    Workload { name, way: Way::Read, ..workload }
}

const fn large(name: &'static str, medium: Medium) -> Workload {
    let (way, unit, calls, policy) = (Way::Function, Unit::Packet, 8, PathPolicy::Single);
    Workload { name, medium, policy, way, sessions: 1, in_flight: 1, batch: 1, unit, calls }
}

impl Workload {
    /// Returns the workload of a row.
    ///
    /// # Errors
    /// No row has this name; the text lists the rows.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
            let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
            format!("there is no row `{name}`, but {}", names.join(", "))
        })
    }

    fn is_large(&self) -> bool {
        self.unit == Unit::Packet
    }

    pub(crate) fn request_bytes(&self) -> usize {
        if self.is_large() { LARGE_BYTES } else { SMALL_BYTES }
    }

    fn endpoint_config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        let shm = self.medium == Medium::Shm;
        config.transports = AllowedTransports { udp: !shm, shm, stream: false, verbs: false };
        config.idle = IdlePolicy::Poll;
        if self.policy != PathPolicy::Single {
            config.host.udp.further_ports = FURTHER_PORTS;
            config.sessions.path_policy = self.policy;
        }
        config.protocol.rto.min_ns = TIMEOUT_NS;
        config.protocol.rto.max_ns = TIMEOUT_NS;
        config.protocol.rto.initial_ns = TIMEOUT_NS;
        config.protocol.rto.probe_min_ns = TIMEOUT_NS;
        config.protocol.retries_max = 1;
        config
    }
}

/// Takes one turn of the client's event loop.
#[inline(never)]
fn client_turn(client: &mut Endpoint<Caller>) {
    // Prevents the compiler from merging two identical functions.
    black_box("client");
    client.run_once();
}

/// Takes one turn of the server's event loop.
#[inline(never)]
fn server_turn(server: &mut Endpoint) {
    black_box("server");
    server.run_once();
}

/// Takes a turn of the client's event loop that is not counted.
#[inline(never)]
fn warm_client(client: &mut Endpoint<Caller>) {
    black_box("client before the count");
    client.run_once();
}

/// Takes a turn of the server's event loop that is not counted.
#[inline(never)]
fn warm_server(server: &mut Endpoint) {
    black_box("server before the count");
    server.run_once();
}

/// The functions that take turns in a round.
struct Turns {
    client: fn(&mut Endpoint<Caller>),
    server: fn(&mut Endpoint),
}

/// The caller's side of the application, lent by the endpoint to continuations and tasks.
#[derive(Default)]
struct Caller {
    /// The number of sessions is a power of two.
    sessions: Vec<SessionId>,
    /// Calls started together.
    batch: usize,
    calls: u64,
    started: u64,
    /// Tasks that have made their last call.
    tasks_ended: usize,
    /// Request and response buffers of ended calls.
    idle: Vec<(MsgBuf, MsgBuf)>,
}

impl Caller {
    /// Starts a batch of calls, if buffers and calls are left.
    #[inline(always)]
    fn start_batch<const WAY: u8>(&mut self, cx: &mut Context<'_, Caller>) {
        if self.idle.len() < self.batch || self.started == self.calls {
            return;
        }
        for _ in 0..self.batch {
            if let Some((request, response)) = self.idle.pop() {
                self.start::<WAY>(cx, request, response);
            }
        }
    }

    #[inline(always)]
    fn start<const WAY: u8>(
        &mut self,
        cx: &mut Context<'_, Caller>,
        mut request: MsgBuf,
        response: MsgBuf,
    ) {
        let number = self.started;
        self.started += 1;
        let method = match WAY {
            READ => {
                request[READ_OFFSET..].copy_from_slice(&read_place(number).to_le_bytes());
                READ_METHOD
            }
            _ => {
                stamp(&mut request, number);
                SAMPLE
            }
        };
        let session = self.sessions[number as usize & (self.sessions.len() - 1)];
        let call = cx.call(session, method, request).into_buffer(response);
        let taken = match WAY {
            BOXED => {
                let large = [number; 3];
                call.then(move |caller, cx, reply| caller.take_reply::<WAY>(cx, reply, large[0]))
            }
            DEADLINE => call
                .timeout(IN_TIME)
                .then(move |caller, cx, reply| caller.take_reply::<WAY>(cx, reply, number)),
            _ => call.then(move |caller, cx, reply| caller.take_reply::<WAY>(cx, reply, number)),
        };
        taken.unwrap_or_else(|rejected| panic!("call {number} was not taken: {rejected}"));
    }

    /// The continuation of every call.
    #[inline(always)]
    fn take_reply<const WAY: u8>(
        &mut self,
        cx: &mut Context<'_, Caller>,
        reply: Reply,
        number: u64,
    ) {
        let Reply { outcome, request, response, .. } = reply;
        if let Err(failure) = outcome {
            panic!("call {number} failed: {failure:?}");
        }
        let is_right = match WAY {
            READ => is_read(number, &response),
            _ => is_answer(&request, &response),
        };
        assert!(is_right, "the reply to call {number} is wrong");
        self.idle.push((request, response));
        self.start_batch::<WAY>(cx);
    }

    /// Returns true if all calls were made and have ended.
    fn is_done(&self, in_flight: usize) -> bool {
        self.started == self.calls && self.idle.len() + self.tasks_ended == in_flight
    }

    /// Returns the next call for a task.
    fn next_number(&mut self) -> Option<u64> {
        let number = self.started;
        self.started += u64::from(number < self.calls);
        (number < self.calls).then_some(number)
    }
}

/// A deadline that every call meets.
const IN_TIME: Duration = Duration::from_secs(100);

/// A task that makes one call after the other; there are as many tasks as calls in flight.
async fn call_by_futures(handle: Handle<Caller>, caller: ByFutures) {
    let mut request = [0x5A; SMALL_BYTES];
    while let Some(number) = handle.with(Caller::next_number) {
        stamp(&mut request, number);
        let session = &caller.sessions[number as usize % caller.sessions.len()];
        let is_right = match (&caller.client, caller.way) {
            (Some(client), Way::Typed) => {
                let typed = caller.typed.as_ref().unwrap_or_else(|| panic!("{client:?} is typed"));
                let reply = typed.echo(request).timeout(IN_TIME).await;
                reply.map(|reply| is_answer(&request, &reply))
            }
            (Some(client), _) => {
                let reply = client.call(SAMPLE, request).timeout(IN_TIME).await;
                reply.map(|reply| is_answer(&request, &reply))
            }
            (None, Way::FutureDeadline) => {
                let reply = session.call(SAMPLE, &request).timeout(IN_TIME).await;
                reply.map(|reply| is_answer(&request, &reply))
            }
            (None, _) => {
                let reply = session.call(SAMPLE, &request).await;
                reply.map(|reply| is_answer(&request, &reply))
            }
        };
        let is_right = is_right.unwrap_or_else(|failure| panic!("call {number} failed: {failure}"));
        assert!(is_right, "the reply to call {number} is wrong");
    }
    handle.with(|caller| caller.tasks_ended += 1);
}

/// The environment of such a task.
#[derive(Clone)]
struct ByFutures {
    sessions: Vec<Session>,
    client: Option<Client>,
    typed: Option<SamplesClient>,
    way: Way,
}

/// Makes a request unique, at the places that the reply contains.
#[inline]
fn stamp(request: &mut [u8], number: u64) {
    if request.len() == SMALL_BYTES {
        request[..8].copy_from_slice(&number.to_le_bytes());
        return;
    }
    for (word, place) in places(request.len()).into_iter().enumerate() {
        let value = 4 * number + word as u64;
        request[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the expected reply to a request: all of a small request, four words of a large one.
#[inline]
fn sample(request: &[u8]) -> [u8; SMALL_BYTES] {
    if let Ok(all) = request.try_into() {
        return all;
    }
    let mut sample = [0; SMALL_BYTES];
    for (out, place) in sample.chunks_exact_mut(8).zip(places(request.len())) {
        out.copy_from_slice(&request[place..place + 8]);
    }
    sample
}

/// Returns true if `response` is the handler's answer to `request`.
#[inline]
fn is_answer(request: &[u8], response: &[u8]) -> bool {
    match (<&[u8; SMALL_BYTES]>::try_from(request), <&[u8; SMALL_BYTES]>::try_from(response)) {
        (Ok(request), Ok(response)) => request == response,
        _ => *response == sample(request),
    }
}

/// The method of READ, and the place of the offset in its request (section 15 of the specification).
const READ_METHOD: u16 = 65_520;
const READ_OFFSET: usize = 16;

/// Bytes of the region that is read.
const REGION_BYTES: u64 = 4096;

/// Registers a region whose words are their own offsets.
fn region(regions: &Regions) -> Region {
    let memory = RegionMemory::private(REGION_BYTES).expect("memory");
    for offset in (0..REGION_BYTES).step_by(8) {
        memory.store(offset, offset).expect("a word of the region");
    }
    regions.register(memory, Access::READ).expect("a region")
}

/// Returns the request to read the first bytes of a region.
fn read_request(key: RegionKey) -> Vec<u8> {
    let key = key.to_bytes();
    [&key[..4], &(SMALL_BYTES as u32).to_le_bytes(), &key[4..12], &[0; 8]].concat()
}

/// Returns the offset of a read.
#[inline]
fn read_place(number: u64) -> u64 {
    number * SMALL_BYTES as u64 % REGION_BYTES
}

#[inline]
fn is_read(number: u64, response: &[u8]) -> bool {
    let Ok(words) = <&[u8; SMALL_BYTES]>::try_from(response) else { return false };
    let (words, _) = words.as_chunks::<8>();
    let offsets = (read_place(number)..).step_by(8);
    words.iter().zip(offsets).all(|(word, offset)| u64::from_le_bytes(*word) == offset)
}

/// Returns the places of the four words: from start to end.
#[inline]
fn places(len: usize) -> [usize; 4] {
    let stride = (len - 8) / 3;
    [0, stride, 2 * stride, len - 8]
}

/// Runs a workload by control planes of a kind, and prints the number of its requests' packets.
///
/// # Errors
/// A packet was lost, or a session could not be opened in time.
pub(crate) fn run(
    workload: &Workload,
    calls: u64,
    nexus: impl Fn() -> NexusBuilder,
) -> Result<(), String> {
    // Valgrind translates code when it first runs, which stops an endpoint for tens of milliseconds: after such a pause, an endpoint may
    // read frames on another path. Uncounted calls of other endpoints come first.
    let warm = Turns { client: warm_client, server: warm_server };
    run_round(workload, workload.calls, nexus(), warm)?;
    let turns = Turns { client: client_turn, server: server_turn };
    let packets = run_round(workload, calls, nexus(), turns)?;
    println!("packets {packets}");
    Ok(())
}

/// Returns the number of the requests' packets.
fn run_round(
    workload: &Workload,
    calls: u64,
    nexus: NexusBuilder,
    turns: Turns,
) -> Result<u64, String> {
    let nexus = nexus
        .listen("127.0.0.1:0".parse().expect("an address"))
        .start()
        .expect("a nexus on loopback");
    let mut server = nexus.endpoint(workload.endpoint_config()).expect("a server endpoint");
    let mut client = nexus
        .endpoint_with(workload.endpoint_config(), Caller::default())
        .expect("a client endpoint");
    serve(&mut server, workload.way);
    let regions = Regions::new();
    let region = region(&regions);
    if workload.way == Way::Read {
        server.serve_regions(&regions);
    }
    let address = nexus.local_addr().expect("it listens");
    let sessions = connect(&mut client, &mut server, address, workload.sessions)?;
    let further = if workload.policy == PathPolicy::Single { 0 } else { FURTHER_PORTS };
    let has_paths = |id: &SessionId| {
        client.path_counts(*id).len() == usize::from(further) + usize::from(further > 0)
    };
    assert!(sessions.iter().all(has_paths), "each session has the paths of its row");
    match workload.way {
        Way::Future | Way::FutureDeadline | Way::Client | Way::Typed => {
            let servers = workload.sessions;
            let reach = || reach(&mut client, &mut server, address, servers);
            let has_client = matches!(workload.way, Way::Client | Way::Typed);
            let service = has_client.then(reach);
            start_tasks(&mut client, workload, &sessions, service, calls);
        }
        Way::Read => {
            let message = read_request(region.key());
            start_calls(&mut client, workload, sessions, calls, &message);
        }
        _ => {
            let message = vec![0x5A; workload.request_bytes()];
            start_calls(&mut client, workload, sessions, calls, &message);
        }
    }
    while !client.state().is_done(workload.in_flight) {
        (turns.client)(&mut client);
        (turns.server)(&mut server);
    }
    let packets = client.stats().protocol.packets_sent;
    verdict(&client)?;
    verdict(&server)?;
    Ok(packets)
}

fn serve(server: &mut Endpoint, way: Way) {
    if way == Way::Typed {
        return server.serve(SamplesServer::new(Echo));
    }
    if way == Way::AsyncHandler {
        return server.on_async(SAMPLE, |_, request| async move { Ok(sample(request.data())) });
    }
    if way == Way::Batch {
        return server.on_batch(SAMPLE, |_, cx, batch| {
            for index in 0..batch.len() {
                batch.reply_with(cx, index, SMALL_BYTES, |request, response| {
                    response.copy_from_slice(&sample(request));
                    SMALL_BYTES
                });
            }
        });
    }
    server.on(SAMPLE, |_, cx, request| {
        request.reply_with(cx, SMALL_BYTES, |request, response| {
            response.copy_from_slice(&sample(request));
            SMALL_BYTES
        })
    });
}

/// Connects a client with default settings to several servers of a single process.
fn reach(
    endpoint: &mut Endpoint<Caller>,
    server: &mut Endpoint,
    address: std::net::SocketAddr,
    servers: usize,
) -> Client {
    let servers_of = std::iter::repeat_n(address, servers);
    let client = endpoint.client(servers_of, ClientConfig::default());
    while client.stats().servers_ready < servers as u64 {
        endpoint.run_once();
        server.run_once();
        std::thread::sleep(Duration::from_millis(1));
    }
    client
}

fn start_tasks(
    client: &mut Endpoint<Caller>,
    workload: &Workload,
    sessions: &[SessionId],
    service: Option<Client>,
    calls: u64,
) {
    client.state_mut().calls = calls;
    let sessions = sessions.iter().map(|&id| client.session(id)).collect();
    let way = workload.way;
    let typed = service.clone().filter(|_| way == Way::Typed).map(SamplesClient::new);
    let caller = ByFutures { sessions, client: service, typed, way };
    let handle = client.handle();
    for _ in 0..workload.in_flight {
        let _task = handle.spawn(call_by_futures(handle.clone(), caller.clone()));
    }
}

fn connect(
    client: &mut Endpoint<Caller>,
    server: &mut Endpoint,
    address: std::net::SocketAddr,
    count: usize,
) -> Result<Vec<SessionId>, String> {
    let sessions: Vec<_> =
        (0..count).map(|_| client.connect(address).expect("a session")).collect();
    while sessions.iter().any(|&id| client.session_state(id) != SessionState::Open) {
        client.run_once();
        server.run_once();
        // On a busy machine valgrind may be too slow for the control plane's time limits.
        for &id in &sessions {
            if let SessionState::Ended(reason) = client.session_state(id) {
                return Err(format!("a session ended while it was opened: {reason:?}"));
            }
        }
        // Under valgrind one thread runs at a time, and the nexus has to run too.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(sessions)
}

/// Fills all buffers and starts the first calls; the continuations start the others.
fn start_calls(
    client: &mut Endpoint<Caller>,
    workload: &Workload,
    sessions: Vec<SessionId>,
    calls: u64,
    message: &[u8],
) {
    client.with(|caller, cx| {
        caller.sessions = sessions;
        caller.batch = workload.batch;
        caller.calls = calls;
        for _ in 0..workload.in_flight {
            let request = cx.alloc_message(message).expect("memory for a request");
            let response = cx.alloc(SMALL_BYTES).expect("memory for a response");
            caller.idle.push((request, response));
        }
        for _ in 0..workload.in_flight / workload.batch {
            match workload.way {
                Way::Boxed => caller.start_batch::<BOXED>(cx),
                Way::Deadline => caller.start_batch::<DEADLINE>(cx),
                Way::Read => caller.start_batch::<READ>(cx),
                _ => caller.start_batch::<FUNCTION>(cx),
            }
        }
    });
}

/// Rejects a run with packet loss, which says nothing about the fast path.
fn verdict<S>(endpoint: &Endpoint<S>) -> Result<(), String> {
    let counters = endpoint.stats().protocol;
    if counters.packets_retransmitted != 0 || counters.timeouts != 0 {
        return Err(format!("packets were lost: {}", endpoint.stats().to_json()));
    }
    Ok(())
}
