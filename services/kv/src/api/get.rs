//! GET: one key.

use super::Refusal;
use crate::wire::{DecodeError, Reader, Write, kinds, messages};

/// Reads a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetRequest<'a> {
    /// How fresh the answer must be.
    pub consistency: Consistency,
    /// The key.
    pub key: &'a [u8],
}

/// How fresh the answer to a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The answer reflects every write that was answered before the read was sent. Only the leader gives this
    /// guarantee.
    Linearizable,
    /// The answer reflects some prefix of the writes. Any replica answers at once.
    Stale,
}

/// The answer to a [`GetRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetReply<'a> {
    /// The key exists.
    Found {
        /// The log index of the command that last set the key.
        revision: u64,
        /// Its value.
        value: &'a [u8],
    },
    /// The key does not exist.
    NotFound,
    /// The request was not served.
    Refused(Refusal<'a>),
}

const FOUND: u8 = 1;
const NOT_FOUND: u8 = 2;

messages!(GetRequest<'a>, GetReply<'a>);
kinds!(Consistency, "consistency", Linearizable = 1, Stale = 2);

impl<'a> GetRequest<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        self.consistency.write(out);
        out.put_key(self.key);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(GetRequest { consistency: Consistency::read(reader)?, key: reader.key()? })
    }
}

impl<'a> GetReply<'a> {
    /// Builds the reply from the result of a lookup, a value and its revision.
    pub fn from_found(found: Option<(&'a [u8], u64)>) -> GetReply<'a> {
        match found {
            Some((value, revision)) => GetReply::Found { revision, value },
            None => GetReply::NotFound,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            GetReply::Found { revision, value } => {
                out.put_u8(FOUND);
                out.put_u64(*revision);
                out.put_value(value);
            }
            GetReply::NotFound => out.put_u8(NOT_FOUND),
            GetReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("reply")? {
            FOUND => GetReply::Found { revision: reader.u64("revision")?, value: reader.value()? },
            NOT_FOUND => GetReply::NotFound,
            kind => GetReply::Refused(Refusal::read(kind, reader)?),
        })
    }
}
