//! The clients: each puts one value after the other, at random keys, on a session of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::{Context, Endpoint, MsgBuf, Reply, SessionId};
use petrel_kv::api::{Outcome, WriteReply, methods};
use petrel_kv::command::{BatchBuffer, Command, Op};
use petrel_kv::limits::BATCH_OPS_MAX;
use petrel_sim::Rng;

use super::cluster::Cluster;
use super::replica::{ANSWER_BYTES, ECHO};
use crate::failure::Failure;
use crate::output::Output;
use crate::output::latency::Latencies;

/// eRPC §7.1.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;

const REQUEST_BYTES: usize = 256;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Echo,
    Put,
}

/// What came of the calls of one kind.
pub(super) struct Tally {
    pub(super) latencies: Latencies,
    answered: u64,
    pub(super) wrong: u64,
    elapsed: Duration,
}

impl Tally {
    fn new() -> Self {
        Self { latencies: Latencies::new(), answered: 0, wrong: 0, elapsed: Duration::ZERO }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.answered as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

pub(super) struct Loader {
    endpoint: Endpoint,
    shared: Rc<RefCell<State>>,
    clients: usize,
}

struct State {
    kind: Kind,
    lanes: Vec<Lane>,
    keys: u64,
    rng: Rng,
    /// No call begins after it.
    is_over: bool,
    under_way: usize,
    tallies: [Tally; 2],
    failure: Option<String>,
    command: Vec<u8>,
}

/// A client.
struct Lane {
    session: SessionId,
    /// Its session in the store.
    number: u64,
    sequence: u64,
    /// The last index that it was told: the next is a later one.
    index: u64,
    begun: Instant,
}

impl Loader {
    pub(super) fn connect(cluster: &Cluster, clients: usize, keys: u64) -> Result<Self, Failure> {
        let mut endpoint = cluster.client_endpoint()?;
        let lanes = (0..clients).map(|_| Lane::open(&mut endpoint, cluster));
        let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        let state = State {
            kind: Kind::Echo,
            lanes,
            keys,
            rng: Rng::stream(1, 0, 0),
            is_over: false,
            under_way: 0,
            tallies: [Tally::new(), Tally::new()],
            failure: None,
            command: Vec::new(),
        };
        let shared = Rc::new(RefCell::new(state));
        Ok(Self { endpoint, shared, clients })
    }

    pub(super) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Writes each key once, many at a time.
    pub(super) fn write_all(&mut self, output: Output) -> Result<(), Failure> {
        let state = &mut *self.shared.borrow_mut();
        let mut progress = output.progress(state.keys, "keys");
        let lane = &mut state.lanes[0];
        for first in (0..state.keys).step_by(BATCH_OPS_MAX) {
            let mut batch = BatchBuffer::default();
            for key in first..state.keys.min(first + BATCH_OPS_MAX as u64) {
                let op = Op::Put { key: &key_of(key), value: &[0; VALUE_BYTES] };
                batch.push(&op).map_err(|error| Failure::because(error.to_string()))?;
            }
            let mut command = Vec::new();
            lane.write(Op::Batch(batch.batch()), &mut command);
            let call = (lane.session, methods::WRITE);
            let answer = self.endpoint.call_wait(call.0, call.1, &command, REQUEST_BYTES)?;
            match WriteReply::decode(&answer) {
                Ok(WriteReply::Applied(_)) => progress.set(first),
                other => return Err(Failure::because(format!("a batch was answered: {other:?}"))),
            }
        }
        Ok(())
    }

    /// From now on so many clients call.
    pub(super) fn begin_row(&mut self, clients: usize) {
        self.clients = clients;
    }

    pub(super) fn take(&mut self, kind: Kind) -> Tally {
        std::mem::replace(&mut self.shared.borrow_mut().tallies[kind as usize], Tally::new())
    }

    /// Has the clients call for so long.
    pub(super) fn run(&mut self, kind: Kind, window: Duration) -> Result<(), Failure> {
        {
            let mut state = self.shared.borrow_mut();
            (state.kind, state.is_over) = (kind, false);
        }
        let begin = Instant::now();
        for lane in 0..self.clients {
            let request = self.endpoint.alloc(REQUEST_BYTES).map_err(exhausted)?;
            let response = self.endpoint.alloc(REQUEST_BYTES).map_err(exhausted)?;
            call(&mut self.endpoint.context(), &self.shared, lane, request, response);
        }
        let shared = Rc::clone(&self.shared);
        self.endpoint.run_until(|_| {
            let state = &mut *shared.borrow_mut();
            state.is_over |= begin.elapsed() >= window;
            state.is_over && state.under_way == 0 || state.failure.is_some()
        });
        let state = &mut *self.shared.borrow_mut();
        state.tallies[kind as usize].elapsed += begin.elapsed();
        state.failure.take().map_or(Ok(()), |failure| Err(Failure::because(failure)))
    }
}

fn exhausted(error: petrel::transport::buf::PoolExhausted) -> Failure {
    Failure::because(error.to_string())
}

impl Lane {
    fn open(endpoint: &mut Endpoint, cluster: &Cluster) -> Result<Self, Failure> {
        let session = endpoint.connect_wait(cluster.addresses[0])?;
        let mut command = Vec::new();
        Command::OpenSession.encode(&mut command);
        let answer = endpoint.call_wait(session, methods::WRITE, &command, REQUEST_BYTES)?;
        match WriteReply::decode(&answer) {
            Ok(WriteReply::Applied(applied)) => {
                let (number, index) = (applied.index, applied.index);
                Ok(Self { session, number, sequence: 0, index, begun: Instant::now() })
            }
            other => Err(Failure::because(format!("the leader answered: {other:?}"))),
        }
    }

    fn write(&mut self, op: Op<'_>, command: &mut Vec<u8>) {
        self.sequence += 1;
        let (session, sequence) = (self.number, self.sequence);
        command.clear();
        Command::Write { session, sequence, first_pending: sequence, op }.encode(command);
    }
}

fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    let digits = format!("{number:012}");
    key[KEY_BYTES - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

fn call(
    cx: &mut Context<'_>,
    shared: &Rc<RefCell<State>>,
    lane: usize,
    mut request: MsgBuf,
    response: MsgBuf,
) {
    let state = &mut *shared.borrow_mut();
    let key = key_of(state.rng.below(state.keys));
    let op = Op::Put { key: &key, value: &[7; VALUE_BYTES] };
    let own = &mut state.lanes[lane];
    own.write(op, &mut state.command);
    request.set_message(&state.command);
    own.begun = Instant::now();
    let method = match state.kind {
        Kind::Echo => ECHO,
        Kind::Put => methods::WRITE,
    };
    let ended = {
        let shared = Rc::clone(shared);
        move |cx: &mut Context<'_>, reply: Reply| {
            if shared.borrow_mut().note(lane, &reply) {
                call(cx, &shared, lane, reply.request, reply.response);
            }
        }
    };
    match cx.call(own.session, method, request, response, ended) {
        Ok(()) => state.under_way += 1,
        Err(rejected) => state.failure = Some(rejected.error.to_string()),
    }
}

impl State {
    /// Takes in an answer; tells whether the client goes on.
    fn note(&mut self, lane: usize, reply: &Reply) -> bool {
        self.under_way -= 1;
        let (own, tally) = (&mut self.lanes[lane], &mut self.tallies[self.kind as usize]);
        tally.latencies.record(own.begun.elapsed().as_nanos() as u64);
        tally.answered += 1;
        let answer = match reply.message() {
            Ok(answer) => answer,
            Err(failure) => {
                self.failure = Some(failure.to_string());
                return false;
            }
        };
        let is_right = match (self.kind, WriteReply::decode(answer)) {
            (Kind::Echo, _) => answer == [1; ANSWER_BYTES],
            (Kind::Put, Ok(WriteReply::Applied(applied))) => {
                let is_next = applied.index > own.index;
                own.index = applied.index;
                // All keys were there before.
                is_next && applied.outcome == Outcome::Put { replaced: true }
            }
            (Kind::Put, _) => false,
        };
        tally.wrong += u64::from(!is_right);
        !self.is_over
    }
}
