//! Messages for many receivers: built once, sent from one place.

use std::fmt;
use std::ops::Deref;

use petrel_transport::buf::{BufPool, PoolExhausted, SharedBuf};

use crate::msgbuf::MsgBuf;

/// Messages up to this length are copied for each call, into a small buffer on the fast path; longer ones are sent in
/// place.
///
/// With eight calls in flight over shared memory, in one thread, a call of 64 B takes 82 ns with a copy and 116 ns with
/// a reference (its count, the general path, a frame in two pieces); 1 000 B take 109 and 129 ns, 2 000 B 140 and 147
/// ns, 4 000 B 240 and 185 ns. Over UDP the copy is faster up to 1 000 B.
const COPIED_BYTES_MAX: usize = 1024;

/// An immutable message for many receivers: a request for every member of a group is in memory once. Clones are the
/// same message.
///
/// It stays on the thread of the endpoint. Messages longer than a kilobyte are sent in place, with headers for each
/// call; shorter ones are copied, which is cheaper.
#[derive(Clone)]
pub struct SharedMsg(SharedBuf);

impl SharedMsg {
    /// Returns the buffer, unless a clone exists or a call still sends it.
    ///
    /// # Errors
    /// The message.
    pub fn try_unwrap(self) -> Result<MsgBuf, SharedMsg> {
        self.0.try_unwrap().map(MsgBuf::from_packet_buf).map_err(SharedMsg)
    }

    /// Returns a buffer from which a call sends the message. It must not get to the application before
    pub(crate) fn to_send(&self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        if self.len() > COPIED_BYTES_MAX {
            return self.to_reference(pool);
        }
        MsgBuf::holding(pool, self)
    }

    /// Returns a buffer that sends the message in place.
    pub(crate) fn to_reference(&self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::reference(pool, &self.0)
    }
}

impl From<MsgBuf> for SharedMsg {
    /// Shares a message without copying.
    fn from(message: MsgBuf) -> Self {
        Self(SharedBuf::new(message.into_packet_buf()))
    }
}

impl Deref for SharedMsg {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for SharedMsg {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedMsg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMsg({} B)", self.len())
    }
}
