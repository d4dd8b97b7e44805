//! An RDMA card: datagrams to peers with a card on the same network.

use std::sync::Weak;

use petrel_proto::control::{CardAddress, Offer};
use petrel_transport::verbs::{Address, Verbs, VerbsLink};

use super::{Agreed, Ends, Medium, Obstacle, ObstacleAt, Opening};

/// The kind of offers of RDMA cards.
pub(in crate::nexus) const KIND: u8 = 4;

/// The queue pair of an endpoint.
#[derive(Debug)]
pub(crate) struct Card {
    at: CardAddress,
    max_frame: u32,
    heeds_marks: bool,
    life: Weak<()>,
}

impl Card {
    /// The queue pair of an endpoint whose own sessions heed marks of congestion or do not.
    pub(crate) fn new(verbs: &Verbs, heeds_marks: bool) -> Self {
        let Address { gid, lid, pair, key } = verbs.address();
        let at = CardAddress { gid, lid, pair, key };
        let (max_frame, life) = (verbs.frame_bytes() as u32, verbs.life());
        Self { at, max_frame, heeds_marks, life }
    }
}

impl<L: From<VerbsLink>> Medium<L> for Card {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn title(&self) -> &'static str {
        "the RDMA card"
    }

    fn kind(&self) -> u8 {
        KIND
    }

    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle> {
        if !ends.process.verbs {
            return Err(Obstacle::new(ObstacleAt::Process, "RDMA cards are off in the process"));
        }
        if ends.keeps_to_host() {
            let text = "the process keeps to its host (`insecure` is not set), and an RDMA card need not be on it";
            return Err(Obstacle::new(ObstacleAt::Process, text));
        }
        if self.life.strong_count() == 0 {
            return Err(Obstacle::new(
                ObstacleAt::Endpoint,
                "the RDMA card has failed, or was removed",
            ));
        }
        if ends.is_secured() {
            let text = "frames by an RDMA card are not encrypted, and the connection is";
            return Err(Obstacle::new(ObstacleAt::Endpoint, text));
        }
        Ok(Offer::Verbs { at: self.at, max_frame: self.max_frame })
    }

    fn asks_for_marks(&self) -> bool {
        self.heeds_marks
    }

    fn reads_marks(&self) -> bool {
        true
    }

    fn open(&self, agreed: Agreed) -> Opening<L> {
        let Offer::Verbs { at: CardAddress { gid, lid, pair, key }, .. } = agreed.offer else {
            unreachable!("offers are chosen by their kind: {agreed:?}")
        };
        let (address, max_frame) = (Address { gid, lid, pair, key }, agreed.max_frame as usize);
        Opening::Link(VerbsLink { address, max_frame, ecn: agreed.ecn }.into())
    }
}
