//! A free list of dropped pools' regions, for later pools of their thread.
//!
//! A simulator makes and drops thousands of pools a second. With fresh memory for every pool, page
//! faults took a fifth of its time. Only poisoning pools take part: their regions hold no message
//! when they arrive here.

use std::cell::RefCell;

use super::region::Region;

/// Most bytes a thread keeps.
const KEPT_ANSWER_BYTES_MAX: usize = 64 << 20;

/// Larger regions return to the operating system: few of their pages were touched.
const SPARE_REGION_BYTES_MAX: usize = 2 << 20;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Spare { regions: Vec::new(), bytes: 0 }) };
}

struct Spare {
    /// The last region is the warmest.
    regions: Vec<Region>,
    bytes: usize,
}

impl Spare {
    fn take(&mut self, bytes: usize) -> Option<Region> {
        let at = self.regions.iter().rposition(|region| region.bytes() == bytes)?;
        self.bytes -= bytes;
        Some(self.regions.remove(at))
    }

    /// Keeps a region, or returns the region if there is no room.
    fn keep(&mut self, region: Region) -> Option<Region> {
        let bytes = region.bytes();
        if bytes > SPARE_REGION_BYTES_MAX || self.bytes + bytes > KEPT_ANSWER_BYTES_MAX {
            return Some(region);
        }
        self.bytes += bytes;
        self.regions.push(region);
        None
    }
}

/// Returns a kept region of `bytes` bytes, if any, with the contents from the last pool.
pub(super) fn take(bytes: usize) -> Option<Region> {
    SPARE.try_with(|spare| spare.borrow_mut().take(bytes)).ok().flatten()
}

/// Keeps or unmaps a region released by a pool.
pub(super) fn keep(region: Region) {
    // An ending thread keeps nothing: the region is dropped with the closure.
    let _ = SPARE.try_with(move |spare| drop(spare.borrow_mut().keep(region)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: usize) -> Region {
        Region::zeroed(bytes, false).unwrap()
    }

    #[test]
    fn take__gives_the_region_of_this_size_that_came_last() {
        let (first, other, last) = (region(8192), region(4096), region(8192));
        let start = last.start();
        [first, last, other].into_iter().for_each(keep);
        assert_eq!(take(8192).unwrap().start(), start);
        assert!(take(8192).is_some() && take(8192).is_none() && take(4096).is_some());
    }

    #[test]
    fn keep__gives_back_to_the_system_once_it_holds_its_limit() {
        let mut spare = Spare { regions: Vec::new(), bytes: 0 };
        assert!(spare.keep(region(SPARE_REGION_BYTES_MAX + 4096)).is_some());
        for _ in 0..KEPT_ANSWER_BYTES_MAX / SPARE_REGION_BYTES_MAX {
            assert!(spare.keep(region(SPARE_REGION_BYTES_MAX)).is_none());
        }
        assert!(spare.keep(region(4096)).is_some());
        assert!(spare.take(SPARE_REGION_BYTES_MAX).is_some());
        assert!(spare.keep(region(4096)).is_none());
    }
}
