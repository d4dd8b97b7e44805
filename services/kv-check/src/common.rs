//! State shared by all nodes of a world.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

use petrel_sim::control::ControlNetwork;
use petrel_sim::fabric::{FabricHandle, HostId};

use crate::history::History;
use crate::leases::Ledger;
use crate::observer::Observer;
use crate::scenario::Scenario;

pub(crate) struct Common {
    pub(crate) scenario: Scenario,
    pub(crate) fabric: FabricHandle,
    pub(crate) control: ControlNetwork,
    pub(crate) history: RefCell<History>,
    pub(crate) observer: RefCell<Observer>,
    pub(crate) leases: RefCell<Ledger>,
    /// The first broken rule.
    pub(crate) violation: RefCell<Option<String>>,
    /// Users of watches, and whether they are to end.
    pub(crate) watches_busy: Cell<u32>,
    pub(crate) watches_end: Cell<bool>,
    /// Clients with operations left.
    pub(crate) clients_busy: Cell<u32>,
    pub(crate) counters: RefCell<Counters>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) attempts: u64,
    pub(crate) attempts_failed: u64,
    pub(crate) refusals: u64,
    pub(crate) repeats: u64,
    pub(crate) saves: u64,
    pub(crate) stale_reads: u64,
    pub(crate) abandoned: u64,
    /// Operations of the store's own client.
    pub(crate) kv_client_operations: u64,
    /// Revisions that watches showed, and watches that began anew, since their next changes were gone.
    pub(crate) changes_watched: u64,
    pub(crate) watches_compacted: u64,
    pub(crate) disks_lost: u64,
    pub(crate) transfers: u64,
    pub(crate) nodes_added: u64,
    pub(crate) nodes_removed: u64,
    pub(crate) images: u64,
    pub(crate) snapshots_fetched: u64,
}

impl Common {
    /// Records a broken rule. Only the first counts, because later ones may be its consequences.
    pub(crate) fn fail(&self, what: String) {
        self.fabric.note(format_args!("VIOLATION {what}"));
        self.violation.borrow_mut().get_or_insert(what);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.violation.borrow().is_some()
    }

    pub(crate) fn replica_addresses(&self) -> Vec<SocketAddr> {
        (0..self.scenario.replica_hosts()).map(|host| address_of(HostId(host))).collect()
    }
}

pub(crate) fn address_of(host: HostId) -> SocketAddr {
    ControlNetwork::address_of(host)
}

/// The node of a host: nodes are numbered from 1.
pub(crate) fn node_of(host: HostId) -> u16 {
    host.0 + 1
}
