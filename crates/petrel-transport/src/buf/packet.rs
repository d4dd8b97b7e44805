//! One message with room for the headers of its packets. The [parent module](super) draws the
//! layout and says why the unsafe code is sound.

use std::fmt;
use std::ptr::NonNull;

use crate::copy::{copy_one_line, copy_out_of_line};

use super::class::LARGEST_BLOCK_BYTES;
use super::pool::Shelf;

/// Room before the data: for what the pool knows about the block, and the header of packet 0.
pub const HEAD_ROOM_BYTES: usize = 64;

/// Room directly before the data for the header of packet 0.
pub const FIRST_HEADER_BYTES: usize = 32;

/// Room behind the data for the header of each packet after the first.
pub const TAIL_HEADER_BYTES: usize = 32;

/// What the memory of a buffer is overwritten with when it comes back to a pool that poisons. No byte
/// of a text in ASCII.
pub const POISON_BYTE: u8 = 0xDB;

/// Bits of [`Meta::noted_packet_count`] that count packets.
const PACKET_COUNT_BITS: u32 = 26;
const PACKET_COUNT_MASK: u32 = (1 << PACKET_COUNT_BITS) - 1;

/// Tail headers are aligned to this.
const TAIL_ALIGN_BYTES: usize = 8;

const _: () = {
    assert!(size_of::<PacketBuf>() == 8 && size_of::<Option<PacketBuf>>() == 8);
    assert!(size_of::<Meta>() + FIRST_HEADER_BYTES <= HEAD_ROOM_BYTES);
    assert!(LARGEST_BLOCK_BYTES <= u32::MAX as usize);
    assert!(LARGEST_BLOCK_BYTES / TAIL_HEADER_BYTES <= PACKET_COUNT_MASK as usize);
};

/// What a block begins with. It shares the first cache line with the header of packet 0.
#[repr(C)]
pub(super) struct Meta {
    /// Where the block goes back to. Written once, when the block is made.
    pub(super) shelf: NonNull<Shelf>,
    /// The next idle block, while this one is idle.
    pub(super) next_idle: Option<NonNull<Meta>>,
    len: u32,
    capacity: u32,
    /// The packets that there is room for, and above [`PACKET_COUNT_BITS`] what
    /// [`PacketBuf::growth`] gives, as a power of two.
    noted_packet_count: u32,
    /// Length of the message that the block refers to; 0 if it holds its own. Only blocks of the
    /// shelves for references ever have another value.
    pub(super) referred_len: u32,
}

impl Meta {
    /// That of a block which is not lent out yet.
    pub(super) fn new(shelf: NonNull<Shelf>) -> Self {
        Self { shelf, next_idle: None, len: 0, capacity: 0, noted_packet_count: 0, referred_len: 0 }
    }

    /// The most packets that the message may be sent in.
    #[inline]
    pub(super) fn packet_count(&self) -> usize {
        (self.noted_packet_count & PACKET_COUNT_MASK) as usize
    }
}

/// Memory of one message: a pointer to its block. Dropping it returns the memory to its pool.
pub struct PacketBuf {
    pub(super) block: NonNull<Meta>,
}

/// Size of a block for these needs, or `None` where no block is large enough.
#[inline]
pub(super) fn block_bytes(capacity: usize, packet_count: usize) -> Option<usize> {
    if packet_count <= 1 && capacity <= LARGEST_BLOCK_BYTES - HEAD_ROOM_BYTES {
        // No tail, so that no alignment is needed for one either.
        return Some(HEAD_ROOM_BYTES + capacity);
    }
    block_bytes_with_tail(capacity, packet_count)
}

fn block_bytes_with_tail(capacity: usize, packet_count: usize) -> Option<usize> {
    if capacity > LARGEST_BLOCK_BYTES || packet_count > LARGEST_BLOCK_BYTES / TAIL_HEADER_BYTES {
        return None;
    }
    let end = tail_offset(capacity) + packet_count.saturating_sub(1) * TAIL_HEADER_BYTES;
    (end <= LARGEST_BLOCK_BYTES).then_some(end)
}

#[inline]
fn tail_offset(capacity: usize) -> usize {
    (HEAD_ROOM_BYTES + capacity).next_multiple_of(TAIL_ALIGN_BYTES)
}

/// Overwrites what frames of a block's last message could show: its headers, and its data up to its length at the
/// return. Room that a message never filled is left alone, as writing there would be the first use of its pages.
///
/// # Safety
/// The block is on its free list, was lent out before, and nobody else uses it.
pub(super) unsafe fn poison(block: NonNull<Meta>) {
    // SAFETY: the block begins with its `Meta`.
    let meta = unsafe { block.as_ref() };
    let (capacity, start) = (meta.capacity as usize, size_of::<Meta>());
    let Some(end) = block_bytes(capacity, meta.packet_count()) else {
        unreachable!("a block was made for them");
    };
    let data_end = HEAD_ROOM_BYTES + meta.len as usize;
    let tail = tail_offset(capacity).min(end);
    // SAFETY: the block has `end` bytes, since `PacketBuf::new` got it for these needs; a length is no more than its
    // capacity; and the caller says that nobody reads or writes them.
    unsafe {
        block.cast::<u8>().add(start).write_bytes(POISON_BYTE, data_end - start);
        block.cast::<u8>().add(tail).write_bytes(POISON_BYTE, end - tail);
    }
}

impl PacketBuf {
    /// # Safety
    /// `block` is a block off its free list that nobody else uses, of at least [`block_bytes`] for
    /// this capacity and packet count, and begins with its [`Meta`].
    #[inline]
    pub(super) unsafe fn new(block: NonNull<Meta>, capacity: usize, packet_count: usize) -> Self {
        // SAFETY: by this function's contract, the block begins with a `Meta` that is ours.
        unsafe {
            (*block.as_ptr()).len = capacity as u32;
            (*block.as_ptr()).capacity = capacity as u32;
            (*block.as_ptr()).noted_packet_count = packet_count as u32;
        }
        Self { block }
    }

    /// What the block begins with. No slice that is given out reaches there.
    #[inline]
    pub(super) fn meta(&self) -> &Meta {
        // SAFETY: the block belongs to this value and begins with its `Meta` (`new`).
        unsafe { self.block.as_ref() }
    }

    /// Where the block begins, for who wants it in a cache before it is used.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.block.as_ptr().cast_const().cast()
    }

    /// Length of the message in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "an empty message is nothing special")]
    pub fn len(&self) -> usize {
        self.meta().len as usize
    }

    /// Length in bytes of the message that is sent: this one, or the one that it
    /// [refers to](super::BufPool::reference).
    #[inline]
    pub fn wire_len(&self) -> usize {
        // One of the two is 0.
        self.meta().len.max(self.meta().referred_len) as usize
    }

    /// The most bytes that the message may have.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.meta().capacity as usize
    }

    /// The most packets that the message may be sent in.
    #[inline]
    pub fn packet_count(&self) -> usize {
        self.meta().packet_count()
    }

    /// Bytes of memory that the buffer takes, headers and rounding included.
    pub fn block_bytes(&self) -> usize {
        // SAFETY: the shelf lives as long as one of its blocks is lent out.
        unsafe { self.meta().shelf.as_ref() }.block_bytes()
    }

    /// The most bytes that a larger buffer in this one's place may have: a note of its user's, 0 at
    /// first.
    #[inline]
    pub fn growth(&self) -> usize {
        match self.meta().noted_packet_count >> PACKET_COUNT_BITS {
            0 => 0,
            log2 => 1 << log2,
        }
    }

    /// Notes what [`growth`](PacketBuf::growth) gives: `bytes_max`, or the next power of two above.
    #[inline]
    pub fn set_growth(&mut self, bytes_max: usize) {
        let log2 = match bytes_max {
            0 => 0,
            _ => bytes_max.min(1 << 31).next_power_of_two().trailing_zeros().max(1),
        };
        let noted = self.packet_count() as u32 | log2 << PACKET_COUNT_BITS;
        // SAFETY: the block is this value's, and begins with its `Meta`.
        unsafe { (*self.block.as_ptr()).noted_packet_count = noted };
    }

    /// Changes the length. Bytes that come in are those that were there before: nobody's, or
    /// of an earlier message of this pool.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        if len > self.capacity() {
            exceeds(len, self.capacity());
        }
        // SAFETY: the block is this value's, and begins with its `Meta`.
        unsafe { (*self.block.as_ptr()).len = len as u32 };
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

    /// Makes `message` the message: a short one without a call of `memcpy`.
    ///
    /// # Panics
    /// When it is longer than the capacity.
    #[inline(always)]
    pub fn set_message(&mut self, message: &[u8]) {
        self.set_len(message.len());
        let to = self.data_mut().as_mut_ptr();
        // SAFETY: the data has as many bytes now, and `self` is borrowed exclusively.
        unsafe {
            match message.len() {
                16..=64 => copy_one_line(message, to),
                _ => copy_out_of_line(message, to),
            }
        }
    }

    /// The whole capacity, for who assembles a message whose packets come in any order.
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(HEAD_ROOM_BYTES, self.capacity())
    }

    /// Writes the header of packet `index`: for packet 0 so that it ends where the data begins.
    ///
    /// # Panics
    /// When there is no such packet, or the header exceeds [`FIRST_HEADER_BYTES`] (packet 0) or
    /// [`TAIL_HEADER_BYTES`] (all others).
    #[inline]
    pub fn write_header(&mut self, index: usize, header: &[u8]) {
        let offset = self.header_offset(index, header.len());
        self.bytes_mut(offset, header.len()).copy_from_slice(header);
    }

    /// Writes a header of 16 bytes for packet 0, given as two little-endian words.
    #[inline]
    pub fn write_header_16(&mut self, words: [u64; 2]) {
        let bytes = self.bytes_mut(HEAD_ROOM_BYTES - 16, 16);
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    }

    /// The whole message with its header of 16 bytes before it: what
    /// [`packet`](PacketBuf::packet) gives for a message of one packet.
    #[inline]
    pub fn frame_16(&self) -> &[u8] {
        self.bytes(HEAD_ROOM_BYTES - 16, 16 + self.len())
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
        if !in_message {
            return self.packet_referred_to(index, header_len, offset, payload_len);
        }
        let header = self.header_offset(index, header_len);
        if index == 0 {
            assert!(offset == 0, "packet 0 begins at offset {offset}");
            return (self.bytes(header, header_len + payload_len), &[]);
        }
        (self.bytes(header, header_len), self.bytes(HEAD_ROOM_BYTES + offset, payload_len))
    }

    /// Writes a header of 24 bytes for packet `index`, given as three little-endian words, and gives
    /// what [`packet`](PacketBuf::packet) does.
    ///
    /// # Panics
    /// As [`packet`](PacketBuf::packet).
    #[inline(always)]
    pub fn part_24(
        &mut self,
        index: usize,
        words: [u64; 3],
        offset: usize,
        payload_len: usize,
    ) -> (&[u8], &[u8]) {
        let at = self.header_offset(index, 24);
        let bytes = self.bytes_mut(at, 24);
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..16].copy_from_slice(&words[1].to_le_bytes());
        bytes[16..].copy_from_slice(&words[2].to_le_bytes());
        if index == 0 {
            return self.packet(0, 24, offset, payload_len);
        }
        let in_message = offset.checked_add(payload_len).is_some_and(|end| end <= self.len());
        if !in_message {
            return self.packet_referred_to(index, 24, offset, payload_len);
        }
        (self.bytes(at, 24), self.bytes(HEAD_ROOM_BYTES + offset, payload_len))
    }

    /// What [`packet`](PacketBuf::packet) gives where the payload is not in this block: in the
    /// message that it refers to, or nowhere. Ordinary buffers come here only to panic, so that
    /// references cost them nothing.
    #[cold]
    #[inline(never)]
    fn packet_referred_to(
        &self,
        index: usize,
        header_len: usize,
        offset: usize,
        payload_len: usize,
    ) -> (&[u8], &[u8]) {
        let end = offset.saturating_add(payload_len);
        let body = self.referred_to().and_then(|message| message.data().get(offset..end));
        let Some(body) = body else {
            panic!("payload {offset}+{payload_len} beyond the length {}", self.wire_len());
        };
        (self.bytes(self.header_offset(index, header_len), header_len), body)
    }

    /// Where the header of packet `index` begins in the block.
    #[inline]
    fn header_offset(&self, index: usize, header_len: usize) -> usize {
        if index == 0 {
            assert!(header_len <= FIRST_HEADER_BYTES, "header of {header_len} bytes");
            return HEAD_ROOM_BYTES - header_len;
        }
        assert!(index < self.packet_count(), "packet {index} of {}", self.packet_count());
        assert!(header_len <= TAIL_HEADER_BYTES, "header of {header_len} bytes");
        tail_offset(self.capacity()) + (index - 1) * TAIL_HEADER_BYTES
    }

    /// Callers have checked that the range lies in the block, behind its [`Meta`].
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.debug_check(offset, len);
        // SAFETY: every caller's range lies in the room for the first header, in the capacity or in
        // the tail, which `new`'s contract puts inside the block; the block is initialised and
        // borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.block.cast::<u8>().add(offset).as_ptr(), len) }
    }

    /// Callers have checked that the range lies in the block, behind its [`Meta`].
    #[inline]
    fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.debug_check(offset, len);
        // SAFETY: as in `bytes`; `self` is borrowed exclusively and owns the block alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.cast::<u8>().add(offset).as_ptr(), len) }
    }

    #[inline]
    fn debug_check(&self, offset: usize, len: usize) {
        debug_assert!(offset >= size_of::<Meta>());
        // SAFETY: shelves live as long as any of their blocks is lent out.
        debug_assert!(offset + len <= unsafe { self.meta().shelf.as_ref() }.block_bytes());
    }
}

/// On its own, so that the check is short wherever it is inlined.
#[cold]
#[inline(never)]
fn exceeds(len: usize, capacity: usize) -> ! {
    panic!("length {len} above the capacity {capacity}")
}

impl Drop for PacketBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block was lent out by its shelf, and all borrows of it ended with the borrow
        // of `self`.
        unsafe { Shelf::put_back(self.block) }
    }
}

impl fmt::Debug for PacketBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketBuf")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("packet_count", &self.packet_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_bytes__up_to_the_largest_block_and_none_beyond() {
        let (most, some) = (LARGEST_BLOCK_BYTES, 10);
        let alone = most - HEAD_ROOM_BYTES;
        let packets_max = alone / TAIL_HEADER_BYTES + 1;
        for (capacity, packets, bytes) in [
            (0, 0, Some(64)),
            (some, 0, Some(74)),
            (some, 1, Some(74)),
            (some, 2, Some(80 + 32)),
            (16, 3, Some(80 + 64)),
            (alone, 0, Some(most)),
            (alone, 1, Some(most)),
            (alone + 1, 1, None),
            (alone - TAIL_HEADER_BYTES, 2, Some(most)),
            (alone - TAIL_HEADER_BYTES + 1, 2, None),
            (0, packets_max, Some(most)),
            (0, packets_max + 1, None),
            (most + 1, 0, None),
            (usize::MAX, 1, None),
            (0, usize::MAX, None),
        ] {
            assert_eq!(block_bytes(capacity, packets), bytes, "{capacity} {packets}");
        }
    }

    #[test]
    fn meta__of_a_block_that_is_not_lent_out_has_no_message() {
        let shelf = NonNull::dangling();
        let Meta { shelf: home, next_idle, len, capacity, noted_packet_count, referred_len } =
            Meta::new(shelf);
        assert_eq!((home, next_idle), (shelf, None));
        assert_eq!((len, capacity, noted_packet_count, referred_len), (0, 0, 0, 0));
    }
}
