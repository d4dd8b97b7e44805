//! Which media an endpoint can offer to a peer, and which of the peer's it takes (`docs/wire-protocol.md` §8.4).

use petrel_proto::control::Offer;

use crate::control::AllowedTransports;
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::counters::Counters;
use crate::nexus::endpoint::Attached;
use crate::nexus::media::{Ends, Medium, Meeting, Obstacle, ObstacleAt, allows};
use crate::nexus::net::{Network, Stream};
use crate::nexus::relay::Relay;
use crate::nexus::rendezvous::LocalRendezvous;

/// The two ends of a future link, and the media of this end.
pub(super) struct Offering<'a, N: Network> {
    net: &'a N,
    process: AllowedTransports,
    keeps_to_host: bool,
    rendezvous: Option<&'a LocalRendezvous<N>>,
    counters: &'a Counters,
    connection: &'a Connection<N>,
    endpoint: &'a Attached<N>,
}

impl<'a, N: Network> Offering<'a, N> {
    pub(super) fn new(
        net: &'a N,
        relay: &'a Relay<N>,
        rendezvous: Option<&'a LocalRendezvous<N>>,
        (connection, endpoint): (&'a Connection<N>, &'a Attached<N>),
    ) -> Self {
        Self {
            net,
            process: relay.settings().transports(),
            keeps_to_host: relay.settings().keeps_to_host(),
            rendezvous,
            counters: relay.counters(),
            connection,
            endpoint,
        }
    }

    /// Returns the endpoint's possible offers over the connection, the preferred first, or the obstacles.
    pub(super) fn offers(&self, allowed: AllowedTransports) -> Result<Vec<Offer>, String> {
        let (mut offers, mut obstacles) = (Vec::new(), Vec::new());
        for medium in self.endpoint.media() {
            match self.offer_of(medium, allowed) {
                Ok(offer) => offers.push(offer),
                Err(obstacle) => obstacles.push((medium, obstacle)),
            }
        }
        if offers.is_empty() {
            let obstacles: Vec<_> = obstacles.iter().map(|(_, why)| why.to_string()).collect();
            return Err(obstacles.join("; "));
        }
        for (medium, obstacle) in &obstacles {
            self.report_missed(*medium, obstacle);
        }
        Ok(offers)
    }

    fn offer_of(
        &self,
        medium: &dyn Medium<N::Link>,
        allowed: AllowedTransports,
    ) -> Result<Offer, Obstacle> {
        if !allows(allowed, medium.kind()) {
            let text = format!("{} is not asked for", medium.title());
            return Err(Obstacle::new(ObstacleAt::Endpoint, text));
        }
        self.with_ends(|ends| medium.offer(ends))
    }

    /// Returns the first suitable offer of the peer's, or the obstacles.
    pub(super) fn choose(&self, offered: &[Offer]) -> Result<Offer, String> {
        let (mut obstacles, mut missed) = (Vec::new(), None);
        for offer in offered {
            let Some(medium) = self.endpoint.medium(offer.kind()) else { continue };
            match self.with_ends(|ends| medium.offer(ends)) {
                Ok(own) => {
                    if let Some((medium, obstacle)) = missed {
                        self.report_missed(medium, &obstacle);
                    }
                    return Ok(own);
                }
                Err(obstacle) => {
                    obstacles.push(obstacle.to_string());
                    missed = Some((medium, obstacle)).filter(|_| medium.is_missed()).or(missed);
                }
            }
        }
        if obstacles.is_empty() {
            obstacles.push("none of the offered transports is known".to_owned());
        }
        Err(obstacles.join("; "))
    }

    /// Counts and logs why a link does without a medium.
    fn report_missed(&self, medium: &dyn Medium<N::Link>, obstacle: &Obstacle) {
        if medium.is_missed() {
            self.counters.count_missed(obstacle.at());
            events::shm_not_used(self.connection.remote(), obstacle);
        }
    }

    /// Returns the text to add to the refusal of a link for which an allowed medium was not offered.
    pub(super) fn why_missed(&self, allowed: AllowedTransports, offers: &[Offer]) -> String {
        let is_left_out = |kind| offers.iter().all(|offer| offer.kind() != kind);
        let mut text = String::new();
        for medium in self.endpoint.media().filter(|medium| medium.is_missed()) {
            if allows(allowed, medium.kind())
                && is_left_out(medium.kind())
                && let Err(obstacle) = self.with_ends(|ends| medium.offer(ends))
            {
                text.push_str(&format!("; {} was not offered: {obstacle}", medium.title()));
            }
        }
        text
    }

    /// Runs `look` with the two ends of a connection.
    fn with_ends<R>(&self, look: impl FnOnce(&Ends<'_>) -> R) -> R {
        let (local, remote) = (self.connection.local(), self.connection.remote());
        let stream = self.connection.stream();
        let path_mtu =
            || stream.path_mtu().map_or_else(|| self.net.path_mtu(local.ip(), remote), Ok);
        let protection = (!self.connection.channel().is_plain(), self.keeps_to_host);
        look(&Ends::new((local, remote), self.process, self.meeting(), protection, &path_mtu))
    }

    fn meeting(&self) -> Meeting {
        let Some(rendezvous) = self.rendezvous else { return Meeting::ProcessWithout };
        let Some(peer) = self.connection.peer() else { return Meeting::NoHello };
        if peer.host_identity() != Some(rendezvous.host_identity()) || peer.rendezvous().is_none() {
            return Meeting::Elsewhere;
        }
        Meeting::Possible
    }
}
