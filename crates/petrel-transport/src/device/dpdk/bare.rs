//! A port without endpoints, for benchmarks: frames leave and arrive as they are.

use super::super::Nic;
use super::frames::Frames;
use super::table::{Frame, PortInfo, Queues};
use super::{ETHERNET_BYTES, eal};

/// The port of one thread.
pub struct Bare {
    queues: Queues,
    info: PortInfo,
    frames: Frames,
    /// A burst, within a call.
    burst: Vec<Frame>,
}

impl Bare {
    /// Starts DPDK with the arguments of two devices, before an endpoint does: the first device is for the endpoints, and the other is this port.
    ///
    /// # Errors
    /// The shim or a device is missing, or DPDK refuses.
    ///
    /// # Safety
    /// As long as this value sends or receives, the peer of the port stays, and so does the port's device: here no gate keeps DPDK's thread from the
    /// rings (see the [module](super)).
    pub unsafe fn open(arguments: &str) -> Result<Self, String> {
        let (queues, info) = eal::start_with_bare(arguments)?;
        // SAFETY: nothing else uses the port.
        if !unsafe { queues.start() } {
            return Err(format!("DPDK cannot start {}", info.name()));
        }
        Ok(Self { queues, info, frames: Frames::default(), burst: Vec::new() })
    }

    /// Returns true once the port has a peer.
    pub fn is_up(&self) -> bool {
        self.queues.is_up()
    }
}

impl Nic for Bare {
    fn frame_bytes_max(&self) -> usize {
        ETHERNET_BYTES + usize::from(self.info.mtu_bytes)
    }

    fn receive_frames(&self) -> usize {
        self.info.receive_frames.into()
    }

    #[inline]
    fn has_room(&mut self, frames: usize) -> bool {
        self.frames.has_room(self.queues.table(), frames)
    }

    #[inline]
    fn begin(&mut self) -> Option<&mut [u8]> {
        let frame_bytes_max = self.frame_bytes_max();
        self.frames.begin(self.queues.table(), frame_bytes_max)
    }

    #[inline]
    fn commit(&mut self, bytes: usize) {
        self.frames.commit(bytes, false);
    }

    #[inline]
    fn flush(&mut self) -> u64 {
        // SAFETY: by the promise of `open`.
        unsafe { self.queues.send_now(&mut self.frames.pending) };
        0
    }

    fn has_unsent(&mut self) -> bool {
        !self.frames.pending.is_empty()
    }

    #[inline]
    fn received(&mut self) -> Option<&mut [u8]> {
        if self.frames.ready.is_empty() {
            // SAFETY: by the promise of `open`.
            unsafe { self.queues.receive_now(&mut self.burst) };
            self.frames.ready.extend(self.burst.drain(..));
        }
        self.frames.ready.front_mut().map(Frame::bytes)
    }

    fn has_received(&mut self) -> bool {
        self.received().is_some()
    }

    #[inline]
    fn release(&mut self) {
        self.frames.release();
    }
}
