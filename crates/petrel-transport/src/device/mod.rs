//! Network devices without the kernel's network stack, as exits of the [UDP transport](crate::udp).
//!
//! | module | concern |
//! | --- | --- |
//! | `ether` | heads of Ethernet, IP and UDP; checksums; the ways to peers, asked of the kernel |
//! | `xdp` | AF_XDP: rings shared with the kernel, the program that chooses packets |
//! | `dpdk` | DPDK: a library that is opened at run time, and any device that it drives |
//! | `either` | a device of either kind |
//!
//! A device carries the same datagrams as a kernel socket, so that peers cannot tell the two apart.

pub mod dpdk;
pub(crate) mod either;
pub mod ether;
pub(crate) mod interface;
pub(crate) mod port;
pub(crate) mod simulated;
pub mod xdp;

/// A device's judgement about the UDP checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The device has not looked.
    Unknown,
    /// The checksum is right.
    Right,
    /// The checksum of UDP or of IP is wrong.
    Wrong,
}

/// A device that carries whole Ethernet frames.
///
/// A frame to send is written into the device's own memory, and belongs to the device from [`Nic::commit`] on. A received frame is lent from the
/// device's memory until [`Nic::release`] (eRPC §4.2.3).
pub trait Nic {
    /// Most bytes of a frame, its Ethernet head included.
    fn frame_bytes_max(&self) -> usize;

    /// The frames for which the device has memory to receive: more, unread, are lost.
    fn receive_frames(&self) -> usize;

    /// Returns true if the device has room for this number of frames to send.
    fn has_room(&mut self, frames: usize) -> bool;

    /// Returns memory of [`Nic::frame_bytes_max`] bytes for the next frame to send, or `None` while the device has no room. Without a
    /// [`Nic::commit`], the next call returns the same memory.
    fn begin(&mut self) -> Option<&mut [u8]>;

    /// Queues the frame that was begun, whose first `bytes` bytes are its contents.
    ///
    /// # Panics
    /// Without a frame that was begun, or with more bytes than its memory.
    fn commit(&mut self, bytes: usize);

    /// Lets the device send all queued frames. Returns the number of system calls.
    fn flush(&mut self) -> u64;

    /// Returns true if some queued frames wait for another [`Nic::flush`].
    fn has_unsent(&mut self) -> bool;

    /// Returns the oldest received frame, the same until [`Nic::release`]. Its bytes may be changed.
    fn received(&mut self) -> Option<&mut [u8]>;

    /// Returns true if [`Nic::received`] would return a frame.
    fn has_received(&mut self) -> bool;

    /// Like [`Nic::received`], with the device's judgement about the frame's checksums.
    #[inline]
    fn received_judged(&mut self) -> Option<(&mut [u8], Judgement)> {
        self.received().map(|frame| (frame, Judgement::Unknown))
    }

    /// Returns true if the device completes the UDP checksums of frames to send: the field then has the sum of the pseudo-header.
    #[inline]
    fn completes_sums(&self) -> bool {
        false
    }

    /// Gives the oldest received frame's memory back to the device. The device may learn of several at once, at the latest when
    /// [`Nic::received`] finds no frame.
    ///
    /// # Panics
    /// Without a received frame.
    fn release(&mut self);
}
