//! Large writes, whose packets go to the region as they arrive.

use petrel_planted::planted;
use petrel_proto::buffer::Destination;
use petrel_transport::SharedBytes;
use petrel_transport::words::{WORD_BYTES, WordMemory};

use super::access::Access;
use super::registry::{NO_REGION, View, find};
use super::wire;
use super::wire::{HEADER_BYTES, Header, Refusal};
use crate::sync::Arc;

// The first packet of a WRITE has the whole header, by which its region is found.
const _: () = assert!(HEADER_BYTES < petrel_proto::limits::PACKET_BYTES_MIN as usize);

// The data behind the header has whole words if the packet has.
const _: () = assert!((HEADER_BYTES as u64).is_multiple_of(WORD_BYTES));

/// A large WRITE: packets go to the region on arrival, and bytes are copied once.
///
/// Between packets, the region may be revoked. The rest of the bytes is then dropped, and the operation refused.
pub(crate) struct Writing {
    view: Arc<View>,
    header: Header,
    bytes: u64,
    /// True when the first bytes have been written: others may have read them.
    has_written: bool,
    /// False when the region was revoked before all bytes had come.
    is_alive: bool,
}

impl Writing {
    /// Begins an operation whose first packet has arrived, if the operation is allowed, and no two packets share a word: the word would be
    /// torn between their arrivals. Other operations are left to the handler, to be executed as a whole, or refused.
    pub(crate) fn begin(view: &Arc<View>, len: usize, first: &[u8]) -> Option<Self> {
        let (header, _) = wire::with_data(first).ok()?;
        let bytes = (len - HEADER_BYTES) as u64;
        (header.offset() | first.len() as u64).is_multiple_of(WORD_BYTES).then_some(())?;
        let state = view.lock();
        let entry = find(&state.entries, &header, Access::WRITE).ok()?;
        let words = entry.memory().words();
        words.contains(header.offset(), bytes).then_some(())?;
        drop(state);
        Some(Self { view: Arc::clone(view), header, bytes, has_written: false, is_alive: true })
    }

    /// Ends an operation with all bytes of its request.
    pub(crate) fn end(self) -> Result<(), Refusal> {
        let state = &mut *self.view.lock();
        let is_registered = find(&state.entries, &self.header, Access::WRITE).is_ok();
        if !(self.is_alive && is_registered) {
            return Err(NO_REGION);
        }
        state.stats.writes += 1;
        state.stats.bytes_written += self.bytes;
        Ok(())
    }
}

impl Destination for Writing {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let skipped = self.header_bytes(offset);
        self.write(offset + skipped, |words, at| words.write(at, &bytes[skipped..]));
    }

    fn held_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn has_effect(&self) -> bool {
        self.has_written
    }
}

impl Writing {
    /// Stores bytes like [`Destination::store`], by one copy: their sender may still change them.
    pub(crate) fn store_shared(&mut self, offset: usize, bytes: SharedBytes<'_>) {
        let skipped = self.header_bytes(offset);
        let data = bytes.slice(skipped..bytes.len());
        self.write(offset + skipped, |words, at| words.write_shared(at, data));
    }

    /// Returns the bytes of the header in the packet that begins at this offset of the request.
    fn header_bytes(&self, offset: usize) -> usize {
        if offset == 0 { HEADER_BYTES } else { 0 }
    }

    /// Writes bytes that begin at an offset of the request, if the key still grants it.
    fn write(&mut self, offset: usize, write: impl FnOnce(&WordMemory, u64)) {
        let at = self.header.offset() + (offset - HEADER_BYTES) as u64;
        let state = self.view.lock();
        match find(&state.entries, &self.header, Access::WRITE) {
            Ok(entry) => {
                self.has_written = true;
                write(entry.memory().words(), at);
            }
            Err(_) => {
                self.is_alive = false;
                self.has_written &= !planted("region_refused_write_without_effect");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::Status;

    use super::super::memory::RegionMemory;
    use super::super::registry::{Region, Regions};
    use super::*;

    fn region(access: Access) -> (Regions, Region) {
        let regions = Regions::new();
        let region = regions.register(RegionMemory::private(100).unwrap(), access).unwrap();
        (regions, region)
    }

    #[test]
    fn writing__is_begun_only_if_the_operation_is_allowed() {
        let (regions, region) = region(Access::READ | Access::WRITE);
        let reader = region.register_with(Access::READ).unwrap();
        let begins = |key: &Region, offset: u64, len: usize, first: usize| {
            let request = Header::new(key.key(), offset, 0).followed_by(&vec![6; len]);
            let view = Arc::new(regions.view());
            Writing::begin(&view, request.len(), &request[..first]).is_some()
        };
        assert!(begins(&region, 0, 100, 40) && begins(&region, 56, 44, 64));
        assert!(!begins(&region, 64, 40, 64), "beyond the end");
        assert!(!begins(&region, u64::MAX - 7, 40, 64), "an end that overflows");
        assert!(!begins(&region, 0, 100, 44), "two packets share a word");
        assert!(!begins(&region, 4, 40, 64), "two packets share a word of the region");
        assert!(!begins(&reader, 0, 40, 64), "no right");
        assert!(!begins(&region, 0, 40, 23), "no header");
        let key = region.key();
        drop(region);
        assert_eq!(regions.stats().regions, 1);
        let request = Header::new(key, 0, 0).followed_by(&[6; 40]);
        assert!(Writing::begin(&Arc::new(regions.view()), 64, &request).is_none(), "revoked");
    }

    /// A revocation between two packets.
    #[test]
    fn writing__of_a_region_that_is_revoked_stops_there() {
        let (regions, region) = region(Access::READ | Access::WRITE);
        let reader = region.register_with(Access::READ).unwrap();
        let request = Header::new(region.key(), 8, 0).followed_by(&[6; 72]);
        let view = Arc::new(regions.view());
        let mut writing = Writing::begin(&view, request.len(), &request[..32]).unwrap();
        writing.store(0, &request[..32]);
        writing.store(64, &request[64..]);
        drop(region);
        // The number belongs to another region now.
        let next = regions.register(RegionMemory::private(100).unwrap(), Access::WRITE).unwrap();
        writing.store(32, &request[32..64]);
        assert!(writing.has_effect(), "others may have read the bytes before");
        assert_eq!(
            writing.end().err().map(|refusal| refusal.status()),
            Some(Status::PermissionDenied)
        );
        let (mut all, mut other) = ([0; 100], [0; 100]);
        reader.read(0, &mut all).unwrap();
        next.read(0, &mut other).unwrap();
        let mut expected = [0; 100];
        expected[8..16].fill(6);
        expected[48..80].fill(6);
        assert_eq!((all, other), (expected, [0; 100]));
        assert_eq!(regions.stats().writes, 0);
    }
}
