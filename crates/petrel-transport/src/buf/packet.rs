//! One message with room for the headers of its packets. The [parent module](super) draws the
//! layout and explains why the unsafe code is sound.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use crate::copy::{copy_out_of_line, copy_short};

use super::class::{Class, LARGEST_BLOCK_BYTES};

/// Room before the data: for the pool's meta data of the block, and the header of packet 0.
pub const HEAD_ROOM_BYTES: usize = 64;

/// Room directly before the data for the header of packet 0.
pub const FIRST_HEADER_BYTES: usize = 32;

/// Room behind the data for the header of each packet after the first.
pub const TAIL_HEADER_BYTES: usize = 32;

/// The byte that a poisoning pool writes over a returned buffer. No ASCII text contains the byte.
pub const POISON_BYTE: u8 = 0xDB;

/// Bits of [`Meta::noted_packet_count`] that count packets.
const PACKET_COUNT_BITS: u32 = 26;
const PACKET_COUNT_MASK: u32 = (1 << PACKET_COUNT_BITS) - 1;

const TAIL_ALIGN_BYTES: usize = 8;

const _: () = {
    assert!(size_of::<PacketBuf>() == 8 && size_of::<Option<PacketBuf>>() == 8);
    assert!(size_of::<Meta>() + FIRST_HEADER_BYTES <= HEAD_ROOM_BYTES);
    assert!(LARGEST_BLOCK_BYTES <= u32::MAX as usize);
    assert!(LARGEST_BLOCK_BYTES / TAIL_HEADER_BYTES <= PACKET_COUNT_MASK as usize);
};

/// Appends a message to `to`, with a few further bytes behind it. A short message for which `to` has room is copied
/// without a call of `memcpy`.
#[inline(always)]
pub fn append_message<const N: usize>(message: &[u8], tail: [u8; N], to: &mut Vec<u8>) {
    let room = to.capacity() - to.len();
    match message.len() {
        len @ 16..=64 if len + N <= room => {
            // SAFETY: the room behind the vector's bytes holds both, and then belongs to the vector.
            unsafe {
                let end = to.as_mut_ptr().add(to.len());
                copy_short(message, end);
                end.add(len).copy_from_nonoverlapping(tail.as_ptr(), N);
                to.set_len(to.len() + len + N);
            }
        }
        len => {
            to.reserve(len + N);
            to.extend_from_slice(message);
            to.extend_from_slice(&tail);
        }
    }
}

/// The start of a block. It shares the first cache line with the header of packet 0.
#[repr(C)]
pub(super) struct Meta {
    /// The shelf to which the block returns. Written once, when the block is made.
    pub(super) shelf: NonNull<Shelf>,
    /// The next idle block, while this block is idle.
    pub(super) next_idle: Option<NonNull<Meta>>,
    len: u32,
    capacity: u32,
    /// The most packets of the message, and above [`PACKET_COUNT_BITS`] the result of
    /// [`PacketBuf::growth`], as a power of two.
    noted_packet_count: u32,
    /// Length of the referenced message; 0 in a block with data. Only blocks of the shelves for
    /// references ever have a nonzero value.
    pub(super) referred_len: u32,
}

impl Meta {
    /// The meta data of a block before it is lent out.
    pub(super) fn new(shelf: NonNull<Shelf>) -> Self {
        Self { shelf, next_idle: None, len: 0, capacity: 0, noted_packet_count: 0, referred_len: 0 }
    }

    /// The most bytes of the message; 0 of a reference.
    pub(super) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The most packets in which the message may be sent.
    #[inline]
    pub(super) fn packet_count(&self) -> usize {
        (self.noted_packet_count & PACKET_COUNT_MASK) as usize
    }
}

/// The blocks of one class. A shelf does not move while the pool lives: blocks point to the shelf.
#[derive(Debug)]
pub(super) struct Shelf {
    first_idle: Cell<Option<NonNull<Meta>>>,
    lent_count: Cell<usize>,
    class: Class,
    /// Set if a returned block needs more work: it is a reference, the pool poisons, or only
    /// buffers keep the pool alive. One test covers all three cases, and costs nothing more in the
    /// usual case.
    on_return: Cell<Option<OnReturn>>,
}

impl Shelf {
    pub(super) fn new(class: Class) -> Self {
        let (first_idle, on_return) = (Cell::new(None), Cell::new(None));
        Self { first_idle, lent_count: Cell::new(0), class, on_return }
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    pub(super) fn lent_count(&self) -> usize {
        self.lent_count.get()
    }

    /// A block of the shelf is lent out.
    #[inline]
    pub(super) fn lend_one(&self) {
        self.lent_count.set(self.lent_count.get() + 1);
    }

    /// Sets the work for a block that comes back.
    pub(super) fn set_on_return(&self, on_return: Option<OnReturn>) {
        self.on_return.set(on_return);
    }

    #[inline]
    pub(super) fn block_bytes(&self) -> usize {
        self.class.block_bytes()
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<NonNull<Meta>> {
        let block = self.first_idle.get()?;
        // SAFETY: a block on the list is idle and begins with its meta data.
        self.first_idle.set(unsafe { (*block.as_ptr()).next_idle });
        Some(block)
    }

    /// Takes the first block off the free list, as if lent out again. Returns false if `block` is
    /// another one.
    pub(super) fn take_off(&self, block: NonNull<Meta>) -> bool {
        self.lend_one();
        self.pop() == Some(block)
    }

    /// Visits all blocks of the free list.
    pub(super) fn for_each_idle(&self, mut look: impl FnMut(NonNull<Meta>)) {
        let mut next = self.first_idle.get();
        while let Some(block) = next {
            look(block);
            // SAFETY: a block on the list is idle and begins with its meta data.
            next = unsafe { (*block.as_ptr()).next_idle };
        }
    }

    /// Removes the blocks for which `keeps` returns false from the free list.
    pub(super) fn retain_idle(&self, keeps: impl Fn(NonNull<Meta>) -> bool) {
        let mut kept = None;
        while let Some(block) = self.pop() {
            if keeps(block) {
                // SAFETY: the block was on the list until now, is idle, and begins with its meta data.
                unsafe { (*block.as_ptr()).next_idle = kept };
                kept = Some(block);
            }
        }
        self.first_idle.set(kept);
    }

    /// Puts a block on the free list, without the work for returned blocks.
    ///
    /// # Safety
    /// That of [`Shelf::put_back`].
    #[inline]
    pub(super) unsafe fn shelve(block: NonNull<Meta>) {
        // SAFETY: the block begins with its meta data, with a pointer to the shelf; a shelf lives
        // as long as any block of the shelf is lent out.
        let shelf = unsafe { (*block.as_ptr()).shelf.as_ref() };
        // SAFETY: the block belongs to the pool again.
        unsafe { (*block.as_ptr()).next_idle = shelf.first_idle.get() };
        shelf.first_idle.set(Some(block));
        shelf.lent_count.set(shelf.lent_count.get() - 1);
    }

    /// Puts a returned block on the free list.
    ///
    /// # Safety
    /// `block` was lent out by [`BufPool::alloc`](super::BufPool::alloc), and is no longer used.
    #[inline]
    pub(super) unsafe fn put_back(block: NonNull<Meta>) {
        // SAFETY: by this function's contract; a shelf lives as long as any block of the shelf is
        // lent out.
        let shelf = unsafe {
            Self::shelve(block);
            (*block.as_ptr()).shelf.as_ref()
        };
        if let Some(OnReturn { pool, run }) = shelf.on_return.get() {
            // SAFETY: the pool is alive, and the block belongs to the pool and is on the free list.
            unsafe { run(pool, block) };
        }
    }
}

/// Work of a pool for a block that comes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnReturn {
    pub(super) pool: NonNull<()>,
    /// # Safety
    /// The pool is alive, and the block is an idle block of the pool.
    pub(super) run: unsafe fn(NonNull<()>, NonNull<Meta>),
}

/// Memory of one message: a pointer to its block. On drop, the memory returns to the pool.
pub struct PacketBuf {
    pub(super) block: NonNull<Meta>,
}

/// How large a replacement of a buffer may be: the value of [`PacketBuf::growth`], ready to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Growth(u32);

impl Growth {
    /// Returns the growth up to `bytes_max`, or to the next power of two above; 0 allows none.
    #[inline]
    pub fn up_to(bytes_max: usize) -> Self {
        let log2 = match bytes_max {
            0 => 0,
            _ => bytes_max.min(1 << 31).next_power_of_two().trailing_zeros().max(1),
        };
        Self(log2 << PACKET_COUNT_BITS)
    }
}

/// Returns the size of a block for these needs, or `None` if no block is large enough.
#[inline]
pub(super) fn block_bytes(capacity: usize, packet_count: usize) -> Option<usize> {
    if packet_count <= 1 && capacity <= LARGEST_BLOCK_BYTES - HEAD_ROOM_BYTES {
        // Without a tail, no alignment is needed.
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

/// Overwrites the bytes that frames of a block's last message could show: the headers, and the data
/// up to the message's length at the return. Unfilled room stays untouched, since a write would be
/// the first use of the pages.
///
/// # Safety
/// The block is on its free list, was lent out before, and is not in use.
pub(super) unsafe fn poison(block: NonNull<Meta>) {
    // SAFETY: the block begins with its `Meta`.
    let meta = unsafe { block.as_ref() };
    let (capacity, start) = (meta.capacity as usize, size_of::<Meta>());
    let Some(end) = block_bytes(capacity, meta.packet_count()) else {
        unreachable!("a block was made for them");
    };
    let data_end = HEAD_ROOM_BYTES + meta.len as usize;
    let tail = tail_offset(capacity).min(end);
    // SAFETY: the block has `end` bytes, since `PacketBuf::new` got a block for these needs. A
    // length is no more than its capacity. The caller guarantees that nothing else reads or writes
    // the block.
    unsafe {
        block.cast::<u8>().add(start).write_bytes(POISON_BYTE, data_end - start);
        block.cast::<u8>().add(tail).write_bytes(POISON_BYTE, end - tail);
    }
}

impl PacketBuf {
    /// # Safety
    /// `block` is off its free list, not used elsewhere, of at least [`block_bytes`] for `capacity`
    /// and `packet_count`, and begins with a [`Meta`].
    #[inline]
    pub(super) unsafe fn new(block: NonNull<Meta>, capacity: usize, packet_count: usize) -> Self {
        // SAFETY: by this function's contract, the block begins with a `Meta`, and belongs to the
        // caller.
        unsafe {
            (*block.as_ptr()).len = capacity as u32;
            (*block.as_ptr()).capacity = capacity as u32;
            (*block.as_ptr()).noted_packet_count = packet_count as u32;
        }
        Self { block }
    }

    /// The start of the block. No slice from a `PacketBuf` reaches there.
    #[inline]
    pub(super) fn meta(&self) -> &Meta {
        // SAFETY: the block belongs to `self` and begins with a `Meta` (`new`).
        unsafe { self.block.as_ref() }
    }

    /// The address of the block, for prefetching.
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

    /// Length in bytes of the message to be sent: the buffer's own message, or the
    /// [referenced](super::BufPool::reference) message.
    #[inline]
    pub fn wire_len(&self) -> usize {
        // At least one of the two is 0.
        self.meta().len.max(self.meta().referred_len) as usize
    }

    /// The most bytes of the message.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.meta().capacity as usize
    }

    /// The most packets in which the message may be sent.
    #[inline]
    pub fn packet_count(&self) -> usize {
        self.meta().packet_count()
    }

    /// Bytes of memory the buffer occupies, headers and rounding included.
    pub fn block_bytes(&self) -> usize {
        // SAFETY: the shelf lives as long as any of its blocks is lent out.
        unsafe { self.meta().shelf.as_ref() }.block_bytes()
    }

    /// The most bytes of a larger buffer that may replace this one: a note for the buffer's user,
    /// initially 0.
    #[inline]
    pub fn growth(&self) -> usize {
        match self.meta().noted_packet_count >> PACKET_COUNT_BITS {
            0 => 0,
            log2 => 1 << log2,
        }
    }

    /// Sets the value for [`growth`](PacketBuf::growth): `bytes_max`, or the next power of two
    /// above.
    #[inline]
    pub fn set_growth(&mut self, bytes_max: usize) {
        self.store_growth(Growth::up_to(bytes_max));
    }

    /// Sets a prepared value for [`growth`](PacketBuf::growth).
    #[inline]
    pub fn store_growth(&mut self, growth: Growth) {
        let noted = self.packet_count() as u32 | growth.0;
        // SAFETY: the block belongs to `self`, and begins with a `Meta`.
        unsafe { (*self.block.as_ptr()).noted_packet_count = noted };
    }

    /// Changes the length. Added bytes keep their old contents: fresh memory, or an earlier message
    /// of this pool.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        if len > self.capacity() {
            exceeds(len, self.capacity());
        }
        // SAFETY: the block belongs to `self`, and begins with a `Meta`.
        unsafe { (*self.block.as_ptr()).len = len as u32 };
    }

    /// The message.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.bytes(HEAD_ROOM_BYTES, self.len())
    }

    /// The message, for writing.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(HEAD_ROOM_BYTES, self.len())
    }

    /// Replaces the message by `message`. A short one is copied without a call of `memcpy`.
    ///
    /// # Panics
    /// When `message` is longer than the capacity.
    #[inline(always)]
    pub fn set_message(&mut self, message: &[u8]) {
        self.set_len(message.len());
        let to = self.data_mut().as_mut_ptr();
        // SAFETY: the data now has `message.len()` bytes, and `self` is borrowed exclusively.
        unsafe {
            match message.len() {
                16..=64 => copy_short(message, to),
                _ => copy_out_of_line(message, to),
            }
        }
    }

    /// The whole capacity, for callers that assemble a message from packets in any order.
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(HEAD_ROOM_BYTES, self.capacity())
    }

    /// Writes the header of packet `index`. The header of packet 0 ends where the data begins.
    ///
    /// # Panics
    /// When there is no packet `index`, or the header exceeds [`FIRST_HEADER_BYTES`] (packet 0) or
    /// [`TAIL_HEADER_BYTES`] (later packets).
    #[inline]
    pub fn write_header(&mut self, index: usize, header: &[u8]) {
        let offset = self.header_offset(index, header.len());
        self.bytes_mut(offset, header.len()).copy_from_slice(header);
    }

    /// Writes a header of 16 bytes for packet 0 from two little-endian words.
    #[inline]
    pub fn write_header_16(&mut self, words: [u64; 2]) {
        let bytes = self.bytes_mut(HEAD_ROOM_BYTES - 16, 16);
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    }

    /// Returns the header of 16 bytes and the whole message, like [`packet`](PacketBuf::packet) for
    /// a message of one packet.
    #[inline]
    pub fn frame_16(&self) -> &[u8] {
        self.bytes(HEAD_ROOM_BYTES - 16, 16 + self.len())
    }

    /// Writes a header of 24 bytes for packet 0 from three little-endian words, and returns the
    /// header and the whole message.
    #[inline]
    pub fn frame_24(&mut self, words: [u64; 3]) -> &[u8] {
        let bytes = self.bytes_mut(HEAD_ROOM_BYTES - 24, 24);
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..16].copy_from_slice(&words[1].to_le_bytes());
        bytes[16..].copy_from_slice(&words[2].to_le_bytes());
        self.bytes(HEAD_ROOM_BYTES - 24, 24 + self.len())
    }

    /// Returns packet `index` as a transport sends it, in head and body: a header of `header_len`
    /// bytes and `payload_len` bytes of data from `offset` on. Packet 0 is all head, except in a
    /// reference.
    ///
    /// # Panics
    /// When there is no packet `index`, the header exceeds its room, the payload reaches beyond the
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

    /// Writes a header of 24 bytes for packet `index` from three little-endian words, and returns
    /// the result of [`packet`](PacketBuf::packet).
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

    /// [`packet`](PacketBuf::packet) for a payload outside this block: in the referenced message,
    /// or nowhere. Ordinary buffers come here only to panic, and thus pay nothing for references.
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

    /// Callers have checked the range to lie in the block, behind the [`Meta`].
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.debug_check(offset, len);
        // SAFETY: every caller's range lies in the room for the first header, in the capacity or in
        // the tail, which `new`'s contract puts inside the block; the block is initialised and
        // borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.block.cast::<u8>().add(offset).as_ptr(), len) }
    }

    /// Callers have checked the range to lie in the block, behind the [`Meta`].
    #[inline]
    fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.debug_check(offset, len);
        // SAFETY: as in `bytes`; `self` is borrowed exclusively and owns the block alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.cast::<u8>().add(offset).as_ptr(), len) }
    }

    #[inline]
    fn debug_check(&self, offset: usize, len: usize) {
        debug_assert!(offset >= size_of::<Meta>());
        // SAFETY: a shelf lives as long as any of its blocks is lent out.
        debug_assert!(offset + len <= unsafe { self.meta().shelf.as_ref() }.block_bytes());
    }
}

/// Out of line, to keep the check short wherever it is inlined.
#[cold]
#[inline(never)]
fn exceeds(len: usize, capacity: usize) -> ! {
    panic!("length {len} above the capacity {capacity}")
}

impl Drop for PacketBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the shelf lent out the block, and all borrows of the block ended with the borrow
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
