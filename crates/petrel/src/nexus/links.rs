//! The links of the process, their tickets, and the count of their proposals.

use std::collections::{HashMap, HashSet};
use std::ops::Index;

use petrel_planted::planted;
use petrel_proto::control::KEY_PATH_END;

use super::ids::ConnectionId;
use super::limits::{LINKS_MAX, PROPOSALS_MAX};
use super::link::{Link, Proposal, ProposalName, Stage};
use crate::control::{EndpointId, LinkId};
use crate::tables::shrink;

pub(super) const TICKET_BYTES: usize = 16;

/// All links.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_id: HashMap<LinkId, Link>,
    next: u64,
    /// Unanswered proposals in all.
    proposals: usize,
    /// Links by the ticket that their peer is to present at the rendezvous.
    tickets: HashMap<[u8; TICKET_BYTES], LinkId>,
    /// The key paths of links with sealed datagrams.
    key_paths: HashSet<u32>,
    /// The next key path to try.
    next_key_path: u32,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= LINKS_MAX
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_id.get_mut(&id)
    }

    /// Iterates over all, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.by_id.iter().map(|(id, link)| (*id, link))
    }

    /// Returns the links that satisfy a condition, the oldest first.
    pub(super) fn select(&self, is_meant: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let meant = self.iter().filter(|(_, link)| is_meant(link));
        let mut meant: Vec<_> = meant.map(|(id, _)| id).collect();
        meant.sort_unstable();
        meant
    }

    /// Returns true if the link exists and belongs to the endpoint. It may have ended a moment ago.
    pub(super) fn owns(&self, endpoint: EndpointId, id: LinkId) -> bool {
        self.get(id).is_some_and(|link| link.endpoint() == endpoint)
    }

    pub(super) fn add(&mut self, link: Link) -> LinkId {
        let id = LinkId(self.next);
        self.next += 1;
        let former = self.by_id.insert(id, link);
        assert!(former.is_none(), "the name of a link is never used again: {id:?}");
        assert!(self.len() <= LINKS_MAX, "the limit of links was checked before");
        id
    }

    /// Removes a link, with proposals and ticket.
    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        let link = self.by_id.remove(&id)?;
        let own = link.proposals().len();
        assert!(self.proposals >= own, "the proposals of a link are counted");
        self.proposals -= own;
        assert!(self.proposals == 0 || !self.by_id.is_empty(), "a proposal is made on a link");
        shrink(&mut self.by_id);
        if let Some(path) = link.key_path() {
            assert!(self.key_paths.remove(&path), "a key path is of one link: {path}");
        }
        if let Stage::Promised { expected: Some(expected), .. } = link.stage()
            && !planted("nexus_tickets_stay")
        {
            self.tickets.remove(expected.ticket());
        }
        Some(link)
    }

    /// Returns a key path that no other link of the process has.
    pub(super) fn new_key_path(&mut self) -> u32 {
        const { assert!(LINKS_MAX < KEY_PATH_END as usize) };
        loop {
            let path = self.next_key_path;
            self.next_key_path = (path + 1) % KEY_PATH_END;
            if self.key_paths.insert(path) {
                return path;
            }
        }
    }

    /// Takes back the key path of a link that was not made.
    pub(super) fn give_key_path_back(&mut self, key_path: Option<u32>) {
        if let Some(path) = key_path {
            assert!(self.key_paths.remove(&path), "a key path was given out: {path}");
        }
    }

    /// Expects a peer to present a ticket for a link.
    pub(super) fn expect_ticket(&mut self, ticket: [u8; TICKET_BYTES], id: LinkId) {
        let is_promised = matches!(self.by_id[&id].stage(), Stage::Promised { .. });
        assert!(is_promised, "a ticket is for a link that was promised: {id:?}");
        let former = self.tickets.insert(ticket, id);
        assert!(former.is_none(), "a ticket is random, and of one link");
    }

    /// Takes the link of a ticket, which is valid once.
    pub(super) fn redeem(&mut self, ticket: &[u8; TICKET_BYTES]) -> Option<LinkId> {
        let link = self.tickets.remove(ticket)?;
        assert!(self.by_id.contains_key(&link), "a ticket ends with its link: {link:?}");
        Some(link)
    }

    /// Returns the links whose peers have yet to bring memory.
    pub(super) fn expecting_memory(&self) -> Vec<LinkId> {
        let is_memory = |id: &LinkId| {
            let stage = self.get(*id).map(Link::stage);
            matches!(stage, Some(Stage::Promised { expected: Some(expected), .. }) if expected.memory().is_some())
        };
        self.tickets.values().copied().filter(is_memory).collect()
    }

    /// Returns the number of unanswered proposals in all.
    pub(super) fn proposals(&self) -> usize {
        self.proposals
    }

    pub(super) fn has_too_many_proposals(&self) -> bool {
        self.proposals >= PROPOSALS_MAX
    }

    /// Remembers a proposal on a link until its answer. Returns the connection of the link.
    pub(super) fn propose(&mut self, id: LinkId, proposal: Proposal) -> Option<ConnectionId> {
        let link = self.by_id.get_mut(&id)?;
        link.propose(proposal);
        self.proposals += 1;
        assert!(self.proposals <= PROPOSALS_MAX, "the limit of proposals was checked before");
        Some(link.connection())
    }

    /// Takes a proposal that is answered or given up, and the connection of its link.
    pub(super) fn take_proposal(
        &mut self,
        id: LinkId,
        name: ProposalName,
    ) -> Option<(ConnectionId, Proposal)> {
        let link = self.by_id.get_mut(&id)?;
        let proposal = link.take_proposal(name)?;
        assert!(self.proposals > 0, "a proposal that ends was counted");
        self.proposals -= 1;
        Some((link.connection(), proposal))
    }

    /// Takes the link of a ticket for a stream.
    pub(super) fn redeem_for_stream(&mut self, ticket: &[u8; TICKET_BYTES]) -> Option<LinkId> {
        let stage = self.get(*self.tickets.get(ticket)?)?.stage();
        let is_stream = matches!(stage, Stage::Promised { expected: Some(expected), .. } if expected.memory().is_none());
        if is_stream { self.redeem(ticket) } else { None }
    }

    /// Returns the number of tickets that peers have yet to present.
    pub(super) fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// Returns a ticket's link that is no more. There is none unless a table was left behind.
    pub(super) fn stray_ticket(&self) -> Option<LinkId> {
        self.tickets.values().copied().find(|link| self.get(*link).is_none())
    }
}

impl Index<&LinkId> for Links {
    type Output = Link;

    fn index(&self, id: &LinkId) -> &Link {
        &self.by_id[id]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    impl Links {
        pub(in crate::nexus) fn test_proposals(&mut self) -> &mut usize {
            &mut self.proposals
        }

        pub(in crate::nexus) fn test_tickets(
            &mut self,
        ) -> &mut HashMap<[u8; TICKET_BYTES], LinkId> {
            &mut self.tickets
        }
    }

    fn link(number: u32) -> Link {
        let stage = Stage::Promised { expected: None, max_frame: 1_472 };
        Link::new((ConnectionId(8), number), EndpointId(3), 0, stage, Instant::now())
    }

    #[test]
    fn redeem__a_ticket_is_valid_once() {
        let mut links = Links::default();
        let id = links.add(link(1));
        links.expect_ticket([7; TICKET_BYTES], id);
        assert_eq!(links.redeem(&[7; TICKET_BYTES]), Some(id));
        assert_eq!(links.redeem(&[7; TICKET_BYTES]), None);
    }

    panics! {
        expect_ticket__of_another_link: "a ticket is random, and of one link" => {
            let mut links = Links::default();
            for number in 0..2 {
                let id = links.add(link(number));
                links.expect_ticket([7; TICKET_BYTES], id);
            }
        };
        expect_ticket__for_a_link_that_is_up: "a ticket is for a link that was promised" => {
            let mut links = Links::default();
            let id = links.add(link(1));
            links.get_mut(id).unwrap().come_up(1_472);
            links.expect_ticket([7; TICKET_BYTES], id);
        };
    }

    #[test]
    fn select__in_the_order_of_their_names() {
        let mut links = Links::default();
        let all: Vec<_> = (0..64).map(|number| links.add(link(number))).collect();
        assert_eq!(links.select(|link| link.endpoint() == EndpointId(3)), all);
        assert_eq!(links.select(|link| link.number() == 7), [all[7]]);
    }
}
