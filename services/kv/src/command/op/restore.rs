//! Steps of a restore: from an empty store to the keys of a saved one, with their revisions.

use crate::api::Pairs;
use crate::limits::RESTORED_REVISION_MAX;
use crate::wire::{DecodeError, Reader, Write};

/// A step of a restore. From [`Restore::Begin`] to [`Restore::End`], the store serves neither reads nor other writes,
/// and only the last restore that began can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restore<'a> {
    /// Begins a restore, if the store is empty. The keys of an unfinished restore are dropped.
    Begin {
        /// The revision of the saved store: at most [`RESTORED_REVISION_MAX`].
        revision: u64,
    },
    /// Sets keys, with their revisions.
    Pairs {
        /// The number of the restore.
        restore: u64,
        /// The next pairs, in the order of their keys.
        pairs: Pairs<'a>,
    },
    /// Ends the restore, if the store has the saved keys. Later revisions are greater than the saved one.
    End {
        /// The number of the restore.
        restore: u64,
        /// The number of keys.
        keys: u64,
        /// The check of all pairs (`docs/kv-protocol.md` §9).
        check: u64,
    },
    /// Drops the keys of an unfinished restore.
    Abandon,
}

const BEGIN: u8 = 1;
const PAIRS: u8 = 2;
const END: u8 = 3;
const ABANDON: u8 = 4;

impl<'a> Restore<'a> {
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        match self {
            Restore::Begin { revision } if *revision > RESTORED_REVISION_MAX => {
                Err(DecodeError::OutOfRange("revision"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let step = match reader.u8("step")? {
            BEGIN => Restore::Begin { revision: reader.u64("revision")? },
            PAIRS => {
                Restore::Pairs { restore: reader.u64("restore")?, pairs: Pairs::read(reader)? }
            }
            END => Restore::End {
                restore: reader.u64("restore")?,
                keys: reader.u64("keys")?,
                check: reader.u64("check")?,
            },
            ABANDON => Restore::Abandon,
            kind => return Err(DecodeError::UnknownKind { field: "step", kind }),
        };
        step.check().map(|()| step)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Restore::Begin { revision } => {
                out.put_u8(BEGIN);
                out.put_u64(*revision);
            }
            Restore::Pairs { restore, pairs } => {
                out.put_u8(PAIRS);
                out.put_u64(*restore);
                pairs.write(out);
            }
            Restore::End { restore, keys, check } => {
                out.put_u8(END);
                [restore, keys, check].into_iter().for_each(|it| out.put_u64(*it));
            }
            Restore::Abandon => out.put_u8(ABANDON),
        }
    }
}
