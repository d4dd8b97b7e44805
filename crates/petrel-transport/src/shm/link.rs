//! What the control plane hands to an endpoint to reach a peer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::mapping::RingMemory;
use super::ring::{Consumer, Producer};
use super::segment::{Segment, Side};
use crate::transport::LinkError;

/// A shared segment and the means to wake the peer.
#[derive(Debug)]
pub struct ShmLink {
    segment: Segment,
    side: Side,
    peer_wake: OwnedFd,
}

impl ShmLink {
    /// A link over `segment` as its `side`. `peer_wake` is the descriptor of the peer endpoint's
    /// [`Waker`](crate::wake::Waker). Everything is checked when the link is added to a transport.
    pub fn new(segment: Segment, side: Side, peer_wake: OwnedFd) -> Self {
        Self { segment, side, peer_wake }
    }

    /// The largest frame, in bytes, in either direction.
    pub fn max_frame_bytes(&self) -> usize {
        self.segment.max_frame_bytes()
    }

    /// Checks the parts and takes them apart. The segment's descriptor is closed: the mapping is
    /// enough.
    pub(super) fn open(self) -> Result<OpenLink, LinkError> {
        let doorbell = Doorbell::new(self.peer_wake)?;
        let (outgoing, incoming) = self.segment.take_rings(self.side).ok_or_else(|| {
            LinkError::Unsupported(format!(
                "the segment's {:?} side is already in use; make a new segment for each link",
                self.side
            ))
        })?;
        Ok(OpenLink {
            outgoing,
            incoming,
            doorbell,
            max_frame_bytes: self.segment.max_frame_bytes(),
        })
    }
}

/// The parts of a link that the datapath uses.
#[derive(Debug)]
pub(super) struct OpenLink {
    pub(super) outgoing: Producer<RingMemory>,
    pub(super) incoming: Consumer<RingMemory>,
    pub(super) doorbell: Doorbell,
    pub(super) max_frame_bytes: usize,
}

/// Wakes a peer that sleeps.
#[derive(Debug)]
pub(super) struct Doorbell {
    event: OwnedFd,
}

impl Doorbell {
    /// Takes a peer's `eventfd`. A descriptor of another kind might block or signal us.
    fn new(event: OwnedFd) -> Result<Self, LinkError> {
        if is_eventfd(event.as_fd()) == Some(false) {
            let kind = "the peer's wake-up descriptor is not an eventfd";
            return Err(LinkError::Unsupported(kind.to_owned()));
        }
        let flags = fcntl_getfl(&event).map_err(std::io::Error::from)?;
        fcntl_setfl(&event, flags | OFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Self { event })
    }

    pub(super) fn ring(&self) {
        // EAGAIN: the counter is full, so that the peer is awake or about to be. A peer that is
        // gone does not mind.
        while rustix::io::write(&self.event, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

/// `None` where the kernel does not tell (no `/proc`).
fn is_eventfd(fd: BorrowedFd<'_>) -> Option<bool> {
    use std::os::fd::AsRawFd;
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(target.as_os_str() == "anon_inode:[eventfd]")
}
