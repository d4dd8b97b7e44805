//! Who is told of a pool's memory.

use std::fmt;
use std::ptr::NonNull;

/// Shorter bodies of frames are copied before the flush returns: a device gains nothing by reading
/// them in place.
pub const READ_IN_PLACE_BYTES_MIN: usize = 1024;

/// Is told of every region of a [`BufPool`](super::BufPool): for a transport whose device reads
/// messages by itself, and has to know their memory first.
///
/// A region is registered before its first buffer is lent, and unregistered when no buffer of it is
/// lent any more, before it is unmapped.
///
/// A device may read the bodies of frames after the flush, in registered regions (eRPC §4.2.2).
/// Message memory then has an owner again as follows:
///
/// 1. An answer proves that the device has read its request. No call waits.
/// 2. An answer proves nothing about a repetition: the flush of a repetition waits
///    (`Transport::wait_at_flush`).
/// 3. A call that ends without its answer proves nothing: its end waits (`BufPool::await_reads`).
/// 4. Buffers that return to their pool, as the answers of servers do, stay aside until they are
///    read. No server waits.
///
/// A peer that answers a request before the request has left sees later contents of the request's
/// buffer. A transport therefore copies the bodies for peers that it does not trust. A device that
/// goes away has read everything.
pub trait RegionWatch: fmt::Debug {
    /// `bytes` bytes from `start` are the pool's. Returns false if the device cannot use them; the
    /// pool then does without.
    fn register(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// A registered region ends with this call.
    fn unregister(&self, start: NonNull<u8>, bytes: usize);

    /// The number of the current burst, if the device has not read all pushed bodies.
    fn unread(&self) -> Option<u64> {
        None
    }

    /// Returns true if the device has read the bodies of this burst and of all earlier ones.
    fn has_read(&self, burst: u64) -> bool {
        let _ = burst;
        true
    }

    /// Waits until the device has read all flushed bodies, and counts the wait in
    /// [`TransportStats::tx_waits`](crate::TransportStats::tx_waits) if there was any. Returns in bounded time: a device that
    /// cannot send resets its queue, and has then read everything.
    fn await_reads(&self) {}
}
