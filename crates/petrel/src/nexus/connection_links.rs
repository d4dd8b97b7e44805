//! The links of a connection, and the charge of their sessions and proposals.

use std::collections::HashMap;
use std::time::Instant;

use super::limits::LINKS_PER_CONNECTION_MAX;
use crate::control::LinkId;
use crate::tables::shrink;

/// The links of a connection by their numbers. Sums over the links are kept here, since limits are checked for each
/// message.
#[derive(Debug)]
pub(super) struct ConnectionLinks {
    by_number: HashMap<u32, LinkId>,
    /// The number to try first for the next link.
    next: u32,
    /// The time since which the connection has had no links.
    idle_since: Instant,
    /// Unanswered proposals.
    proposals: usize,
    /// Memory of proposed sessions with servers in this process.
    proposed_bytes: usize,
    /// Memory of sessions with servers in this process.
    session_bytes: usize,
    /// The time since which the connection has had no session.
    quiet_since: Instant,
    had_request: bool,
}

impl ConnectionLinks {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            by_number: HashMap::new(),
            next: 0,
            idle_since: now,
            proposals: 0,
            proposed_bytes: 0,
            session_bytes: 0,
            quiet_since: now,
            had_request: false,
        }
    }

    /// Returns true if a session with a server in this process has had a request.
    pub(super) fn had_request(&self) -> bool {
        self.had_request
    }

    /// Notes a request of a session with a server in this process.
    pub(super) fn note_request(&mut self) {
        self.had_request = true;
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(super) fn get(&self, number: u32) -> Option<LinkId> {
        self.by_number.get(&number).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.by_number.values().copied()
    }

    pub(super) fn in_order(&self) -> Vec<LinkId> {
        let mut links: Vec<_> = self.ids().collect();
        links.sort_unstable();
        links
    }

    /// Returns a number that no link has. The loop ends because links are far fewer than numbers.
    pub(super) fn new_number(&mut self) -> u32 {
        while self.by_number.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// Acceptor: notes the number of a link that the peer asks for. Returns false for a number that is not above all before: the keys of a link
    /// are made of its number, and must not be made twice.
    pub(super) fn accept_number(&mut self, number: u32) -> bool {
        let is_new = number >= self.next && number < u32::MAX;
        if is_new {
            self.next = number + 1;
        }
        is_new
    }

    pub(super) fn insert(&mut self, number: u32, link: LinkId, now: Instant) {
        let former = self.by_number.insert(number, link);
        assert!(former.is_none(), "number {number} is of another link of the connection");
        assert!(
            self.by_number.len() <= LINKS_PER_CONNECTION_MAX,
            "the limit of a connection's links was checked before"
        );
        self.quiet_since = now;
    }

    /// Removes a link whose proposals and sessions were uncounted.
    pub(super) fn remove(&mut self, number: u32, link: LinkId, now: Instant) {
        let listed = self.by_number.remove(&number);
        assert!(listed == Some(link), "a connection lists its link under its number: {listed:?}");
        shrink(&mut self.by_number);
        self.idle_since = now;
        assert!(
            !self.is_empty() || (self.proposals == 0 && self.session_bytes == 0),
            "a connection without links has no sessions and no proposals"
        );
    }

    /// Returns the number of unanswered proposals.
    pub(super) fn proposals(&self) -> usize {
        self.proposals
    }

    /// Returns the memory of proposed sessions with servers in this process.
    pub(super) fn proposed_bytes(&self) -> usize {
        self.proposed_bytes
    }

    /// Returns the memory of sessions with servers in this process.
    pub(super) fn session_bytes(&self) -> usize {
        self.session_bytes
    }

    /// Returns true if a link has a session with a server in this process, or a proposal.
    pub(super) fn are_in_use(&self) -> bool {
        self.session_bytes > 0 || self.proposals > 0
    }

    /// Counts a proposal, and charges its memory: none at the client.
    pub(super) fn add_proposal(&mut self, bytes: usize) {
        assert!(!self.is_empty(), "a session is proposed on a link of the connection");
        self.proposals += 1;
        self.proposed_bytes += bytes;
    }

    pub(super) fn remove_proposal(&mut self, bytes: usize, now: Instant) {
        assert!(self.proposals > 0, "a proposal counts for its connection");
        self.proposals -= 1;
        assert!(self.proposed_bytes >= bytes, "a proposal was charged");
        self.proposed_bytes -= bytes;
        assert!(
            self.proposals > 0 || self.proposed_bytes == 0,
            "without proposals nothing is charged for them: {} bytes",
            self.proposed_bytes
        );
        self.quiet_since = now;
    }

    /// Charges the memory of a session with a server in this process.
    pub(super) fn add_session(&mut self, bytes: usize) {
        assert!(!self.is_empty(), "a session is on a link of the connection");
        assert!(bytes > 0, "a session takes memory");
        self.session_bytes += bytes;
    }

    pub(super) fn remove_sessions(&mut self, bytes: usize, now: Instant) {
        assert!(self.session_bytes >= bytes, "sessions of a link count for its connection");
        self.session_bytes -= bytes;
        self.quiet_since = now;
    }

    /// Begins the time without links: the peer has said HELLO.
    pub(super) fn begin_idle(&mut self, now: Instant) {
        assert!(self.is_empty(), "a link comes after the peer's HELLO");
        self.idle_since = now;
    }

    /// Returns since when the connection has had no links.
    pub(super) fn idle_since(&self) -> Instant {
        self.idle_since
    }

    /// Returns since when the connection has had no session.
    pub(super) fn quiet_since(&self) -> Instant {
        self.quiet_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ConnectionLinks {
        /// Links numbered from 0, in place of all others.
        pub(in crate::nexus) fn set_test_links(&mut self, links: usize) {
            self.by_number = (0..links).map(|link| (link as u32, LinkId(link as u64))).collect();
        }

        pub(in crate::nexus) fn set_test_charge(
            &mut self,
            (proposals, proposed_bytes): (usize, usize),
            session_bytes: usize,
        ) {
            (self.proposals, self.proposed_bytes) = (proposals, proposed_bytes);
            self.session_bytes = session_bytes;
        }

        pub(in crate::nexus) fn set_test_times(&mut self, idle_since: Instant, quiet: Instant) {
            (self.idle_since, self.quiet_since) = (idle_since, quiet);
        }
    }

    fn with_a_link() -> (ConnectionLinks, Instant) {
        let now = Instant::now();
        let mut links = ConnectionLinks::new(now);
        links.insert(5, LinkId(7), now);
        (links, now)
    }

    #[test]
    fn new_number__is_the_next_that_is_free() {
        let now = Instant::now();
        let mut links = ConnectionLinks::new(now);
        assert_eq!([0, 1, 2], [(); 3].map(|()| links.new_number()));
        links.next = u32::MAX - 1;
        for taken in [u32::MAX, 0, 1, 3] {
            links.insert(taken, LinkId(7), now);
        }
        assert_eq!([u32::MAX - 1, 2, 4], [(); 3].map(|()| links.new_number()));
    }

    #[test]
    fn accept_number__above_all_before() {
        let mut links = ConnectionLinks::new(Instant::now());
        let numbers = [0, 0, 7, 6, 7, 8, u32::MAX, u32::MAX - 1, u32::MAX - 1];
        let new = numbers.map(|number| links.accept_number(number));
        assert_eq!(new, [true, false, true, false, false, true, false, true, false]);
    }

    panics! {
        insert__a_number_in_use: "number 5 is of another link" => {
            let (mut links, now) = with_a_link();
            links.insert(5, LinkId(8), now);
        };
        insert__beyond_the_limit: "the limit of a connection's links was checked before" => {
            let (mut links, now) = with_a_link();
            links.set_test_links(LINKS_PER_CONNECTION_MAX);
            links.insert(u32::MAX, LinkId(8), now);
        };
        remove__another_link_of_the_number: "a connection lists its link under its number" => {
            let (mut links, now) = with_a_link();
            links.remove(5, LinkId(8), now);
        };
        remove__the_last_link_with_a_session: "a connection without links has no sessions" => {
            let (mut links, now) = with_a_link();
            links.add_session(100);
            links.remove(5, LinkId(7), now);
        };
        remove_proposal__with_less_than_its_charge: "without proposals nothing is charged" => {
            let (mut links, now) = with_a_link();
            links.add_proposal(100);
            links.remove_proposal(99, now);
        };
        remove_sessions__of_more_than_there_are: "sessions of a link count for its connection" => {
            let (mut links, now) = with_a_link();
            links.add_session(100);
            links.remove_sessions(101, now);
        };
        begin_idle__with_a_link: "a link comes after the peer's HELLO" => {
            let (mut links, now) = with_a_link();
            links.begin_idle(now);
        };
    }
}
