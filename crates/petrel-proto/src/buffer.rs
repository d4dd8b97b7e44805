//! What the core needs of a message buffer and of the pool it comes from.
//!
//! The core owns the buffers of a call from the call to its completion, by value; it never keeps
//! a reference beyond one method. What eRPC has to show by argument (§4.2.2: no queue refers to a
//! buffer that the application may touch), the compiler shows here.

use crate::limits::{HEADER_BYTES, PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES};

/// A message in contiguous memory, with room for packet headers before and after it
/// (eRPC §4.2.1).
pub trait Buffer {
    /// Length of the message in bytes.
    fn len(&self) -> usize;

    /// Whether the message is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of the message that is sent from here. It is another than [`Buffer::len`] only where
    /// that is 0 and the message lies elsewhere, shared with others who send it too: then the buffer
    /// gives its packets by [`Buffer::pieces`] and [`Buffer::part`], and not by [`Buffer::frame`].
    #[inline]
    fn wire_len(&self) -> usize {
        self.len()
    }

    /// Most bytes that the buffer can hold.
    fn capacity(&self) -> usize;

    /// Bytes of memory that the buffer takes, with its headers and what is lost to rounding.
    fn memory_bytes(&self) -> usize {
        self.capacity()
    }

    /// The most bytes that a larger buffer in this one's place may have, when a response turns out to
    /// be longer than the capacity; 0 if the caller wants none.
    fn growth(&self) -> usize {
        0
    }

    /// Sets the message's length, at most the capacity.
    fn set_len(&mut self, len: usize);

    /// The memory of the message: all `capacity` bytes.
    fn storage_mut(&mut self) -> &mut [u8];

    /// Makes `message` the message; it is at most as long as the capacity.
    #[inline]
    fn set_message(&mut self, message: &[u8]) {
        self.set_len(message.len());
        self.storage_mut()[..message.len()].copy_from_slice(message);
    }

    /// Where the buffer's memory begins, for who wants it in a cache before it is used; null if that
    /// has no use. Nothing is read to tell.
    fn address(&self) -> *const u8 {
        std::ptr::null()
    }

    /// Writes the header of packet `index` to the room kept for it.
    fn write_header(&mut self, index: u32, header: &[u8]);

    /// Writes the 16-byte header of a message that is sent in one packet, two words in little-endian
    /// order, and gives the whole frame: the header and the message behind it.
    fn frame(&mut self, header: [u64; 2]) -> &[u8];

    /// What [`Buffer::frame`] gives, in two parts where the message lies elsewhere.
    #[inline]
    fn pieces(&mut self, header: [u64; 2]) -> (&[u8], &[u8]) {
        (self.frame(header), &[])
    }

    /// Writes the header of packet `index`, three words in little-endian order, and gives what
    /// [`Buffer::packet`] does.
    #[inline]
    fn part(&mut self, index: u32, header: [u64; 3], offset: usize, len: usize) -> (&[u8], &[u8]) {
        let header: [u8; PART_HEADER_BYTES] = crate::wire::header_bytes(header);
        self.write_header(index, &header);
        self.packet(index, PART_HEADER_BYTES, offset, len)
    }

    /// The bytes of packet `index` in two parts, to be sent one after the other: its header, as
    /// written before, of `header_len` bytes, and the message's bytes from `offset` on. For packet
    /// 0 both are in the first part, and the second is empty.
    fn packet(&self, index: u32, header_len: usize, offset: usize, len: usize) -> (&[u8], &[u8]);
}

/// The payload of a frame, wherever it lies, on its way into a buffer.
pub trait Payload<B> {
    /// Its length in bytes.
    fn len(&self) -> usize;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes it the message of a buffer that has room for it.
    fn fill(self, buffer: &mut B);
}

/// A payload in private memory.
impl<B: Buffer> Payload<B> for &[u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn fill(self, buffer: &mut B) {
        buffer.set_message(self);
    }
}

/// Where the core gets buffers for requests of several packets.
pub trait BufferPool {
    /// The buffers of this pool.
    type Buffer: Buffer;

    /// A buffer for a message of `len` bytes, with its length set, and room for the headers of
    /// `packets` packets; `None` when the pool has no memory for it.
    fn take(&mut self, len: usize, packets: u32) -> Option<Self::Buffer>;
}

/// A plain buffer on the heap: for tests, fuzzing, and to see what [`Buffer`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapBuffer {
    /// Room for the first header, then the message.
    memory: Vec<u8>,
    len: usize,
    tail: Vec<[u8; 24]>,
}

const HEAP_HEAD: usize = PACKET_OVERHEAD_BYTES;

impl HeapBuffer {
    /// A buffer of `capacity` bytes for a message of up to `packets` packets, empty.
    pub fn new(capacity: usize, packets: u32) -> Self {
        Self {
            memory: vec![0; HEAP_HEAD + capacity],
            len: 0,
            tail: vec![[0; 24]; packets.max(1) as usize - 1],
        }
    }

    /// A buffer that holds `message`.
    pub fn from_message(message: &[u8], packets: u32) -> Self {
        let mut buffer = Self::new(message.len(), packets);
        buffer.set_len(message.len());
        buffer.storage_mut().copy_from_slice(message);
        buffer
    }

    /// The message.
    pub fn message(&self) -> &[u8] {
        &self.memory[HEAP_HEAD..HEAP_HEAD + self.len]
    }
}

impl Buffer for HeapBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.memory.len() - HEAP_HEAD
    }

    fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity());
        self.len = len;
    }

    fn storage_mut(&mut self) -> &mut [u8] {
        &mut self.memory[HEAP_HEAD..]
    }

    fn write_header(&mut self, index: u32, header: &[u8]) {
        match index {
            0 => self.memory[HEAP_HEAD - header.len()..HEAP_HEAD].copy_from_slice(header),
            _ => self.tail[index as usize - 1][..header.len()].copy_from_slice(header),
        }
    }

    fn frame(&mut self, header: [u64; 2]) -> &[u8] {
        let header: [u8; HEADER_BYTES] = crate::wire::header_bytes(header);
        self.write_header(0, &header);
        &self.memory[HEAP_HEAD - HEADER_BYTES..HEAP_HEAD + self.len]
    }

    fn packet(&self, index: u32, header_len: usize, offset: usize, len: usize) -> (&[u8], &[u8]) {
        match index {
            0 => (&self.memory[HEAP_HEAD - header_len..HEAP_HEAD + len], &[]),
            _ => (
                &self.tail[index as usize - 1][..header_len],
                &self.memory[HEAP_HEAD + offset..HEAP_HEAD + offset + len],
            ),
        }
    }
}

/// A pool of [`HeapBuffer`]s with a limit, in bytes, on each.
#[derive(Clone, Copy, Debug)]
pub struct HeapPool {
    /// Longest message for which a buffer is given.
    pub len_max: usize,
}

impl BufferPool for HeapPool {
    type Buffer = HeapBuffer;

    fn take(&mut self, len: usize, packets: u32) -> Option<HeapBuffer> {
        (len <= self.len_max).then(|| {
            let mut buffer = HeapBuffer::new(len, packets);
            buffer.set_len(len);
            buffer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a buffer says that tells no more of itself than it has to.
    #[test]
    fn buffer__without_words_of_its_own() {
        let mut buffer = HeapBuffer::new(100, 3);
        for len in [0, 1, 100] {
            buffer.set_len(len);
            assert_eq!((buffer.len(), buffer.wire_len(), buffer.is_empty()), (len, len, len == 0));
            assert_eq!((buffer.capacity(), buffer.memory_bytes(), buffer.growth()), (100, 100, 0));
            assert!(buffer.address().is_null());
            let payload: &[u8] = buffer.message();
            assert_eq!(Payload::<HeapBuffer>::is_empty(&payload), len == 0);
            assert_eq!(Payload::<HeapBuffer>::len(&payload), len);
        }
    }

    #[test]
    fn set_message__is_what_is_sent() {
        let mut buffer = HeapBuffer::new(6, 3);
        buffer.set_message(b"abcdef");
        buffer.set_message(b"xyz");
        assert_eq!(buffer.message(), b"xyz");
        assert_eq!(buffer.storage_mut(), b"xyzdef");
        let header = [1, 2].map(|word: u64| word.to_le_bytes()).concat();
        assert_eq!(buffer.frame([1, 2]), [&header[..], b"xyz"].concat());
        assert_eq!(buffer.pieces([1, 2]), (&[&header[..], b"xyz"].concat()[..], &[][..]));
        let header = [3, 4, 5].map(|word: u64| word.to_le_bytes()).concat();
        assert_eq!(buffer.part(0, [3, 4, 5], 0, 2), (&[&header[..], b"xy"].concat()[..], &[][..]));
        assert_eq!(buffer.part(2, [3, 4, 5], 2, 1), (&header[..], &b"z"[..]));
        assert_eq!(buffer.packet(2, 8, 1, 2), (&header[..8], &b"yz"[..]));
    }

    #[test]
    fn heap_pool__gives_up_to_its_limit() {
        let mut pool = HeapPool { len_max: 10 };
        assert_eq!(pool.take(10, 2).map(|buffer| (buffer.len(), buffer.tail.len())), Some((10, 1)));
        assert_eq!(pool.take(11, 2), None);
    }
}
