//! Orderly end: a replica hands leadership over, and clients leave, before the process ends.

use std::time::Duration;

use petrel::unstable::control::ControlPlane;
use petrel::{Context, Endpoint};
use petrel_transport::Transport;

use super::member::Member;
use super::{Replica, ReplicaError};

/// Interval between checks whether the last client has left.
const POLL_INTERVAL_NS: u64 = 1_000_000;

impl Replica {
    /// Ends without losing a call: hands leadership over if this replica leads, asks clients and peers to leave, and
    /// serves both until the last has left, all within `limit`. Returns the number of sessions that were cut because
    /// their clients had not left in time.
    ///
    /// # Errors
    /// As [`Replica::turn`].
    pub fn drain<T: Transport, C: ControlPlane<T::Link>>(
        &self,
        endpoint: &mut Endpoint<(), T, C>,
        limit: Duration,
    ) -> Result<usize, ReplicaError> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = endpoint.context().now().as_ns().saturating_add(limit_ns);
        if self.hand_over() {
            self.run_until(endpoint, |cx| !self.leads() || cx.now().as_ns() >= end_ns)?;
        }
        endpoint.begin_drain();
        while endpoint.sessions_served() > 0 && endpoint.context().now().as_ns() < end_ns {
            let poll_ns = endpoint.context().now().as_ns() + POLL_INTERVAL_NS;
            self.run_until(endpoint, |cx| cx.now().as_ns() >= poll_ns)?;
        }
        Ok(endpoint.drain(Duration::ZERO))
    }

    /// Begins to hand leadership to the active voter with the most entries. Returns true if the handover has begun;
    /// [`Replica::status`] shows its success.
    pub fn hand_over(&self) -> bool {
        self.shared.borrow_mut().member.as_mut().is_some_and(Member::hand_over)
    }

    fn leads(&self) -> bool {
        self.shared.borrow().member.as_ref().is_some_and(Member::leads)
    }

    fn run_until<T: Transport, C: ControlPlane<T::Link>>(
        &self,
        endpoint: &mut Endpoint<(), T, C>,
        mut is_over: impl FnMut(&Context<'_>) -> bool,
    ) -> Result<(), ReplicaError> {
        let mut outcome = Ok(());
        endpoint.run_until(|_, cx| {
            outcome = self.turn(cx).map(drop);
            outcome.is_err() || is_over(cx)
        });
        outcome
    }
}

impl Member {
    fn hand_over(&mut self) -> bool {
        if !self.leads() {
            return false;
        }
        let own = self.identity.replica;
        let progress = self.raft.raft.prs();
        let voters = progress.conf().to_conf_state().voters;
        let others = voters.into_iter().filter(|voter| *voter != own);
        let active = others.filter_map(|voter| {
            let progress = progress.get(voter).filter(|progress| progress.recent_active)?;
            Some((progress.matched, voter))
        });
        let Some((_, successor)) = active.max() else { return false };
        self.no_lease_in = self.raft.raft.term;
        self.raft.transfer_leader(successor);
        true
    }
}
