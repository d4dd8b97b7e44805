//! The record of all calls of a run: their callers, executions and outcomes.
//!
//! Every rule on which an application may rely is checked here as soon as it can break. A handler runs at
//! most once for a call, and never for a call that was not sent. A call ends once. The answer is computed
//! from exactly the request, and a failure has a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use petrel::{Error, Execution, Reply, Status};
use petrel_proto::SessionId;
use petrel_proto::limits::{HELD_IDLE_NS, packets_of};

use super::call::{Call, End, Expected, Method, Spec, Watch, answer_seed};
use super::client_call::{self, ClientCall};
use super::fault_window::FaultWindows;
use super::pattern;
use super::regions;
use crate::fabric::{FabricHandle, HostId, SimAddr, TurnClock};

/// All calls of a run, across crashes.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    calls: Vec<Call>,
    pub(super) client_calls: Vec<ClientCall>,
    pub(super) regions: regions::Model,
    /// Requests too short for a call number, by server, method and their byte.
    tiny: BTreeMap<TinyKey, Tiny>,
    /// Endpoints (in an incarnation) with congestion control.
    pub(super) controlled: BTreeSet<u32>,
    /// Sessions that their own client closed.
    closed_here: BTreeSet<(u32, SessionId)>,
    pub(super) fault_windows: FaultWindows,
    /// Whether servers may run out of memory.
    pub(super) has_little_memory: bool,
    /// Whether clients time out early enough for loss alone to justify failures.
    pub(super) has_short_timeouts: bool,
    /// Whether worker pools execute deferred requests; pools may be overloaded.
    pub(super) has_worker_pools: bool,
    /// Whether servers open sessions to their clients, which leave a link with its server.
    pub(super) has_reverse: bool,
    /// Whether servers may refuse sessions.
    pub(super) has_few_sessions: bool,
    /// How long after its deadline a call may end if its endpoint is not stopped.
    pub(super) late_ns_max: u64,
    /// The largest message that endpoints accept.
    pub(super) message_bytes_max: u32,
    /// The last reading of the clock by the running node.
    pub(super) now_ns: u64,
    /// How long the node's turn had been stopped at `now_ns`.
    pub(super) stopped_ns: u64,
    /// The clock reading at the beginning of the node's turn.
    pub(super) turn_ns: u64,
    pub(super) violation: Option<String>,
    pub(super) digest: u64,
    pub(super) counts: Counts,
    pub(super) client_call_counts: client_call::Counts,
}

/// Rounding of deadlines on the wire, in microseconds there.
pub(super) const ROUNDED_NS: u64 = 1_000;

/// The deadline of a request, and when its first packet left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) deadline_ns: Option<u64>,
    pub(super) left_ns: Option<u64>,
}

/// Checks that a first packet carries the remaining time by a clock read for its burst. Records when the
/// first packet left.
pub(super) fn check_left(
    deadline_ns: Option<u64>,
    wire_us: Option<u32>,
    TurnClock { read_ns, .. }: TurnClock,
    first_ns: &mut Option<u64>,
) -> Result<(), String> {
    let left_us = |(deadline_ns, read_ns): (u64, u64)| {
        let left_us = deadline_ns.saturating_sub(read_ns) / ROUNDED_NS;
        u32::try_from(left_us).unwrap_or(u32::MAX)
    };
    *first_ns = first_ns.or(read_ns);
    // Without a reading, only a request without a deadline can be right.
    let is_right = match deadline_ns {
        None => wire_us.is_none(),
        Some(_) => wire_us.is_some() && wire_us == deadline_ns.zip(read_ns).map(left_us),
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("{wire_us:?} us until {deadline_ns:?} ns, at {read_ns:?} ns")),
    }
}

type TinyKey = (SimAddr, u16, Option<u8>);

/// Calls and handler runs of a request too short for a call number.
#[derive(Clone, Copy, Debug, Default)]
struct Tiny {
    made: u32,
    executed: u32,
    succeeded: u32,
}

/// The greatest packet spacing of a session, by its congestion control or its credits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Payload of a full packet.
    pub(super) packet_bytes: u32,
    pub(super) gap_ns: u64,
}

counts! {
    /// Outcomes of calls.
    struct Counts {
        nested: "calls_nested",
        succeeded: "calls_succeeded",
        /// Succeeded, with a message of the largest size.
        largest: "calls_of_largest_size",
        /// Sessions that servers opened to their clients.
        reverse: "sessions_opened_to_clients",
        /// Failed with an error from the server.
        answered: "calls_failed_by_server",
        /// Failed, because the server refused to execute the call.
        refused: "calls_refused_by_server",
        /// Cancelled by the callers.
        cancelled: "calls_cancelled_by_caller",
        /// Requests with handlers notified of the end of their caller's wait.
        notified: "handlers_notified",
        /// Failed, and may have been executed.
        unknown: "calls_failed_unknown",
        /// Failed, and no packet was sent.
        not_sent: "calls_failed_not_sent",
        rejected: "calls_rejected",
        lost: "calls_lost_with_client",
        executed: "handlers_run",
        /// Executed by handlers of a kind: reading in place, with the request in the application's memory, futures.
        in_place: "handlers_in_place",
        placed: "handlers_of_placed_requests",
        futures: "handlers_as_futures",
        /// Requests whose handler's memory was fetched ahead in two steps.
        looked_ahead: "requests_looked_ahead_twice",
    }
}

impl Ledger {
    /// Updates the clock, and collects stopped hosts.
    pub(super) fn update_clock(&mut self, fabric: &FabricHandle) {
        let clock = fabric.turn_clock();
        (self.now_ns, self.stopped_ns) = (clock.last_ns, clock.stopped_ns());
        fabric.take_stopped().into_iter().for_each(|stop| self.fault_windows.add_stop(stop));
    }

    /// Records a new call; returns the number.
    pub(super) fn issue(&mut self, call: Call) -> u32 {
        let id = self.calls.len() as u32;
        self.counts.nested += u64::from(call.parent.is_some());
        if call.spec.method.is_tiny() {
            self.tiny_of(&call, id).made += 1;
        }
        self.calls.push(call);
        id
    }

    /// Records that the endpoint did not accept the call.
    pub(super) fn reject(&mut self, id: u32, error: &Error) {
        self.counts.rejected += 1;
        let call = &mut self.calls[id as usize];
        call.end = End::Rejected;
        let call = call.clone();
        self.note(id, 1);
        let text = &error.message[..];
        let is_right = match error.status {
            Status::Unavailable if text.starts_with("the session has ended") => {
                self.has_few_sessions
                    || self.is_closed_here(&call)
                    || self.is_justified(&call)
                    || self.drains(&call)
            }
            Status::Unavailable if text.starts_with("the server is draining") => self.drains(&call),
            Status::ResourceExhausted if text.contains("and the server accepts") => {
                self.is_too_large(&call)
            }
            Status::ResourceExhausted if text.contains("already waiting on this session") => {
                self.has_few_sessions
            }
            // The pool words this error differently.
            Status::ResourceExhausted => self.has_little_memory,
            _ => false,
        };
        if !is_right || call.executions > 0 {
            self.break_rule(id, "was rejected without a reason", error);
        }
        self.forget_request(id);
    }

    fn is_closed_here(&self, call: &Call) -> bool {
        self.is_closed_by(call.client, call.session)
    }

    pub(super) fn is_closed_by(&self, client: u32, session: SessionId) -> bool {
        self.closed_here.contains(&(client, session))
    }

    /// Returns true if the call's server was draining. A client that drains loses the links on which it serves, and its sessions to their
    /// openers with them.
    fn drains(&self, call: &Call) -> bool {
        let drains = |host| self.fault_windows.drains(host, call.issued_ns, self.now_ns);
        drains(call.server.host) || self.has_reverse && drains(call.client_at.host)
    }

    fn is_too_large(&self, call: &Call) -> bool {
        call.spec.request_len > self.message_bytes_max
    }

    /// Checks a handler's run. Returns the call, unless the request is too short for a call number.
    pub(super) fn execute(
        &mut self,
        server: SimAddr,
        method: Method,
        request: &[u8],
        deadline_ns: Option<u64>,
    ) -> Option<u32> {
        self.counts.executed += 1;
        if method.is_tiny() {
            self.execute_tiny(server, method, request);
            return None;
        }
        let known = pattern::id_of(request).filter(|&id| (id as usize) < self.calls.len());
        let Some(id) = known else {
            self.violate(format!("{server} executed {} bytes that nobody sent", request.len()));
            return None;
        };
        self.check_seen(id, deadline_ns);
        if self.calls[id as usize].is_ordered {
            self.check_order(id);
        }
        let call = &mut self.calls[id as usize];
        call.seen_ns = deadline_ns;
        call.executions += 1;
        let (executions, end) = (call.executions, call.end);
        let is_meant = (call.server, call.spec.method) == (server, method);
        let is_whole = request.len() == call.spec.request_len as usize;
        self.note(id, 2);
        if executions > 1 {
            self.break_rule(id, "was executed more than once", &executions);
        }
        if !is_meant {
            self.break_rule(id, "was executed by the wrong server or method", &(server, method));
        }
        if !is_whole || !pattern::is_request(id, request) {
            self.break_rule(id, "was executed with other bytes than were sent", &request.len());
        }
        let is_over =
            matches!(end, End::Rejected | End::Failed(_, Execution::NotSent | Execution::Refused));
        if is_over {
            self.break_rule(id, "was executed although it was said that it would not be", &end);
        }
        Some(id)
    }

    /// Checks that no ordered call runs early: all earlier calls of its session have been executed, or have ended.
    fn check_order(&mut self, id: u32) {
        let call = &self.calls[id as usize];
        let is_open = |earlier: &&Call| {
            (earlier.client, earlier.session) == (call.client, call.session)
                && earlier.end == End::Pending
                && !earlier.is_cancelled
                && earlier.executions == 0
                && !self.may_be_refused(earlier)
        };
        let found = self.calls[..id as usize].iter().find(is_open).cloned();
        if let Some(earlier) = found {
            self.break_rule(id, "is ordered, and ran before an earlier one", &earlier);
        }
    }

    /// Returns true if the server may have answered a call without an execution that is recorded here.
    fn may_be_refused(&self, call: &Call) -> bool {
        let Spec { method, .. } = call.spec;
        // The time left is rounded down, and a stopped server refuses too early by its stop.
        let soon_ns = self.now_ns + self.early_ns_max(call.server.host, call.issued_ns);
        let is_late = call.deadline_ns.is_some_and(|at_ns| at_ns <= soon_ns);
        let is_unseen = method.is_tiny() || !method.is_served();
        is_late
            || is_unseen
            || self.has_little_memory
            || self.has_worker_pools && method == Method::Deferred
    }

    fn check_seen(&mut self, id: u32, seen_ns: Option<u64>) {
        let call = &self.calls[id as usize];
        let sent = Sent { deadline_ns: call.deadline_ns, left_ns: call.left_ns };
        if !self.is_deadline_right(sent, call.server.host, call.issued_ns, seen_ns) {
            self.break_rule(id, "was executed with another deadline", &seen_ns);
        }
    }

    /// Returns true if a handler saw the right deadline, and before its expiry. The server adds the
    /// remaining time on the wire to the beginning of the turn that receives the frame. So the deadline
    /// grows by the time in flight. The deadline shrinks by rounding, and by a stop of the receiving turn:
    /// a frame that arrives during the stop counts as if it had arrived before.
    pub(super) fn is_deadline_right(
        &self,
        Sent { deadline_ns, left_ns }: Sent,
        server: HostId,
        issued_ns: u64,
        seen_ns: Option<u64>,
    ) -> bool {
        match (deadline_ns, seen_ns) {
            (None, None) => true,
            (Some(deadline_ns), Some(seen_ns)) => {
                let stop_ns = self.fault_windows.longest_stop_ns(server, issued_ns, self.now_ns);
                let earliest_ns = deadline_ns.saturating_sub(ROUNDED_NS + stop_ns);
                let left_ns = left_ns.unwrap_or(issued_ns);
                let latest_ns = (deadline_ns + self.turn_ns).saturating_sub(left_ns);
                (earliest_ns..=latest_ns).contains(&seen_ns) && seen_ns > self.now_ns
            }
            _ => false,
        }
    }

    /// Checks the deadline on the first packet of a departing request.
    pub(super) fn leave(
        &mut self,
        id: u32,
        left_us: Option<u32>,
        clock: TurnClock,
    ) -> Result<(), String> {
        let call = &mut self.calls[id as usize];
        check_left(call.deadline_ns, left_us, clock, &mut call.left_ns)
    }

    /// Checks the deadline that calls inherit in a handler, or in the continuation of a handler's call.
    pub(super) fn check_inherited(&mut self, parent: Option<u32>, inherited_ns: Option<u64>) {
        let expected_ns = parent.and_then(|parent| self.calls[parent as usize].seen_ns);
        if inherited_ns != expected_ns {
            let what = format!("{inherited_ns:?} is inherited, and not {expected_ns:?}");
            self.violate(format!("{what}; parent {parent:?}"));
        }
    }

    /// Records a cancellation, and checks whether the call was outstanding.
    pub(super) fn cancel(&mut self, id: u32, was_there: bool) -> SessionId {
        let call = &mut self.calls[id as usize];
        let is_pending = call.end == End::Pending && !call.is_cancelled;
        call.is_cancelled |= was_there;
        self.counts.cancelled += u64::from(was_there);
        if was_there != is_pending {
            self.break_rule(id, "was cancelled, and was there:", &was_there);
        }
        self.calls[id as usize].session
    }

    /// Records a handler's request for a notification when the caller stops waiting.
    pub(super) fn watch(&mut self, id: u32, endpoint_number: u32) {
        self.calls[id as usize].watch = Watch::Waits(endpoint_number);
    }

    /// Records the notification.
    pub(super) fn notify(&mut self, id: u32) {
        let before = std::mem::replace(&mut self.calls[id as usize].watch, Watch::Notified);
        self.counts.notified += 1;
        if !matches!(before, Watch::Waits(_)) {
            self.break_rule(id, "was notified without need", &before);
        }
    }

    /// Records a handler's answer, whether or not its caller still waits.
    pub(super) fn answer(&mut self, id: u32) {
        let Some(call) = self.calls.get_mut(id as usize) else { return };
        if let Watch::Waits(_) = call.watch {
            call.watch = Watch::Answered;
        }
    }

    fn execute_tiny(&mut self, server: SimAddr, method: Method, request: &[u8]) {
        let key = (server, method.number(), request.first().copied());
        let tiny = self.tiny.entry(key).or_default();
        tiny.executed += 1;
        let Tiny { executed, made, .. } = *tiny;
        if executed > made || request.len() > 1 {
            self.violate(format!(
                "{key:?} of {} bytes was executed {executed} times and called {made} times",
                request.len()
            ));
        }
    }

    /// Returns an upper bound of probes for all calls, if pauses double from 20 us on. Client and group
    /// calls, and operations on regions, have no bound on their duration.
    pub(super) fn probe_bound(&self) -> u64 {
        const FIRST_NS: u64 = 20_000;
        const CLIENT_CALL: u64 = 16;
        let client_calls = self.client_calls.len() as u64 + self.regions.operation_count();
        let took_ns = self.calls.iter().filter_map(|call| Some(call.ended_ns? - call.issued_ns));
        let of_calls: u64 = took_ns.map(|ns| 2 + u64::from((ns / FIRST_NS + 1).ilog2())).sum();
        of_calls + CLIENT_CALL * client_calls
    }

    /// Returns calls with their waiting time, excluding the work of handlers.
    pub(super) fn waits(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let wait_ns = |call: &Call| {
            Some((call.ended_ns? - call.issued_ns).saturating_sub(call.spec.delay_ns))
        };
        (0..).zip(&self.calls).filter_map(move |(id, call)| Some((id, wait_ns(call)?)))
    }

    /// Returns how long a call's session may have held packets or handlers back while the call waited. `gap_ns` returns
    /// the packet spacing of a call's session, which its congestion control or its credits demand.
    ///
    /// A session has one pace for all its calls. Packets are charged individually: request packets at departure,
    /// response packets when the client pulls them. The request covers the first response packet. So all packets of
    /// every concurrent call may have gone first. The call also waits for nested calls of its handler.
    ///
    /// An ordered call runs when the earlier ordered calls of the session have been answered. Any call may have a slow
    /// handler, and calls that wait for their turn occupy slots that further calls wait for.
    pub(super) fn held_back_ns(&self, id: u32, gap_ns: &impl Fn(&Call) -> Gap) -> u64 {
        let call = self.call(id);
        let Gap { packet_bytes, gap_ns: apart_ns } = gap_ns(call);
        let is_beside = |other: &&Call| {
            (other.client, other.session) == (call.client, call.session)
                && other.end != End::Rejected
                && call.ended_ns.is_none_or(|ended_ns| other.issued_ns <= ended_ns)
                && other.ended_ns.is_none_or(|ended_ns| ended_ns >= call.issued_ns)
        };
        let packets = |other: &Call| {
            let Spec { request_len, response_len, .. } = other.spec;
            let counts = [request_len, response_len].map(|len| packets_of(len, packet_bytes));
            counts.map(u64::from).into_iter().sum::<u64>() - 1
        };
        let own_ns = self.calls.iter().filter(is_beside).map(packets).sum::<u64>() * apart_ns;
        let ordered = self.calls.iter().filter(is_beside).filter(|other| other.is_ordered);
        let order_ns = ordered.map(|other| other.spec.delay_ns).sum::<u64>();
        let nested = (0..).zip(&self.calls).filter(|(_, other)| other.parent == Some(id));
        own_ns + order_ns + nested.map(|(nested, _)| self.held_back_ns(nested, gap_ns)).sum::<u64>()
    }

    /// Returns the duration of a successful call.
    pub(super) fn took_ns(&self, id: u32) -> Option<u64> {
        let call = self.calls.get(id as usize)?;
        let is_well = call.end == End::Succeeded;
        Some(call.ended_ns.filter(|_| is_well)? - call.issued_ns)
    }

    /// Records the end of a call. Returns true if the call succeeded.
    pub(super) fn end(&mut self, id: u32, reply: &Reply) -> bool {
        let call = &mut self.calls[id as usize];
        if call.end != End::Pending {
            let before = call.end;
            self.break_rule(id, "ended twice", &before);
        }
        let now_ns = self.now_ns;
        self.calls[id as usize].ended_ns = Some(now_ns);
        let is_cancelled = self.calls[id as usize].is_cancelled;
        let status = reply.outcome.as_ref().map_or_else(|failure| failure.status, |()| Status::Ok);
        if is_cancelled && status != Status::Cancelled {
            self.break_rule(id, "was cancelled and ended otherwise", &status);
        }
        if reply.request.len() != self.calls[id as usize].spec.request_len as usize
            || !pattern::is_request(id, &reply.request)
        {
            self.break_rule(id, "came back with another request", &reply.request.len());
        }
        match &reply.outcome {
            Ok(()) => self.end_well(id, &reply.request, &reply.response),
            Err(failure) => self.end_badly(id, failure, reply.response.len()),
        }
        self.note(id, 3);
        reply.outcome.is_ok()
    }

    /// Checks the outcome of a call that has succeeded.
    fn end_well(&mut self, id: u32, request: &[u8], response: &[u8]) {
        self.counts.succeeded += 1;
        let call = &mut self.calls[id as usize];
        call.end = End::Succeeded;
        let call = call.clone();
        if call.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.now_ns) {
            self.break_rule(id, "succeeded after its deadline", &"");
        }
        let longest = call.spec.request_len.max(call.spec.response_len);
        self.counts.largest += u64::from(longest == self.message_bytes_max);
        if call.spec.method.is_tiny() {
            self.tiny_of(&call, id).succeeded += 1;
        } else if call.executions != 1 {
            self.break_rule(id, "succeeded, with this many executions", &call.executions);
        }
        let is_right = match call.expected(id) {
            Expected::Same => response == request,
            Expected::Made(len) => {
                // The server's seed, computed over every byte, or the seed of a tiny request.
                let seed = call.seed.unwrap_or_else(|| answer_seed(request));
                response.len() == len as usize && pattern::is_filled(seed, response)
            }
            Expected::Error(..) => false,
        };
        if !is_right {
            self.break_rule(id, "got a wrong answer, of this length", &response.len());
        }
    }

    /// Checks the outcome of a call that has failed.
    fn end_badly(&mut self, id: u32, failure: &petrel::Error, response_len: usize) {
        let call = &mut self.calls[id as usize];
        call.end = End::Failed(failure.status, failure.execution);
        let call = call.clone();
        if response_len != 0 {
            self.break_rule(id, "failed with a response", &response_len);
        }
        match failure.execution {
            Execution::Answered => {
                self.counts.answered += 1;
                self.check_answer(id, &call, failure);
            }
            Execution::Refused => {
                self.counts.refused += 1;
                self.forget_request(id);
                if call.executions > 0 {
                    self.break_rule(id, "was executed, and said to be refused", failure);
                }
                self.check_answer(id, &call, failure);
            }
            Execution::MayHaveExecuted => {
                self.counts.unknown += 1;
                self.check_failure(id, &call, failure);
            }
            Execution::NotSent => {
                self.counts.not_sent += 1;
                self.forget_request(id);
                if call.executions > 0 {
                    self.break_rule(id, "was executed, and said not to be sent", failure);
                }
                self.check_failure(id, &call, failure);
            }
        }
    }

    /// Checks that a failure from the server is the expected error.
    fn check_answer(&mut self, id: u32, call: &Call, failure: &petrel::Error) {
        if self.has_little_memory && failure.status == Status::ResourceExhausted {
            return;
        }
        let is_refused = failure.execution == Execution::Refused;
        if is_refused && failure.status == Status::DeadlineExceeded {
            return self.check_deadline(id, call, failure);
        }
        if self.may_give_up(call, failure) {
            return;
        }
        if is_refused && self.may_refuse(call, failure.status) {
            return;
        }
        if call.spec.method == Method::Nested && failure.status == Status::Aborted {
            return self.check_nested_failure(id, failure);
        }
        let is_right = match call.expected(id) {
            Expected::Error(status, text) => {
                let is_text_of = |text: Vec<u8>| is_cut_of(failure.message.as_bytes(), &text);
                status == failure.status && (self.has_little_memory || text.is_none_or(is_text_of))
            }
            _ => false,
        };
        if !is_right {
            self.break_rule(id, "got a wrong error", failure);
        }
        let is_executed = call.spec.method.is_served()
            && !call.spec.method.is_tiny()
            && failure.execution == Execution::Answered;
        if is_executed && call.executions != 1 {
            self.break_rule(id, "was answered, with this many executions", &call.executions);
        }
    }

    /// Returns true if a server may have discarded a call's answer or partial request: memory is short, or
    /// the client has not asked for a long time. A discarded answer implies an execution.
    fn may_give_up(&self, call: &Call, failure: &petrel::Error) -> bool {
        let is_long = self.now_ns.saturating_sub(call.issued_ns) >= HELD_IDLE_NS;
        let is_once = call.executions == 1 || call.spec.method.is_tiny();
        match (failure.status, failure.execution) {
            (Status::DataLoss, Execution::Answered) => {
                is_once && (self.has_little_memory || is_long)
            }
            (Status::Unavailable, Execution::Refused) => is_long,
            _ => false,
        }
    }

    /// Returns true if a server may refuse a call with this status: its workers are overloaded, or it drains.
    fn may_refuse(&self, call: &Call, status: Status) -> bool {
        match status {
            Status::ResourceExhausted => {
                self.has_worker_pools && call.spec.method == Method::Deferred
            }
            Status::Unavailable => self.drains(call),
            _ => false,
        }
    }

    /// Checks that a failure passed on from a nested call is real.
    fn check_nested_failure(&mut self, id: u32, failure: &petrel::Error) {
        let has_failed = |call: &Call| {
            call.parent == Some(id) && matches!(call.end, End::Failed(..) | End::Rejected)
        };
        if self.has_little_memory || self.has_few_sessions {
            return;
        }
        if !self.calls.iter().any(has_failed) && !self.is_justified(&self.calls[id as usize]) {
            self.break_rule(id, "failed, and the call nested in it did not", failure);
        }
    }

    /// Checks the reason of a local failure.
    fn check_failure(&mut self, id: u32, call: &Call, failure: &petrel::Error) {
        let is_right = match failure.status {
            Status::Unavailable => {
                let is_left = failure.execution == Execution::NotSent && self.drains(call);
                self.has_short_timeouts || self.is_justified(call) || is_left
            }
            Status::Cancelled => call.is_cancelled || self.is_closed_here(call),
            Status::DeadlineExceeded => return self.check_deadline(id, call, failure),
            Status::ResourceExhausted => {
                let is_refused = self.has_few_sessions || self.is_too_large(call);
                failure.execution == Execution::NotSent && is_refused
            }
            _ => false,
        };
        if !is_right {
            self.break_rule(id, "failed without a reason", failure);
        }
    }

    /// Checks that a call ends with its deadline: not before, and not long after.
    fn check_deadline(&mut self, id: u32, call: &Call, failure: &petrel::Error) {
        let Some(deadline_ns) = call.deadline_ns else {
            return self.break_rule(id, "has no deadline", failure);
        };
        let early_ns = match failure.execution {
            Execution::Refused => self.early_ns_max(call.server.host, call.issued_ns),
            _ => 0,
        };
        if self.now_ns + early_ns < deadline_ns {
            self.break_rule(id, "ended before its deadline", failure);
        }
        if self.is_late(call.client_at.host, deadline_ns.max(call.issued_ns)) {
            self.break_rule(id, "ended long after its deadline", failure);
        }
    }

    /// Returns how long before a deadline a server may refuse a request sent at `sent_ns` or later: see
    /// [`Ledger::is_deadline_right`].
    pub(super) fn early_ns_max(&self, server: HostId, sent_ns: u64) -> u64 {
        ROUNDED_NS + self.fault_windows.longest_stop_ns(server, sent_ns, self.now_ns)
    }

    /// Returns true if a call of this host ends too late after `over_ns`, its due time: by more than the
    /// stops of the host's threads since.
    pub(super) fn is_late(&self, client: HostId, over_ns: u64) -> bool {
        let stopped_ns = self.fault_windows.stopped_ns(client, over_ns, self.now_ns);
        self.now_ns > over_ns + self.late_ns_max + stopped_ns
    }

    fn is_justified(&self, call: &Call) -> bool {
        let hosts = [call.client_at.host, call.server.host];
        self.fault_windows.justify(hosts, call.issued_ns, self.now_ns)
    }

    /// Records a session closed by its own client.
    pub(super) fn close_here(&mut self, client: u32, session: SessionId) {
        self.closed_here.insert((client, session));
    }

    pub(super) fn record_crash(&mut self, client: u32) {
        self.lose_client_calls(client);
        self.regions.lose(client);
        for call in &mut self.calls {
            if call.client == client && call.end == End::Pending {
                call.end = End::Lost;
                self.counts.lost += 1;
            }
            if call.watch == Watch::Waits(client) {
                call.watch = Watch::No;
            }
        }
    }

    /// Checks every call at the end of the run.
    pub(super) fn close(&mut self) {
        self.close_client_calls();
        for id in 0..self.calls.len() as u32 {
            if self.calls[id as usize].end == End::Pending {
                self.break_rule(id, "never ended", &"");
            }
            if let Watch::Waits(_) = self.calls[id as usize].watch {
                self.break_rule(id, "was neither answered nor notified", &"");
            }
        }
        for (key, tiny) in std::mem::take(&mut self.tiny) {
            if tiny.executed < tiny.succeeded || tiny.executed > tiny.made {
                self.violate(format!("{key:?}: {tiny:?}"));
            }
        }
    }

    /// Describes some calls that have not ended.
    pub(super) fn pending(&self) -> String {
        let pending = (0u32..).zip(&self.calls).filter(|(_, call)| call.end == End::Pending);
        let some: Vec<String> =
            pending.take(5).map(|(id, call)| format!("call {id}: {call:?}")).collect();
        some.join("; ")
    }

    /// Records the seed of a call's answer, as computed by the server from the request.
    pub(super) fn note_seed(&mut self, id: u32, seed: u64) {
        self.calls[id as usize].seed = Some(seed);
    }

    /// Returns true if a call with this request was made.
    pub(super) fn has_tiny(&self, server: SimAddr, method: Method, byte: Option<u8>) -> bool {
        self.tiny.get(&(server, method.number(), byte)).is_some_and(|tiny| tiny.made > 0)
    }

    pub(super) fn call(&self, id: u32) -> &Call {
        &self.calls[id as usize]
    }

    pub(super) fn call_count(&self) -> usize {
        self.calls.len()
    }

    /// Removes a request that was never sent; a later execution is an error.
    fn forget_request(&mut self, id: u32) {
        let call = self.calls[id as usize].clone();
        if call.spec.method.is_tiny() {
            self.tiny_of(&call, id).made -= 1;
        }
    }

    fn tiny_of(&mut self, call: &Call, id: u32) -> &mut Tiny {
        let byte = (call.spec.request_len > 0).then_some(id as u8);
        self.tiny.entry((call.server, call.spec.method.number(), byte)).or_default()
    }

    fn note(&mut self, id: u32, what: u64) {
        let call = &self.calls[id as usize];
        let word = u64::from(id) << 8 | what << 4 | u64::from(call.executions);
        self.digest = pattern::mix(self.digest, word ^ self.now_ns << 20);
    }

    fn break_rule(&mut self, id: u32, what: &str, with: &dyn Debug) {
        let call = self.calls[id as usize].clone();
        self.violate(format!("call {id} {what}: {with:?}; {call:?}"));
    }

    /// Records the first broken rule.
    pub(super) fn violate(&mut self, what: String) {
        let now_ns = self.now_ns;
        self.violation.get_or_insert_with(|| format!("at {now_ns} ns: {what}"));
    }
}

/// Returns true if `got` is `text`, or the beginning of `text` in a full packet.
fn is_cut_of(got: &[u8], text: &[u8]) -> bool {
    got == text
        || (got.len() >= petrel_proto::limits::PACKET_BYTES_MIN as usize && text.starts_with(got))
}

#[cfg(test)]
mod tests;
