//! The parameters of a service's call.

use std::mem;

use petrel_transport::buf::{BufPool, PoolExhausted};

use crate::endpoint::context::continuation::Continuation;
use crate::local::client_call::state::Pending;
use crate::msgbuf::MsgBuf;
use crate::values::{CallOptions, Marks};

/// The parameters of a call of a service. The request and the end are of one kind at each place where calls begin: they
/// are put together only in the table.
pub(crate) struct CallSpec<'a, R, E> {
    pub(crate) method: u16,
    pub(crate) request: R,
    /// The caller's buffer for the response.
    pub(crate) response: Option<MsgBuf>,
    /// Without their times, which `end_ns` replaces.
    pub(crate) options: &'a CallOptions,
    pub(crate) end_ns: u64,
    pub(crate) end: E,
}

/// The receiver of a call's outcome.
pub(crate) enum CallEnd {
    /// The thread that waits for it.
    Posted(Pending),
    /// A continuation.
    Then(Continuation),
}

impl From<Pending> for CallEnd {
    #[inline(always)]
    fn from(pending: Pending) -> Self {
        Self::Posted(pending)
    }
}

impl From<Continuation> for CallEnd {
    #[inline(always)]
    fn from(continuation: Continuation) -> Self {
        Self::Then(continuation)
    }
}

/// Bytes as a request, and the number of last bytes that are sent first.
pub(crate) struct RequestBytes(pub(crate) Vec<u8>, pub(crate) u8);

/// The request.
pub(crate) enum CallRequest {
    /// Bytes, copied for each attempt.
    Bytes {
        bytes: Vec<u8>,
        /// The number of the last bytes that are sent first.
        head_last: u8,
        /// The application's own buffer, if passed.
        buffer: Option<MsgBuf>,
    },
    /// A buffer, which each attempt returns.
    Buffer(Option<MsgBuf>),
}

impl From<RequestBytes> for CallRequest {
    #[inline(always)]
    fn from(RequestBytes(bytes, head_last): RequestBytes) -> Self {
        Self::Bytes { bytes, head_last, buffer: None }
    }
}

impl From<MsgBuf> for CallRequest {
    fn from(buffer: MsgBuf) -> Self {
        Self::Buffer(Some(buffer))
    }
}

impl CallRequest {
    /// Returns the message for an attempt.
    #[inline(always)]
    pub(super) fn take_to_send(&mut self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        match self {
            CallRequest::Bytes { bytes, head_last: 0, .. } => MsgBuf::holding(pool, bytes),
            CallRequest::Bytes { bytes, head_last, .. } => {
                let (body, head) = bytes.split_at(bytes.len() - usize::from(*head_last));
                MsgBuf::holding_both(pool, head, body)
            }
            CallRequest::Buffer(buffer) => {
                Ok(buffer.take().expect("one attempt at a time has the buffer"))
            }
        }
    }

    /// Takes the buffer of an attempt that has ended.
    pub(super) fn return_buffer(&mut self, request: MsgBuf) {
        if let CallRequest::Buffer(buffer) = self {
            let before = buffer.replace(request);
            assert!(before.is_none(), "one attempt at a time has the buffer");
        }
    }

    /// Returns the application's buffer.
    pub(super) fn into_buffer(self) -> Option<MsgBuf> {
        match self {
            CallRequest::Bytes { buffer, .. } | CallRequest::Buffer(buffer) => buffer,
        }
    }

    /// Takes memory that the request no longer needs.
    #[inline]
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        match self {
            CallRequest::Bytes { bytes, .. } => mem::take(bytes),
            CallRequest::Buffer(_) => Vec::new(),
        }
    }

    /// Returns memory that the request no longer needs.
    pub(super) fn into_memory(self) -> Vec<u8> {
        match self {
            CallRequest::Bytes { bytes, .. } => bytes,
            CallRequest::Buffer(_) => Vec::new(),
        }
    }

    /// Copies the message, for simultaneous attempts.
    pub(super) fn copied(self) -> Self {
        match self {
            CallRequest::Buffer(Some(buffer)) => {
                CallRequest::Bytes { bytes: buffer.to_vec(), head_last: 0, buffer: Some(buffer) }
            }
            request => request,
        }
    }
}

/// Options that few calls have.
pub(super) struct RareOptions {
    /// The hash of the key, for the choice of a server.
    key: Option<u64>,
    hedge_after_ns: Option<u64>,
    /// When the next hedge is due.
    hedge_ns: Option<u64>,
    response_bytes: Option<usize>,
    ordered: bool,
}

impl RareOptions {
    #[inline(always)]
    pub(super) fn of(options: &CallOptions) -> Option<Box<Self>> {
        options.marks.has(Marks::RARE).then(|| Self::new(options))
    }

    #[inline(never)]
    fn new(options: &CallOptions) -> Box<Self> {
        Box::new(Self {
            key: options.key_hash(),
            hedge_after_ns: options.hedge_after_ns(),
            hedge_ns: None,
            response_bytes: options.buffer_bytes(),
            ordered: options.is_ordered(),
        })
    }

    pub(super) fn key(&self) -> Option<u64> {
        self.key
    }

    pub(super) fn response_bytes(&self) -> Option<usize> {
        self.response_bytes
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Returns when the next hedge is due.
    pub(super) fn hedge_ns(&self) -> Option<u64> {
        self.hedge_ns
    }

    pub(super) fn is_hedged(&self) -> bool {
        self.hedge_after_ns.is_some()
    }

    /// Restarts the time until the next hedge.
    pub(super) fn restart_hedge_timer(&mut self, now_ns: u64) {
        self.hedge_ns = self.hedge_after_ns.map(|after_ns| now_ns.saturating_add(after_ns));
    }

    /// Makes no further hedges.
    pub(super) fn stop_hedges(&mut self) {
        assert!(self.is_hedged(), "only a hedged call has hedges to stop");
        self.hedge_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use petrel_transport::buf::PoolConfig;

    use super::*;

    #[test]
    fn take_to_send__sends_the_last_bytes_first() {
        let pool = BufPool::new(PoolConfig::default());
        for (head_last, sent) in [(0, "body+head"), (4, "headbody+"), (9, "body+head")] {
            let mut request = CallRequest::from(RequestBytes(b"body+head".to_vec(), head_last));
            for _ in 0..2 {
                let message = request.take_to_send(&pool).unwrap();
                assert_eq!(&message[..], sent.as_bytes(), "{head_last}, each attempt");
            }
            assert_eq!(request.into_memory(), b"body+head", "the caller's memory");
        }
    }

    panics! {
        take_to_send__while_another_attempt_has_the_buffer: "one attempt at a time has the buffer" => {
            let pool = BufPool::new(PoolConfig::default());
            let mut request = CallRequest::Buffer(MsgBuf::holding(&pool, b"request").ok());
            let _first = request.take_to_send(&pool);
            let _second = request.take_to_send(&pool);
        };
        return_buffer__beside_another: "one attempt at a time has the buffer" => {
            let pool = BufPool::new(PoolConfig::default());
            let buffer = || MsgBuf::holding(&pool, b"request").unwrap();
            CallRequest::Buffer(Some(buffer())).return_buffer(buffer());
        };
        stop_hedges__of_a_call_without: "only a hedged call" => {
            let options = CallOptions::new().response_bytes(5);
            RareOptions::of(&options).unwrap().stop_hedges();
        };
    }
}
