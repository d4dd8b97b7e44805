//! STATUS: the state of a replica.
//!
//! The reply is a list of fields, each with its number and length, and either side may be the older version. A reader
//! skips unknown fields, and an absent field has its default.

use std::borrow::Cow;

use crate::limits::ADDRESS_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write};

/// The state of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The node's number.
    pub node: u16,
    /// The replica's number in the Raft group.
    pub raft_id: u64,
    /// The replica's present role.
    pub role: Role,
    /// The present term.
    pub term: u64,
    /// The number of the leader in the Raft group, if known.
    pub leader: Option<u64>,
    /// The index of the last committed entry.
    pub commit: u64,
    /// The index of the last applied entry.
    pub applied: u64,
    /// The index of the last entry of the log.
    pub last_index: u64,
    /// The index of the first entry still in the log.
    pub first_index: u64,
    /// The members.
    pub members: Vec<Member>,
    /// Keys in the store.
    pub keys: u64,
    /// Bytes of the keys and their values.
    pub bytes: u64,
    /// Client sessions.
    pub sessions: u64,
    /// Counters by name.
    pub counters: Vec<(Cow<'static, str>, u64)>,
}

/// The role of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// It follows the leader.
    #[default]
    Follower,
    /// A follower that asks whether an election could succeed, before raising the term.
    PreCandidate,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
}

/// A replica of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number in the Raft group.
    pub raft_id: u64,
    /// Whether it votes.
    pub kind: MemberKind,
    /// The node's address.
    pub address: String,
}

/// The voting right of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// It votes.
    Voter,
    /// A member without a vote; the log is sent to learners, too.
    Learner,
    /// It becomes a voter by a membership change in progress. Until the change is complete the cluster may need its
    /// previous voters, too. Only a [`MemberKind::Voter`] can replace a failed voter.
    Joining,
    /// A voter until the change for its removal is complete.
    Leaving,
}

// Numbers of the fields. A number is never used again for another field.
const NODE: u8 = 1;
const RAFT_ID: u8 = 2;
const ROLE: u8 = 3;
const TERM: u8 = 4;
const LEADER: u8 = 5;
const COMMIT: u8 = 6;
const APPLIED: u8 = 7;
const LAST_INDEX: u8 = 8;
const FIRST_INDEX: u8 = 9;
const MEMBER: u8 = 10;
const KEYS: u8 = 11;
const BYTES: u8 = 12;
const SESSIONS: u8 = 13;
const COUNTER: u8 = 14;

const VOTER: u8 = 1;
const LEARNER: u8 = 2;
const JOINING: u8 = 3;
const LEAVING: u8 = 4;

/// Longest name of a counter, in bytes.
const NAME_BYTES_MAX: usize = 128;

impl Status {
    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        field(NODE, out, |out| out.put_u16(self.node));
        field(ROLE, out, |out| out.put_u8(self.role.number()));
        for (number, value) in self.numbers() {
            field(number, out, |out| out.put_u64(value));
        }
        if let Some(leader) = self.leader {
            field(LEADER, out, |out| out.put_u64(leader));
        }
        for member in &self.members {
            field(MEMBER, out, |out| member.write(out));
        }
        for (name, value) in &self.counters {
            field(COUNTER, out, |out| {
                out.put_u64(*value);
                out.put_text(name, NAME_BYTES_MAX);
            });
        }
    }

    /// Decodes a reply.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid reply.
    pub fn decode(bytes: &[u8]) -> Result<Status, DecodeError> {
        let mut status = Status::default();
        let mut reader = Reader::new(bytes);
        while !reader.rest().is_empty() {
            let number = reader.u8("field")?;
            let len = reader.u32("field")? as usize;
            status.read_field(number, &mut Reader::new(reader.take(len, "field")?))?;
        }
        Ok(status)
    }

    /// The fields with a single number of eight bytes.
    fn numbers(&self) -> [(u8, u64); 9] {
        [
            (RAFT_ID, self.raft_id),
            (TERM, self.term),
            (COMMIT, self.commit),
            (APPLIED, self.applied),
            (LAST_INDEX, self.last_index),
            (FIRST_INDEX, self.first_index),
            (KEYS, self.keys),
            (BYTES, self.bytes),
            (SESSIONS, self.sessions),
        ]
    }

    /// Ignores bytes after the known part of a field: a later version may have added them.
    fn read_field(&mut self, number: u8, field: &mut Reader<'_>) -> Result<(), DecodeError> {
        match number {
            NODE => self.node = field.u16("node")?,
            RAFT_ID => self.raft_id = field.u64("raft id")?,
            ROLE => self.role = Role::from_number(field.u8("role")?)?,
            TERM => self.term = field.u64("term")?,
            LEADER => self.leader = Some(field.u64("leader")?),
            COMMIT => self.commit = field.u64("commit")?,
            APPLIED => self.applied = field.u64("applied")?,
            LAST_INDEX => self.last_index = field.u64("last index")?,
            FIRST_INDEX => self.first_index = field.u64("first index")?,
            MEMBER => self.members.push(Member::read(field)?),
            KEYS => self.keys = field.u64("keys")?,
            BYTES => self.bytes = field.u64("bytes")?,
            SESSIONS => self.sessions = field.u64("sessions")?,
            COUNTER => {
                let value = field.u64("counter")?;
                self.counters.push((Cow::Owned(field.text("counter")?.to_owned()), value));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Role {
    fn number(self) -> u8 {
        match self {
            Role::Follower => 1,
            Role::PreCandidate => 2,
            Role::Candidate => 3,
            Role::Leader => 4,
        }
    }

    fn from_number(number: u8) -> Result<Role, DecodeError> {
        match number {
            1 => Ok(Role::Follower),
            2 => Ok(Role::PreCandidate),
            3 => Ok(Role::Candidate),
            4 => Ok(Role::Leader),
            kind => Err(DecodeError::UnknownKind { field: "role", kind }),
        }
    }
}

impl Member {
    /// The node's number: the upper 16 bits of the replica's number.
    pub fn node(&self) -> u16 {
        crate::replica::membership::node_of(self.raft_id)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.raft_id);
        out.put_u8(match self.kind {
            MemberKind::Voter => VOTER,
            MemberKind::Learner => LEARNER,
            MemberKind::Joining => JOINING,
            MemberKind::Leaving => LEAVING,
        });
        out.put_text(&self.address, ADDRESS_BYTES_MAX);
    }

    fn read(field: &mut Reader<'_>) -> Result<Member, DecodeError> {
        let raft_id = field.u64("raft id")?;
        let kind = match field.u8("member")? {
            VOTER => MemberKind::Voter,
            LEARNER => MemberKind::Learner,
            JOINING => MemberKind::Joining,
            LEAVING => MemberKind::Leaving,
            kind => return Err(DecodeError::UnknownKind { field: "member", kind }),
        };
        Ok(Member { raft_id, kind, address: field.text("address")?.to_owned() })
    }
}

/// Appends a field, and fills in the length after the content.
fn field(number: u8, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    out.put_u8(number);
    let len_at = out.len();
    out.put_u32(0);
    let start = out.len();
    content(out);
    let len = (out.len() - start) as u32;
    out[len_at..start].copy_from_slice(&len.to_le_bytes());
}
