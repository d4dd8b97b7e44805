//! The membership table: members and their addresses. It is part of the replicated state, and equal on all replicas.

use std::collections::BTreeMap;

use crate::wire::{DecodeError, Reader, Write};

/// The node in a replica's name.
pub(crate) const fn node_of(replica: u64) -> u16 {
    (replica >> 48) as u16
}

/// The name of a replica of a node, from 48 random bits. Never 0, which stands for no replica.
pub(crate) const fn replica_name(node: u16, random: u64) -> u64 {
    let low = random & ((1 << 48) - 1);
    (node as u64) << 48 | if low == 0 { 1 } else { low }
}

/// Addresses by replica.
pub(crate) type Members = BTreeMap<u64, String>;

/// Members, and nodes that may join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Voters and learners.
    pub(crate) members: Members,
    /// Nodes added by an operator that have not joined yet.
    pub(crate) admitted: BTreeMap<u16, String>,
}

/// A change of only the membership table. The log carries the change as an entry's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MembershipChange {
    /// This node may join.
    Admit(u16, String),
    /// This node may no longer join.
    Revoke(u16),
}

const ADMIT: u8 = 1;
const REVOKE: u8 = 2;

impl Membership {
    /// The names of a node's replicas.
    pub(crate) fn replicas_of(&self, node: u16) -> impl Iterator<Item = u64> {
        self.members.keys().copied().filter(move |replica| node_of(*replica) == node)
    }

    pub(crate) fn may_join(&self, node: u16) -> bool {
        self.admitted.contains_key(&node) || self.replicas_of(node).next().is_some()
    }

    /// Returns true if another member or admitted node has this address.
    pub(crate) fn has_elsewhere(&self, node: u16, address: &str) -> bool {
        let members = self.members.iter().map(|(replica, at)| (node_of(*replica), at));
        let admitted = self.admitted.iter().map(|(node, at)| (*node, at));
        members.chain(admitted).any(|(other, at)| other != node && at == address)
    }

    pub(crate) fn add(&mut self, replica: u64, address: String) {
        self.admitted.remove(&node_of(replica));
        self.members.insert(replica, address);
    }

    pub(crate) fn change(&mut self, change: MembershipChange) {
        match change {
            MembershipChange::Admit(node, address) => self.admitted.insert(node, address),
            MembershipChange::Revoke(node) => self.admitted.remove(&node),
        };
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_members(&self.members, &mut out);
        out.put_u32(self.admitted.len() as u32);
        for (node, address) in &self.admitted {
            out.put_u16(*node);
            put_address(address, &mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let members = read_members(&mut input)?;
        let mut admitted = BTreeMap::new();
        for _ in 0..input.u32("admitted nodes")? {
            admitted.insert(input.u16("node")?, read_address(&mut input)?);
        }
        input.end().map(|()| Self { members, admitted })
    }
}

impl MembershipChange {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            MembershipChange::Admit(node, address) => {
                out.put_u8(ADMIT);
                out.put_u16(*node);
                put_address(address, &mut out);
            }
            MembershipChange::Revoke(node) => {
                out.put_u8(REVOKE);
                out.put_u16(*node);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let change = match input.u8("change")? {
            ADMIT => MembershipChange::Admit(input.u16("node")?, read_address(&mut input)?),
            REVOKE => MembershipChange::Revoke(input.u16("node")?),
            kind => return Err(DecodeError::UnknownKind { field: "change", kind }),
        };
        input.end().map(|()| change)
    }
}

pub(super) fn put_address(address: &str, out: &mut Vec<u8>) {
    out.put_u32(address.len() as u32);
    out.extend_from_slice(address.as_bytes());
}

pub(super) fn read_address(input: &mut Reader<'_>) -> Result<String, DecodeError> {
    let len = input.u32("address")? as usize;
    let bytes = input.take(len, "address")?.to_vec();
    String::from_utf8(bytes).map_err(|_| DecodeError::NotText("address"))
}

pub(super) fn put_members(members: &Members, out: &mut Vec<u8>) {
    out.put_u32(members.len() as u32);
    for (replica, address) in members {
        out.put_u64(*replica);
        put_address(address, out);
    }
}

pub(super) fn read_members(input: &mut Reader<'_>) -> Result<Members, DecodeError> {
    let count = input.u32("members")?;
    (0..count).map(|_| Ok((input.u64("member")?, read_address(input)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> Membership {
        let mut membership = Membership::default();
        membership.add(replica_name(1, 77), "10.0.0.1:7000".to_owned());
        membership.add(replica_name(2, 78), "10.0.0.2:7000".to_owned());
        membership.change(MembershipChange::Admit(3, "10.0.0.3:7000".to_owned()));
        membership
    }

    #[test]
    fn membership__round_trips_and_no_part_of_it_decodes() {
        let bytes = membership().encode();
        assert_eq!(Membership::decode(&bytes), Ok(membership()));
        for len in 0..bytes.len() {
            let cut = Membership::decode(&bytes[..len]);
            assert!(matches!(cut, Err(DecodeError::Truncated(_))), "{cut:?}");
        }
        for change in [MembershipChange::Admit(3, "x".to_owned()), MembershipChange::Revoke(9)] {
            assert_eq!(MembershipChange::decode(&change.encode()), Ok(change));
        }
        assert!(MembershipChange::decode(&[7]).is_err());
    }

    #[test]
    fn membership__an_admitted_node_becomes_a_member() {
        let mut membership = membership();
        assert!(membership.may_join(3) && membership.replicas_of(3).next().is_none());
        membership.add(replica_name(3, 1), "10.0.0.3:7000".to_owned());
        assert!(membership.may_join(3) && membership.admitted.is_empty());
        assert!(!membership.may_join(4));
    }

    #[test]
    fn name__has_its_node_and_is_never_nobodys() {
        assert_eq!(node_of(replica_name(9, u64::MAX)), 9);
        assert_ne!(replica_name(0, 0), 0);
    }
}
