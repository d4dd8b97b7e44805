//! Limits and settings of the shared-memory transport.

use std::ops::RangeInclusive;

use super::error::ShmError;
use super::ring::max_frame_limit;
use crate::transport::MIN_FRAME_BYTES;

/// Smallest ring, in bytes: room for several frames of [`MIN_FRAME_BYTES`] and whole pages on every
/// architecture.
pub const MIN_RING_BYTES: usize = 64 << 10;

/// Largest ring, in bytes. More than any pair of processes has in flight at once; bounds the memory
/// a peer can make us map.
pub const MAX_RING_BYTES: usize = 1 << 30;

/// Default ring, in bytes. The ring holds 63 frames of the default largest size, nearly a whole
/// burst: a sender can write while the receiver reads. Two default rings are about the size of a
/// core's second-level cache.
pub const DEFAULT_RING_BYTES: usize = 1 << 20;

/// Default largest frame, in bytes: 16 KiB of data and a generous header. A large message then
/// takes 512 packets per 8 MiB, where copying dominates, not the cost per packet.
pub const DEFAULT_MAX_FRAME_BYTES: usize = (16 << 10) + 64;

/// Default limit of peers. The limit bounds the memory peers can make an endpoint map (two rings
/// per peer, touched on use) and the time to go to sleep, with a visit to every ring.
pub const DEFAULT_MAX_PEERS: usize = 1024;

/// Ring sizes for a simulator. The smallest holds two of the smallest frames that every transport
/// must carry.
pub(super) const DETACHED_RING_BYTES: RangeInclusive<usize> = 4 << 10..=MIN_RING_BYTES;

const _: () = assert!(MIN_FRAME_BYTES <= max_frame_limit(MIN_RING_BYTES));
const _: () = assert!(MIN_FRAME_BYTES <= max_frame_limit(*DETACHED_RING_BYTES.start()));
const _: () = assert!(DEFAULT_MAX_FRAME_BYTES <= max_frame_limit(DEFAULT_RING_BYTES));
const _: () = assert!(DEFAULT_RING_BYTES >= MIN_RING_BYTES && DEFAULT_RING_BYTES <= MAX_RING_BYTES);
// Lengths of frames are `u32` in a record and in the segment's header.
const _: () = assert!(max_frame_limit(MAX_RING_BYTES) < u32::MAX as usize);

/// Settings of one [`Shm`](super::Shm) and of newly created segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Size of each of a pair's two rings in bytes: a power of two from [`MIN_RING_BYTES`] to
    /// [`MAX_RING_BYTES`]. The creator of a segment decides.
    pub ring_bytes: usize,
    /// Largest frame in bytes: at least [`MIN_FRAME_BYTES`], and at most half of the ring less 8
    /// bytes of record header. With a quarter or less, the two sides work concurrently. The creator
    /// of a segment decides.
    ///
    /// A message in one frame is copied once, by its sender, if the receiver's handler reads in the
    /// ring (`on_in_place`); otherwise once more. Large frames pay where the ring stays in a cache
    /// the two cores share; see the [module](super#large-frames).
    pub max_frame_bytes: usize,
    /// Try huge pages for new segments, with normal pages as the fallback.
    pub huge_pages: bool,
    /// Most peers at a time.
    pub max_peers: usize,
    /// The endpoint polls for ever and never calls [`Transport::wait`](crate::Transport::wait).
    /// Its peers then save a memory fence per burst.
    pub never_sleeps: bool,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            ring_bytes: DEFAULT_RING_BYTES,
            max_frame_bytes: DEFAULT_MAX_FRAME_BYTES,
            huge_pages: false,
            max_peers: DEFAULT_MAX_PEERS,
            never_sleeps: false,
        }
    }
}

impl ShmConfig {
    /// Checks that the settings are possible.
    ///
    /// # Errors
    /// [`ShmError::Config`] names the setting and its limits.
    pub fn validate(&self) -> Result<(), ShmError> {
        Geometry::new(self.ring_bytes, self.max_frame_bytes)?;
        if self.max_peers == 0 || self.max_peers > u32::MAX as usize {
            return Err(ShmError::Config {
                setting: "max_peers",
                value: self.max_peers,
                expected: format!("1 to {}", u32::MAX),
            });
        }
        Ok(())
    }
}

/// Validated sizes the two sides of a segment agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    ring_bytes: usize,
    max_frame_bytes: usize,
}

impl Geometry {
    pub(super) fn new(ring_bytes: usize, max_frame_bytes: usize) -> Result<Self, ShmError> {
        Self::within(MIN_RING_BYTES..=MAX_RING_BYTES, ring_bytes, max_frame_bytes)
    }

    /// Sizes for a pair within one process: also allows small rings.
    pub(super) fn detached(ring_bytes: usize, max_frame_bytes: usize) -> Result<Self, ShmError> {
        Self::within(DETACHED_RING_BYTES, ring_bytes, max_frame_bytes)
    }

    fn within(
        rings: RangeInclusive<usize>,
        ring_bytes: usize,
        max_frame_bytes: usize,
    ) -> Result<Self, ShmError> {
        let error = |setting, value, expected| Err(ShmError::Config { setting, value, expected });
        if !ring_bytes.is_power_of_two() || !rings.contains(&ring_bytes) {
            let expected = format!("a power of two from {} to {}", rings.start(), rings.end());
            return error("ring_bytes", ring_bytes, expected);
        }
        let limit = max_frame_limit(ring_bytes);
        if !(MIN_FRAME_BYTES..=limit).contains(&max_frame_bytes) {
            let expected = format!("{MIN_FRAME_BYTES} to {limit} with this ring_bytes");
            return error("max_frame_bytes", max_frame_bytes, expected);
        }
        Ok(Self { ring_bytes, max_frame_bytes })
    }

    pub(super) fn ring_bytes(self) -> usize {
        self.ring_bytes
    }

    pub(super) fn max_frame_bytes(self) -> usize {
        self.max_frame_bytes
    }
}
