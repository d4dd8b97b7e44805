//! GET: one key.

use super::Refusal;
use crate::wire::{DecodeError, Reader, Write};

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

const LINEARIZABLE: u8 = 1;
const STALE: u8 = 2;

const FOUND: u8 = 1;
const NOT_FOUND: u8 = 2;

impl<'a> GetRequest<'a> {
    /// Appends the request.
    ///
    /// # Panics
    ///
    /// If the key is longer than [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX).
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.consistency.write(out);
        out.put_key(self.key);
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid request.
    pub fn decode(bytes: &'a [u8]) -> Result<GetRequest<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let request =
            GetRequest { consistency: Consistency::read(&mut reader)?, key: reader.key()? };
        reader.end()?;
        Ok(request)
    }
}

impl Consistency {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        out.put_u8(match self {
            Consistency::Linearizable => LINEARIZABLE,
            Consistency::Stale => STALE,
        });
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Consistency, DecodeError> {
        match reader.u8("consistency")? {
            LINEARIZABLE => Ok(Consistency::Linearizable),
            STALE => Ok(Consistency::Stale),
            kind => Err(DecodeError::UnknownKind { field: "consistency", kind }),
        }
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

    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
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

    /// Decodes a reply.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid reply.
    pub fn decode(bytes: &'a [u8]) -> Result<GetReply<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8("reply")? {
            FOUND => GetReply::Found { revision: reader.u64("revision")?, value: reader.value()? },
            NOT_FOUND => GetReply::NotFound,
            kind => GetReply::Refused(Refusal::read(kind, &mut reader)?),
        };
        reader.end()?;
        Ok(reply)
    }
}
