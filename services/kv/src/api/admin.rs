//! MEMBER and TRANSFER: changes of membership and of leadership.

use super::Refusal;
use crate::limits::ADDRESS_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write, kinds, messages};

/// Changes the membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberRequest<'a> {
    /// The kind of change.
    pub change: MemberChange,
    /// The node to change.
    pub node: u16,
    /// The node's address. Required when a node is added, may be empty otherwise.
    pub address: &'a str,
}

/// The kind of membership change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// The node becomes a learner: it receives the log but has no vote.
    Add,
    /// The node leaves the cluster.
    Remove,
    /// The learner becomes a voter.
    Promote,
}

/// Hands leadership to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferRequest {
    /// The future leader.
    pub node: u16,
}

/// The answer to MEMBER and TRANSFER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminReply<'a> {
    /// The change is done.
    Done,
    /// Nothing to do: the node to remove is not a member.
    NoMember,
    /// The change was refused.
    Refused(Refusal<'a>),
}

const DONE: u8 = 1;
const NO_MEMBER: u8 = 2;

messages!(MemberRequest<'a>, TransferRequest, AdminReply<'a>);
kinds!(MemberChange, "change", Add = 1, Remove = 2, Promote = 3);

impl<'a> MemberRequest<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        self.change.write(out);
        out.put_u16(self.node);
        out.put_text(self.address, ADDRESS_BYTES_MAX);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let change = MemberChange::read(reader)?;
        let (node, address) = (reader.u16("node")?, reader.text("address")?);
        let needs_address = change == MemberChange::Add;
        if address.len() > ADDRESS_BYTES_MAX || (needs_address && address.is_empty()) {
            return Err(DecodeError::OutOfRange("length of the address"));
        }
        Ok(MemberRequest { change, node, address })
    }
}

impl TransferRequest {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(TransferRequest { node: reader.u16("node")? })
    }
}

impl<'a> AdminReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            AdminReply::Done => out.put_u8(DONE),
            AdminReply::NoMember => out.put_u8(NO_MEMBER),
            AdminReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8("reply")? {
            DONE => Ok(AdminReply::Done),
            NO_MEMBER => Ok(AdminReply::NoMember),
            kind => Ok(AdminReply::Refused(Refusal::read(kind, reader)?)),
        }
    }
}
