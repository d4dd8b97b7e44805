//! What computing costs in the experiments: what Petrel costs by `PERFORMANCE.md`.

use crate::fabric::CpuConfig;

/// Bytes that a core copies in a nanosecond, in messages of 8 MiB: "a core of this machine copies
/// 8 MiB at 14 GB/s".
const COPIED_BYTES_PER_NS: u64 = 14;

/// A small frame. 6.2 million RPCs per second over UDP with both ends on one core are 161 ns for four
/// frames: a request and an answer, each sent and received.
const FRAME_NS: u64 = 40;

/// A turn. By the rows of one, three and sixty RPCs in flight of the instruction counts, each turn costs
/// some 500 instructions beside those for its frames, at about 12 for a nanosecond of three cycles; and
/// a reading of the clock 20 ns.
const TURN_NS: u64 = 65;

/// Endpoints that exchange frames of up to so many bytes. The model has one price for all frames of an
/// experiment, sent or received, and it is that of a full one which is copied.
pub(super) const fn of_frames(bytes: usize) -> CpuConfig {
    let frame_ns = FRAME_NS + bytes as u64 / COPIED_BYTES_PER_NS;
    CpuConfig { poll_ns: TURN_NS, poll_jitter_ns: TURN_NS / 4, frame_ns }
}
