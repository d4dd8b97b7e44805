//! WRITE: the reply. The request is a [`Command`](crate::command::Command).

use super::Refusal;
use crate::wire::{DecodeError, Reader, Write, kinds, messages};

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReply<'a> {
    /// The command was applied, by this request or an earlier copy.
    Applied(Applied),
    /// The command was not applied by this request.
    Refused(Refusal<'a>),
}

/// The result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The log index of the command: the number of the session it opened, or the revision of the keys it set.
    pub index: u64,
    /// The command's effect.
    pub outcome: Outcome,
}

/// The effect of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command opened a session, whose number is the index.
    SessionOpened,
    /// The command set a key.
    Put {
        /// Whether the key had a value before.
        replaced: bool,
    },
    /// The command made sure that the key does not exist.
    Deleted {
        /// Whether the key existed before.
        existed: bool,
    },
    /// An expectation failed, and nothing changed.
    Mismatch {
        /// The position in the batch of the failed operation; 0 outside of batches.
        position: u16,
        /// The log index of the key's last write, if the key exists.
        revision: Option<u64>,
    },
    /// All operations of a batch took effect.
    Batch,
    /// The result of a step of a restore.
    Restore(RestoreOutcome),
    /// The result of an operation on a lease, or the reason why a lease took no key: then nothing changed.
    Lease(LeaseOutcome),
}

/// The result of an operation on a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The lease is granted. Its number is the log index of the command, as [`Applied`] reports it.
    Granted,
    /// The lease has its whole time again.
    Kept,
    /// The lease has ended.
    Revoked {
        /// The number of its keys, which are removed.
        keys: u32,
    },
    /// Nothing changed: there is no such lease. It has ended, or never began.
    Unknown,
    /// Nothing changed: the store has as many leases as it can.
    TooMany,
    /// Nothing changed: the lease has as many keys as it can.
    TooManyKeys,
}

/// The result of a step of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// The restore has begun. Its number is the log index of the command, as [`Applied`] reports it.
    Begun,
    /// The pairs were taken.
    Taken,
    /// The store is whole.
    Done,
    /// The store is empty, and takes writes.
    Abandoned,
    /// Nothing changed: the store has keys.
    NotEmpty,
    /// Nothing changed: another restore has begun since, or this one was abandoned.
    Superseded,
    /// Pairs are out of order, or from after the restored revision: the restore cannot end well.
    OutOfPlace,
    /// The restored keys are not those of the saved store: the restore cannot end well.
    Damaged,
}

const APPLIED: u8 = 1;

const SESSION_OPENED: u8 = 1;
const PUT: u8 = 2;
const DELETED: u8 = 3;
const MISMATCH: u8 = 4;
const BATCH: u8 = 5;
const RESTORE: u8 = 6;
const LEASE: u8 = 7;

const GRANTED: u8 = 1;
const KEPT: u8 = 2;
const REVOKED: u8 = 3;
const UNKNOWN: u8 = 4;
const TOO_MANY: u8 = 5;
const TOO_MANY_KEYS: u8 = 6;

messages!(WriteReply<'a>);
kinds!(
    RestoreOutcome,
    "result of a restore",
    Begun = 1,
    Taken = 2,
    Done = 3,
    Abandoned = 4,
    NotEmpty = 5,
    Superseded = 6,
    OutOfPlace = 7,
    Damaged = 8
);

impl<'a> WriteReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            WriteReply::Applied(applied) => {
                out.put_u8(APPLIED);
                applied.write(out);
            }
            WriteReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("reply")? {
            APPLIED => WriteReply::Applied(Applied::read(reader)?),
            kind => WriteReply::Refused(Refusal::read(kind, reader)?),
        })
    }
}

impl Applied {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.index);
        match self.outcome {
            Outcome::SessionOpened => out.put_u8(SESSION_OPENED),
            Outcome::Put { replaced } => {
                out.put_u8(PUT);
                out.put_bool(replaced);
            }
            Outcome::Deleted { existed } => {
                out.put_u8(DELETED);
                out.put_bool(existed);
            }
            Outcome::Mismatch { position, revision } => {
                out.put_u8(MISMATCH);
                out.put_u16(position);
                // No entry of a log has index 0.
                out.put_u64(revision.unwrap_or(0));
            }
            Outcome::Batch => out.put_u8(BATCH),
            Outcome::Restore(outcome) => {
                out.put_u8(RESTORE);
                outcome.write(out);
            }
            Outcome::Lease(outcome) => {
                out.put_u8(LEASE);
                outcome.write(out);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Applied, DecodeError> {
        let index = reader.u64("index")?;
        let outcome = match reader.u8("outcome")? {
            SESSION_OPENED => Outcome::SessionOpened,
            PUT => Outcome::Put { replaced: reader.bool("flag")? },
            DELETED => Outcome::Deleted { existed: reader.bool("flag")? },
            MISMATCH => Outcome::Mismatch {
                position: reader.u16("position")?,
                revision: Some(reader.u64("revision")?).filter(|revision| *revision != 0),
            },
            BATCH => Outcome::Batch,
            RESTORE => Outcome::Restore(RestoreOutcome::read(reader)?),
            LEASE => Outcome::Lease(LeaseOutcome::read(reader)?),
            kind => return Err(DecodeError::UnknownKind { field: "outcome", kind }),
        };
        Ok(Applied { index, outcome })
    }
}

impl LeaseOutcome {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            LeaseOutcome::Granted => out.put_u8(GRANTED),
            LeaseOutcome::Kept => out.put_u8(KEPT),
            LeaseOutcome::Revoked { keys } => {
                out.put_u8(REVOKED);
                out.put_u32(keys);
            }
            LeaseOutcome::Unknown => out.put_u8(UNKNOWN),
            LeaseOutcome::TooMany => out.put_u8(TOO_MANY),
            LeaseOutcome::TooManyKeys => out.put_u8(TOO_MANY_KEYS),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("result of a lease")? {
            GRANTED => LeaseOutcome::Granted,
            KEPT => LeaseOutcome::Kept,
            REVOKED => LeaseOutcome::Revoked { keys: reader.u32("keys")? },
            UNKNOWN => LeaseOutcome::Unknown,
            TOO_MANY => LeaseOutcome::TooMany,
            TOO_MANY_KEYS => LeaseOutcome::TooManyKeys,
            kind => return Err(DecodeError::UnknownKind { field: "result of a lease", kind }),
        })
    }
}
