//! The messages between the two processes.

use petrel_command::methods::sink_reply;
use petrel_command::payload::checksum;
use rustix::time::{ClockId, clock_gettime};

/// The method with simulated work.
pub(super) const WORK: u16 = 1;

/// The method that returns the counts since its last call.
pub(super) const TAKE: u16 = 2;

pub(super) const REQUEST_BYTES: usize = 32;
pub(super) const REPLY_BYTES: usize = 16;
pub(super) const DONE_BYTES: usize = 24;

/// Writes a request whose answer is useless after a time on the clock of [`now_ns`].
pub(super) fn write_request(request: &mut [u8], useful_until_ns: u64, number: u64) {
    request.fill(0);
    request[..8].copy_from_slice(&useful_until_ns.to_le_bytes());
    request[8..16].copy_from_slice(&number.to_le_bytes());
}

/// Returns the answer, which depends on every byte of the request.
pub(super) fn reply_to(request: &[u8]) -> [u8; REPLY_BYTES] {
    sink_reply(request.len(), checksum(request))
}

/// Returns the time after which the answer to a request is useless.
pub(super) fn useful_until_ns(request: &[u8]) -> Option<u64> {
    request.first_chunk().map(|ns| u64::from_le_bytes(*ns))
}

/// The counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) executed: u64,
    /// Executed requests that ended too late.
    pub(super) wasted: u64,
    /// Total busy time of the workers.
    pub(super) busy_ns: u64,
}

impl Done {
    pub(super) fn to_bytes(self) -> [u8; DONE_BYTES] {
        let mut bytes = [0; DONE_BYTES];
        let words = [self.executed, self.wasted, self.busy_ns];
        for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DONE_BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks();
        let [executed, wasted, busy_ns] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
        Some(Self { executed, wasted, busy_ns })
    }
}

/// Returns the time on a clock that all processes of a host share, unlike an endpoint's clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request__is_read_as_it_was_written() {
        let mut request = [7; REQUEST_BYTES];
        write_request(&mut request, 123, 4);
        assert_eq!(useful_until_ns(&request), Some(123));
        let reply = reply_to(&request);
        write_request(&mut request, 123, 5);
        assert_ne!(reply_to(&request), reply, "another number");
        assert_eq!(useful_until_ns(&request[..7]), None);
    }

    #[test]
    fn done__is_read_as_it_was_written() {
        let done = Done { executed: 1, wasted: 2, busy_ns: u64::MAX };
        assert_eq!(Done::from_bytes(&done.to_bytes()), Some(done));
        assert_eq!(Done::from_bytes(&[0; DONE_BYTES - 1]), None);
    }
}
