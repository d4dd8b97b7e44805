//! Nodes, the actors of the simulation: an endpoint with a replica or with clients.

use std::rc::Rc;

use petrel_kv::Replica;
use petrel_kv::api::Status;
use petrel_sim::fabric::HostId;
use petrel_sim::{Actor, SimEndpoint, run_turn};

use crate::common::Common;
use crate::disk::SimDisk;
use crate::logger;
use crate::observer::Seen;

pub(crate) enum Node {
    Replica(Box<ReplicaNode>),
    Client(Box<ClientNode>),
}

pub(crate) struct ReplicaNode {
    pub(crate) host: HostId,
    pub(crate) endpoint: SimEndpoint,
    pub(crate) replica: Replica,
    pub(crate) disk: Option<SimDisk>,
    pub(crate) common: Rc<Common>,
    pub(crate) seen: Seen,
    pub(crate) status: Status,
}

pub(crate) struct ClientNode {
    pub(crate) endpoint: SimEndpoint,
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        match self {
            Node::Replica(node) => node.poll(now_ns),
            Node::Client(node) => {
                let goes_on = run_turn(&mut node.endpoint);
                if goes_on {
                    Some(now_ns)
                } else {
                    node.endpoint.next_due().map(petrel::Time::as_ns)
                }
            }
        }
    }
}

impl ReplicaNode {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if self.common.has_failed() {
            return None;
        }
        if let Some(disk) = &self.disk {
            disk.run();
        }
        let mut is_busy = run_turn(&mut self.endpoint);
        loop {
            match self.replica.turn(&mut self.endpoint.context()) {
                Ok(true) => is_busy |= run_turn(&mut self.endpoint),
                Ok(false) => break,
                Err(error) => {
                    self.common.fail(format!("{} has stopped: {error}", self.host));
                    return None;
                }
            }
        }
        logger::flush(&self.common.fabric, self.host);
        self.observe();
        let core = self.endpoint.core();
        if is_busy || core.has_transmit() || core.has_events() {
            return Some(now_ns);
        }
        let disk = self.disk.as_ref().and_then(SimDisk::next_ns);
        [disk, self.endpoint.next_due().map(petrel::Time::as_ns)].into_iter().flatten().min()
    }

    fn observe(&mut self) {
        self.status = self.replica.status();
        let mut observer = self.common.observer.borrow_mut();
        let observed = observer.observe(&mut self.seen, &self.status, &self.replica);
        drop(observer);
        let now_ns = self.common.fabric.now_ns();
        let observed =
            observed.and_then(|()| self.common.leases.borrow_mut().observe(now_ns, &self.replica));
        observed.unwrap_or_else(|what| self.common.fail(what));
    }
}
