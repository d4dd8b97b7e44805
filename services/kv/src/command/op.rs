//! Operations: the effect of a write on keys.

mod batch;
mod lease;
mod restore;

pub use batch::{Batch, BatchBuffer, BatchError};
pub use lease::LeaseOp;
pub(crate) use lease::check_ttl;
pub use restore::Restore;

use crate::wire::{DecodeError, Reader, Write, check_key, check_value};

/// One operation of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets a key's value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The new value.
        value: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Compare and set: sets a key's value if the expectation holds.
    Cas {
        /// The key.
        key: &'a [u8],
        /// The condition on the key's present state.
        expected: Expected<'a>,
        /// The new value.
        value: &'a [u8],
    },
    /// Compare and delete: removes a key if the expectation holds.
    CasDelete {
        /// The key.
        key: &'a [u8],
        /// The condition on the key's present state.
        expected: Expected<'a>,
    },
    /// Sets a key's value, and gives the key to a lease: the key goes when the lease ends, unless a later write takes
    /// the key from the lease.
    LeasedPut {
        /// The key.
        key: &'a [u8],
        /// The lease.
        lease: u64,
        /// The condition on the key's present state, if any.
        expected: Option<Expected<'a>>,
        /// The new value.
        value: &'a [u8],
    },
    /// Several operations. All take effect, or none if an expectation fails.
    Batch(Batch<'a>),
    /// A step of a restore.
    Restore(Restore<'a>),
    /// Grants, prolongs or ends a lease.
    Lease(LeaseOp),
}

/// The condition on a key for a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// The key does not exist.
    Absent,
    /// The key was last written at this log index.
    Revision(u64),
    /// The key has this value.
    Value(&'a [u8]),
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const CAS: u8 = 3;
const CAS_DELETE: u8 = 4;
const BATCH: u8 = 5;
const RESTORE: u8 = 6;
const LEASED_PUT: u8 = 7;
const LEASE: u8 = 8;

const ABSENT: u8 = 0;
const REVISION: u8 = 1;
const VALUE: u8 = 2;

impl<'a> Op<'a> {
    /// Checks the operation against the [limits](crate::limits).
    ///
    /// # Errors
    ///
    /// The error of a replica that decodes such an operation; an empty batch is out of range.
    pub fn check(&self) -> Result<(), DecodeError> {
        match self {
            Op::Put { key, value } => check_key(key).and(check_value(value)),
            Op::Delete { key } => check_key(key),
            Op::Cas { key, expected, value } => {
                check_key(key).and(check_value(value)).and(expected.check())
            }
            Op::CasDelete { key, expected } => check_key(key).and(expected.check()),
            Op::LeasedPut { key, expected, value, .. } => check_key(key)
                .and(check_value(value))
                .and(expected.as_ref().map_or(Ok(()), Expected::check)),
            Op::Batch(batch) if batch.is_empty() => {
                Err(DecodeError::OutOfRange("number of operations"))
            }
            // The operations of a batch were checked one by one.
            Op::Batch(_) => Ok(()),
            Op::Restore(step) => step.check(),
            Op::Lease(op) => op.check(),
        }
    }

    /// Returns true if the operation stores a value, which takes memory.
    pub(crate) fn stores(&self) -> bool {
        match self {
            Op::Put { .. } | Op::Cas { .. } | Op::LeasedPut { .. } => true,
            Op::Delete { .. } | Op::CasDelete { .. } => false,
            Op::Batch(batch) => batch.ops().any(|op| op.stores()),
            Op::Restore(step) => matches!(step, Restore::Pairs { .. }),
            Op::Lease(op) => matches!(op, LeaseOp::Grant { .. }),
        }
    }

    /// The key of a single operation, none for others.
    pub(crate) fn first_key(&self) -> Option<&'a [u8]> {
        match *self {
            Op::Put { key, .. }
            | Op::Delete { key }
            | Op::Cas { key, .. }
            | Op::CasDelete { key, .. }
            | Op::LeasedPut { key, .. } => Some(key),
            Op::Batch(_) | Op::Restore(_) | Op::Lease(_) => None,
        }
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Op<'a>, DecodeError> {
        match reader.u8("operation")? {
            BATCH => Ok(Op::Batch(Batch::read(reader)?)),
            RESTORE => Ok(Op::Restore(Restore::read(reader)?)),
            LEASE => Ok(Op::Lease(LeaseOp::read(reader)?)),
            kind => Op::read_single(kind, reader),
        }
    }

    /// Decodes an operation that may be part of a batch: any of a single key.
    pub(super) fn read_single(kind: u8, reader: &mut Reader<'a>) -> Result<Op<'a>, DecodeError> {
        match kind {
            PUT => Ok(Op::Put { key: reader.key()?, value: reader.value()? }),
            DELETE => Ok(Op::Delete { key: reader.key()? }),
            CAS => Ok(Op::Cas {
                key: reader.key()?,
                expected: Expected::read(reader)?,
                value: reader.value()?,
            }),
            CAS_DELETE => {
                Ok(Op::CasDelete { key: reader.key()?, expected: Expected::read(reader)? })
            }
            LEASED_PUT => Ok(Op::LeasedPut {
                key: reader.key()?,
                lease: reader.u64("lease")?,
                expected: reader.bool("condition")?.then(|| Expected::read(reader)).transpose()?,
                value: reader.value()?,
            }),
            kind => Err(DecodeError::UnknownKind { field: "operation", kind }),
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Op::Put { key, value } => {
                out.put_u8(PUT);
                out.put_key(key);
                out.put_value(value);
            }
            Op::Delete { key } => {
                out.put_u8(DELETE);
                out.put_key(key);
            }
            Op::Cas { key, expected, value } => {
                out.put_u8(CAS);
                out.put_key(key);
                expected.write(out);
                out.put_value(value);
            }
            Op::CasDelete { key, expected } => {
                out.put_u8(CAS_DELETE);
                out.put_key(key);
                expected.write(out);
            }
            Op::LeasedPut { key, lease, expected, value } => {
                out.put_u8(LEASED_PUT);
                out.put_key(key);
                out.put_u64(*lease);
                out.put_bool(expected.is_some());
                expected.iter().for_each(|expected| expected.write(out));
                out.put_value(value);
            }
            Op::Batch(batch) => {
                out.put_u8(BATCH);
                batch.write(out);
            }
            Op::Restore(step) => {
                out.put_u8(RESTORE);
                step.write(out);
            }
            Op::Lease(op) => {
                out.put_u8(LEASE);
                op.write(out);
            }
        }
    }
}

impl<'a> Expected<'a> {
    fn check(&self) -> Result<(), DecodeError> {
        match self {
            Expected::Value(value) => check_value(value),
            Expected::Absent | Expected::Revision(_) => Ok(()),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Expected<'a>, DecodeError> {
        match reader.u8("expectation")? {
            ABSENT => Ok(Expected::Absent),
            REVISION => Ok(Expected::Revision(reader.u64("revision")?)),
            VALUE => Ok(Expected::Value(reader.value()?)),
            kind => Err(DecodeError::UnknownKind { field: "expectation", kind }),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Expected::Absent => out.put_u8(ABSENT),
            Expected::Revision(revision) => {
                out.put_u8(REVISION);
                out.put_u64(*revision);
            }
            Expected::Value(value) => {
                out.put_u8(VALUE);
                out.put_value(value);
            }
        }
    }
}
