//! Heartbeats of connections (`docs/wire-protocol.md` §8.6), and the round trips of their paths.
//!
//! The kernel measures round trips on the control connections, for congestion control (`docs/congestion.md`). By the time a
//! link is up, at least two messages have gone each way, after TCP's handshake. The kernel's shortest round trip includes
//! no time of the peer's process or of a sleeping thread.

use petrel_planted::planted;
use petrel_proto::control::{Ping, Pong};

use super::Relay;
use crate::control::{EndpointId, FromNexus, LinkId};
use crate::nexus::ids::ConnectionId;
use crate::nexus::net::Network;

impl<N: Network> Relay<N> {
    pub(in crate::nexus) fn ping(&mut self, id: ConnectionId) {
        self.measure_path(id);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.signs_mut().ask(self.now, self.settings.heartbeat());
            if planted("nexus_no_ping_beside_other_messages") && connection.unsent_bytes() > 0 {
                return;
            }
            self.send(id, Ping { nonce: id.0 as u64 });
        }
    }

    pub(in crate::nexus) fn answer_ping(&mut self, id: ConnectionId, ping: Ping) {
        self.send(id, Pong { nonce: ping.nonce });
    }

    /// Finds out whether the peer of an endpoint's link lives, whose calls have been without a sign.
    pub(in crate::nexus) fn check_peer(&mut self, from: EndpointId, link: LinkId) {
        let Some((id, _)) = self.place_of(from, link) else { return };
        if let Some(connection) = self.connections.get_mut(id)
            && !planted("nexus_no_doubt")
        {
            connection.signs_mut().doubt(self.now, self.settings.heartbeat());
        }
    }

    /// Expects bytes of the peer within a heartbeat, in answer to a message.
    pub(in crate::nexus) fn expect_answer(&mut self, id: ConnectionId) {
        let heartbeat = self.settings.heartbeat();
        if let Some(connection) = self.connections.get_mut(id) {
            connection.signs_mut().doubt(self.now + heartbeat, heartbeat);
        }
    }

    /// Reports the round trip of the path to the endpoint of a link that has come up. A shorter round trip is also
    /// reported to the endpoints of the connection's other links.
    pub(in crate::nexus) fn report_path(&mut self, link: LinkId) {
        // Congestion control needs the path at clients.
        let link_of_client = self.links.get(link).filter(|link| link.may_propose());
        let Some(id) = link_of_client.map(|link| link.connection()) else { return };
        if self.measure_path(id) {
            return;
        }
        let measured = self.connections.get(id).and_then(|connection| connection.path_rtt_ns());
        if let Some(rtt_ns) = measured {
            self.report_path_of(link, rtt_ns);
        }
    }

    /// Reports to the endpoints of a connection's links if the path's round trip is shorter than known. Returns true if
    /// so.
    fn measure_path(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get_mut(id) else { return false };
        let Some(rtt_ns) = connection.measure_path() else { return false };
        let links = connection.links().in_order();
        links.into_iter().for_each(|link| self.report_path_of(link, rtt_ns));
        true
    }

    fn report_path_of(&self, id: LinkId, rtt_ns: u32) {
        let Some(link) = self.links.get(id) else { return };
        if link.may_propose() {
            self.notify(link.endpoint(), FromNexus::PathMeasured { link: id, rtt_ns });
        }
    }
}
