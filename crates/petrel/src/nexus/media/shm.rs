//! Shared memory: rings that the two processes exchange at a rendezvous.

use petrel_proto::control::{MAX_FRAME_BYTES_MAX, MAX_FRAME_BYTES_MIN, Offer};
use petrel_transport::shm::ShmConfig;

use super::{Agreed, Ends, Medium, Meeting, Obstacle, ObstacleAt, Opening};
use crate::nexus::attach::ShmAttach;

/// The kind of offers of shared memory.
pub(in crate::nexus) const KIND: u8 = 2;

/// An endpoint's shared memory, if it uses any.
#[derive(Debug)]
pub(in crate::nexus) struct SharedMemory {
    attach: Option<ShmAttach>,
}

impl SharedMemory {
    pub(super) fn new(attach: Option<ShmAttach>) -> Self {
        Self { attach }
    }

    /// The settings, with frames of up to `max_frame` bytes.
    fn config(&self, max_frame: u32) -> ShmConfig {
        let config = self.attach.map(|attach| attach.config).unwrap_or_default();
        ShmConfig { max_frame_bytes: max_frame as usize, ..config }
    }
}

impl<L> Medium<L> for SharedMemory {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn title(&self) -> &'static str {
        "shared memory"
    }

    fn kind(&self) -> u8 {
        KIND
    }

    fn is_missed(&self) -> bool {
        true
    }

    /// Offers shared memory to a peer of this host and user.
    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle> {
        let Some(shm) = self.attach else {
            let text = "the endpoint does not use shared memory";
            return Err(Obstacle::new(ObstacleAt::Endpoint, text));
        };
        check_meeting(ends.meeting)?;
        let max_frame = shm.config.max_frame_bytes.min(MAX_FRAME_BYTES_MAX as usize) as u32;
        if max_frame < MAX_FRAME_BYTES_MIN {
            let text = format!("shared memory with frames of only {max_frame} bytes");
            return Err(Obstacle::new(ObstacleAt::Process, text));
        }
        Ok(Offer::Shm { max_frame })
    }

    fn open(&self, agreed: Agreed) -> Opening<L> {
        Opening::Memory(self.config(agreed.max_frame))
    }
}

fn check_meeting(meeting: Meeting) -> Result<(), Obstacle> {
    let (at, text) = match meeting {
        Meeting::Possible => return Ok(()),
        Meeting::ProcessWithout => {
            (ObstacleAt::Process, "shared memory is off or impossible in the process")
        }
        Meeting::NoHello => (ObstacleAt::Peer, "the peer has not said HELLO"),
        Meeting::Elsewhere => (
            ObstacleAt::Peer,
            "the two processes are not of one host and user, or one has no shared memory",
        ),
    };
    Err(Obstacle::new(at, text))
}
