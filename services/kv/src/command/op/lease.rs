//! Operations on leases.

use crate::limits::{LEASE_MS_MAX, LEASE_MS_MIN};
use crate::wire::{DecodeError, Reader, Write};

/// An operation on a lease, which ends a time after its last keep-alive, together with its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOp {
    /// Grants a lease. Its number is the revision of the command.
    Grant {
        /// The time of the lease: [`LEASE_MS_MIN`] to [`LEASE_MS_MAX`] milliseconds.
        ttl_ms: u64,
    },
    /// Gives a lease its whole time again.
    KeepAlive {
        /// The lease.
        lease: u64,
    },
    /// Ends a lease and removes its keys.
    Revoke {
        /// The lease.
        lease: u64,
    },
}

const GRANT: u8 = 1;
const KEEP_ALIVE: u8 = 2;
const REVOKE: u8 = 3;

/// Checks the time of a lease.
pub(crate) fn check_ttl(ttl_ms: u64) -> Result<(), DecodeError> {
    let is_possible = (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&ttl_ms);
    if is_possible { Ok(()) } else { Err(DecodeError::OutOfRange("time of the lease")) }
}

impl LeaseOp {
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        match self {
            LeaseOp::Grant { ttl_ms } => check_ttl(*ttl_ms),
            LeaseOp::KeepAlive { .. } | LeaseOp::Revoke { .. } => Ok(()),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let op = match reader.u8("operation on a lease")? {
            GRANT => LeaseOp::Grant { ttl_ms: reader.u64("time of the lease")? },
            KEEP_ALIVE => LeaseOp::KeepAlive { lease: reader.u64("lease")? },
            REVOKE => LeaseOp::Revoke { lease: reader.u64("lease")? },
            kind => return Err(DecodeError::UnknownKind { field: "operation on a lease", kind }),
        };
        op.check().map(|()| op)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (kind, number) = match self {
            LeaseOp::Grant { ttl_ms } => (GRANT, ttl_ms),
            LeaseOp::KeepAlive { lease } => (KEEP_ALIVE, lease),
            LeaseOp::Revoke { lease } => (REVOKE, lease),
        };
        out.put_u8(kind);
        out.put_u64(*number);
    }
}
