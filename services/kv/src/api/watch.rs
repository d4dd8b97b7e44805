//! WATCH: a stream of the changes of a range of keys (`docs/kv-protocol.md` §11). REVISION: the revision of the store.

use petrel::service::{Ctx, Raw};
use petrel::stream::Sender;
use petrel::{Error, Status};

use super::{Consistency, Refusal};
use crate::limits::REVISION_CHANGES_BYTES_MAX;
use crate::wire::{DecodeError, Reader, Write, messages, read_optional_key, write_optional_key};

/// The stream of [`methods::WATCH`](super::methods::WATCH): a [`WatchRequest`], and [`WatchMessage`]s.
#[petrel::service(codec = Raw, name = "petrel.kv.Watching")]
pub(crate) trait Watching {
    /// Sends the changes of a range.
    #[id(10)]
    async fn watch(
        &self,
        cx: &Ctx,
        request: Vec<u8>,
        changes: Sender<Vec<u8>>,
    ) -> Result<(), Error>;
}

/// Reads the revision of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionRequest {
    /// How fresh the answer must be.
    pub consistency: Consistency,
}

/// The answer to a [`RevisionRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionReply<'a> {
    /// The state of the replica that answers.
    At {
        /// The revision of its last command.
        revision: u64,
        /// The first revision that its history has.
        first: u64,
    },
    /// The request was not served.
    Refused(Refusal<'a>),
}

/// Begins a stream of the changes of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchRequest<'a> {
    /// The first revision: at least 1.
    pub revision: u64,
    /// The lower bound of the range, included. Empty: from the beginning.
    pub from: &'a [u8],
    /// The upper bound of the range, excluded. None: to the end.
    pub until: Option<&'a [u8]>,
}

/// A message of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchMessage<'a> {
    /// Changes of a revision.
    Changes {
        /// The revision.
        revision: u64,
        /// Whether the stream has no further changes of the revision.
        is_last: bool,
        /// The changes, in the order of their execution.
        changes: Changes<'a>,
    },
    /// All changes up to this revision have been sent.
    Progress {
        /// The revision.
        revision: u64,
    },
}

/// The change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its new value. None: the key is deleted.
    pub value: Option<&'a [u8]>,
}

/// Encoded changes, checked to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes<'a> {
    encoded: &'a [u8],
}

const AT: u8 = 1;
const CHANGES: u8 = 1;
const PROGRESS: u8 = 2;
const PUT: u8 = 1;
const DELETE: u8 = 2;

messages!(RevisionRequest, RevisionReply<'a>, WatchRequest<'a>, WatchMessage<'a>);

impl RevisionRequest {
    fn write(&self, out: &mut Vec<u8>) {
        self.consistency.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { consistency: Consistency::read(reader)? })
    }
}

impl<'a> RevisionReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::At { revision, first } => {
                out.put_u8(AT);
                out.put_u64(*revision);
                out.put_u64(*first);
            }
            Self::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("reply")? {
            AT => Self::At { revision: reader.u64("revision")?, first: reader.u64("revision")? },
            kind => Self::Refused(Refusal::read(kind, reader)?),
        })
    }
}

impl<'a> WatchRequest<'a> {
    /// Returns true if the range has the key.
    pub fn has(&self, key: &[u8]) -> bool {
        key >= self.from && self.until.is_none_or(|until| key < until)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.revision);
        out.put_key(self.from);
        write_optional_key(self.until, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let revision = reader.u64("revision")?;
        if revision == 0 {
            return Err(DecodeError::OutOfRange("revision"));
        }
        let (from, until) = (reader.bound()?, read_optional_key(reader)?);
        if until.is_some_and(|until| until <= from) {
            return Err(DecodeError::OutOfRange("end of the range"));
        }
        Ok(Self { revision, from, until })
    }
}

impl<'a> Change<'a> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self.value {
            Some(value) => {
                out.put_u8(PUT);
                out.put_key(self.key);
                out.put_value(value);
            }
            None => {
                out.put_u8(DELETE);
                out.put_key(self.key);
            }
        }
    }

    /// Returns the bytes that [`Change::write`] appends.
    pub(crate) fn len(&self) -> usize {
        3 + self.key.len() + self.value.map_or(0, |value| 4 + value.len())
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let kind = reader.u8("change")?;
        let key = reader.key()?;
        let value = match kind {
            PUT => Some(reader.value()?),
            DELETE => None,
            kind => return Err(DecodeError::UnknownKind { field: "change", kind }),
        };
        Ok(Self { key, value })
    }

    /// The changes in bytes that [`Change::write`] has written.
    pub(crate) fn all(encoded: &'a [u8]) -> impl Iterator<Item = Self> {
        let mut reader = Reader::new(encoded);
        std::iter::from_fn(move || match reader.rest() {
            [] => None,
            _ => Some(Change::read(&mut reader).expect("they were checked")),
        })
    }
}

impl<'a> Changes<'a> {
    /// The changes: one at least.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        Change::all(self.encoded)
    }

    /// Takes changes that [`Change::write`] has written.
    pub(crate) fn of(encoded: &'a [u8]) -> Self {
        Self { encoded }
    }

    /// Bytes of the changes.
    pub(crate) fn encoded(&self) -> &'a [u8] {
        self.encoded
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let encoded = reader.rest();
        Change::read(reader)?;
        while !reader.rest().is_empty() {
            Change::read(reader)?;
        }
        Ok(Self { encoded })
    }
}

impl<'a> WatchMessage<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Changes { revision, is_last, changes } => {
                out.put_u8(CHANGES);
                out.put_u64(*revision);
                out.put_bool(*is_last);
                out.extend_from_slice(changes.encoded);
            }
            Self::Progress { revision } => {
                out.put_u8(PROGRESS);
                out.put_u64(*revision);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let kind = reader.u8("message")?;
        let revision = reader.u64("revision")?;
        Ok(match kind {
            CHANGES => {
                let is_last = reader.bool("end of the revision")?;
                Self::Changes { revision, is_last, changes: Changes::read(reader)? }
            }
            PROGRESS => Self::Progress { revision },
            kind => return Err(DecodeError::UnknownKind { field: "message", kind }),
        })
    }
}

/// The reason why a stream has ended: a replica does not have the changes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The first revision that the replica has.
    pub(crate) first: u64,
    pub(crate) node: u16,
}

impl Compacted {
    const NAME: &'static str = "petrel.kv.Compacted";

    pub(crate) fn error(&self) -> Error {
        let Self { first, node } = *self;
        let text = format!("compacted: the first revision that node {node} has is {first}");
        let mut detail = first.to_le_bytes().to_vec();
        detail.put_u16(node);
        Error::new(Status::OutOfRange, text).with_detail_bytes(Self::NAME, &detail)
    }

    /// Returns the reason in an error.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let detail = error.details().find(|detail| detail.name == Self::NAME)?;
        let mut reader = Reader::new(detail.value);
        let (first, node) = (reader.u64("revision").ok()?, reader.u16("node").ok()?);
        reader.end().ok().map(|()| Self { first, node })
    }
}

const _: () = assert!(REVISION_CHANGES_BYTES_MAX > crate::limits::COMMAND_BYTES_MAX);
