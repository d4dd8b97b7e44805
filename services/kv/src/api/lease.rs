//! LEASE: the state of leases. WRITE grants, prolongs and ends leases.

use std::ops::Bound;

use super::{Consistency, Refusal};
use crate::limits::{LEASE_KEYS_BYTES_MAX, LEASE_PAGE_MAX};
use crate::store::Store;
use crate::wire::{DecodeError, Reader, Write, messages, read_optional_key, write_optional_key};

/// A request about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRequest<'a> {
    /// Reads the state of a lease.
    Of {
        /// How fresh the answer must be.
        consistency: Consistency,
        /// The lease.
        lease: u64,
        /// The first wanted key. Empty for the first key of the lease.
        from: &'a [u8],
    },
    /// Lists leases, in the order of their numbers.
    List {
        /// How fresh the answer must be.
        consistency: Consistency,
        /// The lowest number.
        from: u64,
    },
}

/// The state of a lease. A time left of 0 means that the lease ends with the leader's next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseState {
    /// The number of the lease.
    pub lease: u64,
    /// The time of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// The time left, by the clock of the replica that answers, in milliseconds.
    pub left_ms: u64,
    /// The number of its keys.
    pub keys: u32,
}

/// The answer to a [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseReply<'a> {
    /// The lease exists.
    Of {
        /// Its state.
        state: LeaseState,
        /// Its keys, in order, from the wanted one on.
        keys: Vec<&'a [u8]>,
        /// The first key that is not in the reply.
        next: Option<&'a [u8]>,
    },
    /// There is no such lease: it has ended, or never began.
    Unknown,
    /// Leases.
    List {
        /// Their states.
        states: Vec<LeaseState>,
        /// The number of the first lease that is not in the reply.
        next: Option<u64>,
    },
    /// The request was not served.
    Refused(Refusal<'a>),
}

const OF: u8 = 1;
const UNKNOWN: u8 = 2;
const LIST: u8 = 2;
const LISTED: u8 = 3;

messages!(LeaseRequest<'a>, LeaseReply<'a>);

impl<'a> LeaseRequest<'a> {
    /// How fresh the answer must be.
    pub fn consistency(&self) -> Consistency {
        match self {
            Self::Of { consistency, .. } | Self::List { consistency, .. } => *consistency,
        }
    }

    /// Answers the request from a store, at a value of the lease clock.
    pub(crate) fn answer(&self, store: &Store, clock_ms: u64, out: &mut Vec<u8>) {
        let state = |lease: u64, of: &crate::store::Lease| LeaseState {
            lease,
            ttl_ms: of.ttl_ms,
            left_ms: of.left_ms(clock_ms),
            keys: of.keys.len() as u32,
        };
        match *self {
            Self::Of { lease, from, .. } => {
                let Some(of) = store.lease(lease) else { return LeaseReply::Unknown.encode(out) };
                let (mut keys, mut next, mut bytes) = (Vec::new(), None, 0);
                for key in of.keys_from(Bound::Included(from)) {
                    bytes += 2 + key.len();
                    if bytes > LEASE_KEYS_BYTES_MAX && !keys.is_empty() {
                        next = Some(&key[..]);
                        break;
                    }
                    keys.push(&key[..]);
                }
                LeaseReply::Of { state: state(lease, of), keys, next }.encode(out);
            }
            Self::List { from, .. } => {
                let mut leases = store.leases_from(from);
                let page = leases.by_ref().take(LEASE_PAGE_MAX);
                let states = page.map(|(lease, of)| state(lease, of)).collect();
                LeaseReply::List { states, next: leases.next().map(|(lease, _)| lease) }
                    .encode(out);
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Of { consistency, lease, from } => {
                out.put_u8(OF);
                consistency.write(out);
                out.put_u64(*lease);
                out.put_key(from);
            }
            Self::List { consistency, from } => {
                out.put_u8(LIST);
                consistency.write(out);
                out.put_u64(*from);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let kind = reader.u8("request")?;
        let consistency = Consistency::read(reader)?;
        match kind {
            OF => Ok(Self::Of { consistency, lease: reader.u64("lease")?, from: reader.bound()? }),
            LIST => Ok(Self::List { consistency, from: reader.u64("lease")? }),
            kind => Err(DecodeError::UnknownKind { field: "request", kind }),
        }
    }
}

impl LeaseState {
    fn write(&self, out: &mut Vec<u8>) {
        [self.lease, self.ttl_ms, self.left_ms].into_iter().for_each(|it| out.put_u64(it));
        out.put_u32(self.keys);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (lease, ttl_ms) = (reader.u64("lease")?, reader.u64("time of the lease")?);
        let (left_ms, keys) = (reader.u64("time left")?, reader.u32("keys")?);
        Ok(Self { lease, ttl_ms, left_ms, keys })
    }
}

impl<'a> LeaseReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            LeaseReply::Of { state, keys, next } => {
                out.put_u8(OF);
                state.write(out);
                out.put_u32(keys.len() as u32);
                keys.iter().for_each(|key| out.put_key(key));
                write_optional_key(*next, out);
            }
            LeaseReply::Unknown => out.put_u8(UNKNOWN),
            LeaseReply::List { states, next } => {
                out.put_u8(LISTED);
                out.put_u32(states.len() as u32);
                states.iter().for_each(|state| state.write(out));
                out.put_bool(next.is_some());
                next.iter().for_each(|lease| out.put_u64(*lease));
            }
            LeaseReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // Every key and every state takes bytes, and the message's length therefore bounds the lists.
        Ok(match reader.u8("reply")? {
            OF => {
                let (state, count) = (LeaseState::read(reader)?, reader.u32("keys")?);
                let keys = (0..count).map(|_| reader.key()).collect::<Result<_, _>>()?;
                LeaseReply::Of { state, keys, next: read_optional_key(reader)? }
            }
            UNKNOWN => LeaseReply::Unknown,
            LISTED => {
                let count = reader.u32("leases")?;
                let states = (0..count).map(|_| LeaseState::read(reader));
                let states = states.collect::<Result<_, _>>()?;
                let next = reader.bool("next lease")?.then(|| reader.u64("lease")).transpose()?;
                LeaseReply::List { states, next }
            }
            kind => LeaseReply::Refused(Refusal::read(kind, reader)?),
        })
    }
}
