//! The connection to each remote process, and the process last seen at each address.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::ids::ConnectionId;
use super::limits::INCARNATIONS_MAX;
use super::request::OpenRequest;
use crate::control::EndpointId;

/// The connection to a remote process, or the pause before the next attempt.
#[derive(Debug)]
enum Route {
    /// A connection in any phase.
    Connection(ConnectionId),
    /// The last connection broke before any use; the next attempt is due soon.
    Pause {
        /// Requests that wait for the next attempt.
        waiting: Vec<OpenRequest>,
        /// The number of attempts so far.
        attempt: u32,
    },
}

/// The route to each remote process with which an endpoint wants a link.
#[derive(Debug, Default)]
pub(super) struct Routes {
    by_remote: HashMap<SocketAddr, Route>,
    /// The process last seen at an address.
    incarnations: HashMap<SocketAddr, u64>,
}

impl Routes {
    pub(super) fn len(&self) -> usize {
        self.by_remote.len()
    }

    pub(super) fn contains(&self, remote: SocketAddr) -> bool {
        self.by_remote.contains_key(&remote)
    }

    pub(super) fn connection(&self, remote: SocketAddr) -> Option<ConnectionId> {
        match self.by_remote.get(&remote) {
            Some(Route::Connection(id)) => Some(*id),
            _ => None,
        }
    }

    /// Returns the requests that wait for the next attempt to connect to a process.
    pub(super) fn paused(&mut self, remote: SocketAddr) -> Option<&mut Vec<OpenRequest>> {
        match self.by_remote.get_mut(&remote) {
            Some(Route::Pause { waiting, .. }) => Some(waiting),
            _ => None,
        }
    }

    /// Uses a connection for further links to its peer.
    pub(super) fn lead(&mut self, remote: SocketAddr, id: ConnectionId) {
        let former = self.by_remote.insert(remote, Route::Connection(id));
        assert!(former.is_none(), "a way to {remote} exists, and would be forgotten");
    }

    /// Stops using a connection for further links to its peer.
    pub(super) fn forget(&mut self, remote: SocketAddr, id: ConnectionId) {
        if self.connection(remote) == Some(id) {
            self.by_remote.remove(&remote);
        }
    }

    /// Begins the pause before an attempt to connect.
    pub(super) fn pause(&mut self, remote: SocketAddr, waiting: Vec<OpenRequest>, attempt: u32) {
        assert!(!waiting.is_empty(), "an attempt to connect is for requests that wait");
        let former = self.by_remote.insert(remote, Route::Pause { waiting, attempt });
        assert!(former.is_none(), "requests to {remote} would be forgotten");
    }

    /// Ends the pause. Returns the requests that wait, and the number of attempts so far.
    pub(super) fn end_pause(&mut self, remote: SocketAddr) -> Option<(Vec<OpenRequest>, u32)> {
        assert!(!self.paused(remote)?.is_empty(), "a pause is for requests that wait");
        match self.by_remote.remove(&remote) {
            Some(Route::Pause { waiting, attempt }) => Some((waiting, attempt)),
            other => unreachable!("a pause was there: {other:?}"),
        }
    }

    /// Drops the requests of an endpoint that has gone.
    pub(super) fn forget_requests(&mut self, endpoint: EndpointId) {
        self.by_remote.retain(|_, route| match route {
            Route::Connection(_) => true,
            Route::Pause { waiting, .. } => {
                waiting.retain(|request| request.endpoint() != endpoint);
                !waiting.is_empty()
            }
        });
    }

    /// Forgets all ways. Returns the requests that wait for an attempt, in any order.
    pub(super) fn drain(&mut self) -> Vec<OpenRequest> {
        let routes = self.by_remote.drain();
        let waiting = routes.map(|(_, route)| match route {
            Route::Pause { waiting, .. } => waiting,
            Route::Connection(_) => Vec::new(),
        });
        waiting.flatten().collect()
    }

    /// Returns the number of requests that wait for an attempt.
    pub(super) fn waiting(&self) -> usize {
        let waiting = self.by_remote.values().map(|route| match route {
            Route::Pause { waiting, .. } => waiting.len(),
            Route::Connection(_) => 0,
        });
        waiting.sum()
    }

    /// Returns the connections that lead to processes.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.by_remote.values().filter_map(|route| match route {
            Route::Connection(id) => Some(*id),
            Route::Pause { .. } => None,
        })
    }

    /// Notes the process seen at an address. Returns true if a different process was there before; its links went down
    /// with its connection.
    pub(super) fn note_incarnation(&mut self, remote: SocketAddr, incarnation: u64) -> bool {
        if self.incarnations.len() >= INCARNATIONS_MAX && !self.incarnations.contains_key(&remote) {
            self.incarnations.clear();
        }
        let former = self.incarnations.insert(remote, incarnation);
        assert!(
            self.incarnations.len() <= INCARNATIONS_MAX,
            "the incarnations of peers are kept within their limit"
        );
        former.is_some_and(|former| former != incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Routes {
        /// The number of attempts before the attempt that ends the pause.
        pub(in crate::nexus) fn test_attempt(&self, remote: SocketAddr) -> Option<u32> {
            match self.by_remote.get(&remote) {
                Some(Route::Pause { attempt, .. }) => Some(*attempt),
                _ => None,
            }
        }
    }

    fn address(port: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port as u16))
    }

    #[test]
    fn note_incarnation__tells_of_restarts_and_remembers_no_more_than_its_limit() {
        let mut routes = Routes::default();
        for port in 1..INCARNATIONS_MAX {
            assert!(!routes.note_incarnation(address(port), 7));
        }
        let last = address(INCARNATIONS_MAX);
        // The last entry with room; and the same peer again, without need for room.
        for (incarnation, is_restarted) in [(7, false), (7, false), (8, true)] {
            assert_eq!(routes.note_incarnation(last, incarnation), is_restarted);
            assert_eq!(routes.incarnations.len(), INCARNATIONS_MAX);
        }
        let beyond = address(INCARNATIONS_MAX + 1);
        assert!(!routes.note_incarnation(beyond, 7));
        assert_eq!(routes.incarnations.len(), 1);
        assert!(routes.note_incarnation(beyond, 8));
    }

    #[test]
    fn forget__leaves_the_way_to_the_next_connection() {
        let mut routes = Routes::default();
        routes.lead(address(1), ConnectionId(5));
        routes.forget(address(1), ConnectionId(4));
        assert_eq!(routes.connection(address(1)), Some(ConnectionId(5)));
        routes.forget(address(1), ConnectionId(5));
        assert!(!routes.contains(address(1)));
    }

    panics! {
        lead__to_a_process_that_has_a_connection:
            "a way to 127.0.0.1:1 exists, and would be forgotten" => {
            let mut routes = Routes::default();
            routes.lead(address(1), ConnectionId(5));
            routes.lead(address(1), ConnectionId(6));
        };
        pause__for_no_request: "an attempt to connect is for requests that wait"
            => Routes::default().pause(address(1), Vec::new(), 1);
    }
}
