//! A client's connection to the replicas: sessions opened on demand, and a guess of the leader.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::CallOptions;
use petrel::task::{Handle, Session};
use petrel_kv::api::{Certainty, Refusal, methods};
use petrel_sim::Rng;

use crate::common::Common;

pub(crate) struct Connection {
    pub(crate) common: Rc<Common>,
    pub(crate) handle: Handle,
    pub(crate) rng: Rng,
    addresses: Vec<SocketAddr>,
    sessions: Vec<Option<Session>>,
    /// The replica for the next attempt.
    place: usize,
    /// Attempts of this operation without an answer.
    timeouts: u32,
}

/// Most doublings of an attempt's timeout: enough to reach the longest round trip from the shortest timeout.
const DOUBLINGS_MAX: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterRefusal {
    /// Try again.
    Retry,
    /// A rule is broken: this refusal must not occur.
    Wrong,
}

impl Connection {
    pub(crate) fn new(common: Rc<Common>, handle: Handle, rng: Rng) -> Self {
        let addresses = common.replica_addresses();
        let sessions = addresses.iter().map(|_| None).collect();
        Self { common, handle, rng, addresses, sessions, place: 0, timeouts: 0 }
    }

    /// Begins another operation, with the shortest timeouts.
    pub(crate) fn begin(&mut self) {
        self.timeouts = 0;
    }

    /// Makes one attempt, at the supposed leader. `None` if there was no answer.
    pub(crate) async fn attempt(&mut self, method: u16, request: &[u8]) -> Option<Vec<u8>> {
        self.common.counters.borrow_mut().attempts += 1;
        let answer = self.try_once(method, request).await;
        if answer.is_none() {
            self.common.counters.borrow_mut().attempts_failed += 1;
            self.timeouts += 1;
            self.choose_other();
        }
        answer
    }

    async fn try_once(&mut self, method: u16, request: &[u8]) -> Option<Vec<u8>> {
        let scenario = &self.common.scenario;
        // A read at a stalled leader waits: the leader answers when it continues.
        let waits =
            scenario.stalls.targets_leaders && matches!(method, methods::GET | methods::SCAN);
        let is_stale_reader = scenario.reads_stale_leaders() && !waits;
        let limit = attempt_limit(scenario.load.timeout_ns, is_stale_reader, self.timeouts);
        let session = self.session(limit).await?;
        let options = CallOptions::new().timeout(limit);
        let answer = session.call(method, request).options(options).await;
        if !session.is_open() {
            self.sessions[self.place] = None;
        }
        answer.ok().map(|message| message.to_vec())
    }

    async fn session(&mut self, limit: Duration) -> Option<Session> {
        if let Some(session) = self.sessions[self.place].clone().filter(Session::is_open) {
            return Some(session);
        }
        let connect = self.handle.connect(self.addresses[self.place]);
        let session = self.handle.timeout(limit, connect).await.ok()?.ok()?;
        self.sessions[self.place] = Some(session.clone());
        Some(session)
    }

    pub(crate) async fn handle_refusal(&mut self, refusal: &Refusal<'_>) -> AfterRefusal {
        self.common.counters.borrow_mut().refusals += 1;
        match refusal {
            Refusal::NotLeader { leader: Some(leader) } => {
                let address = leader.address.parse().ok();
                let place = self.addresses.iter().position(|other| Some(*other) == address);
                match place.filter(|place| *place != self.place) {
                    Some(place) => self.place = place,
                    None => self.choose_other(),
                }
            }
            Refusal::NotLeader { leader: None } => self.choose_other(),
            Refusal::Unavailable {
                certainty: Certainty::NotApplied | Certainty::Unknown, ..
            } => {}
            _ => return AfterRefusal::Wrong,
        }
        self.pause(self.common.scenario.tick_ns).await;
        AfterRefusal::Retry
    }

    pub(crate) fn choose_other(&mut self) {
        self.place = self.rng.below(self.addresses.len() as u64) as usize;
    }

    /// Sleeps for a random time up to `ns_max`.
    pub(crate) async fn pause(&mut self, ns_max: u64) {
        let ns = self.rng.below(ns_max + 1);
        self.handle.sleep(Duration::from_nanos(ns)).await;
    }
}

/// The timeout of an attempt.
///
/// A client that waits long for an isolated leader does not write at the next leader in time. Stale readers therefore
/// begin with an eighth of the timeout. An answer of several packets takes several round trips. If these exceed an
/// eighth, no attempt would ever succeed. Every second failed attempt of an operation therefore doubles the timeout, as
/// in the store's own client.
fn attempt_limit(timeout_ns: u64, is_stale_reader: bool, timeouts: u32) -> Duration {
    let first_ns = if is_stale_reader { timeout_ns / 8 } else { timeout_ns };
    Duration::from_nanos(first_ns.saturating_mul(1 << (timeouts / 2).min(DOUBLINGS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_limit__of_a_stale_reader_reaches_any_round_trip() {
        let limit = |timeouts| attempt_limit(5_500_000, true, timeouts).as_nanos() as u64;
        assert_eq!([limit(0), limit(1), limit(2)], [687_500, 687_500, 1_375_000]);
        // Three packets, each after a round trip over four links of 65 us, and one round trip more for the majority.
        let read_ns = 4 * 4 * 65_536;
        assert!((0..8).any(|timeouts| limit(timeouts) > read_ns));
        assert_eq!(attempt_limit(5_500_000, false, 0).as_nanos(), 5_500_000);
        assert!(limit(u32::MAX) > 0, "no overflow");
    }
}
