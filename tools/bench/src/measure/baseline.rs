//! The baselines: equal messages in equal bursts, without a protocol.
//!
//! Every medium is used with its full efficiency; otherwise the library would look too good. The
//! baselines have no sessions, no loss recovery, and no flow control except a number in flight. Lost
//! messages are counted, and the measurement continues without them.
//!
//! | | latency | rate | bandwidth |
//! | --- | --- | --- | --- |
//! | shared memory | [`mailbox`]: a message on its own cache lines | [`ring`]: batches of 16 | [`bulk`]: 8 KiB chunks in and out |
//! | UDP, by the kernel or by a [`device`] | [`echo`]: a datagram there and back | 30 datagrams per call, by GSO and GRO | [`stream`]: GSO and GRO, 512 KiB in flight |
//! | `--beside tcp` | [`tcp`]: a message to and fro | [`tcp`]: ready messages leave together | |

pub(super) mod bulk;
#[cfg(feature = "full")]
pub(super) mod device;
pub(super) mod echo;
pub(super) mod mailbox;
pub(super) mod ring;
pub(super) mod socket;
pub(super) mod stream;
pub(super) mod tcp;

use petrel_command::output::latency::Latencies;
use petrel_proto::limits::HEADER_BYTES;
use petrel_transport::clock;

use super::window::Window;

/// Returns the bytes that the library puts on the medium for a small message of `size` bytes.
pub(super) fn message_bytes(size: usize) -> usize {
    HEADER_BYTES + size
}

/// Returns `message_bytes` in whole words.
fn message_words(size: usize) -> usize {
    message_bytes(size).div_ceil(size_of::<u64>())
}

/// A window's counts so far.
#[derive(Clone, Copy, Debug, Default)]
struct WindowCounts {
    calls: u64,
    answered: u64,
    mismatched: u64,
    lost: u64,
    bytes: u64,
}

impl WindowCounts {
    fn finish(self, started_ns: u64, latencies: Option<Latencies>) -> Window {
        Window {
            calls: self.calls,
            checked: self.answered,
            mismatched: self.mismatched,
            lost: self.lost,
            bytes: self.bytes,
            elapsed_ns: clock::now_ns() - started_ns,
            ..Window::new(latencies)
        }
    }
}
