//! The current contents of an endpoint, for checkers: empty at the end.

use super::context::Local;
use super::drain::Drain;
use super::groups::JoinedGroups;
use crate::local::LocalObjectCounts;

/// The number of objects of every kind in an endpoint. Not for applications: the fields follow the code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Objects of the protocol core.
    pub core: petrel_proto::ObjectCounts,
    /// Objects of the endpoint's futures.
    pub local: LocalObjectCounts,
    /// Sessions being opened: entries in the tables of proposals and of waiting sessions.
    pub opening: usize,
    /// Sessions known to be on a link.
    pub linked: usize,
    /// Links being opened.
    pub dialled: usize,
    /// Groups that the endpoint sends to or is a member of.
    pub groups: usize,
    /// Client sessions whose servers drain.
    pub leaving: usize,
    /// Calls of clients.
    pub posted: usize,
    /// Clients of services.
    pub services: usize,
}

impl ObjectCounts {
    /// Counts the objects of an endpoint: takes as many steps as there are slots.
    pub(super) fn of(local: &Local, drain: &Drain, joined: &JoinedGroups) -> Self {
        let (opening, linked, dialled) = local.sessions.object_counts();
        let mut futures = local.hub.object_counts();
        futures.orders += local.late_answers().len();
        Self {
            core: local.core.object_counts(),
            local: futures,
            opening,
            linked,
            dialled,
            groups: local.groups.len() + joined.len(),
            leaving: drain.leaving_count(),
            posted: local.services.calls_len(),
            services: local.services.len(),
        }
    }

    /// Returns the first object that must not exist after all sessions are closed and all clients and handles dropped.
    pub fn left_at_end(&self) -> Option<(&'static str, u64)> {
        let all = [
            ("sessions being opened", self.opening),
            ("sessions with a link", self.linked),
            ("links being opened", self.dialled),
            ("groups", self.groups),
            ("sessions that leave", self.leaving),
            ("calls of clients", self.posted),
            ("clients of services", self.services),
            ("calls of futures", self.local.calls),
            ("orders of futures", self.local.orders),
            ("futures that sleep", self.local.sleeping),
            ("tasks", self.local.tasks),
            ("watched sessions", self.local.watched),
        ];
        let found = all.into_iter().find(|&(_, count)| count > 0);
        let held = ("bytes of messages of several packets", self.core.held_bytes);
        found.map(|(name, count)| (name, count as u64)).or((held.1 > 0).then_some(held))
    }
}
