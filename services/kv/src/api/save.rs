//! SAVE: all keys at one moment, block by block.

use super::{Consistency, Pairs, Refusal};
use crate::limits::ADDRESS_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write, messages};

/// A request about a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveRequest {
    /// Begins a save of the present state.
    Begin {
        /// How fresh the state must be.
        consistency: Consistency,
    },
    /// Reads a block. Only the replica that began the save has it.
    Block {
        /// The number of the save.
        save: u64,
        /// The number of the block: the one after the last block, or the last block again.
        block: u64,
    },
    /// Ends a save, and frees its memory. A save without a request for 30 s ends by itself.
    End {
        /// The number of the save.
        save: u64,
    },
}

/// The answer to a [`SaveRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveReply<'a> {
    /// The save has begun.
    Begun {
        /// The number of the save.
        save: u64,
        /// The revision of the state: all writes up to this one, and no later write.
        revision: u64,
        /// The number of keys.
        keys: u64,
        /// Bytes of all keys and values.
        bytes: u64,
        /// The address of the replica, for the other requests.
        address: &'a str,
    },
    /// A block.
    Block {
        /// The next pairs, in the order of their keys.
        pairs: Pairs<'a>,
        /// After the last pair: the check of all pairs (`docs/kv-protocol.md` §9).
        check: Option<u64>,
    },
    /// The save has ended.
    Ended,
    /// The request was not served.
    Refused(Refusal<'a>),
}

const BEGIN: u8 = 1;
const BLOCK: u8 = 2;
const END: u8 = 3;

messages!(SaveRequest, SaveReply<'a>);

impl SaveRequest {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            SaveRequest::Begin { consistency } => {
                out.put_u8(BEGIN);
                consistency.write(out);
            }
            SaveRequest::Block { save, block } => {
                out.put_u8(BLOCK);
                out.put_u64(*save);
                out.put_u64(*block);
            }
            SaveRequest::End { save } => {
                out.put_u8(END);
                out.put_u64(*save);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("request")? {
            BEGIN => SaveRequest::Begin { consistency: Consistency::read(reader)? },
            BLOCK => SaveRequest::Block { save: reader.u64("save")?, block: reader.u64("block")? },
            END => SaveRequest::End { save: reader.u64("save")? },
            kind => return Err(DecodeError::UnknownKind { field: "request", kind }),
        })
    }
}

impl<'a> SaveReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            SaveReply::Begun { save, revision, keys, bytes, address } => {
                out.put_u8(BEGIN);
                [save, revision, keys, bytes].into_iter().for_each(|it| out.put_u64(*it));
                out.put_text(address, ADDRESS_BYTES_MAX);
            }
            SaveReply::Block { pairs, check } => {
                out.put_u8(BLOCK);
                pairs.write(out);
                out.put_bool(check.is_some());
                check.iter().for_each(|check| out.put_u64(*check));
            }
            SaveReply::Ended => out.put_u8(END),
            SaveReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("reply")? {
            BEGIN => SaveReply::Begun {
                save: reader.u64("save")?,
                revision: reader.u64("revision")?,
                keys: reader.u64("keys")?,
                bytes: reader.u64("bytes")?,
                address: reader.text("address")?,
            },
            BLOCK => SaveReply::Block {
                pairs: Pairs::read(reader)?,
                check: reader.bool("check")?.then(|| reader.u64("check")).transpose()?,
            },
            END => SaveReply::Ended,
            kind => SaveReply::Refused(Refusal::read(kind, reader)?),
        })
    }
}
