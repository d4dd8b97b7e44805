//! A node: an endpoint with its application, run as an actor of the simulation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, PathPolicy, Responder, SessionId, SessionState};
use petrel::{Context, MsgBuf, Reply};

use super::call::{Call, End, Spec, Watch};
use super::client_call::SimulatedCaller;
use super::free_list::FreeList;
use super::ledger::Ledger;
use super::pattern::{self, OVERWRITE_BYTE};
use super::regions::RegionCaller;
use super::scenario::Scenario;
use super::service;
use super::timeout_policy::ToCancel;
use super::to_make::ToMake;
use super::watch::WireChecker;
use super::worker_pool::{self, WorkerPool};
use crate::control::{ControlNetwork, Scripted};
use crate::fabric::{FabricHandle, HostId, SimAddr};
use crate::rng::Rng;
use crate::simulation::Actor;
use crate::world::SimEndpoint;

/// State shared by all nodes of a world.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) scenario: Scenario,
    pub(super) fabric: FabricHandle,
    pub(super) control: ControlNetwork,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    pub(super) wire_checker: Rc<RefCell<WireChecker>>,
    /// Whether handlers get the requests of a burst together.
    pub(super) has_batches: bool,
    /// Requests in the largest batch.
    pub(super) largest_batch: Cell<usize>,
    pub(super) phase: Cell<Phase>,
}

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Nodes make calls while faults occur.
    Active,
    /// Nodes wait for their calls.
    Draining,
    /// Every node opens a session to every target for a call that must succeed.
    Probing,
    /// Nodes end their clients, and become idle.
    Resting,
    /// Nodes act on request only: calls are measured one at a time.
    Measuring,
    /// Nodes close everything.
    Closing,
}

/// State that a node shares with its handlers and continuations.
pub(super) struct Shared {
    pub(super) common: Rc<Common>,
    /// Number of this endpoint in this incarnation.
    pub(super) endpoint_number: u32,
    pub(super) at: SimAddr,
    pub(super) rng: RefCell<Rng>,
    pub(super) deferred: RefCell<Vec<Deferred>>,
    /// Sessions for nested calls only, to prevent cycles of waiting calls.
    pub(super) nested_sessions: RefCell<Vec<NestedSession>>,
    /// Sessions on which requests arrived.
    pub(super) served: RefCell<BTreeSet<SessionId>>,
    /// Calls that have not ended.
    pub(super) pending: Cell<usize>,
    /// Calls to be cancelled later.
    pub(super) to_cancel: RefCell<Vec<ToCancel>>,
    /// Request buffers that came back, for the next calls.
    pub(super) free_list: RefCell<FreeList>,
    pub(super) worker_pool: RefCell<WorkerPool>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NestedSession {
    pub(super) session: SessionId,
    pub(super) server: SimAddr,
}

/// A request with a delayed answer.
pub(super) struct Deferred {
    pub(super) due_ns: u64,
    pub(super) id: u32,
    pub(super) responder: Responder,
    /// The request, if kept.
    pub(super) message: Option<MsgBuf>,
    pub(super) answer: Answer,
}

/// The outcome of a deferred request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The answer has `len` bytes, computed from the request's hash.
    Made { seed: u64, len: usize },
    /// No answer.
    Dropped,
}

/// An endpoint that a node calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) remote: SocketAddr,
    pub(super) endpoint: EndpointId,
    pub(super) at: SimAddr,
}

pub(super) fn data_port(host: HostId, endpoint: u16) -> SimAddr {
    SimAddr::new(host, endpoint + 1)
}

/// A session in its client node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) session: SessionId,
    pub(super) target: Target,
    pub(super) is_nested: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) sessions_max: u32,
    /// Calls that wait on a session.
    pub(super) backlog_max: usize,
    pub(super) memory_bytes: u64,
}

impl Limits {
    pub(super) fn of(config: &EndpointConfig) -> Self {
        Self {
            sessions_max: config.protocol.sessions_max,
            backlog_max: config.protocol.backlog_max,
            memory_bytes: config.memory.max_bytes as u64,
        }
    }
}

pub(super) struct Node {
    pub(super) endpoint: SimEndpoint,
    pub(super) shared: Rc<Shared>,
    pub(super) targets: Vec<Target>,
    pub(super) open: Vec<Open>,
    /// Ended sessions, kept for calls on stale sessions.
    pub(super) over: Vec<Open>,
    pub(super) calls_left: u32,
    pub(super) bytes_left: u64,
    /// Whether its sessions have congestion control.
    pub(super) is_controlled: bool,
    /// The shortest timeout of its sessions, not doubled.
    pub(super) rto_ns_min: u64,
    /// The policy of its sessions of several paths.
    pub(super) path_policy: PathPolicy,
    pub(super) limits: Limits,
    /// Turns of its event loop so far.
    pub(super) turns: u64,
    pub(super) next_work_ns: u64,
    /// The pause before the next check after all calls were made.
    pub(super) retry_ns: u64,
    pub(super) scripted: Scripted,
    /// The latest phase begun by this node.
    pub(super) begun: Phase,
    pub(super) probed: bool,
    /// The simulated caller for client and group calls.
    pub(super) caller: Option<SimulatedCaller>,
    pub(super) region_caller: Option<RegionCaller>,
    pub(super) is_draining: bool,
}

impl Shared {
    pub(super) fn ledger(&self) -> std::cell::RefMut<'_, Ledger> {
        let mut ledger = self.common.ledger.borrow_mut();
        ledger.update_clock(&self.common.fabric);
        ledger
    }

    /// Makes a call. `on_end` gets the context and the response, if the call succeeded.
    pub(super) fn call(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        (session, server): (SessionId, SimAddr),
        spec: Spec,
        parent: Option<u32>,
        on_end: impl FnOnce(&mut Context<'_>, Option<MsgBuf>) + 'static,
    ) {
        let room = (i64::from(spec.response_len) + spec.slack).max(0) as usize;
        let free_buffer = self.free_list.borrow_mut().take(spec.request_len as usize);
        let request = free_buffer.map_or_else(|| cx.alloc(spec.request_len as usize), Ok);
        let (Ok(mut request), Ok(response)) = (request, cx.alloc(room)) else {
            // The kept buffers may hold the missing memory.
            self.free_list.borrow_mut().clear();
            return on_end(cx, None);
        };
        // The continuation takes `on_end`, or the rejection does.
        let on_end = Rc::new(Cell::new(Some(on_end)));
        let on_rejection = Rc::clone(&on_end);
        // The time of the call's clock reading, if any.
        let now_ns = self.common.fabric.next_reading_ns();
        let next_id = self.ledger().call_count() as u32;
        let timeout_policy = self.timeout_policy(next_id);
        let is_ordered = self.common.scenario.has_order && !next_id.is_multiple_of(3);
        let inherited_ns = cx.deadline().map(petrel::Time::as_ns);
        self.ledger().check_inherited(parent, inherited_ns);
        let call = Call {
            spec,
            client: self.endpoint_number,
            client_at: self.at,
            server,
            session,
            room: response.capacity() as u32,
            parent,
            issued_ns: self.ledger().now_ns,
            ended_ns: None,
            left_ns: None,
            deadline_ns: [timeout_policy.deadline_ns(now_ns), inherited_ns]
                .into_iter()
                .flatten()
                .min(),
            is_ordered,
            is_cancelled: false,
            seen_ns: None,
            watch: Watch::No,
            executions: 0,
            seed: None,
            end: End::Pending,
        };
        let id = self.ledger().issue(call);
        request.set_len(spec.request_len as usize);
        pattern::fill_request(id, &mut request);
        let shared = Rc::clone(self);
        self.pending.set(self.pending.get() + 1);
        let on_reply = move |cx: &mut Context<'_>, reply: Reply| {
            shared.pending.set(shared.pending.get() - 1);
            shared.ledger().check_inherited(parent, cx.deadline().map(petrel::Time::as_ns));
            let succeeded = shared.ledger().end(id, &reply);
            if !succeeded {
                let wire_checker = &mut shared.common.wire_checker.borrow_mut();
                wire_checker.lose_count(shared.at, reply.session.index);
            }
            shared.reuse_buffer(reply.request);
            if let Some(on_end) = on_end.take() {
                on_end(cx, succeeded.then_some(reply.response));
            }
        };
        let (method, options) = (spec.method.number(), timeout_policy.options(now_ns));
        let ordered = is_ordered;
        let to_make = ToMake { session, method, request, response, options, ordered };
        let made = to_make.make(cx, id, on_reply);
        if let (Ok(Some(key)), Some(after_ns)) = (&made, timeout_policy.cancel_after_ns) {
            let to_cancel = ToCancel { at_ns: now_ns + after_ns, key: *key, id };
            self.to_cancel.borrow_mut().push(to_cancel);
        }
        if let Err((error, request)) = made {
            self.pending.set(self.pending.get() - 1);
            self.ledger().reject(id, &error);
            self.reuse_buffer(request);
            if let Some(on_end) = on_rejection.take() {
                on_end(cx, None);
            }
        }
    }
}

impl Shared {
    /// Treats a returned request buffer as an application may: overwrites it at once, and reuses it for another call.
    fn reuse_buffer(&self, mut request: MsgBuf) {
        request.storage_mut().fill(OVERWRITE_BYTE);
        if self.common.phase.get() == Phase::Active {
            self.free_list.borrow_mut().put(request);
        }
    }
}

impl Actor for Node {
    fn poll(&mut self, _: u64) -> Option<u64> {
        // The last time that the turn has seen, which may be before a stop.
        let now_ns = self.shared.common.fabric.turn_clock().last_ns;
        self.turns += 1;
        self.shared.ledger().turn_ns = now_ns;
        service::answer_due(&self.shared, &mut self.endpoint, now_ns);
        worker_pool::run(&self.shared, &mut self.endpoint);
        self.cancel_due(now_ns);
        self.work(now_ns);
        // A turn begins with a reading of the clock.
        self.shared.ledger().turn_ns = self.shared.common.fabric.next_reading_ns();
        let blocked_before = self.endpoint.transport_blocked();
        let is_busy = self.endpoint.run_once();
        let is_blocked = self.endpoint.transport_blocked() > blocked_before;
        // A full transmit queue wakes the node when packets have left; a full ring is polled.
        if is_busy && !is_blocked {
            return Some(now_ns);
        }
        let rest_ns = self.endpoint.transport().rest();
        [self.deadline(), rest_ns].into_iter().flatten().min()
    }

    fn outstanding(&self) -> usize {
        self.shared.pending.get()
    }
}

trait Blocked {
    fn transport_blocked(&self) -> u64;
}

impl Blocked for SimEndpoint {
    fn transport_blocked(&self) -> u64 {
        use petrel_transport::Transport as _;
        self.transport().stats().tx_blocked
    }
}

impl Node {
    fn deadline(&self) -> Option<u64> {
        let answer = self.shared.deferred.borrow().iter().map(|deferred| deferred.due_ns).min();
        let work = (self.next_work_ns < u64::MAX).then_some(self.next_work_ns);
        let (own, worker_pool) = (
            self.endpoint.next_due().map(petrel::Time::as_ns),
            self.shared.worker_pool.borrow().next_ns(),
        );
        [answer, work, own, worker_pool, self.next_cancel_ns()].into_iter().flatten().min()
    }

    /// Returns true if this node has nothing left to do in its phase.
    pub(super) fn is_done(&self) -> bool {
        let phase = self.shared.common.phase.get();
        if self.begun < phase {
            return false;
        }
        match phase {
            Phase::Active => self.calls_left == 0 && !self.has_client_calls_left(),
            Phase::Draining => !self.is_calling(),
            Phase::Probing => self.probed && !self.is_calling(),
            Phase::Resting => self.serves_nothing() && self.left_at_rest().is_none(),
            Phase::Measuring => !self.is_calling(),
            Phase::Closing => self.serves_nothing() && self.left_at_end().is_none(),
        }
    }

    pub(super) fn is_calling(&self) -> bool {
        self.shared.pending.get() > 0
    }

    fn serves_nothing(&self) -> bool {
        self.endpoint.stats().tasks == 0
            && self.shared.deferred.borrow().is_empty()
            && self.shared.worker_pool.borrow().is_idle()
    }

    /// Returns leftover state of a node that has closed everything.
    pub(super) fn left_at_end(&self) -> Option<(&'static str, u64)> {
        let sessions = u64::from(self.endpoint.core().session_count());
        let object_counts = self.endpoint.object_counts();
        let left = self.left_at_rest().or(object_counts.left_at_end());
        left.or((sessions > 0).then_some(("sessions", sessions)))
    }

    /// Returns leftover state of a node that has nothing to do.
    pub(super) fn left_at_rest(&self) -> Option<(&'static str, u64)> {
        let kept = u64::from(self.endpoint.transport().has_backlog());
        let left = self.endpoint.object_counts().core.left_at_rest();
        left.or((kept > 0).then_some(("bursts in the transport", kept)))
    }

    pub(super) fn connect(&mut self, target: Target, is_nested: bool) -> Option<SessionId> {
        if self.shared.common.scenario.numbers_collide {
            // The token is random, the first request number is not.
            let first = [0, 64, (1 << 47) - 64][self.shared.rng.borrow_mut().below(3) as usize];
            *self.scripted.borrow_mut() = [None, Some(first)].into();
        }
        let session = match self.connect_back(target) {
            Some(session) => session,
            None => self.endpoint.connect_to(target.remote, target.endpoint).ok()?,
        };
        self.open.push(Open { session, target, is_nested });
        if is_nested {
            let mut nested_sessions = self.shared.nested_sessions.borrow_mut();
            nested_sessions.retain(|former| former.server != target.at);
            nested_sessions.push(NestedSession { session, server: target.at });
        }
        Some(session)
    }

    /// Opens a session to a client of the node, if the target is one: mostly in worlds whose servers do so.
    fn connect_back(&mut self, target: Target) -> Option<SessionId> {
        let Common { scenario, phase, .. } = &*self.shared.common;
        let may = scenario.has_reverse && phase.get() < Phase::Probing;
        if !may || self.shared.rng.borrow_mut().below(4) == 0 {
            return None;
        }
        let is_of_target = |session: &&SessionId| {
            let peer = self.endpoint.session_peer(**session);
            // The client's end of the control connection has another port than the one that it listens on.
            peer.is_some_and(|peer| {
                (peer.name.address.ip(), peer.name.endpoint)
                    == (target.remote.ip(), target.endpoint)
            })
        };
        let served = self.shared.served.borrow().iter().find(is_of_target).copied()?;
        let session = self.endpoint.connect_back(served).ok()?;
        self.shared.ledger().counts.reverse += 1;
        Some(session)
    }

    /// Closes a session of the node, in either role.
    pub(super) fn close(&mut self, session: SessionId) {
        self.shared.ledger().close_here(self.shared.endpoint_number, session);
        self.endpoint.close(session);
    }

    /// Removes ended sessions.
    pub(super) fn sweep(&mut self) {
        let endpoint = &self.endpoint;
        let is_over = |open: &mut Open| {
            matches!(endpoint.session_state(open.session), SessionState::Ended(_))
        };
        self.over.extend(self.open.extract_if(.., is_over));
        let excess = self.over.len().saturating_sub(20);
        self.over.drain(..excess);
    }
}
