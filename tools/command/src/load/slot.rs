//! Consecutive calls with the same buffers.

use petrel::Error;
use petrel::endpoint::SessionId;
use petrel::{Endpoint, MsgBuf};

use super::Load;
use crate::payload::Pattern;

/// The seed of the bytes of calls.
const SEED: u64 = 0x7065_7472_656c;

/// A slot for one call at a time.
pub(super) struct CallSlot {
    pub(super) session: SessionId,
    /// The start time of the call in flight.
    pub(super) started_ns: Option<u64>,
    /// Number of the call in flight.
    call: u64,
    /// The two buffers, before the first call.
    buffers: Option<(MsgBuf, MsgBuf)>,
}

impl CallSlot {
    pub(super) fn new(
        endpoint: &Endpoint<Load>,
        session: SessionId,
        size: usize,
    ) -> Result<Self, Error> {
        let mut request = endpoint.alloc(size)?;
        request.set_len(size);
        let response = endpoint.alloc(size)?;
        let buffers = Some((request, response));
        Ok(Self { session, started_ns: None, call: 0, buffers })
    }

    pub(super) fn take_buffers(&mut self) -> Option<(MsgBuf, MsgBuf)> {
        self.buffers.take()
    }

    /// Writes the request of a call.
    #[inline]
    pub(super) fn write(&mut self, request: &mut MsgBuf, call: u64) {
        self.call = call;
        Pattern::new(SEED, call).fill(request);
    }

    /// Returns true if `response` answers the call in flight, in every byte.
    #[inline]
    pub(super) fn check(&self, response: &MsgBuf, size: usize) -> bool {
        response.len() == size && Pattern::new(SEED, self.call).first_difference(response).is_none()
    }
}
