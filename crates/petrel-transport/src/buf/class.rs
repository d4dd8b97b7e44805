//! Size classes: powers of two and the half steps between them, 128, 192, 256, 384, 512, ...
//!
//! Half steps bound the waste to a third. All sizes are multiples of 64, so blocks cut from an
//! aligned region are aligned to a cache line.

/// The smallest block: head room and a small message.
const SMALLEST_BLOCK_BYTES: usize = 128;

/// The largest block: the class above 1 GiB. It holds the protocol's largest message, 1 GiB, with
/// the headers of its packets even at the smallest MTU: 1 GiB / 1200 B × 32 B is 27.3 MiB. The
/// pool's limit bounds the mapped bytes; of a mapped block only the touched pages take memory.
pub const LARGEST_BLOCK_BYTES: usize = 3 << 29;

pub(super) const CLASS_COUNT: usize = class_of(LARGEST_BLOCK_BYTES).0 as usize + 1;

/// A size class: a power of two (even) or the half step above it (odd).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    /// Size of this class's blocks.
    #[inline]
    pub(super) fn block_bytes(self) -> usize {
        (SMALLEST_BLOCK_BYTES << (self.0 >> 1)) / 2 * (2 + usize::from(self.0 & 1))
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// All sizes are multiples of this.
const SIZE_STEP_BYTES: usize = 64;

/// Blocks up to this size find their class in a table.
const TABLE_BYTES_MAX: usize = 4096;

/// The classes of blocks of 0, 64, 128, ... bytes.
const TABLE: [Class; TABLE_BYTES_MAX / SIZE_STEP_BYTES + 1] = {
    let mut table = [Class(0); TABLE_BYTES_MAX / SIZE_STEP_BYTES + 1];
    let mut steps = 0;
    while steps < table.len() {
        table[steps] = computed_class_of(steps * SIZE_STEP_BYTES);
        steps += 1;
    }
    table
};

/// Returns the smallest class whose blocks hold `bytes`, at most [`LARGEST_BLOCK_BYTES`].
///
/// The table saves 13 of the 48 instructions that allocating and freeing a small buffer takes.
#[inline]
pub(super) const fn class_of(bytes: usize) -> Class {
    if bytes <= TABLE_BYTES_MAX {
        return TABLE[bytes.div_ceil(SIZE_STEP_BYTES)];
    }
    computed_class_of(bytes)
}

const fn computed_class_of(bytes: usize) -> Class {
    assert!(bytes <= LARGEST_BLOCK_BYTES);
    // The two highest bits of the block's last offset decide: its power of two, and the half of the
    // range up to the next power.
    let least = SMALLEST_BLOCK_BYTES - 1;
    let last = if bytes > least { bytes - 1 } else { least };
    let power = last.ilog2();
    let half = (last >> (power - 1)) as u32 & 1;
    Class((2 * power + half - FIRST_HALVES) as u8)
}

/// The half steps below the first class: the last offset of the smallest block lies in the upper
/// half of the range from 64 to 128.
const FIRST_HALVES: u32 = 2 * (SMALLEST_BLOCK_BYTES.ilog2() - 1) + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_of__is_the_first_that_fits() {
        let sizes: Vec<usize> = (0..CLASS_COUNT).map(|i| Class(i as u8).block_bytes()).collect();
        assert_eq!(sizes[..6], [128, 192, 256, 384, 512, 768]);
        assert_eq!(sizes[CLASS_COUNT - 1], LARGEST_BLOCK_BYTES);
        for (index, &size) in sizes.iter().enumerate() {
            assert_eq!(size % SIZE_STEP_BYTES, 0);
            assert_eq!(class_of(size).index(), index);
            assert_eq!(class_of(size - 1).index(), index);
            if size < LARGEST_BLOCK_BYTES {
                assert_eq!(class_of(size + 1).index(), index + 1);
            }
        }
        assert_eq!(class_of(0), Class(0));
    }
}
