//! A node: an endpoint with its callers, an actor of the simulation.

use std::rc::Rc;

use petrel::{Endpoint, SessionId, SessionState};
use petrel_transport::Transport as _;

use super::caller::{self, Caller, Phase};
use crate::control::SimControl;
use crate::simulation::Actor;
use crate::transport::SimTransport;

pub(super) type SimEndpoint = Endpoint<SimTransport, SimControl>;

pub(super) struct Node {
    pub(super) endpoint: SimEndpoint,
    pub(super) callers: Vec<Rc<Caller>>,
    phase: Rc<Phase>,
    /// Sessions that were not open when last looked at.
    opening: Vec<SessionId>,
}

impl Node {
    pub(super) fn new(mut endpoint: SimEndpoint, phase: Rc<Phase>) -> Self {
        endpoint.register(caller::METHOD, caller::answer);
        Self { endpoint, callers: Vec::new(), phase, opening: Vec::new() }
    }

    /// A caller over sessions of this node's endpoint.
    pub(super) fn add_caller(&mut self, caller: Rc<Caller>) {
        self.opening.extend_from_slice(caller.sessions());
        self.callers.push(caller);
    }

    /// Whether all sessions of its callers are open; or that one was refused.
    pub(super) fn is_connected(&mut self) -> Result<bool, String> {
        while let Some(&session) = self.opening.last() {
            match self.endpoint.session_state(session) {
                SessionState::Open | SessionState::Draining => self.opening.pop(),
                SessionState::Opening => return Ok(false),
                SessionState::Ended(reason) => {
                    return Err(format!("a session was not opened: {reason:?}"));
                }
            };
        }
        Ok(true)
    }

    /// Calls that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.callers.iter().map(|caller| caller.pending()).sum()
    }

    /// Whether there is more to do now than to wait.
    fn goes_on(&self, was_busy: bool, was_blocked: bool) -> bool {
        if !self.phase.is_calling.get() {
            return was_busy && !was_blocked;
        }
        // A pass for nothing after each one for something would double the work of a simulation.
        let has_output = self.endpoint.core().has_transmit() || self.endpoint.core().has_events();
        self.endpoint.transport().has_received() || (has_output && !was_blocked)
    }
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let blocked_before = self.endpoint.transport().stats().tx_blocked;
        let mut is_busy = self.endpoint.run_once();
        let is_due = |caller: &Rc<Caller>| caller.next_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if self.callers.iter().any(is_due) {
            // Between two turns, so that they are made at the time of this one, and leave in it.
            self.callers.iter().for_each(|caller| caller.call_due(&mut self.endpoint.context()));
            is_busy |= self.endpoint.run_once();
        }
        // Somebody whose queue is full is woken when there is room.
        let is_blocked = self.endpoint.transport().stats().tx_blocked > blocked_before;
        if self.goes_on(is_busy, is_blocked) {
            return Some(now_ns);
        }
        let calls = self.callers.iter().filter_map(|caller| caller.next_ns()).min();
        [calls, self.endpoint.core().next_timeout_ns()].into_iter().flatten().min()
    }

    fn outstanding(&self) -> usize {
        self.pending()
    }
}
