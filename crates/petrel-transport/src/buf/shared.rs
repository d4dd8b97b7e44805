//! Messages for several destinations: one copy of the data, separate headers.
//!
//! The frames of a message stay in place until flushed, with headers in the room around the data.
//! Two concurrent sends of a message must not share the room. A *reference* is a [`PacketBuf`] with
//! only the room and a count of the message:
//!
//! ```text
//! block             +64                              +64 + 32 (n - 1)
//! | head room       | header 1 | header 2 | ... 32 B | Rc<PacketBuf> |
//! ```
//!
//! A reference has length 0 and capacity 0: safe accessors find no data. Code that sends packets
//! finds the payload beyond the length and comes here (`PacketBuf::packet_referred_to`). The
//! separate shelves of references notify the pool of every returned block; the pool then releases
//! the count. Ordinary buffers thus pay nothing for references: not when lent out, sent or
//! returned.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use super::class::LARGEST_BLOCK_BYTES;
use super::packet::{HEAD_ROOM_BYTES, Meta, PacketBuf, TAIL_HEADER_BYTES};

/// An immutable message for several destinations. Clones share the message.
#[derive(Clone)]
pub struct SharedBuf(Rc<PacketBuf>);

impl SharedBuf {
    /// Shares a message. The memory returns to the pool with the last clone or reference.
    pub fn new(message: PacketBuf) -> Self {
        Self(Rc::new(message))
    }

    /// Returns the buffer if no other clone or reference is left.
    ///
    /// # Errors
    /// The `SharedBuf` itself, if the message is still in use elsewhere.
    pub fn try_unwrap(self) -> Result<PacketBuf, Self> {
        Rc::try_unwrap(self.0).map_err(Self)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.data()
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} B)", self.len())
    }
}

/// Size of a reference's block, or `None` if no block is large enough.
pub(super) fn reference_bytes(packet_count: usize) -> Option<usize> {
    let end = message_offset(packet_count)?.checked_add(size_of::<*const PacketBuf>())?;
    (end <= LARGEST_BLOCK_BYTES).then_some(end)
}

/// Offset of the message's count in a reference's block: behind the headers, beyond the reach of
/// any slice from a [`PacketBuf`] of capacity 0.
fn message_offset(packet_count: usize) -> Option<usize> {
    let headers = packet_count.saturating_sub(1).checked_mul(TAIL_HEADER_BYTES)?;
    headers.checked_add(HEAD_ROOM_BYTES)
}

const _: () = assert!(HEAD_ROOM_BYTES.is_multiple_of(align_of::<*const PacketBuf>()));
const _: () = assert!(TAIL_HEADER_BYTES.is_multiple_of(align_of::<*const PacketBuf>()));

/// Returns the place of a reference's count.
///
/// # Safety
/// The block begins with a [`Meta`] and has [`reference_bytes`] for the packet count.
unsafe fn message_place(block: NonNull<Meta>) -> NonNull<*const PacketBuf> {
    // SAFETY: the block begins with its `Meta`.
    let packet_count = unsafe { block.as_ref() }.packet_count();
    let Some(offset) = message_offset(packet_count) else {
        unreachable!("a block was made for so many headers");
    };
    // SAFETY: the place lies in the block, which is aligned to 64 bytes; the offset is a multiple
    // of a pointer's alignment.
    unsafe { block.cast::<u8>().add(offset).cast() }
}

/// Removes the message's count from a block, if the block refers to a message.
///
/// # Safety
/// The block belongs to the caller alone and begins with its [`Meta`].
pub(super) unsafe fn take_message(block: NonNull<Meta>) -> Option<SharedBuf> {
    // SAFETY: by this function's contract.
    let referred_len = unsafe { &mut (*block.as_ptr()).referred_len };
    if std::mem::take(referred_len) == 0 {
        return None;
    }
    // SAFETY: only blocks of references have a nonzero length here (`refer_to`). While the length
    // is nonzero, the place holds a count from `Rc::into_raw`, which is removed once: the length is
    // 0 now.
    Some(SharedBuf(unsafe { Rc::from_raw(message_place(block).read()) }))
}

impl PacketBuf {
    /// Turns this buffer into a reference to a message.
    ///
    /// # Safety
    /// The block is of a shelf for references, fresh off the free list, with capacity 0 and
    /// [`reference_bytes`] for the packet count.
    pub(super) unsafe fn refer_to(&mut self, message: &SharedBuf) {
        assert!(!message.is_empty(), "a reference to an empty message");
        // SAFETY: by the function's contract; a block off the free list holds no count.
        unsafe {
            message_place(self.block).write(Rc::into_raw(Rc::clone(&message.0)));
            (*self.block.as_ptr()).referred_len = message.len() as u32;
        }
    }

    /// Returns the referenced message, if this buffer is a reference.
    pub(super) fn referred_to(&self) -> Option<&PacketBuf> {
        if self.meta().referred_len == 0 {
            return None;
        }
        // SAFETY: with a nonzero length the place holds a count of the message (`refer_to`). The
        // count is released only by `release`, with `self` borrowed exclusively, or after `self` is
        // gone.
        Some(unsafe { &*message_place(self.block).read() })
    }

    /// Releases the referenced message, if any. The buffer is then empty.
    pub fn release(&mut self) {
        // SAFETY: the block belongs to this value, and is borrowed exclusively.
        drop(unsafe { take_message(self.block) });
    }
}
