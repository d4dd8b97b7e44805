//! The circular log of items.
//!
//! Positions count bytes since the first append, and never repeat. The log holds the items from `tail` to `head`; a
//! position before the tail leads nowhere any more, so releasing an item needs no look at the index. An item does not
//! cross the end of the memory: a gap before the end is padding.

use super::header::{HEADER_BYTES, Header};
use crate::pages::Pages;

/// Items begin at multiples of a word.
const WORD_BYTES: u64 = 8;

/// Bits of a position, in words, that an entry of the index keeps.
pub(super) const OFFSET_BITS: u32 = 44;

/// Bits of a position, in bytes, after which offsets repeat.
pub(super) const POSITION_BITS: u32 = OFFSET_BITS + WORD_BYTES.trailing_zeros();

const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

pub(super) struct Log {
    memory: Pages,
    capacity: u64,
    /// Bytes that the items may take: a part of the capacity, at the wish of an operator.
    limit: u64,
    head: u64,
    tail: u64,
    /// The position of the memory's first byte in the head's lap.
    lap: u64,
    /// No item ends before this second: the least expiry that was written.
    least_expiry: u32,
}

/// The object at the tail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Oldest {
    /// Bytes without an item.
    Padding { position: u64, bytes: u64 },
    /// An item, perhaps dead.
    Item { position: u64, header: Header },
}

impl Log {
    /// An empty log with this memory. Positions begin at `start`: a test begins shortly before offsets repeat.
    pub(super) fn new(bytes: u64, start: u64) -> Self {
        let capacity = bytes / WORD_BYTES * WORD_BYTES;
        let start = start / WORD_BYTES * WORD_BYTES;
        Self {
            memory: Pages::new(capacity as usize),
            capacity,
            limit: capacity,
            head: start,
            tail: start,
            lap: start,
            least_expiry: u32::MAX,
        }
    }

    /// Returns true if an item may have ended by this second.
    pub(super) fn may_have_expired(&self, now: u32) -> bool {
        self.least_expiry <= now
    }

    /// Forgets the expiries of all items, which the owner writes anew.
    pub(super) fn forget_expiries(&mut self) {
        self.least_expiry = u32::MAX;
    }

    #[inline]
    fn note_expiry(&mut self, header: &Header) {
        if header.expiry != 0 {
            self.least_expiry = self.least_expiry.min(header.expiry);
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The position of the next item.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that no item takes.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.head - self.tail)
    }

    /// Bytes that the items may take.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Leaves some bytes of the memory unused, but for a half of it.
    pub(super) fn leave_unused(&mut self, bytes: u64) {
        self.limit = self.capacity - bytes.min(self.capacity / 2);
    }

    pub(super) fn is_beyond_limit(&self) -> bool {
        self.head - self.tail > self.limit
    }

    /// Bytes from an item to the head: its age.
    #[inline]
    pub(super) fn age(&self, position: u64) -> u64 {
        self.head - position
    }

    /// The part of a position that the index keeps.
    #[inline]
    pub(super) fn offset(position: u64) -> u64 {
        (position / WORD_BYTES) & OFFSET_MASK
    }

    /// Returns the position of an offset, unless the log has released it.
    #[inline]
    pub(super) fn position(&self, offset: u64) -> Option<u64> {
        let head = self.head / WORD_BYTES;
        let age = head.wrapping_sub(offset) & OFFSET_MASK;
        // No item begins at the head.
        let position = (head.checked_sub(age)?) * WORD_BYTES;
        (self.tail <= position && position < self.head).then_some(position)
    }

    /// The place in memory of a position.
    #[inline]
    fn place(&self, position: u64) -> usize {
        let place = match position.checked_sub(self.lap) {
            Some(place) => place,
            None => self.capacity - (self.lap - position),
        };
        place as usize
    }

    /// The address of an item: for a prefetch, not for reading.
    #[inline]
    pub(super) fn line(&self, position: u64) -> *const u8 {
        self.memory.bytes().as_ptr().wrapping_add(self.place(position))
    }

    #[inline]
    pub(super) fn header(&self, position: u64) -> Header {
        let place = self.place(position);
        let bytes = self.memory.bytes()[place..].first_chunk();
        Header::decode(bytes.expect("an item has a header"))
    }

    #[inline]
    pub(super) fn set_header(&mut self, position: u64, header: Header) {
        self.note_expiry(&header);
        let place = self.place(position);
        self.memory.bytes_mut()[place..place + HEADER_BYTES].copy_from_slice(&header.encode());
    }

    #[inline]
    pub(super) fn key(&self, position: u64, header: &Header) -> &[u8] {
        let start = self.place(position) + HEADER_BYTES;
        &self.memory.bytes()[start..start + header.key_bytes()]
    }

    #[inline]
    pub(super) fn value(&self, position: u64, header: &Header) -> &[u8] {
        let start = self.place(position) + HEADER_BYTES + header.key_bytes();
        &self.memory.bytes()[start..start + header.value_bytes()]
    }

    /// Writes another header and value over an item that takes the same space.
    pub(super) fn overwrite(&mut self, position: u64, header: Header, value: &[u8]) {
        assert_eq!(header.space(), self.header(position).space(), "another item would be damaged");
        let start = self.place(position) + HEADER_BYTES + header.key_bytes();
        self.memory.bytes_mut()[start..start + value.len()].copy_from_slice(value);
        self.set_header(position, header);
    }

    /// The free bytes that an item of this space needs, with the padding before it.
    pub(super) fn needed(&self, space: u64) -> u64 {
        let left = self.capacity - self.place_of_head();
        if space <= left { space } else { left + space }
    }

    fn place_of_head(&self) -> u64 {
        self.head - self.lap
    }

    /// Appends an item and returns its position. The caller has made room.
    pub(super) fn append(&mut self, header: Header, key: &[u8], value: &[u8]) -> u64 {
        let space = header.space();
        assert!(self.needed(space) <= self.free(), "{space} bytes do not fit");
        assert_eq!((key.len(), value.len()), (header.key_bytes(), header.value_bytes()));
        self.pad(space);
        self.note_expiry(&header);
        let (position, place) = (self.head, self.place_of_head() as usize);
        let item = &mut self.memory.bytes_mut()[place..place + space as usize];
        item[..HEADER_BYTES].copy_from_slice(&header.encode());
        item[HEADER_BYTES..][..key.len()].copy_from_slice(key);
        item[HEADER_BYTES + key.len()..][..value.len()].copy_from_slice(value);
        self.head += space;
        position
    }

    /// Moves the head to the next lap if an item of this space does not fit before the end of the memory.
    fn pad(&mut self, space: u64) {
        let (place, left) = (self.place_of_head() as usize, self.capacity - self.place_of_head());
        if space <= left {
            return;
        }
        if left >= HEADER_BYTES as u64 {
            self.memory.bytes_mut()[place..place + HEADER_BYTES].fill(0);
        }
        self.head += left;
        self.lap = self.head;
    }

    /// Returns the object at the tail; `None` if the log is empty.
    pub(super) fn oldest(&self) -> Option<Oldest> {
        self.object(self.tail)
    }

    /// Returns the object behind another; `None` at the head.
    pub(super) fn after(&self, object: Oldest) -> Option<Oldest> {
        self.object(match object {
            Oldest::Padding { position, bytes } => position + bytes,
            Oldest::Item { position, header } => position + header.space(),
        })
    }

    fn object(&self, position: u64) -> Option<Oldest> {
        if position == self.head {
            return None;
        }
        let bytes = self.capacity - self.place(position) as u64;
        if bytes < HEADER_BYTES as u64 {
            return Some(Oldest::Padding { position, bytes });
        }
        let header = self.header(position);
        Some(match header.key_bytes() {
            0 => Oldest::Padding { position, bytes },
            _ => Oldest::Item { position, header },
        })
    }

    /// Gives the space of the object at the tail back.
    pub(super) fn release(&mut self, oldest: Oldest) {
        self.tail += match oldest {
            Oldest::Padding { bytes, .. } => bytes,
            Oldest::Item { position, header } => {
                assert_eq!(position, self.tail, "items are released in their order");
                header.space()
            }
        };
        assert!(self.tail <= self.head, "the tail has passed the head");
    }

    /// Releases all items.
    pub(super) fn clear(&mut self) {
        self.tail = self.head;
    }

    /// Releases all items, and leaves the positions of the next `bytes` out.
    pub(super) fn skip(&mut self, bytes: u64) {
        let bytes = bytes / WORD_BYTES * WORD_BYTES;
        (self.head, self.lap) = (self.head + bytes, self.lap + bytes);
        self.clear();
    }
}
