//! The membership table: members and their addresses. It is part of the replicated state, and equal on all replicas.

use std::collections::BTreeMap;

use super::codec::{Garbled, Reader};

/// The node in a replica's name.
pub(crate) const fn node_of(replica: u64) -> u16 {
    (replica >> 48) as u16
}

/// The name of a replica of a node, from 48 random bits. Never 0, which stands for no replica.
pub(crate) const fn replica_name(node: u16, random: u64) -> u64 {
    let low = random & ((1 << 48) - 1);
    (node as u64) << 48 | if low == 0 { 1 } else { low }
}

/// Members, and nodes that may join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// Addresses by replica: voters and learners.
    pub(crate) members: BTreeMap<u64, String>,
    /// Nodes added by an operator that have not joined yet.
    pub(crate) invited: BTreeMap<u16, String>,
}

/// A change of only the membership table. The log carries the change as an entry's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BookChange {
    /// This node may join.
    Invite(u16, String),
    /// This node may no longer join.
    Disinvite(u16),
}

const INVITE: u8 = 1;
const DISINVITE: u8 = 2;

impl Book {
    /// The names of a node's replicas.
    pub(crate) fn replicas_of(&self, node: u16) -> impl Iterator<Item = u64> {
        self.members.keys().copied().filter(move |replica| node_of(*replica) == node)
    }

    /// Returns true if a replica of this node may join.
    pub(crate) fn knows(&self, node: u16) -> bool {
        self.invited.contains_key(&node) || self.replicas_of(node).next().is_some()
    }

    /// Returns true if another member or invited node has this address.
    pub(crate) fn has_elsewhere(&self, node: u16, address: &str) -> bool {
        let members = self.members.iter().map(|(replica, at)| (node_of(*replica), at));
        let invited = self.invited.iter().map(|(node, at)| (*node, at));
        members.chain(invited).any(|(other, at)| other != node && at == address)
    }

    /// Adds a replica as a member.
    pub(crate) fn add(&mut self, replica: u64, address: String) {
        self.invited.remove(&node_of(replica));
        self.members.insert(replica, address);
    }

    pub(crate) fn change(&mut self, change: BookChange) {
        match change {
            BookChange::Invite(node, address) => self.invited.insert(node, address),
            BookChange::Disinvite(node) => self.invited.remove(&node),
        };
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_members(self.members.iter().map(|(replica, address)| (*replica, address)), &mut out);
        out.extend((self.invited.len() as u32).to_le_bytes());
        for (node, address) in &self.invited {
            out.extend(node.to_le_bytes());
            encode_text(address, &mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut input = Reader::new(bytes);
        let members = decode_members(&mut input)?.into_iter().collect();
        let mut invited = BTreeMap::new();
        for _ in 0..input.u32()? {
            invited.insert(input.u16()?, input.text()?);
        }
        input.end()?;
        Ok(Self { members, invited })
    }
}

impl BookChange {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            BookChange::Invite(node, address) => {
                let mut out = vec![INVITE];
                out.extend(node.to_le_bytes());
                encode_text(address, &mut out);
                out
            }
            BookChange::Disinvite(node) => {
                let mut out = vec![DISINVITE];
                out.extend(node.to_le_bytes());
                out
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut input = Reader::new(bytes);
        let change = match input.u8()? {
            INVITE => BookChange::Invite(input.u16()?, input.text()?),
            DISINVITE => BookChange::Disinvite(input.u16()?),
            other => return Err(Garbled::Type(other)),
        };
        input.end()?;
        Ok(change)
    }
}

pub(super) fn encode_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

pub(super) fn encode_members<'a>(
    members: impl ExactSizeIterator<Item = (u64, &'a String)>,
    out: &mut Vec<u8>,
) {
    out.extend((members.len() as u32).to_le_bytes());
    for (replica, address) in members {
        out.extend(replica.to_le_bytes());
        encode_text(address, out);
    }
}

pub(super) fn decode_members(input: &mut Reader<'_>) -> Result<Vec<(u64, String)>, Garbled> {
    let count = input.u32()?;
    (0..count).map(|_| Ok((input.u64()?, input.text()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Book {
        let mut book = Book::default();
        book.add(replica_name(1, 77), "10.0.0.1:7000".to_owned());
        book.add(replica_name(2, 78), "10.0.0.2:7000".to_owned());
        book.change(BookChange::Invite(3, "10.0.0.3:7000".to_owned()));
        book
    }

    #[test]
    fn book__comes_back_and_no_part_of_it_does() {
        let bytes = book().encode();
        assert_eq!(Book::decode(&bytes), Ok(book()));
        for len in 0..bytes.len() {
            assert_eq!(Book::decode(&bytes[..len]), Err(Garbled::Short));
        }
        for change in [BookChange::Invite(3, "x".to_owned()), BookChange::Disinvite(9)] {
            assert_eq!(BookChange::decode(&change.encode()), Ok(change));
        }
        assert_eq!(BookChange::decode(&[7]), Err(Garbled::Type(7)));
    }

    #[test]
    fn book__an_invited_node_becomes_a_member() {
        let mut book = book();
        assert!(book.knows(3) && book.replicas_of(3).next().is_none());
        book.add(replica_name(3, 1), "10.0.0.3:7000".to_owned());
        assert!(book.knows(3) && book.invited.is_empty());
        assert!(!book.knows(4));
    }

    #[test]
    fn name__has_its_node_and_is_never_nobodys() {
        assert_eq!(node_of(replica_name(9, u64::MAX)), 9);
        assert_ne!(replica_name(0, 0), 0);
    }
}
