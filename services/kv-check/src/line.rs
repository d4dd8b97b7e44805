//! A client's way to the replicas: sessions that are opened when they are wanted, and a guess who leads.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel::{CallOptions, Handle, Session};
use petrel_kv::api::{Certainty, Refusal};
use petrel_sim::Rng;

use crate::common::Common;

pub(crate) struct Line {
    pub(crate) common: Rc<Common>,
    pub(crate) handle: Handle,
    pub(crate) rng: Rng,
    addresses: Vec<SocketAddr>,
    sessions: Vec<Option<Session>>,
    /// Who is asked next.
    place: usize,
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask again.
    Again,
    /// Never ask again: this must not be.
    Wrong,
}

impl Line {
    pub(crate) fn new(common: Rc<Common>, handle: Handle, rng: Rng) -> Self {
        let addresses = common.replica_addresses();
        let sessions = addresses.iter().map(|_| None).collect();
        Self { common, handle, rng, addresses, sessions, place: 0 }
    }

    /// One attempt, at who is thought to lead. `None` if there was no answer.
    pub(crate) async fn attempt(&mut self, method: u16, request: &[u8]) -> Option<Vec<u8>> {
        self.common.tally.borrow_mut().attempts += 1;
        let answer = self.try_once(method, request).await;
        if answer.is_none() {
            self.common.tally.borrow_mut().attempts_failed += 1;
            self.look_elsewhere();
        }
        answer
    }

    async fn try_once(&mut self, method: u16, request: &[u8]) -> Option<Vec<u8>> {
        let scenario = &self.common.scenario;
        // Who waits long for a leader that has been cut off does not write at the next one in time.
        let shorter = if scenario.has_scouts() { 8 } else { 1 };
        let limit = Duration::from_nanos(scenario.load.timeout_ns / shorter);
        let session = self.session(limit).await?;
        let options = CallOptions::new().timeout(limit);
        let answer = session.start_with(method, request, options).await;
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
        let session = within(&self.handle, limit, connect).await?.ok()?;
        self.sessions[self.place] = Some(session.clone());
        Some(session)
    }

    /// Heeds a refusal.
    pub(crate) async fn heed(&mut self, refusal: &Refusal<'_>) -> Next {
        self.common.tally.borrow_mut().refusals += 1;
        match refusal {
            Refusal::NotLeader { leader: Some(leader) } => {
                let address = leader.address.parse().ok();
                let place = self.addresses.iter().position(|other| Some(*other) == address);
                match place.filter(|place| *place != self.place) {
                    Some(place) => self.place = place,
                    None => self.look_elsewhere(),
                }
            }
            Refusal::NotLeader { leader: None } => self.look_elsewhere(),
            Refusal::Unavailable {
                certainty: Certainty::NotApplied | Certainty::Unknown, ..
            } => {}
            _ => return Next::Wrong,
        }
        self.pause(self.common.scenario.tick_ns).await;
        Next::Again
    }

    pub(crate) fn look_elsewhere(&mut self) {
        self.place = self.rng.below(self.addresses.len() as u64) as usize;
    }

    /// Does nothing for up to so long.
    pub(crate) async fn pause(&mut self, ns_max: u64) {
        let ns = self.rng.below(ns_max + 1);
        self.handle.sleep(Duration::from_nanos(ns)).await;
    }
}

async fn within<F: Future>(handle: &Handle, limit: Duration, future: F) -> Option<F::Output> {
    handle.timeout(limit, future).await.ok()
}
