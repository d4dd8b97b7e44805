//! The current contents of an endpoint, for checkers: empty at the end.

use petrel_transport::Transport;

use super::Endpoint;
use crate::control::ControlPlane;

/// The number of objects of every kind in an endpoint. Not for applications: the fields follow the code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Objects of the protocol core.
    pub core: petrel_proto::Census,
    /// Objects of the endpoint's futures.
    pub local: LocalCensus,
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

/// The number of objects of the futures on an endpoint's thread.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCensus {
    /// Calls with waiting futures.
    pub calls: usize,
    /// Pending orders of futures to the event loop: starts, cancels, commands and answers.
    pub orders: usize,
    /// Sleeping futures.
    pub sleeping: usize,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Sessions watched by handles.
    pub watched: usize,
}

impl Census {
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

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Counts everything: takes as many steps as there are slots.
    #[doc(hidden)]
    pub fn census(&self) -> Census {
        let (opening, linked, dialled) = self.local.sessions.census();
        Census {
            core: self.local.core.census(),
            local: self.local.hub.census(),
            opening,
            linked,
            dialled,
            groups: self.local.groups.len() + self.joined.len(),
            leaving: self.drain.leaving_count(),
            posted: self.local.services.calls_len(),
            services: self.local.services.len(),
        }
    }
}
