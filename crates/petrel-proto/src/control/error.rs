//! Errors in the bytes of a control connection.

use thiserror::Error;

use super::{Kind, OutOfRange};
use crate::Status;

/// The reason why a stream is not, or no longer, a control connection. No error is recoverable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The stream does not begin with `PETREL\r\n`.
    #[error("the peer does not speak Petrel")]
    NotPetrel,
    /// Another message came before the HELLO.
    #[error("message of type {code} before HELLO")]
    HelloExpected {
        /// The type of this message.
        code: u16,
    },
    /// A second HELLO came.
    #[error("a second HELLO")]
    HelloRepeated,
    /// The body is longer than allowed.
    #[error("message of type {code} with {length} bytes, more than {limit}")]
    TooLong {
        /// The message's type.
        code: u16,
        /// The length in the message's header.
        length: u32,
        /// The longest allowed at this point.
        limit: usize,
    },
    /// The records do not fill the body exactly.
    #[error("{} whose records do not fill it", kind.name())]
    RecordsDoNotFit {
        /// The message.
        kind: Kind,
    },
    /// A required record is missing.
    #[error("{} without record {tag}", kind.name())]
    RecordMissing {
        /// The message.
        kind: Kind,
        /// The record.
        tag: u16,
    },
    /// A record occurs more often than allowed.
    #[error("{} with record {tag} repeated", kind.name())]
    RecordRepeated {
        /// The message.
        kind: Kind,
        /// The record.
        tag: u16,
    },
    /// A record has the wrong length for its type.
    #[error("{} with record {tag} of the wrong length", kind.name())]
    RecordLength {
        /// The message.
        kind: Kind,
        /// The record.
        tag: u16,
    },
    /// A record's text is not UTF-8.
    #[error("{} with record {tag} that is not UTF-8", kind.name())]
    RecordText {
        /// The message.
        kind: Kind,
        /// The record.
        tag: u16,
    },
    /// A record unknown to this side, and critical for the peer.
    #[error("{} with record {tag:#06x}, which this version does not know and must", kind.name())]
    RecordUnknown {
        /// The message.
        kind: Kind,
        /// The record.
        tag: u16,
    },
    /// A value out of its range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// The side responsible for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other end is no Petrel process: a port scanner, a browser, a wrong address.
    Stranger,
    /// The peer breaks the specification: an error in its code, damage, or an attack.
    Peer,
    /// Neither side: the peer needs a newer version on this side.
    Version,
}

impl DecodeError {
    /// Returns the side responsible.
    pub const fn fault(self) -> Fault {
        match self {
            Self::NotPetrel => Fault::Stranger,
            Self::RecordUnknown { .. } => Fault::Version,
            _ => Fault::Peer,
        }
    }

    /// Returns the status for the GOODBYE.
    pub const fn status(self) -> Status {
        match self.fault() {
            Fault::Version => Status::Unimplemented,
            Fault::Stranger | Fault::Peer => Status::InvalidArgument,
        }
    }
}
