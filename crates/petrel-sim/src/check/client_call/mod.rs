//! Client calls and group calls of simulated callers; `ClientCall` stands for both. A client makes several
//! attempts of a call, at several servers, over sessions that open and close; a group call goes to several
//! members at once.
//!
//! Client calls are numbered separately, and their requests carry the number like requests of plain calls.
//! Attempts are counted from frames, and executions by the handlers. [`rules`] checks these counts against
//! the caller's outcome.

mod group_call;
pub(super) mod redirect;
mod rules;
mod simulated_caller;

use std::collections::{BTreeMap, BTreeSet};

use petrel::{Execution, Status};

pub(super) use simulated_caller::SimulatedCaller;

use crate::fabric::SimAddr;

/// Marks the number of a client call.
const MARK: u32 = 1 << 31;

/// How a server executes a client call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The handler answers at once.
    AtOnce,
    /// The handler answers after a delay.
    Later,
    /// A worker answers.
    WorkerPool,
    /// Some servers answer after a delay; others always refuse.
    Selective,
    /// The server that leads answers at once; others redirect.
    Led,
}

impl Work {
    pub(super) const ALL: [Work; 5] =
        [Work::AtOnce, Work::Later, Work::WorkerPool, Work::Selective, Work::Led];

    pub(super) fn is_refused(self, id: u32, server: SimAddr) -> bool {
        self == Work::Selective && (id ^ u32::from(server.host.0)) % 2 == 1
    }

    pub(super) fn number(self) -> u16 {
        self as u16 + 20
    }

    pub(super) fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|work| work.number() == number)
    }
}

/// The servers to which a client call's requests may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destinations {
    /// A client tries the servers one after another.
    Client {
        attempts_max: u32,
        /// Whether the caller allows more than one execution.
        is_idempotent: bool,
    },
    /// Every server gets one request. `cancels`: late members are cancelled.
    Group { needed: usize, cancels: bool },
}

/// The state of one client call or group call.
#[derive(Clone, Debug)]
pub(super) struct ClientCall {
    pub(super) work: Work,
    pub(super) destinations: Destinations,
    /// The calling endpoint in one incarnation.
    pub(super) client: u32,
    pub(super) client_at: SimAddr,
    /// Servers that may execute the call; for a group call the members, in order.
    pub(super) servers: Vec<SimAddr>,
    pub(super) request_len: u32,
    pub(super) response_len: u32,
    /// The duration of an execution.
    pub(super) delay_ns: u64,
    /// The seed of the answer.
    pub(super) seed: u64,
    /// Set if no fault can justify a failure.
    pub(super) must_succeed: bool,
    pub(super) issued_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    /// Number of requests that left, by server.
    pub(super) attempts: BTreeMap<SimAddr, u32>,
    /// When the first packet of a request first left for a server, as for a [`Call`](super::call::Call).
    pub(super) left_ns: BTreeMap<SimAddr, u64>,
    /// Sessions that carried these requests.
    pub(super) sessions: BTreeSet<usize>,
    /// The server of the latest request.
    pub(super) latest: Option<SimAddr>,
    /// The servers that have redirected the call, with their responses.
    pub(super) redirects: Vec<(SimAddr, Vec<u8>)>,
    pub(super) executions: BTreeMap<SimAddr, u32>,
    /// Servers that have reported no execution.
    pub(super) must_not_execute: BTreeSet<SimAddr>,
    pub(super) is_cancelled: bool,
    /// The turn in which the caller dropped the call, by its time.
    pub(super) dropped_ns: Option<u64>,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pending,
    /// The caller dropped the future.
    Dropped,
    /// The caller crashed.
    Lost,
    Succeeded,
    Failed(Status, Execution),
    /// Too few members have answered.
    FewAnswered,
}

/// A server's instructions for a client call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instructions {
    pub(super) id: u32,
    pub(super) seed: u64,
    pub(super) len: usize,
    pub(super) delay_ns: u64,
}

counts! {
    /// Counters of client and group calls.
    struct Counts {
        by_client: "client_calls",
        by_group: "group_calls",
        succeeded: "client_calls_succeeded",
        failed_unknown: "client_calls_failed_unknown",
        failed_not_executed: "client_calls_failed_not_executed",
        groups_succeeded: "group_calls_succeeded",
        groups_failed: "group_calls_failed",
        dropped: "client_calls_dropped_by_caller",
        lost: "client_calls_lost_with_client",
        attempts: "client_call_attempts",
        /// Executed more than once, as the callers allowed.
        executed_again: "client_calls_executed_again",
        retries: "client_retries",
        hedges: "client_hedges",
        hedges_won: "client_hedges_won",
        sessions_opened: "client_sessions_opened",
        connects_failed: "client_connects_failed",
        worker_executed: "worker_requests_run",
        worker_refused: "worker_requests_refused",
        worker_skipped: "worker_requests_skipped",
        cancelled: "client_calls_cancelled",
        target_changes: "client_target_changes",
        redirects: "client_redirects",
        drains: "drains",
        /// All clients had left when the endpoint ended.
        drains_completed: "drains_completed",
    }
}

impl ClientCall {
    fn executed(&self) -> u32 {
        self.executions.values().sum()
    }

    fn attempted(&self) -> u32 {
        self.attempts.values().sum()
    }

    /// Returns true if requests may leave although the call has ended: the rest of a group call's requests.
    fn goes_on(&self) -> bool {
        matches!(self.destinations, Destinations::Group { cancels: false, .. })
            && self.outcome != Outcome::Lost
    }
}

/// Returns the index of the client call with the given number; `None` for numbers of plain calls.
pub(super) fn place_of(id: u32) -> Option<usize> {
    (id & MARK != 0).then_some((id & !MARK) as usize)
}

fn id_at(place: usize) -> u32 {
    place as u32 | MARK
}
