//! Recovery from loss (`docs/wire-protocol.md` §5.2, §7): the objects that know which packets are missing, and
//! when to look for them.
//!
//! | module | concern |
//! | --- | --- |
//! | [`rtt`] | the estimate of the round trip, and the retransmission timeout |
//! | `round_trips` | the measurements of a session, and the times derived from them |
//! | `loss_timer` | the timer of a client slot: a measured packet, probes, timeouts |
//! | `send_order` | the order of a request's transmissions |
//! | `request` | the packets of a request at its client: sent, acknowledged, lost |
//! | `response` | the packets of a response at its client: received, and asked for again |
//! | `answer` | the packets of an answer that its server sends again |

pub(crate) mod answer;
pub(crate) mod loss_timer;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod round_trips;
pub mod rtt;
mod send_order;

/// The method of recovery from loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Packets are accepted in any order, and missing packets are sent again at the first evidence of loss.
    #[default]
    Selective,
    /// Packets out of order are dropped, and a timeout repeats all packets from the first missing one on, as
    /// in eRPC (§5.3); for comparison. The two ends of a session should use one method.
    GoBackN,
}
