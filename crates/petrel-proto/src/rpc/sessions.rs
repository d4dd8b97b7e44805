//! Sessions as the owner of a core sees them: from their opening to their end, in every state
//! (`docs/wire-protocol.md` §8.5, §8.6).

use super::client::call::{fail_calls, start_backlog};
use super::client::order::forgo_order;
use super::server::memory::release_holdings;
use super::server::watched::note_abandoned;
use super::{Core, Membership, Recovery};
use crate::buffer::Buffer;
use crate::limits::PATHS_MAX;
use crate::path::{PathCounts, PathId, PathPolicy};
use crate::session::client::{ClientPaths, ClientSession};
use crate::session::server::ServerSession;
use crate::session::{Agreed, PeerKey, Role, SOURCE_OF_PATHS, SessionId};
use crate::status::Status;

/// Adds the counters of a session's paths to sums, path by path.
fn add_paths(sums: &mut Vec<PathCounts>, counts: &[PathCounts]) {
    assert!(counts.len() <= PATHS_MAX, "a session has at most 32 paths");
    sums.resize(sums.len().max(counts.len()), PathCounts::default());
    sums.iter_mut().zip(counts).for_each(|(sum, counts)| *sum += *counts);
}

/// The parameters of a session that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The parameters that the two ends agreed on.
    pub agreed: Agreed,
    /// The token that this endpoint chose.
    pub token: u32,
    /// The client's first request number.
    pub first_request: u64,
    /// Largest request accepted by this endpoint, in bytes.
    pub request_bytes_max: u32,
}

/// The reason why a session could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The endpoint's table is full.
    #[error("the endpoint already has its {max} sessions; close some, or raise the limit")]
    TooManySessions {
        /// The limit.
        max: u32,
    },
    /// A value is outside of the protocol's limits.
    #[error("the agreed values are outside of the protocol's limits")]
    Unsound,
    /// No session is being opened under this name.
    #[error("the session has ended meanwhile")]
    NotOpening,
}

/// The source ports of a session of several paths, and how a client chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// The policy of a client; servers ignore it.
    pub policy: PathPolicy,
    /// The source ports of this side, 1 to 32.
    pub ports: usize,
    /// The seed of random choices.
    pub seed: u64,
}

/// The data for the control plane's message to the peer about a closed session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The agreed parameters; `None` if the peer had not accepted yet.
    pub agreed: Option<Agreed>,
    /// True if this endpoint was the client.
    pub was_client: bool,
}

impl<B: Buffer, T> Core<B, T> {
    /// Begins to open a session as its client. Calls may be made at once, and wait.
    ///
    /// # Errors
    /// [`OpenError::TooManySessions`].
    pub fn open(&mut self, token: u32, first_request: u64) -> Result<SessionId, OpenError> {
        let client = ClientSession::opening(first_request, self.shared.timers.bounds());
        self.insert(token, None, Role::Client(client))
    }

    /// Numbers the calls of a session that is being opened, for ordered calls (§14.6), once its server is known to keep
    /// the order: see [`Core::forgo_order`]. Every call of the session then takes the general path.
    pub fn keep_order(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            client.keep_order();
        }
    }

    /// Gives up the order of a session that is being opened: its server does not know ordered calls. Ordered calls end
    /// with FAILED_PRECONDITION.
    pub fn forgo_order(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            forgo_order(&mut self.shared, &mut self.events, id, client);
        }
    }

    /// Accepts numbered calls on a session with this endpoint as the server: both ends of the link know ordered
    /// calls.
    pub fn accept_order(&mut self, id: SessionId) {
        if let Some(entry) = self.sessions.get_mut(id)
            && let Role::Server(server) = entry.role_mut()
        {
            server.know_order();
        }
    }

    /// Returns true if the calls of a client session are numbered.
    pub fn keeps_order(&self, id: SessionId) -> bool {
        let role = self.sessions.get(id).map(|entry| entry.role());
        matches!(role, Some(Role::Client(client)) if client.order().is_some())
    }

    /// Completes the opening after the peer has accepted. From now on calls are sent.
    ///
    /// # Errors
    /// [`OpenError::Unsound`] and [`OpenError::NotOpening`]; the session is unchanged then.
    pub fn establish(&mut self, id: SessionId, agreed: Agreed) -> Result<(), OpenError> {
        let Some(entry) = self.sessions.get_mut(id) else { return Err(OpenError::NotOpening) };
        match entry.role_mut() {
            Role::Client(client) if client.agreed().is_none() => {
                if !agreed.is_sound(client.first_request()) {
                    return Err(OpenError::Unsound);
                }
                client.establish(agreed, &self.shared.config.congestion);
                entry.set_source(agreed.peer);
            }
            _ => return Err(OpenError::NotOpening),
        }
        start_backlog(&mut self.sessions, &mut self.shared, &mut self.events, id);
        Ok(())
    }

    /// Accepts a session as its server.
    ///
    /// # Errors
    /// [`OpenError::TooManySessions`] and [`OpenError::Unsound`].
    pub fn accept(&mut self, accepted: Accepted) -> Result<SessionId, OpenError> {
        let Accepted { agreed, token, first_request, request_bytes_max } = accepted;
        if !agreed.is_sound(first_request) {
            return Err(OpenError::Unsound);
        }
        let server = ServerSession::new(agreed, first_request, request_bytes_max);
        self.insert(token, Some(agreed.peer), Role::Server(server))
    }

    /// Accepts frames of a session from `source` instead of its peer. Where several links share an address,
    /// frames of every link arrive under one name. Returns false if the session is not open.
    pub fn accept_from(&mut self, id: SessionId, source: PeerKey) -> bool {
        let Some(entry) = self.sessions.get_mut(id) else { return false };
        if entry.origin().peer().is_none() {
            return false;
        }
        entry.set_source(source);
        true
    }

    /// Gives a session several paths (`docs/wire-protocol.md` §14): both sides of its link have announced source
    /// ports. To be called once, after [`Core::accept_from`] and before the session's first frame. As a client this
    /// endpoint chooses the path of every frame, as a server it follows the client. Returns false if the session is
    /// not open, or recovers by go-back-N, which has no evidence of loss by path.
    pub fn use_paths(&mut self, id: SessionId, choice: PathChoice) -> bool {
        let PathChoice { policy, ports, seed } = choice;
        assert!((1..=PATHS_MAX).contains(&ports), "a side sends from 1 to 32 source ports");
        let is_selective = self.shared.config.recovery == Recovery::Selective;
        let Some(entry) = self.sessions.get_mut(id).filter(|_| is_selective) else { return false };
        let Some(source) = entry.source() else { return false };
        match entry.role_mut() {
            Role::Client(client) => client.use_paths((policy, ports, seed), source),
            Role::Server(server) => server.use_paths(ports as u8, source),
            Role::Free => return false,
        }
        entry.set_source(SOURCE_OF_PATHS);
        true
    }

    /// Takes the port of a link's offer for the client's. Otherwise a frame has to come from the port before frames of
    /// further ports count (`docs/wire-protocol.md` §14.1).
    pub fn trust_peer(&mut self, peer: PeerKey) {
        self.shared.proven.note(peer);
    }

    /// Charges the memory of a peer's messages to an account, too, which several peers may share (§6.4).
    pub fn set_account(&mut self, peer: PeerKey, account: u64) {
        self.shared.memory.set_account(peer, Some(account));
    }

    /// Forgets a peer without links: the name may be given to another peer.
    pub fn forget_peer(&mut self, peer: PeerKey) {
        self.shared.memory.set_account(peer, None);
        self.shared.proven.forget(peer);
    }

    /// Returns the counters of each path of a client session of several paths; nothing for further sessions.
    pub fn path_counts(&self, id: SessionId) -> &[PathCounts] {
        self.paths_of(id).map_or(&[], |paths| paths.counts())
    }

    /// Returns true if new packets of a client session of several paths take the path, besides looks.
    pub fn is_path_open(&self, id: SessionId, path: PathId) -> bool {
        self.paths_of(id).is_some_and(|paths| paths.is_open(path))
    }

    fn paths_of(&self, id: SessionId) -> Option<&ClientPaths> {
        match self.sessions.get(id)?.role() {
            Role::Client(client) => client.paths(),
            _ => None,
        }
    }

    /// Returns the counters of each path, of all client sessions of several paths together, ended ones included. Takes
    /// as many steps as there are sessions.
    pub fn path_totals(&self) -> Vec<PathCounts> {
        let mut totals = self.ended_paths.clone();
        for role in self.sessions.roles() {
            if let Role::Client(client) = role
                && let Some(paths) = client.paths()
            {
                add_paths(&mut totals, paths.counts());
            }
        }
        totals
    }

    /// Ends a session in any state. Its pending calls end with `status` and `message`; answers of running
    /// handlers will be discarded.
    pub fn close(&mut self, id: SessionId, status: Status, message: &str) -> Option<Closed> {
        let role = self.sessions.remove(id)?;
        self.shared.counters.sessions_closed += 1;
        match role {
            Role::Free => None,
            Role::Server(mut server) => {
                note_abandoned(&mut self.shared, id, &server);
                release_holdings(&mut self.shared, &mut server);
                assert!(
                    self.shared.memory.of_session(id) == 0,
                    "a session that ends holds no memory for messages"
                );
                self.shared.multicast.forget(id);
                assert!(
                    self.memberships().all(|member| member.session != id),
                    "a session that ends is a member of no group"
                );
                Some(Closed { agreed: Some(*server.agreed()), was_client: false })
            }
            Role::Client(client) => {
                let agreed = client.agreed().copied();
                if let Some(paths) = client.paths() {
                    add_paths(&mut self.ended_paths, paths.counts());
                }
                fail_calls(&mut self.shared, &mut self.events, id, client, status, message);
                Some(Closed { agreed, was_client: true })
            }
        }
    }

    /// Returns true if the session table freed memory since the last query: then the allocator may hold much
    /// unused memory.
    pub fn take_freed(&mut self) -> bool {
        self.sessions.take_freed()
    }

    /// Returns true if a session is open or being opened.
    pub fn is_open(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_some()
    }

    /// Stops further calls on a session whose server is about to end; pending calls go on. (The core may still accept
    /// an empty request, and the server answers as usual.)
    pub fn begin_drain(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            client.begin_drain();
        }
    }

    /// Returns true if the server of a session has asked for no further calls.
    pub fn is_draining(&self, id: SessionId) -> bool {
        let entry = self.sessions.get(id);
        entry.is_some_and(
            |entry| matches!(entry.role(), Role::Client(client) if client.is_draining()),
        )
    }

    /// Returns true if this endpoint is a session's server.
    pub fn is_server(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_some_and(|entry| matches!(entry.role(), Role::Server(_)))
    }

    /// Returns the agreed parameters of an open session, in either role.
    pub fn agreed(&self, id: SessionId) -> Option<&Agreed> {
        match self.sessions.get(id)?.role() {
            Role::Free => None,
            Role::Client(client) => client.agreed(),
            Role::Server(server) => Some(server.agreed()),
        }
    }

    /// Returns this endpoint's own token for a session.
    pub fn token(&self, id: SessionId) -> Option<u32> {
        self.sessions.get(id).map(|entry| entry.origin().token())
    }

    /// Returns the session with this index and token, as named in messages of the control plane.
    pub fn find(&self, index: u32, token: u32) -> Option<SessionId> {
        let entry = self.sessions.at(index)?;
        let id = SessionId { index, generation: entry.generation() };
        (entry.origin().token() == token && self.sessions.get(id).is_some()).then_some(id)
    }

    /// Notes that the packets of an open session do not use a network: congestion control does not apply, and
    /// a silent server is asked before packets are repeated (§7.2).
    pub fn leave_network(&mut self, id: SessionId) {
        if let Some(client) = self.sessions.client_mut(id) {
            client.leave_network();
        }
    }

    /// Sets the round trip of the path to a session's peer: the shortest seen by the control connection.
    /// Later values count only if shorter. Congestion control needs the value to distinguish a long path from
    /// a queue, and the first packets' timeout depends on it.
    pub fn note_path(&mut self, now_ns: u64, id: SessionId, rtt_ns: u32) {
        let bounds = self.shared.timers.bounds();
        if let Some(client) = self.sessions.client_mut(id) {
            client.note_path(now_ns, rtt_ns, bounds);
        }
    }

    /// Accepts requests on a session by a group's multicast. Returns false if there are too many groups, or
    /// if the peer is not the client of the session.
    pub fn join_group(&mut self, membership: Membership) -> bool {
        let Membership { peer, group, session, key: _ } = membership;
        let is_served = self.sessions.get(session).is_some_and(|entry| {
            matches!(entry.role(), Role::Server(_)) && entry.source() == Some(peer)
        });
        if !is_served {
            self.shared.multicast.leave(session, group);
            return false;
        }
        self.shared.multicast.join(membership)
    }

    /// Leaves a group. The client then repeats missing packets of the group's requests by unicast.
    pub fn leave_group(&mut self, session: SessionId, group: u32) -> Option<Membership> {
        self.shared.multicast.leave(session, group)
    }

    /// Returns the memberships of this endpoint.
    pub fn memberships(&self) -> impl Iterator<Item = &Membership> {
        self.shared.multicast.memberships()
    }

    /// Returns the number of pending calls of a client session: outstanding and queued.
    pub fn pending_calls(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| entry.role()) {
            Some(Role::Client(client)) => client.pending_calls(),
            _ => 0,
        }
    }

    /// Returns the sum of agreed slots of all sessions in the server's role: the most requests that clients
    /// may have outstanding, and occupy memory with.
    pub fn server_slots(&self) -> u64 {
        self.sessions.server_slots()
    }

    /// Returns the number of allocated slots of a session: as many as its calls, or the requests of its
    /// client, have needed at once.
    pub fn slots_allocated(&self, id: SessionId) -> usize {
        match self.sessions.get(id).map(|entry| entry.role()) {
            Some(Role::Client(client)) => client.slots().len(),
            Some(Role::Server(server)) => server.slots().len(),
            _ => 0,
        }
    }

    /// Returns the free credits of a client session, and all credits. For tests and checkers: in a session
    /// without pending calls all credits are free.
    pub fn credits(&self, id: SessionId) -> Option<(u32, u32)> {
        match self.sessions.get(id)?.role() {
            Role::Client(client) => {
                client.agreed()?;
                Some(client.credits())
            }
            _ => None,
        }
    }

    /// Returns the smoothed round-trip time of a client session in nanoseconds, once measured.
    pub fn srtt_ns(&self, id: SessionId) -> Option<u64> {
        match self.sessions.get(id)?.role() {
            Role::Client(client) => client.trips().srtt_ns(),
            _ => None,
        }
    }

    fn insert(
        &mut self,
        token: u32,
        peer: Option<PeerKey>,
        role: Role<B, T>,
    ) -> Result<SessionId, OpenError> {
        let max = self.shared.config.sessions_max;
        let id = self.sessions.insert(token, peer, role);
        assert!(self.sessions.open_count() <= max, "sessions are within their limit");
        self.shared.counters.sessions_opened += u64::from(id.is_some());
        id.ok_or(OpenError::TooManySessions { max })
    }
}
