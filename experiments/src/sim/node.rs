//! A node: an endpoint with its drivers, run as an actor of the simulation.

use std::rc::Rc;

use petrel::endpoint::{SessionId, SessionState};
use petrel_transport::Transport as _;

use super::caller;
use super::driver::{Driver, Phase};
use petrel_sim::Actor;
use petrel_sim::SimEndpoint;

pub(super) struct Node {
    pub(super) endpoint: SimEndpoint,
    drivers: Vec<Rc<dyn Driver>>,
    phase: Rc<Phase>,
    /// Sessions that were not open at the last check.
    opening: Vec<SessionId>,
}

impl Node {
    pub(super) fn new(mut endpoint: SimEndpoint, phase: Rc<Phase>) -> Self {
        endpoint.on(caller::METHOD, |_, cx, request| caller::answer(cx, request));
        Self { endpoint, drivers: Vec::new(), phase, opening: Vec::new() }
    }

    /// Adds a driver for the given sessions of the node's endpoint.
    pub(super) fn add_driver(&mut self, driver: Rc<dyn Driver>, sessions: &[SessionId]) {
        self.opening.extend_from_slice(sessions);
        self.drivers.push(driver);
    }

    /// Returns true if all sessions of its drivers are open, and an error if a session was refused.
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

    /// Returns the number of calls that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.drivers.iter().map(|driver| driver.pending()).sum()
    }

    /// Returns true if work is due now.
    fn goes_on(&self, was_busy: bool, was_blocked: bool) -> bool {
        if !self.phase.is_calling.get() {
            return was_busy && !was_blocked;
        }
        // An idle turn after every busy one would double the work of a simulation.
        let has_output = self.endpoint.core().has_transmit() || self.endpoint.core().has_events();
        self.endpoint.transport().has_received() || (has_output && !was_blocked)
    }
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let blocked_before = self.endpoint.transport().stats().tx_blocked;
        let mut is_busy = self.endpoint.run_once();
        let is_due = |driver: &Rc<dyn Driver>| driver.next_ns().is_some_and(|at| at <= now_ns);
        if self.drivers.iter().any(is_due) {
            // Between two turns of the event loop, to act at the time of this poll and to send the packets
            // at once.
            for driver in &self.drivers {
                Rc::clone(driver).act(&mut self.endpoint.context());
            }
            is_busy |= self.endpoint.run_once();
        }
        // A full transmit queue wakes the node when packets have left.
        let is_blocked = self.endpoint.transport().stats().tx_blocked > blocked_before;
        if self.goes_on(is_busy, is_blocked) {
            return Some(now_ns);
        }
        let drivers = self.drivers.iter().filter_map(|driver| driver.next_ns()).min();
        [drivers, self.endpoint.core().next_timeout_ns()].into_iter().flatten().min()
    }

    fn outstanding(&self) -> usize {
        self.pending()
    }
}
