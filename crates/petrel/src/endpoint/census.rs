//! What an endpoint holds at a moment, for checkers: at its end it holds nothing.

use petrel_transport::Transport;

use super::Endpoint;
use crate::control::ControlPlane;

/// How much of everything an endpoint holds. Not for applications: the fields follow the code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// What the protocol core holds.
    pub core: petrel_proto::Census,
    /// What the endpoint's futures hold.
    pub local: LocalCensus,
    /// Sessions that are being opened, in the tables of proposals and of those who wait.
    pub opening: usize,
    /// Sessions that the endpoint knows to be on a link.
    pub linked: usize,
    /// Links that are being opened.
    pub dialled: usize,
    /// Groups that the endpoint sends to or is a member of.
    pub groups: usize,
    /// Sessions of clients whose servers asked for no further calls.
    pub leaving: usize,
    /// Calls of clients.
    pub posted: usize,
    /// Clients of services.
    pub services: usize,
}

/// How much the futures of an endpoint's thread hold.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalCensus {
    /// Calls whose futures wait.
    pub calls: usize,
    /// What futures have asked for and the loop has not done: starts, cancels, commands and answers.
    pub orders: usize,
    /// Futures that sleep.
    pub sleeping: usize,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Sessions that handles watch.
    pub watched: usize,
}

impl Census {
    /// Whatever must not be there once all sessions are closed and all clients and handles are dropped.
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
    /// Looks at everything there is: as many steps as there are slots.
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
