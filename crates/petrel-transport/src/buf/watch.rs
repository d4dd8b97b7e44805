//! Who is told of a pool's memory.

use std::fmt;
use std::ptr::NonNull;

/// Is told of every region of a [`BufPool`](super::BufPool): for a transport whose device reads
/// messages by itself, and has to know their memory first.
///
/// A region is registered before its first buffer is lent, and unregistered when no buffer of it is
/// lent any more, before it is unmapped.
pub trait RegionWatch: fmt::Debug {
    /// `bytes` bytes from `start` are the pool's. Returns false if the device cannot use them; the
    /// pool then does without.
    fn register(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// A registered region ends with this call.
    fn unregister(&self, start: NonNull<u8>, bytes: usize);
}
