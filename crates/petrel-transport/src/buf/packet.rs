//! One message with room for the headers of its packets. The [parent module](super) draws the
//! layout and says why the unsafe code is sound.

use std::fmt;
use std::ptr::NonNull;

use super::class::{Class, LARGEST_BLOCK_BYTES};
use super::pool::BufPool;

/// Room before the data for the header of packet 0.
pub const HEAD_ROOM_BYTES: usize = 64;

/// Room behind the data for the header of each packet after the first.
pub const TAIL_HEADER_BYTES: usize = 32;

/// Tail headers are aligned to this.
const TAIL_ALIGN_BYTES: usize = 8;

const _: () = assert!(size_of::<PacketBuf>() <= 32);
const _: () = assert!(LARGEST_BLOCK_BYTES <= u32::MAX as usize);

/// Memory of one message. Dropping it returns the memory to its pool.
pub struct PacketBuf {
    block: NonNull<u8>,
    pool: BufPool,
    len: u32,
    capacity: u32,
    packet_count: u32,
    class: Class,
}

/// Size of a block for these needs, or `None` where no block is large enough.
#[inline]
pub(super) fn block_bytes(capacity: usize, packet_count: usize) -> Option<usize> {
    if capacity > LARGEST_BLOCK_BYTES || packet_count > LARGEST_BLOCK_BYTES / TAIL_HEADER_BYTES {
        return None;
    }
    // A message of one packet has no tail, so that it needs no alignment for one either.
    let tail = packet_count.saturating_sub(1) * TAIL_HEADER_BYTES;
    let end = if tail == 0 { HEAD_ROOM_BYTES + capacity } else { tail_offset(capacity) + tail };
    (end <= LARGEST_BLOCK_BYTES).then_some(end)
}

#[inline]
fn tail_offset(capacity: usize) -> usize {
    (HEAD_ROOM_BYTES + capacity).next_multiple_of(TAIL_ALIGN_BYTES)
}

impl PacketBuf {
    /// # Safety
    /// `block` is a block of `class` from `pool` that nobody else uses, of at least
    /// [`block_bytes`] for this capacity and packet count.
    #[inline]
    pub(super) unsafe fn new(
        block: NonNull<u8>,
        class: Class,
        pool: BufPool,
        capacity: usize,
        packet_count: usize,
    ) -> Self {
        let (capacity, packet_count) = (capacity as u32, packet_count as u32);
        Self { block, pool, len: capacity, capacity, packet_count, class }
    }

    /// Length of the message in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "an empty message is nothing special")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The most bytes that the message may have.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The most packets that the message may be sent in.
    #[inline]
    pub fn packet_count(&self) -> usize {
        self.packet_count as usize
    }

    /// Changes the length. Bytes that come in are those that were there before: nobody's, or
    /// of an earlier message of this pool.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} above the capacity {}", self.capacity);
        self.len = len as u32;
    }

    /// The message.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.bytes(HEAD_ROOM_BYTES, self.len())
    }

    /// The message, to be written.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(HEAD_ROOM_BYTES, self.len())
    }

    /// The whole capacity, for who assembles a message whose packets come in any order.
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(HEAD_ROOM_BYTES, self.capacity())
    }

    /// Writes the header of packet `index`: for packet 0 so that it ends where the data begins.
    ///
    /// # Panics
    /// When there is no such packet, or the header exceeds [`HEAD_ROOM_BYTES`] (packet 0) or
    /// [`TAIL_HEADER_BYTES`] (all others).
    #[inline]
    pub fn write_header(&mut self, index: usize, header: &[u8]) {
        let offset = self.header_offset(index, header.len());
        self.bytes_mut(offset, header.len()).copy_from_slice(header);
    }

    /// Packet `index` as a transport sends it: a header of `header_len` bytes and `payload_len`
    /// bytes of data from `offset` on, as head and body. Packet 0 is all head.
    ///
    /// # Panics
    /// When there is no such packet, the header exceeds its room, the payload reaches beyond the
    /// message, or packet 0 does not begin at offset 0.
    #[inline]
    pub fn packet(
        &self,
        index: usize,
        header_len: usize,
        offset: usize,
        payload_len: usize,
    ) -> (&[u8], &[u8]) {
        let in_message = offset.checked_add(payload_len).is_some_and(|end| end <= self.len());
        assert!(in_message, "payload {offset}+{payload_len} beyond the length {}", self.len);
        let header = self.header_offset(index, header_len);
        if index == 0 {
            assert!(offset == 0, "packet 0 begins at offset {offset}");
            return (self.bytes(header, header_len + payload_len), &[]);
        }
        (self.bytes(header, header_len), self.bytes(HEAD_ROOM_BYTES + offset, payload_len))
    }

    /// Where the header of packet `index` begins in the block.
    #[inline]
    fn header_offset(&self, index: usize, header_len: usize) -> usize {
        if index == 0 {
            assert!(header_len <= HEAD_ROOM_BYTES, "header of {header_len} bytes");
            return HEAD_ROOM_BYTES - header_len;
        }
        assert!(index < self.packet_count(), "packet {index} of {}", self.packet_count);
        assert!(header_len <= TAIL_HEADER_BYTES, "header of {header_len} bytes");
        tail_offset(self.capacity()) + (index - 1) * TAIL_HEADER_BYTES
    }

    /// Callers have checked that the range lies in the block.
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        debug_assert!(offset + len <= self.class.block_bytes());
        // SAFETY: every caller's range lies in the head room, in the capacity or in the tail, which
        // `new`'s contract puts inside the block; the block is initialised and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.block.add(offset).as_ptr(), len) }
    }

    /// Callers have checked that the range lies in the block.
    #[inline]
    fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        debug_assert!(offset + len <= self.class.block_bytes());
        // SAFETY: as in `bytes`; `self` is borrowed exclusively and owns the block alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.add(offset).as_ptr(), len) }
    }
}

impl Drop for PacketBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block came from this pool with this class, and all borrows of it ended
        // with the borrow of `self`.
        unsafe { self.pool.put_back(self.block, self.class) }
    }
}

impl fmt::Debug for PacketBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .field("packet_count", &self.packet_count)
            .finish_non_exhaustive()
    }
}
