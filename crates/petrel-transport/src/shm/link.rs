//! The control plane's description of a peer over shared memory.

use super::bell::Bell;
use super::fds::PeerStream;
use super::mapping::RingMemory;
use super::ring::{Consumer, Producer};
use super::segment::{Segment, Side};
use crate::transport::LinkError;

/// A shared segment and the means to wake the peer.
#[derive(Debug)]
pub struct ShmLink {
    segment: Segment,
    side: Side,
    bell: PeerStream,
}

impl ShmLink {
    /// Creates a link over `segment` as `side`. `bell` is our end of a connection of the two
    /// processes for this link alone; the sides wake one another over the connection.
    /// [`Transport::add_peer`](crate::Transport::add_peer) checks the link.
    pub fn new(segment: Segment, side: Side, bell: impl Into<PeerStream>) -> Self {
        Self { segment, side, bell: bell.into() }
    }

    /// The largest frame, in bytes, in either direction.
    pub fn max_frame_bytes(&self) -> usize {
        self.segment.max_frame_bytes()
    }

    /// Checks the link and splits off the parts. Closes the segment's descriptor: the mapping is
    /// enough.
    pub(super) fn open(self) -> Result<OpenLink<Bell>, LinkError> {
        let bell = Bell::new(self.bell)?;
        let (outgoing, incoming) = self.segment.take_rings(self.side).ok_or_else(|| {
            LinkError::Unsupported(format!(
                "the segment's {:?} side is already in use; make a new segment for each link",
                self.side
            ))
        })?;
        Ok(OpenLink { outgoing, incoming, bell, max_frame_bytes: self.segment.max_frame_bytes() })
    }
}

/// The parts of a link the datapath uses.
#[derive(Debug)]
pub(super) struct OpenLink<B> {
    pub(super) outgoing: Producer<RingMemory>,
    pub(super) incoming: Consumer<RingMemory>,
    pub(super) bell: B,
    pub(super) max_frame_bytes: usize,
}
