//! Commands: what clients ask the replicated store to do, as they stand in the Raft log
//! (`docs/kv-protocol.md` §3).
//!
//! The request of a WRITE is an encoded [`Command`], so that the leader proposes the bytes as they came, and
//! every replica takes them apart when it applies them. A decoded command borrows from those bytes.

mod batch;
mod op;

pub use batch::{Batch, BatchBuffer, BatchError};
pub use op::{Expected, Op};

use crate::limits::COMMAND_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write};

/// One entry of the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Opens a client session. Its number is the log index of this command.
    OpenSession,
    /// Changes the store, once: however often the command arrives, it is applied once and gets one answer.
    Write {
        /// The session, by the log index of its [`Command::OpenSession`].
        session: u64,
        /// Which of the session's writes this is. A client numbers its writes one after the other.
        sequence: u64,
        /// The first write that the client has no answer to, itself included: the results of earlier ones may
        /// be forgotten. At most `sequence`, and less than
        /// [`PENDING_WRITES_MAX`](crate::limits::PENDING_WRITES_MAX) before it.
        first_pending: u64,
        /// What to do.
        op: Op<'a>,
    },
}

/// A command that borrows from the bytes it was decoded from.
pub type CommandView<'a> = Command<'a>;

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;

impl<'a> Command<'a> {
    /// Takes a command apart.
    ///
    /// # Errors
    ///
    /// The bytes are no command: what is wrong with which field.
    pub fn decode(bytes: &'a [u8]) -> Result<Command<'a>, DecodeError> {
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(DecodeError::OutOfRange("length of the command"));
        }
        let mut reader = Reader::new(bytes);
        let command = match reader.u8("command")? {
            OPEN_SESSION => Command::OpenSession,
            WRITE => read_write(&mut reader)?,
            kind => return Err(DecodeError::UnknownKind { field: "command", kind }),
        };
        reader.end()?;
        Ok(command)
    }

    /// Appends the command's bytes.
    ///
    /// # Panics
    ///
    /// If a key or value is longer than the [limits](crate::limits) say.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::OpenSession => out.put_u8(OPEN_SESSION),
            Command::Write { session, sequence, first_pending, op } => {
                out.put_u8(WRITE);
                out.put_u64(*session);
                out.put_u64(*sequence);
                out.put_u64(*first_pending);
                op.write(out);
            }
        }
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
