//! Message buffers: the application's view of message memory.

use std::fmt;
use std::ops::{Deref, DerefMut};

use petrel_proto::buffer::{Buffer, BufferPool, Placed};
use petrel_proto::limits::{PACKET_BYTES_MIN, packets_of};
use petrel_transport::buf::{BufPool, Growth, PacketBuf, PoolExhausted, SharedBuf};

/// A message in memory that transports can send from, with room for packet headers around it (eRPC §4.2.1).
///
/// A call takes both buffers by value and the continuation returns them; ownership prevents any access in between:
///
/// ```compile_fail
/// # use petrel::endpoint::SessionId;
/// # use petrel::{Context, MsgBuf, Reply};
/// fn too_late(cx: &mut Context<'_>, session: SessionId, mut request: MsgBuf, response: MsgBuf) {
///     let _ = cx.call(session, 1, request).into_buffer(response).then(|_, _, _| {});
///     request.set_message(b"changed under way"); // error: use of moved value
/// }
/// ```
///
/// It dereferences to the bytes of the message: [`MsgBuf::len`] of the [`MsgBuf::capacity`].
pub struct MsgBuf(PacketBuf);

impl MsgBuf {
    /// Takes a buffer of `capacity` bytes from a pool, with a message of the same length.
    #[inline]
    pub(crate) fn from_pool(pool: &BufPool, capacity: usize) -> Result<Self, PoolExhausted> {
        // Room for the headers of the smallest packets: the session is not known yet.
        pool.alloc(capacity, packets_max(capacity)).map(Self)
    }

    /// Takes a buffer from a pool, holding `message` and without room for more.
    #[inline(always)]
    pub(crate) fn holding(pool: &BufPool, message: &[u8]) -> Result<Self, PoolExhausted> {
        let mut buffer = Self::from_pool(pool, message.len())?;
        buffer.set_message(message);
        Ok(buffer)
    }

    /// Takes a buffer from a pool, holding `head` and `body` one after the other.
    pub(crate) fn holding_both(
        pool: &BufPool,
        head: &[u8],
        body: &[u8],
    ) -> Result<Self, PoolExhausted> {
        let mut buffer = Self::from_pool(pool, head.len() + body.len())?;
        buffer[..head.len()].copy_from_slice(head);
        buffer[head.len()..].copy_from_slice(body);
        Ok(buffer)
    }

    /// Returns an empty buffer to send a shared message from: see [`BufPool::reference`].
    pub(crate) fn reference(pool: &BufPool, message: &SharedBuf) -> Result<Self, PoolExhausted> {
        pool.reference(message, packets_max(message.len())).map(Self)
    }

    /// Returns true if a shared message is sent from this buffer.
    pub(crate) fn is_reference(&self) -> bool {
        self.0.wire_len() != self.0.len()
    }

    /// Empties a buffer that a shared message was sent from.
    pub(crate) fn release(&mut self) {
        self.0.release();
        self.0.set_len(0);
    }

    /// Waits until no device reads the message, whose call has ended without an answer.
    pub(crate) fn await_reads(&self, pool: &BufPool) {
        pool.await_reads(&self.0);
    }

    pub(crate) fn into_packet_buf(self) -> PacketBuf {
        self.0
    }

    pub(crate) fn from_packet_buf(buf: PacketBuf) -> Self {
        Self(buf)
    }

    /// Returns the length of the message in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the message is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Returns the most bytes that the buffer can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sets the message's length. Added bytes have unspecified values.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    /// Copies `message` into the buffer as its message.
    ///
    /// # Panics
    /// When `message` is longer than the capacity.
    #[inline(always)]
    pub fn set_message(&mut self, message: &[u8]) {
        self.0.set_message(message);
    }

    /// Lets a response longer than the capacity replace the buffer by a larger one, of up to `bytes_max`; 0 disables
    /// growth. For callers that do not know the response's length.
    #[inline]
    pub fn set_growth(&mut self, bytes_max: usize) {
        self.0.set_growth(bytes_max);
    }

    /// [`MsgBuf::set_growth`] with a prepared value.
    #[inline]
    pub(crate) fn store_growth(&mut self, growth: Growth) {
        self.0.store_growth(growth);
    }

    /// Returns all bytes of the buffer, including those beyond the message.
    #[inline]
    pub fn storage_mut(&mut self) -> &mut [u8] {
        self.0.storage_mut()
    }
}

impl Deref for MsgBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.data()
    }
}

impl DerefMut for MsgBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }
}

impl AsRef<[u8]> for MsgBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsgBuf({} of {} B)", self.len(), self.capacity())
    }
}

impl Buffer for MsgBuf {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn wire_len(&self) -> usize {
        self.0.wire_len()
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn memory_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn growth(&self) -> usize {
        self.0.growth()
    }

    fn set_growth(&mut self, bytes_max: usize) {
        self.0.set_growth(bytes_max);
    }

    #[inline(always)]
    fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    #[inline]
    fn storage_mut(&mut self) -> &mut [u8] {
        self.0.storage_mut()
    }

    #[inline(always)]
    fn set_message(&mut self, message: &[u8]) {
        self.0.set_message(message);
    }

    #[inline]
    fn address(&self) -> *const u8 {
        self.0.address()
    }

    #[inline]
    fn write_header(&mut self, index: u32, header: &[u8]) {
        self.0.write_header(index as usize, header);
    }

    #[inline]
    fn message(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn frame(&mut self, header: [u64; 2]) -> &[u8] {
        self.0.write_header_16(header);
        self.0.frame_16()
    }

    #[inline]
    fn timed_frame(&mut self, header: [u64; 3]) -> &[u8] {
        self.0.frame_24(header)
    }

    #[inline]
    fn pieces(&mut self, header: [u64; 2]) -> (&[u8], &[u8]) {
        self.0.write_header_16(header);
        self.0.packet(0, 16, 0, self.0.wire_len())
    }

    #[inline(always)]
    fn part(&mut self, index: u32, header: [u64; 3], offset: usize, len: usize) -> (&[u8], &[u8]) {
        self.0.part_24(index as usize, header, offset, len)
    }

    #[inline]
    fn packet(&self, index: u32, header_len: usize, offset: usize, len: usize) -> (&[u8], &[u8]) {
        self.0.packet(index as usize, header_len, offset, len)
    }
}

/// Returns the number of packets of a message in the smallest packets that a session may have.
#[inline]
fn packets_max(message_bytes: usize) -> usize {
    let bytes = u32::try_from(message_bytes).unwrap_or(u32::MAX);
    packets_of(bytes, PACKET_BYTES_MIN) as usize
}

/// The endpoint's pool, and the destinations of its methods, as the protocol core's buffer pool.
pub(crate) struct Pool<'a, F> {
    pool: &'a BufPool,
    /// Returns the application's memory for a request, by method, length and the first bytes, if known.
    destination: F,
}

impl<'a, F> Pool<'a, F> {
    /// Lends the protocol core a pool, and `destination`, which returns the application's memory.
    #[inline(always)]
    pub(crate) fn new(pool: &'a BufPool, destination: F) -> Self {
        Self { pool, destination }
    }
}

impl<F: FnMut(u16, usize, Option<&[u8]>) -> Option<Placed>> BufferPool for Pool<'_, F> {
    type Buffer = MsgBuf;

    fn take(&mut self, len: usize, packets: u32) -> Option<MsgBuf> {
        let mut buffer = MsgBuf(self.pool.alloc(len, packets as usize).ok()?);
        buffer.set_len(len);
        Some(buffer)
    }

    fn destination(&mut self, method: u16, len: usize, first: Option<&[u8]>) -> Option<Placed> {
        (self.destination)(method, len, first)
    }
}

#[cfg(test)]
mod tests {
    use petrel_transport::buf::PoolConfig;

    use super::*;

    #[test]
    fn is_empty__of_a_message_without_bytes() {
        let pool = BufPool::new(PoolConfig::default());
        let mut buffer = MsgBuf::from_pool(&pool, 8).unwrap();
        assert_eq!((buffer.is_empty(), buffer.len()), (false, 8));
        buffer.set_message(b"x");
        assert_eq!((buffer.is_empty(), buffer.len()), (false, 1));
        assert!(!MsgBuf::holding(&pool, b"y").unwrap().is_empty());
        buffer.set_message(b"");
        assert!(buffer.is_empty());
    }

    #[test]
    fn is_reference__of_a_message_that_lies_elsewhere_until_it_is_released() {
        let pool = BufPool::new(PoolConfig::default());
        let shared = SharedBuf::new(MsgBuf::holding(&pool, b"shared").unwrap().into_packet_buf());
        let mut reference = MsgBuf::reference(&pool, &shared).unwrap();
        assert!(reference.is_reference());
        reference.release();
        assert!(!reference.is_reference() && reference.is_empty());
        for len in [0, 1, 100, 5_000] {
            assert!(!MsgBuf::holding(&pool, &vec![7; len]).unwrap().is_reference(), "{len} bytes");
            assert!(!MsgBuf::from_pool(&pool, len).unwrap().is_reference(), "{len} bytes");
        }
    }
}
