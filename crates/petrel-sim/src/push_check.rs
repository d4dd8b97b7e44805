//! Checks the promise of [`Transport::push`] to leave the bytes of pushed frames in place.
//!
//! A transport may keep only the addresses of pushed frames until the next `flush` returns, as UDP does with large
//! frames. Therefore this module compares the bytes at the push with those at the flush. A core that changes, frees or returns a buffer in between would send other bytes over
//! a real transport; here the first changed frame causes a panic.
//!
//! [`Transport::push`]: petrel_transport::Transport::push

use petrel_proto::wire::Frame;

use crate::device::Device;
use crate::fabric::SimAddr;

/// Frames that were pushed and are not flushed yet.
#[derive(Debug, Default)]
pub(crate) struct PushedFrames {
    frames: Vec<PushedFrame>,
    /// The bytes of these frames at the time of the push, frame by frame.
    copies: Vec<u8>,
}

#[derive(Debug)]
struct PushedFrame {
    head: *const [u8],
    body: *const [u8],
    /// Whether the frame leaves by the device, and not by shared memory.
    by_device: bool,
}

impl PushedFrames {
    /// Records the address and the content of a frame.
    #[inline]
    pub(crate) fn note(&mut self, head: &[u8], body: &[u8], by_device: bool) {
        self.frames.push(PushedFrame { head, body, by_device });
        self.copies.extend_from_slice(head);
        self.copies.extend_from_slice(body);
    }

    /// Compares the frames of `sender`, and leaves them to the device, if there is one.
    ///
    /// # Safety
    /// The frames recorded since the last call are still at their addresses, and stay there for [`Device::take`].
    ///
    /// # Panics
    /// If a frame has changed.
    #[expect(unsafe_code, reason = "the addresses are what is to be checked")]
    pub(crate) unsafe fn check(&mut self, sender: SimAddr, device: Option<&Device>) {
        let mut copies = &self.copies[..];
        for frame in self.frames.drain(..) {
            // SAFETY: by this function's contract.
            let (head, body) = unsafe { (&*frame.head, &*frame.body) };
            let (copy, rest) = copies.split_at(head.len() + body.len());
            copies = rest;
            if (head, body) != copy.split_at(head.len()) {
                changed(sender, copy);
            }
            if let Some(device) = device.filter(|_| frame.by_device) {
                // SAFETY: by this function's contract.
                unsafe { device.take(frame.body, copy) };
            }
        }
        self.copies.clear();
    }
}

#[cold]
pub(crate) fn changed(sender: SimAddr, pushed: &[u8]) -> ! {
    let name = match Frame::parse(pushed) {
        Ok(frame) => frame.to_string(),
        Err(_) => format!("a frame of {} bytes", pushed.len()),
    };
    panic!("{sender} changed or freed {name} before it was read");
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the contract of `check` is kept, or broken without harm")]
mod tests {
    use super::*;
    use crate::fabric::HostId;

    const SENDER: SimAddr = SimAddr::new(HostId(0), 1);

    fn check(pushed: &mut PushedFrames) -> bool {
        // SAFETY: the tests keep all noted frames until the check.
        let check = || unsafe { pushed.check(SENDER, None) };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok()
    }

    #[test]
    fn check__of_frames_that_stay() {
        let mut pushed = PushedFrames::default();
        let (head, body) = (vec![1; 24], vec![2; 100]);
        pushed.note(&head, &body, false);
        pushed.note(&body, &[], false);
        assert!(check(&mut pushed));
        // The burst is over: the buffers may be freed.
        drop((head, body));
        assert!(check(&mut pushed));
    }

    #[test]
    fn check__of_a_frame_that_changes() {
        for (in_body, place) in [(false, 0), (false, 23), (true, 0), (true, 99)] {
            let mut pushed = PushedFrames::default();
            let (mut head, mut body) = (vec![1; 24], vec![2; 100]);
            pushed.note(&[7; 16], &[], false);
            pushed.note(&head, &body, false);
            let changed = if in_body { &mut body } else { &mut head };
            changed[place] ^= 1;
            assert!(!check(&mut pushed), "byte {place}");
        }
    }
}
