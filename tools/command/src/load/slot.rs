//! Consecutive calls with the same buffers.

use petrel::Error;
use petrel::endpoint::{ECHO_REQUEST, SessionId};
use petrel::{Endpoint, MsgBuf};

use super::{Echo, Load};
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

    #[inline]
    pub(super) fn write(&mut self, request: &mut MsgBuf, call: u64, echo: Echo) {
        self.call = call;
        Pattern::new(SEED, call).fill(request);
        if echo == Echo::Own {
            request[0] = ECHO_REQUEST;
        }
    }

    /// Returns true if `response` answers the call in flight, in every byte.
    #[inline]
    pub(super) fn check(&self, response: &mut MsgBuf, size: usize, echo: Echo) -> bool {
        let pattern = Pattern::new(SEED, self.call);
        if response.len() != size {
            return false;
        }
        if echo == Echo::Own {
            if response[0] != ECHO_REQUEST {
                return false;
            }
            // The pattern's byte, in place of the mark of an echo.
            pattern.fill(&mut response[..1]);
        }
        pattern.first_difference(response).is_none()
    }
}
