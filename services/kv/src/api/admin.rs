//! MEMBER and TRANSFER: changes of membership and of leadership.

use super::Refusal;
use crate::limits::ADDRESS_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write};

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

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const PROMOTE: u8 = 3;

const DONE: u8 = 1;
const NO_MEMBER: u8 = 2;

impl<'a> MemberRequest<'a> {
    /// Appends the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(match self.change {
            MemberChange::Add => ADD,
            MemberChange::Remove => REMOVE,
            MemberChange::Promote => PROMOTE,
        });
        out.put_u16(self.node);
        out.put_text(self.address, ADDRESS_BYTES_MAX);
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid request.
    pub fn decode(bytes: &'a [u8]) -> Result<MemberRequest<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let change = match reader.u8("change")? {
            ADD => MemberChange::Add,
            REMOVE => MemberChange::Remove,
            PROMOTE => MemberChange::Promote,
            kind => return Err(DecodeError::UnknownKind { field: "change", kind }),
        };
        let node = reader.u16("node")?;
        let address = reader.text("address")?;
        let needs_address = change == MemberChange::Add;
        if address.len() > ADDRESS_BYTES_MAX || (needs_address && address.is_empty()) {
            return Err(DecodeError::OutOfRange("length of the address"));
        }
        reader.end()?;
        Ok(MemberRequest { change, node, address })
    }
}

impl TransferRequest {
    /// Appends the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node);
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid request.
    pub fn decode(bytes: &[u8]) -> Result<TransferRequest, DecodeError> {
        let mut reader = Reader::new(bytes);
        let request = TransferRequest { node: reader.u16("node")? };
        reader.end()?;
        Ok(request)
    }
}

impl<'a> AdminReply<'a> {
    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AdminReply::Done => out.put_u8(DONE),
            AdminReply::NoMember => out.put_u8(NO_MEMBER),
            AdminReply::Refused(refusal) => refusal.encode(out),
        }
    }

    /// Decodes a reply.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid reply.
    pub fn decode(bytes: &'a [u8]) -> Result<AdminReply<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8("reply")? {
            DONE => AdminReply::Done,
            NO_MEMBER => AdminReply::NoMember,
            kind => AdminReply::Refused(Refusal::read(kind, &mut reader)?),
        };
        reader.end()?;
        Ok(reply)
    }
}
