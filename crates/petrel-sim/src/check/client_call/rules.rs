//! The rules for client calls and group calls.
//!
//! | rule | checked |
//! | --- | --- |
//! | at most the allowed attempts, apart from redirected ones; a group call makes at most one per session | when a request leaves |
//! | no packet leaves after the call has ended, or its caller has dropped it | when a packet leaves |
//! | a call that is not idempotent is not attempted again after an execution | when a request leaves |
//! | only the latest attempt of a call that is not idempotent is executed, once | when a handler runs |
//! | a server executes at most the requests sent to it, and none reported as not executed | when a handler runs |
//! | success means executed, with the right bytes; a failure has a reason | at the end |
//! | a group call succeeds with the last answer needed, or fails with the failure that rules it out | at the end |
//! | every call ends once, by its deadline | at the end of the call, and at the end of the run |

use std::fmt::Debug;

use petrel::endpoint::SessionId;
use petrel::group::{Member, MemberOutcome};
use petrel::{Execution, MsgBuf, Status};

use super::{ClientCall, Destinations, Instructions, Outcome, Work, id_at, place_of};
use crate::check::call::answer_seed;
use crate::check::ledger::{Ledger, Sent, check_left};
use crate::check::pattern;
use crate::fabric::{SimAddr, TurnClock};

impl Ledger {
    /// Records a new call; returns number and request.
    pub(in crate::check) fn issue_client_call(
        &mut self,
        client_call: ClientCall,
    ) -> (u32, Vec<u8>) {
        let id = id_at(self.client_calls.len());
        let mut request = vec![0; client_call.request_len as usize];
        pattern::fill_request(id, &mut request);
        match client_call.destinations {
            Destinations::Client { .. } => self.client_call_counts.by_client += 1,
            Destinations::Group { .. } => self.client_call_counts.by_group += 1,
        }
        self.client_calls.push(ClientCall { seed: answer_seed(&request), ..client_call });
        (id, request)
    }

    /// Records that the caller begins to wait.
    pub(in crate::check) fn begin_client_call(&mut self, id: u32, deadline_ns: Option<u64>) {
        let now_ns = self.now_ns;
        let Some(client_call) = self.client_call_mut(id) else { return };
        (client_call.issued_ns, client_call.deadline_ns) = (now_ns, deadline_ns);
    }

    /// Checks the deadline on a departing first packet.
    pub(in crate::check) fn leave_client_call(
        &mut self,
        id: u32,
        server: SimAddr,
        left_us: Option<u32>,
        clock: TurnClock,
    ) -> Result<(), String> {
        let Some(client_call) = self.client_call_mut(id) else {
            return Err("an unknown client call".to_owned());
        };
        let mut first_ns = client_call.left_ns.get(&server).copied();
        let checked = check_left(client_call.deadline_ns, left_us, clock, &mut first_ns);
        client_call.left_ns.extend(first_ns.map(|first_ns| (server, first_ns)));
        checked
    }

    pub(in crate::check) fn client_call(&self, id: u32) -> Option<&ClientCall> {
        self.client_calls.get(place_of(id)?)
    }

    /// Records that the caller has cancelled a call that had not ended.
    pub(super) fn cancel_client_call(&mut self, id: u32) {
        if let Some(client_call) = self.client_call_mut(id) {
            client_call.is_cancelled = true;
            self.client_call_counts.cancelled += 1;
        }
    }

    /// Adds servers to which the call may go.
    pub(super) fn add_servers(&mut self, id: u32, servers: &[SimAddr]) {
        let Some(client_call) = self.client_call_mut(id) else { return };
        let new = servers.iter().filter(|server| !client_call.servers.contains(server)).copied();
        client_call.servers = client_call.servers.iter().copied().chain(new).collect();
    }

    pub(super) fn client_call_mut(&mut self, id: u32) -> Option<&mut ClientCall> {
        self.client_calls.get_mut(place_of(id)?)
    }

    /// Checks the first packet of a departing request.
    pub(in crate::check) fn attempt(
        &mut self,
        id: u32,
        session: usize,
        (from, to): (SimAddr, SimAddr),
        (method, len): (u16, u32),
    ) -> Result<(), String> {
        self.client_call_counts.attempts += 1;
        let Some(client_call) = self.client_call_mut(id) else {
            return Err("an unknown client call".to_owned());
        };
        let is_meant = client_call.client_at == from
            && client_call.servers.contains(&to)
            && (client_call.work.number(), client_call.request_len) == (method, len);
        let is_new = client_call.sessions.insert(session);
        *client_call.attempts.entry(to).or_default() += 1;
        client_call.latest = Some(to);
        let is_allowed = match client_call.destinations {
            Destinations::Group { .. } => is_new,
            Destinations::Client { attempts_max, is_idempotent } => {
                client_call.attempted() <= attempts_max + client_call.redirects.len() as u32
                    && (is_idempotent || client_call.executed() == 0)
            }
        };
        match is_meant && is_allowed {
            true => Ok(()),
            false => Err(format!("an attempt that must not be made; {client_call:?}")),
        }
    }

    /// Checks a departing packet of a request. A group call that fails while it is made, and a call that is dropped, may have requests in
    /// rings already: they leave in this turn, and CANCELs follow.
    pub(in crate::check) fn check_leaving(&self, id: u32) -> Result<(), String> {
        let fails_while_made = |client_call: &ClientCall| {
            matches!(client_call.destinations, Destinations::Group { .. })
                && client_call.issued_ns == self.now_ns
        };
        match self.client_call(id) {
            Some(client_call)
                if client_call.outcome == Outcome::Pending
                    || client_call.goes_on()
                    || fails_while_made(client_call)
                    || client_call.dropped_ns == Some(self.now_ns) =>
            {
                Ok(())
            }
            client_call => {
                Err(format!("the request of a client call that has ended leaves: {client_call:?}"))
            }
        }
    }

    /// Checks a handler's run.
    pub(in crate::check) fn execute_client_call(
        &mut self,
        server: SimAddr,
        work: Work,
        request: &[u8],
        seen_ns: Option<u64>,
    ) -> Option<Instructions> {
        let id = pattern::id_of(request).unwrap_or_default();
        let Some(client_call) = self.client_call_mut(id) else {
            self.violate(format!("{server} executed {} bytes that nobody sent", request.len()));
            return None;
        };
        *client_call.executions.entry(server).or_default() += 1;
        let client_call = client_call.clone();
        self.client_call_counts.executed_again +=
            u64::from(client_call.executed() == 2 && !client_call.is_group());
        self.note_client_call(id, 2);
        if client_call.work != work || !pattern::is_request(id, request) {
            self.break_client_call(
                id,
                "was executed with other bytes than were sent",
                &request.len(),
            );
        }
        if client_call.executions.get(&server) > client_call.attempts.get(&server) {
            self.break_client_call(id, "was executed more often than it was sent to", &server);
        }
        let is_single =
            matches!(client_call.destinations, Destinations::Client { is_idempotent: false, .. });
        if is_single && (client_call.executed() > 1 || client_call.latest != Some(server)) {
            self.break_client_call(id, "was tried again, and then executed at", &server);
        }
        if client_call.must_not_execute.contains(&server) {
            self.break_client_call(
                id,
                "was executed although it was said that it would not be",
                &server,
            );
        }
        let left_ns = client_call.left_ns.get(&server).copied();
        let sent = Sent { deadline_ns: client_call.deadline_ns, left_ns };
        if !self.is_deadline_right(sent, server.host, client_call.issued_ns, seen_ns) {
            self.break_client_call(id, "was executed with another deadline", &seen_ns);
        }
        let ClientCall { seed, response_len, delay_ns, .. } = client_call;
        Some(Instructions { id, seed, len: response_len as usize, delay_ns })
    }

    /// Records the end of a client's call.
    pub(in crate::check) fn end_client_call(
        &mut self,
        id: u32,
        reply: Result<&[u8], &petrel::Error>,
    ) {
        let Some(client_call) = self.client_call(id).cloned() else { return };
        if client_call.is_cancelled && reply.is_ok() {
            self.break_client_call(id, "was cancelled, and succeeded", &"");
        }
        let outcome = match reply {
            Ok(_) => Outcome::Succeeded,
            Err(failure) => Outcome::Failed(failure.status, failure.execution),
        };
        self.conclude(id, outcome);
        match reply {
            Ok(answer) => {
                self.client_call_counts.succeeded += 1;
                if client_call.executed() == 0 {
                    self.break_client_call(id, "succeeded, and was executed by nobody", &"");
                }
                self.check_client_call_answer(id, &client_call, answer);
            }
            Err(failure) => {
                let must_not_execute = client_call.servers.clone();
                self.check_not_executed(id, failure, must_not_execute);
                self.check_client_call_failure(id, failure, &client_call.servers, None);
                if client_call.must_succeed {
                    self.check_need_to_fail(id, &client_call, failure);
                }
            }
        }
    }

    /// Checks that a call after the faults fails only if all its servers have crashed for good.
    fn check_need_to_fail(&mut self, id: u32, client_call: &ClientCall, failure: &petrel::Error) {
        let client = client_call.client_at.host;
        let is_gone = |server: &SimAddr| {
            self.fault_windows.justify([client, server.host], client_call.issued_ns, self.now_ns)
        };
        let is_hard = self.has_few_sessions || self.has_little_memory || self.has_short_timeouts;
        if !is_hard && !client_call.servers.iter().all(is_gone) {
            self.break_client_call(id, "failed after the faults", failure);
        }
    }

    pub(in crate::check) fn end_group(
        &mut self,
        id: u32,
        succeeded: bool,
        members: &[Member<MsgBuf>],
    ) {
        let Some(client_call) = self.client_call(id).cloned() else { return };
        let Destinations::Group { needed, .. } = client_call.destinations else { return };
        self.conclude(id, if succeeded { Outcome::Succeeded } else { Outcome::FewAnswered });
        let answered = members.iter().filter(|member| member.outcome.answer().is_some()).count();
        let failed = members.iter().filter(|member| member.outcome.failure().is_some()).count();
        let is_right = match succeeded {
            true => answered == needed && failed + needed <= members.len(),
            false => answered < needed && failed + needed == members.len() + 1,
        };
        if !is_right || members.len() != client_call.servers.len() {
            self.break_client_call(
                id,
                "has another outcome than its members",
                &(succeeded, members),
            );
        }
        match succeeded {
            true => self.client_call_counts.groups_succeeded += 1,
            false => self.client_call_counts.groups_failed += 1,
        }
        for (member, &server) in members.iter().zip(&client_call.servers) {
            self.check_member(id, &client_call, member, server);
        }
    }

    /// Checks the outcome of a group's member against the executions at its server.
    fn check_member(
        &mut self,
        id: u32,
        client_call: &ClientCall,
        member: &Member<MsgBuf>,
        server: SimAddr,
    ) {
        match &member.outcome {
            MemberOutcome::Pending => {}
            MemberOutcome::Answered(answer) => {
                if !client_call.executions.contains_key(&server) {
                    self.break_client_call(id, "was answered, and not executed by", &server);
                }
                self.check_client_call_answer(id, client_call, answer);
            }
            MemberOutcome::Failed(failure) => {
                // With two sessions to the server, the server may execute the other member's call.
                let same = client_call.servers.iter().filter(|&&other| other == server).count();
                let must_not_execute = if same == 1 { vec![server] } else { Vec::new() };
                self.check_not_executed(id, failure, must_not_execute);
                self.check_client_call_failure(id, failure, &[server], Some(member.id));
            }
        }
    }

    /// Records the end of a call, which must not have ended before.
    fn conclude(&mut self, id: u32, outcome: Outcome) {
        self.note_client_call(id, 3);
        let Some(client_call) = self.client_call_mut(id) else { return };
        let before = std::mem::replace(&mut client_call.outcome, outcome);
        let client_call = client_call.clone();
        if before != Outcome::Pending {
            self.break_client_call(id, "has ended before", &before);
        }
        let Some(deadline_ns) = client_call.deadline_ns else { return };
        if self.is_late(client_call.client_at.host, deadline_ns.max(client_call.issued_ns)) {
            self.break_client_call(id, "ended long after its deadline", &outcome);
        }
        // A stopped caller handles an answer that arrived in time only after the stop.
        if outcome == Outcome::Succeeded && deadline_ns + self.stopped_ns <= self.now_ns {
            self.break_client_call(id, "succeeded after its deadline", &"");
        }
    }

    /// Checks that the servers of a failure without execution have not executed the call, and bars later
    /// executions.
    fn check_not_executed(&mut self, id: u32, failure: &petrel::Error, servers: Vec<SimAddr>) {
        if !matches!(failure.execution, Execution::NotSent | Execution::Refused) {
            self.client_call_counts.failed_unknown += 1;
            return;
        }
        self.client_call_counts.failed_not_executed += 1;
        let Some(client_call) = self.client_call_mut(id) else { return };
        let has_executed = servers.iter().any(|server| client_call.executions.contains_key(server));
        client_call.must_not_execute.extend(servers);
        if has_executed {
            self.break_client_call(id, "was executed, and said not to be", failure);
        }
    }

    fn check_client_call_answer(&mut self, id: u32, client_call: &ClientCall, answer: &[u8]) {
        if answer.len() != client_call.response_len as usize
            || !pattern::is_filled(client_call.seed, answer)
        {
            self.break_client_call(id, "got a wrong answer", &answer.len());
        }
    }

    /// Checks that a failure has a reason at the given servers.
    fn check_client_call_failure(
        &mut self,
        id: u32,
        failure: &petrel::Error,
        servers: &[SimAddr],
        session: Option<SessionId>,
    ) {
        let Some(client_call) = self.client_call(id).cloned() else { return };
        let now_ns = self.now_ns;
        let did_not = matches!(failure.execution, Execution::NotSent | Execution::Refused);
        // A client may still pause after a failed connect.
        let from_ns = client_call.issued_ns.saturating_sub(self.fault_windows.aftermath_ns);
        let hosts = |server: &SimAddr| [client_call.client_at.host, server.host];
        let is_justified =
            servers.iter().any(|server| self.fault_windows.justify(hosts(server), from_ns, now_ns));
        let drains =
            servers.iter().any(|server| self.fault_windows.drains(server.host, from_ns, now_ns));
        let is_closed_here =
            session.is_some_and(|session| self.is_closed_by(client_call.client, session));
        let is_right = match failure.status {
            Status::Unavailable => {
                self.has_short_timeouts
                    || self.has_few_sessions
                    || is_justified
                    || is_closed_here
                    || drains && did_not
            }
            Status::Cancelled => is_closed_here || client_call.is_cancelled,
            Status::DeadlineExceeded => {
                let early_ns =
                    |server: &SimAddr| self.early_ns_max(server.host, client_call.issued_ns);
                // An attempt may be refused while the outcome of earlier attempts is unknown.
                let is_retried = matches!(
                    client_call.destinations,
                    Destinations::Client { attempts_max: 2.., .. }
                );
                let may_be_refused = match failure.execution {
                    Execution::Refused => true,
                    Execution::MayHaveExecuted => is_retried,
                    _ => false,
                };
                let early_ns = servers.iter().filter(|_| may_be_refused).map(early_ns).max();
                let early_ns = early_ns.unwrap_or(0);
                client_call.deadline_ns.is_some_and(|deadline_ns| now_ns + early_ns >= deadline_ns)
            }
            // Whatever the outcome of earlier attempts, the last was refused or not sent.
            Status::ResourceExhausted if failure.execution != Execution::Answered => {
                client_call.work == Work::WorkerPool
                    || self.has_little_memory
                    || self.has_few_sessions
            }
            Status::ResourceExhausted => self.has_little_memory,
            // The server discarded the answer before a repeated pull.
            Status::DataLoss => failure.execution == Execution::Answered && self.has_little_memory,
            Status::FailedPrecondition => {
                let refuses = |&server: &SimAddr| client_call.work.is_refused(id, server);
                failure.execution != Execution::Answered && servers.iter().any(refuses)
            }
            _ => false,
        };
        if !is_right {
            self.break_client_call(id, "failed without a reason", failure);
        }
    }

    /// Records that the caller drops the call.
    pub(in crate::check) fn drop_client_call(&mut self, id: u32) {
        self.client_call_counts.dropped += 1;
        let now_ns = self.now_ns;
        if let Some(client_call) = self.client_call_mut(id) {
            (client_call.outcome, client_call.dropped_ns) = (Outcome::Dropped, Some(now_ns));
        }
    }

    /// Records the crash of a client with its calls.
    pub(in crate::check) fn lose_client_calls(&mut self, client: u32) {
        for client_call in &mut self.client_calls {
            if client_call.client == client && client_call.outcome == Outcome::Pending {
                client_call.outcome = Outcome::Lost;
                self.client_call_counts.lost += 1;
            }
        }
    }

    pub(in crate::check) fn close_client_calls(&mut self) {
        let pending = |client_call: &ClientCall| client_call.outcome == Outcome::Pending;
        if let Some(place) = self.client_calls.iter().position(pending) {
            self.break_client_call(id_at(place), "never ended", &"");
        }
    }

    fn note_client_call(&mut self, id: u32, what: u64) {
        let executed = self.client_call(id).map_or(0, ClientCall::executed);
        let word = u64::from(id) << 8 | what << 4 | u64::from(executed);
        self.digest = pattern::mix(self.digest, word ^ self.now_ns << 20);
    }

    fn break_client_call(&mut self, id: u32, what: &str, with: &dyn Debug) {
        let client_call = self.client_call(id).cloned();
        self.violate(format!(
            "client call {} {what}: {with:?}; {client_call:?}",
            id & !super::MARK
        ));
    }
}

impl ClientCall {
    fn is_group(&self) -> bool {
        matches!(self.destinations, Destinations::Group { .. })
    }
}
