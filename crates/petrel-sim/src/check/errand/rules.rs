//! The rules for client calls and group calls.
//!
//! | rule | checked |
//! | --- | --- |
//! | at most the allowed attempts; a group call makes at most one per session | when a request leaves |
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

use super::{Errand, Fate, Order, Spread, Work, id_at, place_of};
use crate::check::call::answer_seed;
use crate::check::ledger::{Ledger, Sent, check_left};
use crate::check::pattern;
use crate::fabric::{PassClock, SimAddr};

impl Ledger {
    /// Records a new call; returns number and request.
    pub(in crate::check) fn send_out(&mut self, errand: Errand) -> (u32, Vec<u8>) {
        let id = id_at(self.errands.len());
        let mut request = vec![0; errand.request_len as usize];
        pattern::fill_request(id, &mut request);
        match errand.spread {
            Spread::Client { .. } => self.errand_counts.by_client += 1,
            Spread::Group { .. } => self.errand_counts.by_group += 1,
        }
        self.errands.push(Errand { seed: answer_seed(&request), ..errand });
        (id, request)
    }

    /// Records that the caller begins to wait.
    pub(in crate::check) fn begin_errand(&mut self, id: u32, deadline_ns: Option<u64>) {
        let now_ns = self.now_ns;
        let Some(errand) = self.errand_mut(id) else { return };
        (errand.issued_ns, errand.deadline_ns) = (now_ns, deadline_ns);
    }

    /// Checks the deadline on a departing first packet.
    pub(in crate::check) fn leave_errand(
        &mut self,
        id: u32,
        server: SimAddr,
        left_us: Option<u32>,
        clock: PassClock,
    ) -> Result<(), String> {
        let Some(errand) = self.errand_mut(id) else { return Err("nobody's errand".to_owned()) };
        let mut first_ns = errand.left_ns.get(&server).copied();
        let checked = check_left(errand.deadline_ns, left_us, clock, &mut first_ns);
        errand.left_ns.extend(first_ns.map(|first_ns| (server, first_ns)));
        checked
    }

    pub(in crate::check) fn errand(&self, id: u32) -> Option<&Errand> {
        self.errands.get(place_of(id)?)
    }

    /// Records that the caller has cancelled a call that had not ended.
    pub(super) fn cancel_errand(&mut self, id: u32) {
        if let Some(errand) = self.errand_mut(id) {
            errand.is_cancelled = true;
            self.errand_counts.cancelled += 1;
        }
    }

    /// Adds servers to which the call may go.
    pub(super) fn add_servers(&mut self, id: u32, servers: &[SimAddr]) {
        let Some(errand) = self.errand_mut(id) else { return };
        let new = servers.iter().filter(|server| !errand.servers.contains(server)).copied();
        errand.servers = errand.servers.iter().copied().chain(new).collect();
    }

    fn errand_mut(&mut self, id: u32) -> Option<&mut Errand> {
        self.errands.get_mut(place_of(id)?)
    }

    /// Checks the first packet of a departing request.
    pub(in crate::check) fn attempt(
        &mut self,
        id: u32,
        session: usize,
        (from, to): (SimAddr, SimAddr),
        (method, len): (u16, u32),
    ) -> Result<(), String> {
        self.errand_counts.attempts += 1;
        let Some(errand) = self.errand_mut(id) else { return Err("nobody's errand".to_owned()) };
        let is_meant = errand.client_at == from
            && errand.servers.contains(&to)
            && (errand.work.number(), errand.request_len) == (method, len);
        let is_new = errand.sessions.insert(session);
        *errand.attempts.entry(to).or_default() += 1;
        errand.latest = Some(to);
        let is_allowed = match errand.spread {
            Spread::Group { .. } => is_new,
            Spread::Client { attempts_max, is_idempotent } => {
                errand.attempted() <= attempts_max && (is_idempotent || errand.executed() == 0)
            }
        };
        match is_meant && is_allowed {
            true => Ok(()),
            false => Err(format!("an attempt that must not be made; {errand:?}")),
        }
    }

    /// Checks a departing packet of a request.
    pub(in crate::check) fn check_leaving(&self, id: u32) -> Result<(), String> {
        match self.errand(id) {
            Some(errand) if errand.fate == Fate::Pending || errand.goes_on() => Ok(()),
            errand => Err(format!("the request of an errand that has ended leaves: {errand:?}")),
        }
    }

    /// Checks a handler's run.
    pub(in crate::check) fn execute_errand(
        &mut self,
        server: SimAddr,
        work: Work,
        request: &[u8],
        seen_ns: Option<u64>,
    ) -> Option<Order> {
        let id = pattern::id_of(request).unwrap_or_default();
        let Some(errand) = self.errand_mut(id) else {
            self.violate(format!("{server} executed {} bytes that nobody sent", request.len()));
            return None;
        };
        *errand.executions.entry(server).or_default() += 1;
        let errand = errand.clone();
        self.errand_counts.executed_again +=
            u64::from(errand.executed() == 2 && !errand.is_group());
        self.note_errand(id, 2);
        if errand.work != work || !pattern::is_request(id, request) {
            self.break_errand(id, "was executed with other bytes than were sent", &request.len());
        }
        if errand.executions.get(&server) > errand.attempts.get(&server) {
            self.break_errand(id, "was executed more often than it was sent to", &server);
        }
        let is_single = matches!(errand.spread, Spread::Client { is_idempotent: false, .. });
        if is_single && (errand.executed() > 1 || errand.latest != Some(server)) {
            self.break_errand(id, "was tried again, and then executed at", &server);
        }
        if errand.barred.contains(&server) {
            self.break_errand(
                id,
                "was executed although it was said that it would not be",
                &server,
            );
        }
        let left_ns = errand.left_ns.get(&server).copied();
        let sent = Sent { deadline_ns: errand.deadline_ns, left_ns };
        if !self.is_seen_rightly(sent, server.host, errand.issued_ns, seen_ns) {
            self.break_errand(id, "was executed with another deadline", &seen_ns);
        }
        let Errand { seed, response_len, delay_ns, .. } = errand;
        Some(Order { id, seed, len: response_len as usize, delay_ns })
    }

    /// Records the end of a client's call.
    pub(in crate::check) fn end_errand(&mut self, id: u32, outcome: Result<&[u8], &petrel::Error>) {
        let Some(errand) = self.errand(id).cloned() else { return };
        if errand.is_cancelled && outcome.is_ok() {
            self.break_errand(id, "was cancelled, and succeeded", &"");
        }
        let fate = match outcome {
            Ok(_) => Fate::Succeeded,
            Err(failure) => Fate::Failed(failure.status, failure.execution),
        };
        self.conclude(id, fate);
        match outcome {
            Ok(answer) => {
                self.errand_counts.succeeded += 1;
                if errand.executed() == 0 {
                    self.break_errand(id, "succeeded, and was executed by nobody", &"");
                }
                self.check_errand_answer(id, &errand, answer);
            }
            Err(failure) => {
                let barred = errand.servers.clone();
                self.check_not_executed(id, failure, barred);
                self.check_errand_failure(id, failure, &errand.servers, None);
                if errand.must_succeed {
                    self.check_need_to_fail(id, &errand, failure);
                }
            }
        }
    }

    /// After the faults, a call may fail only if all its servers have crashed for good.
    fn check_need_to_fail(&mut self, id: u32, errand: &Errand, failure: &petrel::Error) {
        let client = errand.client_at.host;
        let is_gone = |server: &SimAddr| {
            self.troubles.justify([client, server.host], errand.issued_ns, self.now_ns)
        };
        let is_hard = self.is_crowded || self.memory_is_tight || self.is_impatient;
        if !is_hard && !errand.servers.iter().all(is_gone) {
            self.break_errand(id, "failed after the storm", failure);
        }
    }

    /// Checks the outcome of a group call.
    pub(in crate::check) fn end_group(
        &mut self,
        id: u32,
        succeeded: bool,
        members: &[Member<MsgBuf>],
    ) {
        let Some(errand) = self.errand(id).cloned() else { return };
        let Spread::Group { needed, .. } = errand.spread else { return };
        self.conclude(id, if succeeded { Fate::Succeeded } else { Fate::FewAnswered });
        let answered = members.iter().filter(|member| member.outcome.answer().is_some()).count();
        let failed = members.iter().filter(|member| member.outcome.failure().is_some()).count();
        let is_right = match succeeded {
            true => answered == needed && failed + needed <= members.len(),
            false => answered < needed && failed + needed == members.len() + 1,
        };
        if !is_right || members.len() != errand.servers.len() {
            self.break_errand(id, "has another outcome than its members", &(succeeded, members));
        }
        match succeeded {
            true => self.errand_counts.groups_succeeded += 1,
            false => self.errand_counts.groups_failed += 1,
        }
        for (member, &server) in members.iter().zip(&errand.servers) {
            self.check_member(id, &errand, member, server);
        }
    }

    fn check_member(&mut self, id: u32, errand: &Errand, member: &Member<MsgBuf>, server: SimAddr) {
        match &member.outcome {
            MemberOutcome::Pending => {}
            MemberOutcome::Answered(answer) => {
                if !errand.executions.contains_key(&server) {
                    self.break_errand(id, "was answered, and not executed by", &server);
                }
                self.check_errand_answer(id, errand, answer);
            }
            MemberOutcome::Failed(failure) => {
                // A second session may go to this server.
                let same = errand.servers.iter().filter(|&&other| other == server).count();
                let barred = if same == 1 { vec![server] } else { Vec::new() };
                self.check_not_executed(id, failure, barred);
                self.check_errand_failure(id, failure, &[server], Some(member.id));
            }
        }
    }

    /// Records the end of a call, which must not have ended before.
    fn conclude(&mut self, id: u32, fate: Fate) {
        self.note_errand(id, 3);
        let Some(errand) = self.errand_mut(id) else { return };
        let before = std::mem::replace(&mut errand.fate, fate);
        let errand = errand.clone();
        if before != Fate::Pending {
            self.break_errand(id, "has ended before", &before);
        }
        let Some(deadline_ns) = errand.deadline_ns else { return };
        if self.is_late(errand.client_at.host, deadline_ns.max(errand.issued_ns)) {
            self.break_errand(id, "ended long after its deadline", &fate);
        }
        // An answer that arrived in time may find its caller's turn stopped.
        if fate == Fate::Succeeded && deadline_ns + self.held_up_ns <= self.now_ns {
            self.break_errand(id, "succeeded after its deadline", &"");
        }
    }

    /// Checks that the servers of a failure without execution have not executed the call, and bars later
    /// executions.
    fn check_not_executed(&mut self, id: u32, failure: &petrel::Error, servers: Vec<SimAddr>) {
        if !matches!(failure.execution, Execution::NotSent | Execution::Refused) {
            self.errand_counts.failed_unknown += 1;
            return;
        }
        self.errand_counts.failed_not_executed += 1;
        let Some(errand) = self.errand_mut(id) else { return };
        let has_executed = servers.iter().any(|server| errand.executions.contains_key(server));
        errand.barred.extend(servers);
        if has_executed {
            self.break_errand(id, "was executed, and said not to be", failure);
        }
    }

    fn check_errand_answer(&mut self, id: u32, errand: &Errand, answer: &[u8]) {
        if answer.len() != errand.response_len as usize || !pattern::is_filled(errand.seed, answer)
        {
            self.break_errand(id, "got a wrong answer", &answer.len());
        }
    }

    /// Checks that a failure has a reason at the given servers.
    fn check_errand_failure(
        &mut self,
        id: u32,
        failure: &petrel::Error,
        servers: &[SimAddr],
        session: Option<SessionId>,
    ) {
        let Some(errand) = self.errand(id).cloned() else { return };
        let now_ns = self.now_ns;
        let did_not = matches!(failure.execution, Execution::NotSent | Execution::Refused);
        // A client may still pause after a failed connect.
        let from_ns = errand.issued_ns.saturating_sub(self.troubles.aftermath_ns);
        let hosts = |server: &SimAddr| [errand.client_at.host, server.host];
        let is_justified =
            servers.iter().any(|server| self.troubles.justify(hosts(server), from_ns, now_ns));
        let drains =
            servers.iter().any(|server| self.troubles.drains(server.host, from_ns, now_ns));
        let is_closed_here =
            session.is_some_and(|session| self.is_closed_by(errand.client, session));
        let is_right = match failure.status {
            Status::Unavailable => {
                self.is_impatient
                    || self.is_crowded
                    || is_justified
                    || is_closed_here
                    || drains && did_not
            }
            Status::Cancelled => is_closed_here || errand.is_cancelled,
            Status::DeadlineExceeded => {
                let early_ns = |server: &SimAddr| self.early_ns_max(server.host, errand.issued_ns);
                // An attempt may be refused while the outcome of earlier attempts is unknown.
                let is_retried = matches!(errand.spread, Spread::Client { attempts_max: 2.., .. });
                let may_be_refused = match failure.execution {
                    Execution::Refused => true,
                    Execution::MayHaveExecuted => is_retried,
                    _ => false,
                };
                let early_ns = servers.iter().filter(|_| may_be_refused).map(early_ns).max();
                let early_ns = early_ns.unwrap_or(0);
                errand.deadline_ns.is_some_and(|deadline_ns| now_ns + early_ns >= deadline_ns)
            }
            // Whatever the outcome of earlier attempts, the last was refused or not sent.
            Status::ResourceExhausted if failure.execution != Execution::Answered => {
                errand.work == Work::Crew || self.memory_is_tight || self.is_crowded
            }
            Status::ResourceExhausted => self.memory_is_tight,
            // The server discarded the answer before a repeated pull.
            Status::DataLoss => failure.execution == Execution::Answered && self.memory_is_tight,
            Status::FailedPrecondition => {
                let refuses = |&server: &SimAddr| errand.work.is_refused(id, server);
                failure.execution != Execution::Answered && servers.iter().any(refuses)
            }
            _ => false,
        };
        if !is_right {
            self.break_errand(id, "failed without a reason", failure);
        }
    }

    /// Records that the caller drops the call.
    pub(in crate::check) fn drop_errand(&mut self, id: u32) {
        self.errand_counts.dropped += 1;
        if let Some(errand) = self.errand_mut(id) {
            errand.fate = Fate::Dropped;
        }
    }

    /// Records the crash of a client with its calls.
    pub(in crate::check) fn bury_errands(&mut self, client: u32) {
        for errand in &mut self.errands {
            if errand.client == client && errand.fate == Fate::Pending {
                errand.fate = Fate::Lost;
                self.errand_counts.lost += 1;
            }
        }
    }

    /// Checks that all calls have ended.
    pub(in crate::check) fn close_errands(&mut self) {
        let pending = |errand: &Errand| errand.fate == Fate::Pending;
        if let Some(place) = self.errands.iter().position(pending) {
            self.break_errand(id_at(place), "never ended", &"");
        }
    }

    fn note_errand(&mut self, id: u32, what: u64) {
        let executed = self.errand(id).map_or(0, Errand::executed);
        let word = u64::from(id) << 8 | what << 4 | u64::from(executed);
        self.digest = pattern::mix(self.digest, word ^ self.now_ns << 20);
    }

    fn break_errand(&mut self, id: u32, what: &str, with: &dyn Debug) {
        let errand = self.errand(id).cloned();
        self.violate(format!("errand {} {what}: {with:?}; {errand:?}", id & !super::MARK));
    }
}

impl Errand {
    fn is_group(&self) -> bool {
        matches!(self.spread, Spread::Group { .. })
    }
}
