//! Frames over a TCP connection to the address of the control connection, for peers that datagrams do not reach.

use petrel_proto::control::Offer;
use petrel_transport::stream::STREAM_FRAME_BYTES;

use super::{Agreed, Ends, Medium, Obstacle, ObstacleAt, Opening};

/// The kind of offers of streams.
pub(in crate::nexus) const KIND: u8 = 3;

/// Whether an endpoint uses streams.
#[derive(Debug)]
pub(in crate::nexus) struct Streams {
    is_used: bool,
}

impl Streams {
    pub(super) fn new(is_used: bool) -> Self {
        Self { is_used }
    }
}

impl<L> Medium<L> for Streams {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn title(&self) -> &'static str {
        "a TCP stream"
    }

    fn kind(&self) -> u8 {
        KIND
    }

    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle> {
        if !self.is_used {
            let text = "the endpoint does not use TCP streams";
            return Err(Obstacle::new(ObstacleAt::Endpoint, text));
        }
        if !ends.process.stream {
            return Err(Obstacle::new(ObstacleAt::Process, "TCP streams are off in the process"));
        }
        Ok(Offer::Stream { max_frame: STREAM_FRAME_BYTES as u32 })
    }

    fn open(&self, _: Agreed) -> Opening<L> {
        Opening::Stream
    }
}
