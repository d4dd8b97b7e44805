//! STATUS: the state of a replica.
//!
//! The reply is a list of fields, each with its number and length, and either side may be the older version. A reader
//! skips unknown fields, and an absent field has its default.

use std::borrow::Cow;

use crate::limits::ADDRESS_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write, kinds, messages};

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

// Numbers of the fields. A number is never used again for another field. A macro has the fields of eight bytes.
const NODE: u8 = 1;
const ROLE: u8 = 3;
const LEADER: u8 = 5;
const MEMBER: u8 = 10;
const COUNTER: u8 = 14;

messages!(Status);

kinds!(Role, "role", Follower = 1, PreCandidate = 2, Candidate = 3, Leader = 4);
kinds!(MemberKind, "member", Voter = 1, Learner = 2, Joining = 3, Leaving = 4);

/// Longest name of a counter, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Declares the fields with a single number of eight bytes.
macro_rules! numbers {
    ($($name:ident = $number:literal),*) => {
        impl Status {
            fn write_numbers(&self, out: &mut Vec<u8>) {
                $(field($number, out, |out| out.put_u64(self.$name));)*
            }

            /// Reads a known field; ignores fields that a later version may have added.
            fn read_number(&mut self, number: u8, field: &mut Reader<'_>) -> Result<(), DecodeError> {
                match number {
                    $($number => self.$name = field.u64(stringify!($name))?,)*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

numbers!(
    raft_id = 2,
    term = 4,
    commit = 6,
    applied = 7,
    last_index = 8,
    first_index = 9,
    keys = 11,
    bytes = 12,
    sessions = 13
);

impl Status {
    fn write(&self, out: &mut Vec<u8>) {
        field(NODE, out, |out| out.put_u16(self.node));
        field(ROLE, out, |out| self.role.write(out));
        self.write_numbers(out);
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

    fn read(reader: &mut Reader<'_>) -> Result<Status, DecodeError> {
        let mut status = Status::default();
        while !reader.rest().is_empty() {
            let number = reader.u8("field")?;
            let len = reader.u32("field")? as usize;
            status.read_field(number, &mut Reader::new(reader.take(len, "field")?))?;
        }
        Ok(status)
    }

    /// Ignores bytes after the known part of a field: a later version may have added them.
    fn read_field(&mut self, number: u8, field: &mut Reader<'_>) -> Result<(), DecodeError> {
        match number {
            NODE => self.node = field.u16("node")?,
            ROLE => self.role = Role::read(field)?,
            LEADER => self.leader = Some(field.u64("leader")?),
            MEMBER => self.members.push(Member::read(field)?),
            COUNTER => {
                let value = field.u64("counter")?;
                self.counters.push((Cow::Owned(field.text("counter")?.to_owned()), value));
            }
            number => self.read_number(number, field)?,
        }
        Ok(())
    }
}

impl Member {
    /// The node's number: the upper 16 bits of the replica's number.
    pub fn node(&self) -> u16 {
        crate::replica::membership::node_of(self.raft_id)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.raft_id);
        self.kind.write(out);
        out.put_text(&self.address, ADDRESS_BYTES_MAX);
    }

    fn read(field: &mut Reader<'_>) -> Result<Member, DecodeError> {
        let (raft_id, kind) = (field.u64("raft id")?, MemberKind::read(field)?);
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
