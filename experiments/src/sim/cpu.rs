//! The cost of computing in the experiments: Petrel's cost according to `PERFORMANCE.md`.

use petrel_sim::fabric::CpuConfig;

/// Bytes that a core copies in a nanosecond, in messages of 8 MiB: "a core of this machine copies 8 MiB at
/// 14 GB/s".
const COPIED_BYTES_PER_NS: u64 = 14;

/// The cost of a small frame. 6.2 million RPCs per second over UDP with both ends on one core are 161 ns
/// for four frames: request and answer, sent and received.
const FRAME_NS: u64 = 40;

/// The cost of a turn. By the instruction counts for one, three and sixty RPCs in flight, a turn costs some
/// 500 instructions in addition to its frames, at about 12 per nanosecond of three cycles. A reading of the
/// clock costs 20 ns.
const TURN_NS: u64 = 65;

/// The settings of experiments about the network alone: a frame costs so little that no core is the
/// bottleneck of a host that sends and receives 40 Gbit/s in datagrams of 1 472 bytes.
pub(super) const NEARLY_FREE: CpuConfig =
    CpuConfig { poll_ns: TURN_NS, poll_jitter_ns: TURN_NS / 4, frame_ns: 20 };

/// Returns the settings of endpoints that exchange frames of up to `bytes`. The model has one price for all
/// frames of an experiment, sent or received: the price of a full, copied frame.
pub(super) const fn of_frames(bytes: usize) -> CpuConfig {
    let frame_ns = FRAME_NS + bytes as u64 / COPIED_BYTES_PER_NS;
    CpuConfig { poll_ns: TURN_NS, poll_jitter_ns: TURN_NS / 4, frame_ns }
}
