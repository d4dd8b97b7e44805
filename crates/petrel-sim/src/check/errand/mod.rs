//! Errands: calls that are not one request on one session. A client makes several attempts of one, at
//! several servers, over sessions that come and go; a group call goes to several members at once.
//!
//! They have numbers of their own, which their requests carry as those of plain calls do. How often each
//! was attempted is read from the frames, how often it was executed is told by the handlers, and
//! [`rules`] holds both against what the caller was told.

mod company;
mod patron;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use petrel::{Execution, Status};

pub(super) use patron::Patron;

use crate::fabric::SimAddr;

/// Marks the number of an errand.
const MARK: u32 = 1 << 31;

/// What is done for an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It is answered at once.
    AtOnce,
    /// After a while.
    Later,
    /// By a worker.
    Crew,
    /// After a while, by some servers; the others refuse it for good.
    Picky,
}

impl Work {
    pub(super) const ALL: [Work; 4] = [Work::AtOnce, Work::Later, Work::Crew, Work::Picky];

    /// Whether a server refuses such an errand.
    pub(super) fn is_refused(self, id: u32, server: SimAddr) -> bool {
        self == Work::Picky && (id ^ u32::from(server.host.0)) % 2 == 1
    }

    /// The method that asks for it.
    pub(super) fn number(self) -> u16 {
        self as u16 + 20
    }

    pub(super) fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|work| work.number() == number)
    }
}

/// How an errand's requests may spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// A client tries one server after the other.
    Client {
        attempts_max: u32,
        /// Whether the caller says that it may be executed more than once.
        is_idempotent: bool,
    },
    /// To each server once. Whether those that are late are cancelled.
    Group { needed: usize, cancels: bool },
}

/// Everything known of one errand.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    pub(super) work: Work,
    pub(super) spread: Spread,
    /// Which endpoint in which incarnation.
    pub(super) client: u32,
    pub(super) client_at: SimAddr,
    /// Who may execute it; for a group its members, in order.
    pub(super) servers: Vec<SimAddr>,
    pub(super) request_len: u32,
    pub(super) response_len: u32,
    /// How long its execution takes.
    pub(super) delay_ns: u64,
    /// What the answer follows from.
    pub(super) seed: u64,
    /// Nothing is in its way any more.
    pub(super) must_succeed: bool,
    pub(super) issued_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    /// Requests that left, by server.
    pub(super) attempts: BTreeMap<SimAddr, u32>,
    /// When the first packet of one left first for each server, as of a [`Call`](super::call::Call).
    pub(super) left_ns: BTreeMap<SimAddr, u64>,
    /// Sessions on which they did.
    pub(super) sessions: BTreeSet<usize>,
    /// Where the latest went.
    pub(super) latest: Option<SimAddr>,
    pub(super) executions: BTreeMap<SimAddr, u32>,
    /// Servers of which it was said that they have not executed it.
    pub(super) barred: BTreeSet<SimAddr>,
    pub(super) is_cancelled: bool,
    pub(super) fate: Fate,
}

/// How an errand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pending,
    /// Its caller did not want it any more.
    Dropped,
    /// Its caller died.
    Lost,
    Succeeded,
    Failed(Status, Execution),
    /// Too few members have answered.
    FewAnswered,
}

/// What a server is to do for an errand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) id: u32,
    pub(super) seed: u64,
    pub(super) len: usize,
    pub(super) delay_ns: u64,
}

/// How errands went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) by_client: u64,
    pub(super) by_group: u64,
    pub(super) succeeded: u64,
    pub(super) failed_unknown: u64,
    pub(super) failed_not_executed: u64,
    pub(super) groups_succeeded: u64,
    pub(super) groups_failed: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    pub(super) attempts: u64,
    /// Executed more than once, as their callers allowed.
    pub(super) executed_again: u64,
    pub(super) retries: u64,
    pub(super) hedges: u64,
    pub(super) hedges_won: u64,
    pub(super) sessions_opened: u64,
    pub(super) connects_failed: u64,
    pub(super) crew_executed: u64,
    pub(super) crew_refused: u64,
    pub(super) crew_skipped: u64,
    pub(super) cancelled: u64,
    pub(super) target_changes: u64,
    pub(super) drains: u64,
    /// All clients had left when the endpoint ended.
    pub(super) drains_completed: u64,
}

impl Counts {
    /// Their names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("errands_by_client", self.by_client),
            ("errands_by_group", self.by_group),
            ("client_calls_succeeded", self.succeeded),
            ("errands_failed_unknown", self.failed_unknown),
            ("errands_failed_not_executed", self.failed_not_executed),
            ("group_calls_succeeded", self.groups_succeeded),
            ("group_calls_failed", self.groups_failed),
            ("errands_dropped_by_caller", self.dropped),
            ("errands_lost_with_client", self.lost),
            ("errand_attempts", self.attempts),
            ("errands_executed_again", self.executed_again),
            ("client_retries", self.retries),
            ("client_hedges", self.hedges),
            ("client_hedges_won", self.hedges_won),
            ("client_sessions_opened", self.sessions_opened),
            ("client_connects_failed", self.connects_failed),
            ("worker_requests_run", self.crew_executed),
            ("worker_requests_refused", self.crew_refused),
            ("worker_requests_skipped", self.crew_skipped),
            ("client_calls_cancelled", self.cancelled),
            ("client_target_changes", self.target_changes),
            ("drains", self.drains),
            ("drains_completed", self.drains_completed),
        ]
        .into_iter()
    }
}

impl Errand {
    fn executed(&self) -> u32 {
        self.executions.values().sum()
    }

    fn attempted(&self) -> u32 {
        self.attempts.values().sum()
    }

    /// Whether requests may leave for it although it has ended: the rest of a group's.
    fn goes_on(&self) -> bool {
        matches!(self.spread, Spread::Group { cancels: false, .. }) && self.fate != Fate::Lost
    }
}

/// The number of the errand whose request this is, if it is one's.
pub(super) fn place_of(id: u32) -> Option<usize> {
    (id & MARK != 0).then_some((id & !MARK) as usize)
}

fn id_at(place: usize) -> u32 {
    place as u32 | MARK
}
