//! The nodes of a measurement: replicas with the cost of their work, and a client.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use petrel::endpoint::SessionId;
use petrel::task::Session;
use petrel::{Context, MsgBuf, Reply};
use petrel_kv::api::{WriteReply, methods};
use petrel_kv::command::{BatchBuffer, Command, Op};
use petrel_kv::persist::Volatile;
use petrel_kv::{Replica, ReplicaConfig};
use petrel_sim::{Actor, Rng, SimEndpoint};

use super::Costs;

/// A method whose request and response are as long as a put's.
const ECHO: u16 = 100;

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
const KEYS_PER_BATCH: usize = 100;
const ANSWER_BYTES: usize = 11;

pub(super) enum LatencyNode {
    Server(Box<ServerNode>),
    Client(Box<ClientNode>),
}

impl Actor for LatencyNode {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        match self {
            LatencyNode::Server(server) => server.poll(now_ns),
            LatencyNode::Client(client) => client.poll(now_ns),
        }
    }
}

/// The purpose of a replica's pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Echo,
    Propose,
    Append,
    Commit,
    /// The leader's work for an answer that is no longer needed.
    Late,
}

/// A replica's measurements by the wall clock, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerTimes {
    echo: Vec<u64>,
    propose: Vec<(u64, u64)>,
    append: Vec<(u64, u64)>,
    commit: Vec<(u64, u64)>,
    late: Vec<(u64, u64)>,
    /// Passes charged for the wrong kind of work.
    pub(super) mispredicted: usize,
    /// On the leader, in virtual time: from the arrival of a put until its answer leaves.
    pub(super) leader: Option<Vec<u64>>,
}

pub(super) struct ServerNode {
    endpoint: SimEndpoint,
    replica: Replica,
    costs: Costs,
    /// The time at which received messages are processed, after their cost is charged.
    due_ns: Option<u64>,
    busy_until_ns: u64,
    /// The arrival of the put without an answer.
    put_at_ns: Option<u64>,
    /// Outstanding answers of followers.
    answers_due: u64,
    echoes: Rc<RefCell<u64>>,
    /// Whether the client sends puts, not echoes.
    pub(super) serves_puts: bool,
    times: ServerTimes,
}

impl ServerNode {
    pub(super) fn start(
        mut endpoint: SimEndpoint,
        config: ReplicaConfig,
        costs: Costs,
    ) -> Result<Self, String> {
        let replica = Replica::start(&mut endpoint, config, Box::<Volatile>::default(), None)
            .map_err(|error| error.to_string())?;
        let echoes = Rc::new(RefCell::new(0));
        let counted = Rc::clone(&echoes);
        endpoint.on(ECHO, move |_, cx, request| {
            *counted.borrow_mut() += 1;
            request.reply(cx, &[1; ANSWER_BYTES])
        });
        Ok(Self {
            endpoint,
            replica,
            costs,
            due_ns: None,
            busy_until_ns: 0,
            put_at_ns: None,
            answers_due: 0,
            echoes,
            serves_puts: false,
            times: ServerTimes::default(),
        })
    }

    pub(super) fn forget_times(&mut self) {
        // The cost of an echo was measured before.
        let echo = std::mem::take(&mut self.times.echo);
        self.times = ServerTimes { echo, ..ServerTimes::default() };
    }

    pub(super) fn take_times(&mut self) -> ServerTimes {
        std::mem::take(&mut self.times)
    }

    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if !self.endpoint.transport().has_received() {
            return self.run_pass(now_ns);
        }
        let before_ns = match self.expected() {
            Work::Commit => self.costs.commit_ns,
            Work::Append => self.costs.append_ns,
            Work::Propose => self.costs.propose_ns,
            Work::Late => self.costs.late_ns,
            Work::Echo => 0,
        };
        // A pass has a fixed cost, which is already charged.
        let before_ns = before_ns.saturating_sub(super::PASS_NS);
        let due_ns = *self.due_ns.get_or_insert(now_ns.max(self.busy_until_ns) + before_ns);
        if now_ns < due_ns {
            return Some(due_ns);
        }
        self.run_pass(now_ns)
    }

    /// The probable kind of the received message, since a single client makes single calls.
    fn expected(&self) -> Work {
        match (self.replica.is_leader(), self.put_at_ns) {
            _ if !self.serves_puts => Work::Echo,
            (true, Some(_)) => Work::Commit,
            // The client has just been answered: the message cannot be its next put.
            (true, None) if self.answers_due > 0 => Work::Late,
            (true, None) => Work::Propose,
            (false, _) => Work::Append,
        }
    }

    /// Runs a pass like a process: the endpoint's turn, the replica's turn, the turn that sends, and the rest.
    fn run_pass(&mut self, now_ns: u64) -> Option<u64> {
        let (arrived_ns, expected) = (self.due_ns.take(), self.expected());
        let before = (self.replica.stats(), *self.echoes.borrow());
        let begin = Instant::now();
        let mut is_busy = self.endpoint.run_once();
        let replied = begin.elapsed();
        let more = self.turn();
        if more {
            is_busy |= self.endpoint.run_once();
        }
        let sent = begin.elapsed();
        if more {
            self.turn();
        }
        is_busy |= self.endpoint.run_once();
        let done = begin.elapsed();
        let after = (self.replica.stats(), *self.echoes.borrow());
        let work = if after.1 > before.1 {
            Some(Work::Echo)
        } else if after.0.proposals > before.0.proposals {
            Some(Work::Propose)
        } else if self.replica.is_leader() && after.0.applied > before.0.applied {
            Some(Work::Commit)
        } else if !self.replica.is_leader() && after.0.entries > before.0.entries {
            Some(Work::Append)
        } else if self.replica.is_leader() && after.0.messages > before.0.messages {
            Some(Work::Late)
        } else {
            None
        };
        if let Some(work) = work {
            let spent = if work == Work::Propose { sent } else { replied };
            let (spent_ns, rest_ns) = (nanos(spent), nanos(done.saturating_sub(spent)));
            let is_charged = arrived_ns.is_some() && self.costs != Costs::default();
            self.times.mispredicted += usize::from(is_charged && work != expected);
            let messages = after.0.messages - before.0.messages;
            self.note_answers(work, messages);
            self.note(work, now_ns, arrived_ns, spent_ns, rest_ns);
            // The pass also processes answers that arrived together with the deciding answer.
            let late = if work == Work::Commit { messages.saturating_sub(1) } else { 0 };
            self.busy_until_ns += late * self.costs.late_ns;
        }
        if is_busy || self.endpoint.core().has_transmit() || self.endpoint.core().has_events() {
            return Some(now_ns);
        }
        self.endpoint.next_due().map(petrel::Time::as_ns)
    }

    fn turn(&mut self) -> bool {
        self.replica.turn(&mut self.endpoint.context()).expect("a log in memory does not fail")
    }

    /// Counts the answers that followers still owe the leader.
    fn note_answers(&mut self, work: Work, messages: u64) {
        match work {
            Work::Propose => self.answers_due = u64::from(super::REPLICAS) - 1,
            Work::Commit | Work::Late => {
                self.answers_due = self.answers_due.saturating_sub(messages);
            }
            Work::Echo | Work::Append => {}
        }
    }

    fn note(
        &mut self,
        work: Work,
        now_ns: u64,
        arrived_ns: Option<u64>,
        spent_ns: u64,
        rest_ns: u64,
    ) {
        let (times, after_ns) = match work {
            Work::Echo => {
                self.times.echo.push(spent_ns);
                return;
            }
            Work::Late => (&mut self.times.late, 0),
            Work::Propose => {
                let charged_ns = arrived_ns.map_or(0, |_| self.costs.propose_ns);
                self.put_at_ns = Some(now_ns - charged_ns);
                (&mut self.times.propose, self.costs.propose_after_ns)
            }
            Work::Append => (&mut self.times.append, self.costs.append_after_ns),
            Work::Commit => {
                if let Some(at_ns) = self.put_at_ns.take() {
                    self.times.leader.get_or_insert_default().push(now_ns - at_ns);
                }
                (&mut self.times.commit, self.costs.commit_after_ns)
            }
        };
        times.push((spent_ns, rest_ns));
        self.busy_until_ns = now_ns + after_ns;
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    time.as_nanos() as u64
}

/// The costs of work beyond an echo, from the medians.
pub(super) fn costs_of(nodes: &[ServerTimes]) -> Result<Costs, String> {
    let all = |of: fn(&ServerTimes) -> &Vec<(u64, u64)>| {
        let every: Vec<(u64, u64)> = nodes.iter().flat_map(|times| of(times).clone()).collect();
        let before = median(every.iter().map(|(before, _)| *before).collect());
        let after = median(every.iter().map(|(_, after)| *after).collect());
        before.zip(after).ok_or("some work was not measured")
    };
    let echo_ns = median(nodes.iter().flat_map(|times| times.echo.clone()).collect());
    let echo_ns = echo_ns.ok_or("no echo was measured")?;
    let (propose, append) = (all(|times| &times.propose)?, all(|times| &times.append)?);
    let (commit, late) = (all(|times| &times.commit)?, all(|times| &times.late).unwrap_or((0, 0)));
    Ok(Costs {
        propose_ns: propose.0.saturating_sub(echo_ns),
        propose_after_ns: propose.1,
        append_ns: append.0.saturating_sub(echo_ns),
        append_after_ns: append.1,
        commit_ns: commit.0.saturating_sub(echo_ns),
        commit_after_ns: commit.1,
        late_ns: late.0.saturating_sub(echo_ns) + late.1,
    })
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// A client with a single call at a time.
pub(super) struct ClientNode {
    endpoint: SimEndpoint,
    state: Rc<RefCell<ClientState>>,
    /// Whether calls begin at the next pass.
    begins: bool,
}

struct ClientState {
    /// The session with the leader, and the client's session in the store.
    leader: Option<(SessionId, u64)>,
    sequence: u64,
    keys: u64,
    method: u16,
    left: usize,
    begun_ns: u64,
    times: Vec<u64>,
    rng: Rng,
}

impl ClientNode {
    pub(super) fn start(
        endpoint: SimEndpoint,
        replicas: Vec<SocketAddr>,
        keys: u64,
        seed: u64,
    ) -> Self {
        let state = Rc::new(RefCell::new(ClientState {
            leader: None,
            sequence: 0,
            keys,
            method: ECHO,
            left: 0,
            begun_ns: 0,
            times: Vec::new(),
            rng: Rng::stream(seed, u32::MAX, 1),
        }));
        let (handle, found) = (endpoint.handle(), Rc::clone(&state));
        let connector = handle.clone();
        handle.spawn(async move {
            for address in replicas.iter().cycle() {
                if let Ok(session) = connector.connect(*address).await {
                    if let Some(number) = open_session(&session).await {
                        let written = write_all(&session, number, keys).await;
                        let mut found = found.borrow_mut();
                        found.sequence = written.expect("the leader stays the same");
                        found.leader = Some((session.id(), number));
                        return;
                    }
                    session.close();
                }
                connector.sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        Self { endpoint, state, begins: false }
    }

    pub(super) fn has_leader(&self) -> bool {
        self.state.borrow().leader.is_some()
    }

    pub(super) fn begin_echoes(&mut self, count: usize) {
        self.begin(ECHO, count);
    }

    pub(super) fn begin_puts(&mut self, count: usize) {
        self.begin(methods::WRITE, count);
    }

    fn begin(&mut self, method: u16, count: usize) {
        let mut state = self.state.borrow_mut();
        (state.method, state.left) = (method, count);
        state.times.clear();
        self.begins = true;
    }

    pub(super) fn is_done(&self) -> bool {
        self.state.borrow().left == 0
    }

    pub(super) fn take_times(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.state.borrow_mut().times)
    }

    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let mut is_busy = self.endpoint.run_once();
        if std::mem::take(&mut self.begins) {
            let cx = &mut self.endpoint.context();
            let buffers = (cx.alloc(256), cx.alloc(64));
            let (Ok(request), Ok(response)) = buffers else { unreachable!("the pool is empty") };
            call(cx, &self.state, request, response);
            is_busy |= self.endpoint.run_once();
        }
        if is_busy || self.endpoint.core().has_transmit() || self.endpoint.core().has_events() {
            return Some(now_ns);
        }
        self.endpoint.next_due().map(petrel::Time::as_ns)
    }
}

/// Writes all keys: later puts replace values.
async fn write_all(session: &Session, number: u64, keys: u64) -> Option<u64> {
    let mut sequence = 0;
    for first in (0..keys).step_by(KEYS_PER_BATCH) {
        let mut batch = BatchBuffer::default();
        for key in first..keys.min(first + KEYS_PER_BATCH as u64) {
            let key = format!("{key:0KEY_BYTES$}");
            batch.push(&Op::Put { key: key.as_bytes(), value: &[0; VALUE_BYTES] }).ok()?;
        }
        sequence += 1;
        let op = Op::Batch(batch.batch());
        let mut command = Vec::new();
        Command::Write { session: number, sequence, first_pending: sequence, op }
            .encode(&mut command);
        let answer = session.call(methods::WRITE, &command).await.ok()?;
        let WriteReply::Applied(_) = WriteReply::decode(&answer).ok()? else { return None };
    }
    Some(sequence)
}

async fn open_session(session: &Session) -> Option<u64> {
    let mut command = Vec::new();
    Command::OpenSession.encode(&mut command);
    let answer = session.call(methods::WRITE, &command).await.ok()?;
    match WriteReply::decode(&answer).ok()? {
        WriteReply::Applied(applied) => Some(applied.index),
        WriteReply::Refused(_) => None,
    }
}

fn call(
    cx: &mut Context<'_>,
    state: &Rc<RefCell<ClientState>>,
    mut request: MsgBuf,
    response: MsgBuf,
) {
    let mut own = state.borrow_mut();
    let Some((session, number)) = own.leader else { unreachable!("it was waited for") };
    own.sequence += 1;
    own.begun_ns = cx.now().as_ns();
    let (sequence, method, keys) = (own.sequence, own.method, own.keys);
    let key = format!("{:0KEY_BYTES$}", own.rng.below(keys));
    drop(own);
    let op = Op::Put { key: key.as_bytes(), value: &[7; VALUE_BYTES] };
    let mut command = Vec::new();
    let first_pending = sequence;
    Command::Write { session: number, sequence, first_pending, op }.encode(&mut command);
    request.set_message(&command);
    let state = Rc::clone(state);
    let ended = move |cx: &mut Context<'_>, reply: Reply| {
        let answer = reply.message().expect("nobody fails here");
        let is_put = state.borrow().method == methods::WRITE;
        let is_applied = matches!(WriteReply::decode(answer), Ok(WriteReply::Applied(_)));
        assert!(is_applied || !is_put, "a put was refused");
        let has_more = {
            let own = &mut *state.borrow_mut();
            own.times.push(cx.now().as_ns() - own.begun_ns);
            own.left -= 1;
            own.left > 0
        };
        if has_more {
            call(cx, &state, reply.request, reply.response);
        }
    };
    cx.call(session, method, request)
        .into_buffer(response)
        .then(move |_, cx, reply| ended(cx, reply))
        .expect("one call at a time has room");
}
