//! Batches: several operations in one command.

use super::Op;
use crate::limits::{BATCH_OPS_MAX, COMMAND_BYTES_MAX};
use crate::wire::{DecodeError, Reader, Write};

/// The encoded operations of a batch, checked to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    count: u16,
    ops: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The number of operations.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns true if the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The operations, in their order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'a>> + use<'a> {
        let mut reader = Reader::new(self.ops);
        (0..self.count).map(move |_| read_op(&mut reader).expect("was read once when it was made"))
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Batch<'a>, DecodeError> {
        let count = reader.u16("batch")?;
        if usize::from(count) > BATCH_OPS_MAX {
            return Err(DecodeError::OutOfRange("number of operations"));
        }
        let start = reader.rest();
        for _ in 0..count {
            read_op(reader)?;
        }
        let ops = &start[..start.len() - reader.rest().len()];
        Ok(Batch { count, ops })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.count);
        out.extend_from_slice(self.ops);
    }
}

/// A batch under construction.
///
/// ```
/// use petrel_kv::command::{BatchBuffer, Expected, Op};
///
/// let mut buffer = BatchBuffer::default();
/// buffer.push(&Op::Cas { key: b"leader", expected: Expected::Absent, value: b"me" })?;
/// buffer.push(&Op::Put { key: b"epoch", value: b"7" })?;
/// assert_eq!(buffer.batch().len(), 2);
/// # Ok::<(), petrel_kv::command::BatchError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct BatchBuffer {
    count: u16,
    ops: Vec<u8>,
}

/// The reason why an operation was not added to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The batch is full: write this operation by itself, or in another batch.
    #[error("a batch has at most {BATCH_OPS_MAX} operations")]
    Full,
    /// The command would be too long: write this operation by itself, or in another batch.
    #[error("a command has at most {COMMAND_BYTES_MAX} bytes")]
    TooLong,
    /// The operation breaks a limit.
    #[error(transparent)]
    Limit(#[from] DecodeError),
    /// A batch has operations of single keys: push an inner batch's operations instead.
    #[error(
        "neither a batch, nor a step of a restore, nor an operation on a lease stands in a batch"
    )]
    Nested,
}

impl BatchBuffer {
    /// Appends an operation.
    ///
    /// # Errors
    ///
    /// [`BatchError`] if the operation does not fit, or breaks a [limit](crate::limits); the batch stays unchanged.
    pub fn push(&mut self, op: &Op<'_>) -> Result<(), BatchError> {
        if op.first_key().is_none() {
            return Err(BatchError::Nested);
        }
        op.check()?;
        if usize::from(self.count) == BATCH_OPS_MAX {
            return Err(BatchError::Full);
        }
        let before = self.ops.len();
        op.write(&mut self.ops);
        if self.ops.len() > OPS_BYTES_MAX {
            self.ops.truncate(before);
            return Err(BatchError::TooLong);
        }
        self.count += 1;
        Ok(())
    }

    /// The operations pushed until now.
    pub fn batch(&self) -> Batch<'_> {
        Batch { count: self.count, ops: &self.ops }
    }
}

/// Room for the operations: the command minus its kind, three numbers, and the kind and count of the batch.
const OPS_BYTES_MAX: usize = COMMAND_BYTES_MAX - (1 + 3 * 8 + 1 + 2);

fn read_op<'a>(reader: &mut Reader<'a>) -> Result<Op<'a>, DecodeError> {
    let kind = reader.u8("operation")?;
    Op::read_single(kind, reader)
}
