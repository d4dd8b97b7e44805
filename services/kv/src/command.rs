//! Commands: the clients' requests to the replicated store as the Raft log holds them (`docs/kv-protocol.md` §3).
//!
//! The request of a WRITE is an encoded [`Command`]. The leader proposes these bytes unchanged, and every replica
//! decodes the entry before applying. A decoded command borrows from the bytes.

mod op;

pub(crate) use op::check_ttl;
pub use op::{Batch, BatchBuffer, BatchError, Expected, LeaseOp, Op, Restore};

use crate::limits::{COMMAND_BYTES_MAX, LEASE_CLOCK_MS_MAX};
use crate::wire::{DecodeError, Reader, Write};

/// One entry of the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Opens a client session. The session's number is the log index of the command.
    OpenSession,
    /// Changes the store exactly once: a replica applies the first copy of the command and returns the first answer for
    /// all copies.
    Write {
        /// The session, by the log index of its [`Command::OpenSession`].
        session: u64,
        /// The number of the write in the session. A client numbers its writes consecutively.
        sequence: u64,
        /// The first write for which the client has no answer. The store may forget the results of earlier writes. At
        /// most `sequence`, and less than [`PENDING_WRITES_MAX`](crate::limits::PENDING_WRITES_MAX) before it.
        first_pending: u64,
        /// The operation to apply.
        op: Op<'a>,
    },
    /// Advances the lease clock, and ends the leases whose time is over. Only leaders propose this command: a replica
    /// refuses it from a client.
    Advance {
        /// The time on the lease clock, in milliseconds: at most [`LEASE_CLOCK_MS_MAX`].
        clock_ms: u64,
    },
}

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;
const ADVANCE: u8 = 3;

/// Returns true if these bytes are those of a [`Command::Advance`], if of any command.
pub(crate) fn is_advance(bytes: &[u8]) -> bool {
    bytes.first() == Some(&ADVANCE)
}

impl<'a> Command<'a> {
    /// Decodes a command.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid command: the field and its defect.
    pub fn decode(bytes: &'a [u8]) -> Result<Command<'a>, DecodeError> {
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(DecodeError::OutOfRange("length of the command"));
        }
        let mut reader = Reader::new(bytes);
        let command = match reader.u8("command")? {
            OPEN_SESSION => Command::OpenSession,
            WRITE => read_write(&mut reader)?,
            ADVANCE => {
                let clock_ms = reader.u64("lease clock")?;
                if clock_ms > LEASE_CLOCK_MS_MAX {
                    return Err(DecodeError::OutOfRange("lease clock"));
                }
                Command::Advance { clock_ms }
            }
            kind => return Err(DecodeError::UnknownKind { field: "command", kind }),
        };
        reader.end()?;
        Ok(command)
    }

    /// Appends the encoded command.
    ///
    /// # Panics
    ///
    /// If a key or value is longer than its [limit](crate::limits): [`Op::check`] finds such an operation.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::OpenSession => out.put_u8(OPEN_SESSION),
            Command::Write { session, sequence, first_pending, op } => {
                out.put_u8(WRITE);
                [session, sequence, first_pending].into_iter().for_each(|it| out.put_u64(*it));
                op.write(out);
            }
            Command::Advance { clock_ms } => {
                out.put_u8(ADVANCE);
                out.put_u64(*clock_ms);
            }
        }
    }

    /// Returns the encoded command.
    ///
    /// # Panics
    ///
    /// As [`Command::encode`].
    #[expect(clippy::wrong_self_convention, reason = "as that of all messages")]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

fn read_write<'a>(reader: &mut Reader<'a>) -> Result<Command<'a>, DecodeError> {
    let session = reader.u64("session")?;
    let sequence = reader.u64("sequence")?;
    let first_pending = reader.u64("first pending")?;
    if first_pending > sequence {
        return Err(DecodeError::OutOfRange("first pending"));
    }
    let op = Op::read(reader)?;
    Ok(Command::Write { session, sequence, first_pending, op })
}
