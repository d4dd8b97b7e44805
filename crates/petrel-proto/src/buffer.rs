//! The core's requirements of message buffers and of their pool.
//!
//! The core owns the buffers of a call from start to completion, by value, and keeps no reference beyond one
//! method. eRPC argues that no queue refers to a buffer that the application may touch (§4.2.2); here the
//! compiler proves the same.

use std::any::Any;
use std::fmt;

use crate::limits::{HEADER_BYTES, PACKET_OVERHEAD_BYTES, PART_HEADER_BYTES};

/// A message in contiguous memory, with room for packet headers before and after (eRPC §4.2.1).
pub trait Buffer {
    /// Returns the length of the message in bytes.
    fn len(&self) -> usize;

    /// Returns true if the message is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the length of the message to send. The length differs from [`Buffer::len`] only if `len` is 0
    /// and the message is in memory shared with other senders. Then the core uses [`Buffer::pieces`] and
    /// [`Buffer::part`] for the packets, and not [`Buffer::frame`].
    #[inline]
    fn wire_len(&self) -> usize {
        self.len()
    }

    /// Returns the capacity in bytes.
    fn capacity(&self) -> usize;

    /// Returns the bytes of memory that the buffer occupies, with its headers and the loss to rounding.
    fn memory_bytes(&self) -> usize {
        self.capacity()
    }

    /// Returns the largest capacity of a replacement, when a response exceeds the buffer's capacity; 0 if the
    /// caller wants no replacement.
    fn growth(&self) -> usize {
        0
    }

    /// Sets the growth of a replacement to the replaced buffer's: the caller may use the replacement for a further
    /// response. Buffers without replacements ignore it.
    fn set_growth(&mut self, bytes_max: usize) {
        let _ = bytes_max;
    }

    /// Sets the message's length, at most the capacity.
    fn set_len(&mut self, len: usize);

    /// Returns the message.
    #[inline]
    fn message(&self) -> &[u8] {
        self.packet(0, 0, 0, self.len()).0
    }

    /// Returns the memory of the message: all `capacity` bytes.
    fn storage_mut(&mut self) -> &mut [u8];

    /// Copies `message`, at most `capacity` bytes, into the buffer.
    #[inline]
    fn set_message(&mut self, message: &[u8]) {
        self.set_len(message.len());
        self.storage_mut()[..message.len()].copy_from_slice(message);
    }

    /// Returns the address of the buffer's memory, for prefetching; null if prefetching has no use. Reads
    /// none of that memory.
    fn address(&self) -> *const u8 {
        std::ptr::null()
    }

    /// Writes the header of packet `index` to its reserved room.
    fn write_header(&mut self, index: u32, header: &[u8]);

    /// Writes the 16-byte header of a message of one packet, two words in little-endian order. Returns the
    /// whole frame: the header and the message.
    fn frame(&mut self, header: [u64; 2]) -> &[u8];

    /// Like [`Buffer::frame`], with a header of three words.
    #[inline]
    fn timed_frame(&mut self, header: [u64; 3]) -> &[u8] {
        let len = self.len();
        self.part(0, header, 0, len).0
    }

    /// Like [`Buffer::frame`], in two parts if the message is in shared memory.
    #[inline]
    fn pieces(&mut self, header: [u64; 2]) -> (&[u8], &[u8]) {
        (self.frame(header), &[])
    }

    /// Writes the header of packet `index`, three words in little-endian order. Returns the packet like
    /// [`Buffer::packet`].
    #[inline]
    fn part(&mut self, index: u32, header: [u64; 3], offset: usize, len: usize) -> (&[u8], &[u8]) {
        let header: [u8; PART_HEADER_BYTES] = crate::wire::header_bytes(header);
        self.write_header(index, &header);
        self.packet(index, PART_HEADER_BYTES, offset, len)
    }

    /// Returns packet `index` in two parts, to be sent in sequence: its header of `header_len` bytes, written
    /// before, and the message's bytes from `offset` on. For packet 0 both are in the first part, and the
    /// second is empty.
    fn packet(&self, index: u32, header_len: usize, offset: usize, len: usize) -> (&[u8], &[u8]);
}

/// The payload of a frame in any kind of memory, to be copied to a buffer.
pub trait Payload<B> {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns true if the payload is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the payload to a buffer with enough room, as its message.
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

/// The source of buffers for requests of several packets.
pub trait BufferPool {
    /// The buffers of this pool.
    type Buffer: Buffer;

    /// Returns a buffer for a message of `len` bytes, with its length set and room for the headers of
    /// `packets` packets; `None` if the pool has no memory.
    fn take(&mut self, len: usize, packets: u32) -> Option<Self::Buffer>;

    /// Returns memory of the application for a request of `len` bytes in several packets, one of which has
    /// arrived; `None` for a buffer. `first` is the payload of packet 0, if that is the packet, and the request
    /// has no place in an order. May be asked twice for a request, and then the first result is dropped.
    fn destination(&mut self, _method: u16, _len: usize, _first: Option<&[u8]>) -> Option<Placed> {
        None
    }
}

/// Memory of the application in which a large request is put together, instead of in a buffer.
pub trait Destination: Any {
    /// Stores bytes of the request, which begin at `offset`. The packets come in any order, and once each. Some may
    /// never come.
    fn store(&mut self, offset: usize, bytes: &[u8]);

    /// Returns the bytes of memory that the destination occupies while the request arrives. The client is charged for
    /// the bytes, as for a buffer's.
    fn held_bytes(&self) -> usize;

    /// Returns true if the stored bytes have an effect before the handler runs: other requests may have seen them. A request
    /// that is given up then ends with an outcome unknown to its client; without an effect it is refused, and the client may
    /// call again.
    fn has_effect(&self) -> bool {
        false
    }
}

impl Destination for Vec<u8> {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn held_bytes(&self) -> usize {
        self.capacity()
    }
}

/// The [`Destination`] of a request.
pub struct Placed(Box<dyn Destination>);

impl Placed {
    /// Wraps a destination.
    pub fn new(destination: impl Destination) -> Self {
        Self(Box::new(destination))
    }

    /// Returns the destination by its type.
    ///
    /// # Panics
    /// When it has another type.
    pub fn into_inner<D: Destination>(self) -> D {
        let destination: Box<dyn Any> = self.0;
        *destination.downcast().expect("a request's destination has the type that its method names")
    }

    /// Returns the destination, if it has this type.
    pub(crate) fn get_mut<D: Destination>(&mut self) -> Option<&mut D> {
        let destination: &mut dyn Any = &mut *self.0;
        destination.downcast_mut()
    }

    #[inline]
    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.0.store(offset, bytes);
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    /// Returns true if the stored bytes have an effect already; see [`Destination::has_effect`].
    pub fn has_effect(&self) -> bool {
        self.0.has_effect()
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({} bytes held)", self.held_bytes())
    }
}

/// A plain buffer on the heap, for tests and fuzzing, and as an example of [`Buffer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapBuffer {
    /// Room for the first header, then the message.
    memory: Vec<u8>,
    len: usize,
    tail: Vec<[u8; 24]>,
}

const HEAP_HEAD: usize = PACKET_OVERHEAD_BYTES;

impl HeapBuffer {
    /// Makes an empty buffer of `capacity` bytes for a message of up to `packets` packets.
    pub fn new(capacity: usize, packets: u32) -> Self {
        Self {
            memory: vec![0; HEAP_HEAD + capacity],
            len: 0,
            tail: vec![[0; 24]; packets.max(1) as usize - 1],
        }
    }

    /// Makes a buffer that holds `message`.
    pub fn from_message(message: &[u8], packets: u32) -> Self {
        let mut buffer = Self::new(message.len(), packets);
        buffer.set_len(message.len());
        buffer.storage_mut().copy_from_slice(message);
        buffer
    }

    /// Returns the message.
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

/// A pool of [`HeapBuffer`]s with a limit on their size.
#[derive(Clone, Copy, Debug)]
pub struct HeapPool {
    /// Longest message, in bytes.
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

    /// The default methods of a buffer that implements only the required ones.
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
