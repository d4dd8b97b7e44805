//! Raw calls: clients make consecutive calls with hand-encoded requests, on separate sessions to the
//! leader. Their cost is the lower bound of the store's own client.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::SessionId;
use petrel::{Context, Endpoint, MsgBuf, Reply};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv::api::{Consistency, GetReply, GetRequest, Outcome, WriteReply, methods};
use petrel_kv::client::Put;
use petrel_kv::command::{BatchBuffer, Command, Op};
use petrel_kv::limits::BATCH_OPS_MAX;
use petrel_sim::Rng;

use super::cluster::Cluster;
use super::workload::{Counts, Kind, is_next, is_value_of, key_of, value_of};

const REQUEST_BYTES: usize = 256;

pub(super) struct Loader {
    shared: Rc<RefCell<State>>,
}

struct State {
    kind: Kind,
    slots: Vec<CallSlot>,
    keys: u64,
    rng: Rng,
    /// True if no further call may begin.
    is_over: bool,
    under_way: usize,
    counts: Counts,
    failure: Option<String>,
    message: Vec<u8>,
}

/// A simulated client.
struct CallSlot {
    session: SessionId,
    /// The client's session in the store.
    number: u64,
    sequence: u64,
    /// The last revision that an answer carried: the next must be later.
    revision: u64,
    key: [u8; 16],
    begun: Instant,
}

impl Loader {
    pub(super) fn connect(
        endpoint: &mut Endpoint,
        cluster: &Cluster,
        clients: usize,
        keys: u64,
    ) -> Result<Self, Failure> {
        let slots = (0..clients).map(|_| CallSlot::open(endpoint, cluster));
        let slots = slots.collect::<Result<Vec<_>, _>>()?;
        let state = State {
            kind: Kind::RawCall,
            slots,
            keys,
            rng: Rng::stream(1, 0, 0),
            is_over: false,
            under_way: 0,
            counts: Counts::default(),
            failure: None,
            message: Vec::new(),
        };
        Ok(Self { shared: Rc::new(RefCell::new(state)) })
    }

    /// Writes every key once, in batches.
    pub(super) fn write_all(
        &mut self,
        endpoint: &mut Endpoint,
        output: Output,
    ) -> Result<(), Failure> {
        let state = &mut *self.shared.borrow_mut();
        let mut progress = output.progress(state.keys, "keys");
        let slot = &mut state.slots[0];
        for first in (0..state.keys).step_by(BATCH_OPS_MAX) {
            let mut batch = BatchBuffer::default();
            for number in first..state.keys.min(first + BATCH_OPS_MAX as u64) {
                let key = key_of(number);
                let op = Op::Put { key: &key, value: &value_of(&key, 0) };
                batch.push(&op).map_err(|error| Failure::because(error.to_string()))?;
            }
            let mut command = Vec::new();
            slot.write(Op::Batch(batch.batch()), &mut command);
            let call = (slot.session, methods::WRITE);
            let answer = endpoint.call(call.0, call.1, &command).wait()?;
            match WriteReply::decode(&answer) {
                Ok(WriteReply::Applied(_)) => progress.set(first),
                other => return Err(Failure::because(format!("a batch was answered: {other:?}"))),
            }
        }
        Ok(())
    }

    /// Lets the first `clients` slots call for the length of a window.
    pub(super) fn run(
        &mut self,
        endpoint: &mut Endpoint,
        kind: Kind,
        clients: usize,
        window: Duration,
    ) -> Result<Counts, Failure> {
        {
            let mut state = self.shared.borrow_mut();
            (state.kind, state.is_over) = (kind, false);
        }
        let begin = Instant::now();
        for slot in 0..clients {
            let request = endpoint.alloc(REQUEST_BYTES).map_err(exhausted)?;
            let response = endpoint.alloc(REQUEST_BYTES).map_err(exhausted)?;
            call(&mut endpoint.context(), &self.shared, slot, request, response);
        }
        let shared = Rc::clone(&self.shared);
        endpoint.run_until(|_, _| {
            let state = &mut *shared.borrow_mut();
            state.is_over |= begin.elapsed() >= window;
            state.is_over && state.under_way == 0 || state.failure.is_some()
        });
        let state = &mut *self.shared.borrow_mut();
        let mut counts = std::mem::take(&mut state.counts);
        counts.elapsed = begin.elapsed();
        state.failure.take().map_or(Ok(counts), |failure| Err(Failure::because(failure)))
    }
}

fn exhausted(error: petrel::Error) -> Failure {
    Failure::because(error.to_string())
}

impl CallSlot {
    fn open(endpoint: &mut Endpoint, cluster: &Cluster) -> Result<Self, Failure> {
        let session = endpoint.connect_wait(cluster.addresses[0])?;
        let command = Command::OpenSession.to_vec();
        let answer = endpoint.call(session, methods::WRITE, &command).wait()?;
        match WriteReply::decode(&answer) {
            Ok(WriteReply::Applied(applied)) => {
                let (number, revision) = (applied.index, applied.index);
                let (key, begun) = (key_of(0), Instant::now());
                Ok(Self { session, number, sequence: 0, revision, key, begun })
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

    /// Encodes the next request; returns its method.
    fn encode(&mut self, kind: Kind, message: &mut Vec<u8>) -> u16 {
        let key = self.key;
        if kind == Kind::RawPut {
            self.write(Op::Put { key: &key, value: &value_of(&key, 7) }, message);
            return methods::WRITE;
        }
        message.clear();
        GetRequest { consistency: Consistency::Stale, key: &key }.encode(message);
        methods::GET
    }

    fn is_right(&mut self, kind: Kind, answer: &[u8]) -> bool {
        if kind == Kind::RawCall {
            return match GetReply::decode(answer) {
                Ok(GetReply::Found { value, .. }) => is_value_of(&self.key, value),
                _ => false,
            };
        }
        let Ok(WriteReply::Applied(applied)) = WriteReply::decode(answer) else { return false };
        let Outcome::Put { replaced } = applied.outcome else { return false };
        is_next(Put { revision: applied.index, replaced }, &mut self.revision)
    }
}

/// Makes a slot's next call. Its reply makes the call after it, until the load ends.
fn call(
    cx: &mut Context<'_>,
    shared: &Rc<RefCell<State>>,
    slot: usize,
    mut request: MsgBuf,
    response: MsgBuf,
) {
    let state = &mut *shared.borrow_mut();
    let number = state.rng.below(state.keys);
    let own = &mut state.slots[slot];
    own.key = key_of(number);
    let method = own.encode(state.kind, &mut state.message);
    request.set_message(&state.message);
    own.begun = Instant::now();
    let ended = {
        let shared = Rc::clone(shared);
        move |cx: &mut Context<'_>, reply: Reply| {
            if shared.borrow_mut().note(slot, &reply) {
                call(cx, &shared, slot, reply.request, reply.response);
            }
        }
    };
    match cx
        .call(own.session, method, request)
        .into_buffer(response)
        .then(move |_, cx, reply| ended(cx, reply))
    {
        Ok(()) => state.under_way += 1,
        Err(rejected) => state.failure = Some(rejected.error.to_string()),
    }
}

impl State {
    /// Processes an answer; returns true if the client continues.
    fn note(&mut self, slot: usize, reply: &Reply) -> bool {
        self.under_way -= 1;
        let slot = &mut self.slots[slot];
        let latency = slot.begun.elapsed();
        let answer = match reply.message() {
            Ok(answer) => answer,
            Err(failure) => {
                self.failure = Some(failure.to_string());
                return false;
            }
        };
        let is_right = slot.is_right(self.kind, answer);
        self.counts.note(latency, is_right);
        !self.is_over
    }
}
