//! Whether frames get through to a server, before its sessions are used (`docs/wire-protocol.md` §8.10), and whether its
//! process still lives.

use petrel_proto::control::SessionAccept;
use petrel_proto::{PeerKey, SessionId, Status};
use petrel_transport::Transport;

use super::super::Remote;
use super::super::probes::{Probing, Step};
use super::SessionControl;
use crate::control::{AllowedTransports, ControlPlane, LinkId, Reason, ToNexus};
use crate::events;

impl<T: Transport, C: ControlPlane<T::Link>> SessionControl<'_, T, C> {
    /// Has the control plane find out whether the process of a silent server lives (`docs/wire-protocol.md` §8.6).
    pub(in crate::endpoint) fn check_server(&mut self, session: SessionId) {
        if let Some(link) = self.local.sessions.link_to_check(session, self.local.now_ns) {
            self.control.post(ToNexus::CheckPeer { link });
        }
    }

    /// Tells the control plane of the first request of a link, which then yields to no newcomer (`docs/wire-protocol.md` §8.4).
    pub(in crate::endpoint) fn note_used(&mut self, session: SessionId) {
        if let Some(link) = self.local.sessions.link_first_used(session) {
            self.control.post(ToNexus::LinkUsed { link });
        }
    }

    /// Begins to probe the link of a session that its server has accepted. Returns false if no probe is needed, or possible.
    pub(super) fn begin_probes(
        &mut self,
        name: LinkId,
        id: SessionId,
        accept: &SessionAccept,
    ) -> bool {
        let Some(link) = self.local.sessions.link(name) else { return false };
        // A session that was closed here meanwhile is revoked at once.
        let is_wanted = self.local.core.token(id).is_some();
        if !is_wanted || !link.is_to_be_probed() {
            return false;
        }
        let number = self.control.random() >> 16;
        let time = (self.local.now_ns, link.path_rtt_ns());
        let AllowedTransports { udp, stream, .. } = self.local.sessions.transports();
        let has_other = stream || udp && link.peer().medium == CARD;
        let refused = self.transport.stats().tx_dropped_error;
        let probing = Probing::new((id, name), *accept, number, time, (has_other, refused));
        self.local.sessions.probes().begin(probing);
        self.run_probes();
        true
    }

    /// Takes all steps that are due. Returns true if there were any.
    pub(in crate::endpoint) fn run_probes(&mut self) -> bool {
        if !self.local.sessions.are_probed() {
            return false;
        }
        let refused = self.transport.stats().tx_dropped_error;
        let mut any = false;
        while let Some(step) = self.local.sessions.probes().step(self.local.now_ns, refused) {
            any = true;
            match step {
                Step::Probe(probing) => self.send_probe(&probing),
                Step::Report(probing) => self.report_unreached(&probing),
                Step::GiveUp(probing) => self.leave_datagrams(&probing),
            }
        }
        any
    }

    fn send_probe(&mut self, probing: &Probing) {
        if let Some(link) = self.local.sessions.link(probing.link) {
            let SessionAccept { session, token, .. } = probing.accept;
            self.local.core.probe(PeerKey(link.id().0), (session, token), probing.number);
        }
    }

    fn report_unreached(&mut self, probing: &Probing) {
        let Some(link) = self.local.sessions.link(probing.link) else { return };
        let peer = link.peer().name;
        let why = unreached_text(link.peer().medium, probing, self.local.now_ns);
        events::datagrams_unreached(self.control.endpoint_id(), peer, &why);
        self.control.post(ToNexus::Unreached { link: probing.link });
    }

    /// Ends a link that carries no frame. Its sessions are proposed over another medium, if there is one.
    fn leave_datagrams(&mut self, probing: &Probing) {
        let Some(link) = self.local.sessions.link(probing.link) else { return };
        let (server, medium) = (link.peer().name.address, link.peer().medium);
        let sessions: Vec<_> = link.sessions().collect();
        let why = unreached_text(medium, probing, self.local.now_ns);
        let reason = Reason::new(Status::Unavailable, why);
        let now_ns = self.local.now_ns;
        self.local.sessions.probes().remember((server, medium), now_ns);
        let link = probing.link;
        self.control.post(ToNexus::CloseLink { link, reason: reason.clone() });
        let is_left = self.local.sessions.probes().is_unreached((server, medium), now_ns);
        if medium == CARD && probing.has_other && is_left {
            sessions.into_iter().for_each(|id| self.local.sessions.allow_another_try(id));
        }
        self.on_link_down(link, &reason);
    }

    /// Handles the answer to a probe: the link carries frames, in both directions.
    pub(in crate::endpoint) fn on_probed(&mut self, id: SessionId, number: u64) {
        let Some(first) = self.local.sessions.probes().answered(id, number) else { return };
        self.local.sessions.set_carries(first.link);
        let others = self.local.sessions.probes().take_all_on(first.link);
        for Probing { session, link, accept, .. } in [vec![first], others].concat() {
            self.establish(link, session, &accept);
        }
    }

    /// Adds to a reason the cause why a medium was not tried again.
    pub(super) fn with_failure_of_datagrams(&mut self, remote: Remote, reason: &Reason) -> Reason {
        let now_ns = self.local.now_ns;
        let mut text = reason.message.clone();
        for medium in [CARD, UDP] {
            if self.local.sessions.probes().is_unreached((remote.0, medium), now_ns) {
                text.push_str(&format!("; {} did not get through a moment ago", title_of(medium)));
            }
        }
        Reason::new(reason.status, text)
    }

    /// Tells the server of a session that was accepted there, and ends before its first frame.
    pub(super) fn revoke_probed(&mut self, id: SessionId) {
        if let Some(Probing { link, accept, .. }) = self.local.sessions.probes().take(id) {
            self.control.post(ToNexus::CloseSession {
                link,
                peer_session: accept.session,
                peer_token: accept.token,
                from_client: true,
                reason: Reason::new(Status::Cancelled, "the client has closed the session"),
            });
        }
    }

    /// Returns the transports to ask for in a link to a server.
    pub(super) fn transports_to(&mut self, remote: Remote) -> AllowedTransports {
        let mut allowed = self.local.sessions.transports();
        if self.is_unreached(remote, UDP) && allowed.stream {
            allowed.udp = false;
        }
        if self.is_unreached(remote, CARD) && (allowed.udp || allowed.stream) {
            allowed.verbs = false;
        }
        allowed
    }

    /// Returns true if a medium failed to reach a server a moment ago. Some time after the failure, the link of the next medium is left
    /// for a further link that tries again.
    fn is_unreached(&mut self, remote: Remote, medium: &'static str) -> bool {
        let (way, now_ns) = ((remote.0, medium), self.local.now_ns);
        let is_unreached = self.local.sessions.probes().is_unreached(way, now_ns);
        if !is_unreached && self.local.sessions.probes().forget(way) {
            for left in self.local.sessions.leave_fallback(remote, medium) {
                self.close_if_over(Some(left));
            }
        }
        is_unreached
    }
}

/// The names of the media whose links are probed.
const CARD: &str = "verbs";
const UDP: &str = "udp";

fn title_of(medium: &str) -> &str {
    if medium == CARD { "the RDMA card" } else { "UDP" }
}

fn unreached_text(medium: &str, probing: &Probing, now_ns: u64) -> String {
    let (sent, ns) = probing.effort(now_ns);
    if medium == CARD {
        return format!(
            "the RDMA card does not get through: no answer to {sent} probes in {} ms (cards of two networks, or a firewall?); try \
             `ibv_ud_pingpong -g 0` between the hosts, or leave --device verbs out",
            ns / 1_000_000
        );
    }
    if probing.is_refused() {
        return format!(
            "UDP does not get through: this host refuses to send, {sent} probes of {sent} (a rule of the firewall here?); allow UDP, or TCP streams"
        );
    }
    format!(
        "UDP does not get through: no answer to {sent} probes in {} ms (address translation, a load balancer or a firewall?); open the \
         server's UDP ports, or allow TCP streams",
        ns / 1_000_000
    )
}
