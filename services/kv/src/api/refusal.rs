//! Refusals: answers that state why a request was not served, common to all methods.

use crate::limits::{ADDRESS_BYTES_MAX, REASON_BYTES_MAX};
use crate::wire::{DecodeError, Reader, Write, kinds};

/// The reason why a request was not served.
///
/// A refusal concerns only its own request. If the client sent the write earlier, the earlier copy may have been
/// applied or may be applied later, regardless of this refusal. Sending the write again with the same sequence until a
/// result arrives is always safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal<'a> {
    /// This replica is not the leader and did nothing. Ask the named leader, or any replica if the refusal names no
    /// leader.
    #[error("not the leader{}", leader.map(|leader| format!(", which is {leader}")).unwrap_or_default())]
    NotLeader {
        /// The leader, if this replica knows it.
        leader: Option<Leader<'a>>,
    },
    /// The session has ended or never began, and the replica did nothing. If an earlier copy of the write is
    /// unanswered, its outcome can no longer be found out. Open another session.
    #[error("there is no such session")]
    SessionUnknown,
    /// The write precedes the writes that the client reports as pending, and the replica did nothing. The result of
    /// this write is forgotten.
    #[error("the result of this write has been forgotten")]
    SequenceTooOld,
    /// The write is too far ahead of the first unanswered write, and the replica did nothing. Send the write again when
    /// earlier writes have their answers.
    #[error("too many writes of the session are pending")]
    TooManyPending,
    /// The request is not a message of this service, and the replica did nothing. The client is at fault.
    #[error("malformed request: {0}")]
    Malformed(&'a str),
    /// The leader takes no writes that store something, and did nothing: its memory or disk is at the bound. Reads and
    /// deletes go on.
    #[error("the store is full: {0}")]
    Full(&'a str),
    /// A restore has begun and not ended, and the replica did nothing: the store is not whole. Wait for the restore,
    /// begin it anew, or abandon it.
    #[error(
        "the store is being restored, or its restore was broken off: run it again, or abandon it"
    )]
    Restoring,
    /// The replica cannot serve the request at present.
    #[error("{reason}{}", match certainty {
        Certainty::NotApplied => "",
        Certainty::Unknown => " (it may be applied nevertheless)",
    })]
    Unavailable {
        /// Whether the write may be applied nevertheless.
        certainty: Certainty,
        /// The reason, for people.
        reason: &'a str,
    },
}

/// The certainty about the effect of a write without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The write was not and will not be applied.
    NotApplied,
    /// The write may have been applied, or may be later.
    Unknown,
}

/// The leader's node and address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader<'a> {
    /// The leader's node.
    pub node: u16,
    /// The leader's address, as clients connect to it.
    pub address: &'a str,
}

impl std::fmt::Display for Leader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} at {}", self.node, self.address)
    }
}

// Replies begin with their kind. The kinds of refusals are the same in all replies, and above all others.
const NOT_LEADER: u8 = 128;
const SESSION_UNKNOWN: u8 = 129;
const SEQUENCE_TOO_OLD: u8 = 130;
const TOO_MANY_PENDING: u8 = 131;
const MALFORMED: u8 = 132;
const UNAVAILABLE: u8 = 133;
const FULL: u8 = 134;
const RESTORING: u8 = 135;

kinds!(Certainty, "certainty", NotApplied = 1, Unknown = 2);

impl<'a> Refusal<'a> {
    /// Appends the refusal as a reply of any method.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Refusal::NotLeader { leader } => {
                out.put_u8(NOT_LEADER);
                out.put_bool(leader.is_some());
                if let Some(leader) = leader {
                    out.put_u16(leader.node);
                    out.put_text(leader.address, ADDRESS_BYTES_MAX);
                }
            }
            Refusal::SessionUnknown => out.put_u8(SESSION_UNKNOWN),
            Refusal::SequenceTooOld => out.put_u8(SEQUENCE_TOO_OLD),
            Refusal::TooManyPending => out.put_u8(TOO_MANY_PENDING),
            Refusal::Malformed(text) => {
                out.put_u8(MALFORMED);
                out.put_text(text, REASON_BYTES_MAX);
            }
            Refusal::Full(text) => {
                out.put_u8(FULL);
                out.put_text(text, REASON_BYTES_MAX);
            }
            Refusal::Restoring => out.put_u8(RESTORING),
            Refusal::Unavailable { certainty, reason } => {
                out.put_u8(UNAVAILABLE);
                certainty.write(out);
                out.put_text(reason, REASON_BYTES_MAX);
            }
        }
    }

    /// Decodes the reply of any method but STATUS, if it is a refusal.
    ///
    /// # Errors
    ///
    /// If the bytes are neither a refusal nor the beginning of another reply.
    pub fn of_reply(reply: &'a [u8]) -> Result<Option<Refusal<'a>>, DecodeError> {
        let mut reader = Reader::new(reply);
        let kind = reader.u8("reply")?;
        if kind < NOT_LEADER {
            return Ok(None);
        }
        let refusal = Refusal::read(kind, &mut reader)?;
        reader.end().map(|()| Some(refusal))
    }

    /// Decodes a refusal of kind `kind`. Methods pass kinds other than their own.
    pub(super) fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Refusal<'a>, DecodeError> {
        match kind {
            NOT_LEADER => Ok(Refusal::NotLeader { leader: read_leader(reader)? }),
            SESSION_UNKNOWN => Ok(Refusal::SessionUnknown),
            SEQUENCE_TOO_OLD => Ok(Refusal::SequenceTooOld),
            TOO_MANY_PENDING => Ok(Refusal::TooManyPending),
            MALFORMED => Ok(Refusal::Malformed(reader.text("reason")?)),
            FULL => Ok(Refusal::Full(reader.text("reason")?)),
            RESTORING => Ok(Refusal::Restoring),
            UNAVAILABLE => Ok(Refusal::Unavailable {
                certainty: Certainty::read(reader)?,
                reason: reader.text("reason")?,
            }),
            kind => Err(DecodeError::UnknownKind { field: "reply", kind }),
        }
    }
}

fn read_leader<'a>(reader: &mut Reader<'a>) -> Result<Option<Leader<'a>>, DecodeError> {
    Ok(match reader.bool("leader")? {
        true => Some(Leader { node: reader.u16("node")?, address: reader.text("address")? }),
        false => None,
    })
}
