//! The state of a client slot for recovery and for messages of several packets.

use crate::recovery::request::RequestPackets;
use crate::recovery::response::ResponsePackets;
use crate::session::backlog::NEVER;
use crate::session::free_list::Reusable;
use crate::wire::Announcement;

/// State of a slot for recovery and for messages of several packets.
pub(crate) struct ClientParts {
    request: RequestPackets,
    response: ResponsePackets,
    /// The inherited deadline, where the call's own deadline is earlier; or [`NEVER`].
    inherited_ns: u64,
    announced: Option<Announced>,
}

/// The announcement of a request whose packets are sent by multicast.
#[derive(Clone, Copy, Debug)]
struct Announced {
    announcement: Announcement,
    /// True while an ANNOUNCE is to be sent.
    is_due: bool,
}

impl Reusable for ClientParts {
    fn reset(&mut self) {
        self.request.reset();
        self.response = ResponsePackets::new();
        self.inherited_ns = NEVER;
        self.announced = None;
    }

    fn fresh() -> Self {
        Self {
            request: RequestPackets::new(),
            response: ResponsePackets::new(),
            inherited_ns: NEVER,
            announced: None,
        }
    }
}

impl ClientParts {
    #[inline(always)]
    pub(crate) fn request(&self) -> &RequestPackets {
        &self.request
    }

    #[inline(always)]
    pub(crate) fn request_mut(&mut self) -> &mut RequestPackets {
        &mut self.request
    }

    #[inline(always)]
    pub(crate) fn response(&self) -> &ResponsePackets {
        &self.response
    }

    #[inline(always)]
    pub(crate) fn response_mut(&mut self) -> &mut ResponsePackets {
        &mut self.response
    }

    /// Returns the inherited deadline, where the call's own deadline is earlier; or [`NEVER`].
    pub(crate) fn inherited_ns(&self) -> u64 {
        self.inherited_ns
    }

    pub(crate) fn set_inherited_ns(&mut self, inherited_ns: u64) {
        assert!(inherited_ns != NEVER, "an inherited deadline is a time");
        self.inherited_ns = inherited_ns;
    }

    /// Notes that the request's packets are sent by multicast. The server gets an ANNOUNCE.
    pub(crate) fn announce(&mut self, announcement: Announcement) {
        assert!(self.announced.is_none(), "a request is announced under one number");
        self.announced = Some(Announced { announcement, is_due: true });
    }

    /// Returns true if the request's packets are sent by multicast.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Returns the announcement, while an ANNOUNCE is to be sent.
    #[inline]
    pub(crate) fn due_announcement(&self) -> Option<Announcement> {
        self.announced.filter(|announced| announced.is_due).map(|announced| announced.announcement)
    }

    pub(crate) fn note_announced(&mut self) {
        assert!(self.due_announcement().is_some(), "an ANNOUNCE is sent when one is due");
        self.set_due(false);
    }

    /// Announces the request again: the ANNOUNCE may have been lost, and once it arrives, the packets received
    /// by multicast count.
    pub(crate) fn announce_again(&mut self) {
        self.set_due(true);
    }

    fn set_due(&mut self, is_due: bool) {
        if let Some(announced) = &mut self.announced {
            announced.is_due = is_due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNOUNCEMENT: Announcement = Announcement { group: 1, sequence: 2 };

    /// Nothing of a message is left for the next message.
    #[test]
    fn reset__makes_used_parts_as_good_as_fresh() {
        let mut parts = ClientParts::fresh();
        parts.request.note_run(0..3);
        parts.request.lose(3, crate::recovery::Recovery::Selective);
        parts.request.note_repeat(0, false);
        parts.response.begin(5_000, 5);
        parts.response.receive(0);
        parts.set_inherited_ns(13);
        parts.announce(ANNOUNCEMENT);
        parts.reset();
        // By name, so that the compiler demands new fields here.
        let ClientParts { request, response, inherited_ns, announced } = parts;
        assert_eq!((request.repeated(), request.acknowledged_count()), (0, 0));
        assert_eq!((response.size(), response.packets(), response.received_count()), (0, 0, 0));
        assert_eq!(inherited_ns, NEVER);
        assert!(announced.is_none());
    }

    #[test]
    fn announce__is_due_until_sent_and_after_a_timeout() {
        let mut parts = ClientParts::fresh();
        parts.announce_again();
        assert!(parts.due_announcement().is_none(), "no request was announced");
        parts.announce(ANNOUNCEMENT);
        assert_eq!(parts.due_announcement(), Some(ANNOUNCEMENT));
        parts.note_announced();
        assert!(parts.is_announced() && parts.due_announcement().is_none());
        parts.announce_again();
        assert_eq!(parts.due_announcement(), Some(ANNOUNCEMENT));
    }

    panics! {
        announce__twice: "a request is announced under one number" => {
            let mut parts = ClientParts::fresh();
            (0..2).for_each(|_| parts.announce(ANNOUNCEMENT));
        };
        note_announced__twice: "an ANNOUNCE is sent when one is due" => {
            let mut parts = ClientParts::fresh();
            parts.announce(ANNOUNCEMENT);
            (0..2).for_each(|_| parts.note_announced());
        };
    }
}
