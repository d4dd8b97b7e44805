//! Messages that are sent to many: one copy of the data, headers for each.
//!
//! The frames of a message lie where they are until they are flushed, with their headers in the room
//! around the data; so two who send the same message at a time must not share that room. A *reference*
//! is a [`PacketBuf`] that has this room and nothing else, and the count of the message that it sends:
//!
//! ```text
//! block             +64                              +64 + 32 (n - 1)
//! | head room       | header 1 | header 2 | ... 32 B | Rc<PacketBuf> |
//! ```
//!
//! It has no length and no capacity, so that all safe ways to its data find none; what sends packets
//! finds the payload beyond the length, and comes here (`PacketBuf::packet_referred_to`). References have
//! shelves of their own, which tell the pool of every block that comes back: it gives the count back then.
//! So ordinary buffers pay nothing for references: not when they are lent out, sent or given back.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use super::class::LARGEST_BLOCK_BYTES;
use super::packet::{HEAD_ROOM_BYTES, Meta, PacketBuf, TAIL_HEADER_BYTES};

/// A message that nobody changes any more, to be sent to many. Clones are the same message.
#[derive(Clone)]
pub struct SharedBuf(Rc<PacketBuf>);

impl SharedBuf {
    /// Shares a message. Its memory goes back to its pool when the last clone and the last reference
    /// are gone.
    pub fn new(message: PacketBuf) -> Self {
        Self(Rc::new(message))
    }

    /// The buffer again, if this is all that is left of the message; else itself.
    ///
    /// # Errors
    /// The message, which others still have or send.
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

/// Size of a reference's block, or `None` where no block is large enough.
pub(super) fn reference_bytes(packet_count: usize) -> Option<usize> {
    let end = message_offset(packet_count)?.checked_add(size_of::<*const PacketBuf>())?;
    (end <= LARGEST_BLOCK_BYTES).then_some(end)
}

/// Where the count of the message lies in a reference's block: behind the headers, where no slice
/// that a [`PacketBuf`] of capacity 0 gives out reaches.
fn message_offset(packet_count: usize) -> Option<usize> {
    let headers = packet_count.saturating_sub(1).checked_mul(TAIL_HEADER_BYTES)?;
    headers.checked_add(HEAD_ROOM_BYTES)
}

const _: () = assert!(HEAD_ROOM_BYTES.is_multiple_of(align_of::<*const PacketBuf>()));
const _: () = assert!(TAIL_HEADER_BYTES.is_multiple_of(align_of::<*const PacketBuf>()));

/// The place of a reference's count.
///
/// # Safety
/// The block begins with its [`Meta`] and has [`reference_bytes`] for its packet count.
unsafe fn message_place(block: NonNull<Meta>) -> NonNull<*const PacketBuf> {
    // SAFETY: the block begins with its `Meta`.
    let packet_count = unsafe { block.as_ref() }.packet_count();
    let Some(offset) = message_offset(packet_count) else {
        unreachable!("a block was made for so many headers");
    };
    // SAFETY: it lies in the block, which is aligned to 64 bytes, and the offset to a pointer's size.
    unsafe { block.cast::<u8>().add(offset).cast() }
}

/// Takes the count of its message out of a block, if it refers to one.
///
/// # Safety
/// The block belongs to the caller alone and begins with its [`Meta`].
pub(super) unsafe fn take_message(block: NonNull<Meta>) -> Option<SharedBuf> {
    // SAFETY: by this function's contract.
    let referred_len = unsafe { &mut (*block.as_ptr()).referred_len };
    if std::mem::take(referred_len) == 0 {
        return None;
    }
    // SAFETY: only blocks of references have such a length (`refer_to`), and while they have it, the
    // place holds a count from `Rc::into_raw`, which is taken out once.
    Some(SharedBuf(unsafe { Rc::from_raw(message_place(block).read()) }))
}

impl PacketBuf {
    /// Makes this a reference to a message.
    ///
    /// # Safety
    /// The block is of a shelf for references, fresh off its free list, with capacity 0 and
    /// [`reference_bytes`] for its packet count.
    pub(super) unsafe fn refer_to(&mut self, message: &SharedBuf) {
        assert!(!message.is_empty(), "a reference to an empty message");
        // SAFETY: by this function's contract; a block off its list has no count in it.
        unsafe {
            message_place(self.block).write(Rc::into_raw(Rc::clone(&message.0)));
            (*self.block.as_ptr()).referred_len = message.len() as u32;
        }
    }

    /// The message that this refers to, if it is a reference.
    pub(super) fn referred_to(&self) -> Option<&PacketBuf> {
        if self.meta().referred_len == 0 {
            return None;
        }
        // SAFETY: with such a length the place holds a count of the message (`refer_to`), which is
        // given back only by `release`, with `self` borrowed exclusively, or when `self` is gone.
        Some(unsafe { &*message_place(self.block).read() })
    }

    /// Lets go of the message that this refers to, if it does: it is an empty buffer then.
    pub fn release(&mut self) {
        // SAFETY: the block is this value's, and borrowed exclusively.
        drop(unsafe { take_message(self.block) });
    }
}
