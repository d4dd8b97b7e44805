//! The ranges of the messages' fields, checked by the decoder and the encoder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    CardAddress, Goodbye, GroupAccept, GroupJoin, GroupLeave, GroupRefuse, HEARTBEAT_MS_MAX, Hello,
    KEY_END, KEY_PATH_END, Kind, LID_END, LinkAccept, LinkClose, LinkFeatures, LinkOpen,
    LinkRefuse, MAX_FRAME_BYTES_MAX, MAX_FRAME_BYTES_MIN, OFFERS_MAX, Offer, OutOfRange, PAIR_END,
    PathPorts, Ping, Pong, RENDEZVOUS_BYTES_MAX, STATS_PART_BYTES_MAX, SessionAccept, SessionClose,
    SessionDrain, SessionOpen, SessionRefuse, StatsReply, StatsRequest, StreamAccept, StreamOpen,
    VERBS_FRAME_BYTES_MAX,
};
use crate::limits::{
    CREDITS_MAX, FIRST_REQUEST_END, MESSAGE_BYTES_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN,
    SESSIONS_MAX, SLOTS_MAX,
};

fn in_range(holds: bool, kind: Kind, field: &'static str) -> Result<(), OutOfRange> {
    if holds { Ok(()) } else { Err(OutOfRange { kind, field }) }
}

impl Hello {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        let heartbeat_ok = (1..=HEARTBEAT_MS_MAX).contains(&self.heartbeat_ms);
        let rendezvous_ok = self
            .rendezvous
            .as_ref()
            .is_none_or(|name| (1..=RENDEZVOUS_BYTES_MAX).contains(&name.len()));
        in_range(self.versions.min <= self.versions.max, Kind::Hello, "version_min")?;
        in_range(self.incarnation != 0, Kind::Hello, "incarnation")?;
        in_range(heartbeat_ok, Kind::Hello, "heartbeat")?;
        in_range(rendezvous_ok, Kind::Hello, "rendezvous")
    }
}

impl Offer {
    fn check(self, kind: Kind) -> Result<(), OutOfRange> {
        let frames = MAX_FRAME_BYTES_MIN..=MAX_FRAME_BYTES_MAX;
        in_range(frames.contains(&self.max_frame()), kind, "offer.max_frame")?;
        if let Offer::Verbs { at, max_frame } = self {
            in_range(max_frame <= VERBS_FRAME_BYTES_MAX, kind, "offer.max_frame")?;
            at.check(kind)?;
        }
        in_range(!matches!(self, Offer::Udp { port: 0, .. }), kind, "offer.port")
    }

    /// Nothing else tells whether two cards are on one network.
    fn check_probe(self, probe: bool, kind: Kind) -> Result<(), OutOfRange> {
        in_range(probe || !matches!(self, Offer::Verbs { .. }), kind, "probe")
    }

    /// The offered port is path 0, and no port is two paths.
    fn check_paths(self, paths: &PathPorts, kind: Kind) -> Result<(), OutOfRange> {
        let is_twice = matches!(self, Offer::Udp { port, .. } if paths.contains(port));
        in_range(!is_twice, kind, "paths")
    }
}

impl CardAddress {
    /// Returns true for the address of a queue pair of one host.
    pub fn is_valid(self) -> bool {
        self.check(Kind::LinkOpen).is_ok()
    }

    /// Frames to groups and to the network's managers (pairs 0 and 1) would reach others than the side itself.
    fn check(self, kind: Kind) -> Result<(), OutOfRange> {
        let ip = Ipv6Addr::from(self.gid).to_canonical();
        let is_of_subnet = self.gid == [0; 16] && (1..LID_END).contains(&self.lid);
        in_range(is_of_subnet || may_be_a_host(ip), kind, "offer.gid")?;
        in_range((2..PAIR_END).contains(&self.pair), kind, "offer.pair")?;
        in_range(self.key < KEY_END, kind, "offer.key")
    }
}

impl LinkFeatures {
    fn check(&self, kind: Kind) -> Result<(), OutOfRange> {
        in_range(self.key_path.is_none_or(|path| path < KEY_PATH_END), kind, "key_path")
    }
}

impl LinkOpen {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.offers.len() <= OFFERS_MAX, Kind::LinkOpen, "offer")?;
        in_range(self.from_endpoint != u16::MAX, Kind::LinkOpen, "from_endpoint")?;
        in_range(self.to_endpoint != u16::MAX, Kind::LinkOpen, "to_endpoint")?;
        for offer in &self.offers {
            offer.check(Kind::LinkOpen)?;
            offer.check_probe(self.features.probe, Kind::LinkOpen)?;
            offer.check_paths(&self.features.paths, Kind::LinkOpen)?;
        }
        self.features.check(Kind::LinkOpen)
    }
}

/// Returns true for an address that a host may have: not for the address of all hosts, of a group, or of no host.
pub fn may_be_a_host(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl LinkAccept {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.ticket.is_some() == self.offer.has_ticket(), Kind::LinkAccept, "ticket")?;
        self.offer.check(Kind::LinkAccept)?;
        self.offer.check_probe(self.features.probe, Kind::LinkAccept)?;
        self.offer.check_paths(&self.features.paths, Kind::LinkAccept)?;
        self.features.check(Kind::LinkAccept)?;
        in_range(self.data_ip.is_none_or(may_be_a_host), Kind::LinkAccept, "data_ip")
    }
}

/// The fields common to a proposal and the answer.
struct Terms {
    kind: Kind,
    session: u32,
    slots: u16,
    credits: u16,
    max_message: u32,
    packet_bytes: u32,
}

impl Terms {
    fn check(&self) -> Result<(), OutOfRange> {
        let packets = PACKET_BYTES_MIN..=PACKET_BYTES_MAX;
        let slots_ok = self.slots.is_power_of_two() && self.slots <= SLOTS_MAX;
        in_range(self.session < SESSIONS_MAX, self.kind, "session")?;
        in_range(slots_ok, self.kind, "slots")?;
        in_range((1..=CREDITS_MAX).contains(&self.credits), self.kind, "credits")?;
        in_range(self.max_message <= MESSAGE_BYTES_MAX, self.kind, "max_message")?;
        in_range(packets.contains(&self.packet_bytes), self.kind, "packet_bytes")
    }
}

impl SessionOpen {
    /// Checks the range of every field.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let Self { session, slots, credits, max_message, packet_bytes, .. } = *self;
        let kind = Kind::SessionOpen;
        Terms { kind, session, slots, credits, max_message, packet_bytes }.check()?;
        let first_ok = self.first_request < FIRST_REQUEST_END
            && self.first_request.is_multiple_of(u64::from(slots));
        in_range(first_ok, kind, "first_request")
    }
}

impl SessionAccept {
    /// Checks the range of every field.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let Self { session, slots, credits, max_message, packet_bytes, .. } = *self;
        let kind = Kind::SessionAccept;
        Terms { kind, session, slots, credits, max_message, packet_bytes }.check()
    }
}

impl SessionClose {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.session < SESSIONS_MAX, Kind::SessionClose, "session")
    }
}

impl SessionDrain {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.session < SESSIONS_MAX, Kind::SessionDrain, "session")
    }
}

impl GroupJoin {
    /// Checks the range of every field.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let kind = Kind::GroupJoin;
        let packets = PACKET_BYTES_MIN..=PACKET_BYTES_MAX;
        let address_ok = self.address.ip().is_multicast() && self.address.port() != 0;
        in_range(self.session < SESSIONS_MAX, kind, "session")?;
        in_range(self.group < SESSIONS_MAX, kind, "group")?;
        in_range(address_ok, kind, "address")?;
        in_range(packets.contains(&self.packet_bytes), kind, "packet_bytes")
    }
}

impl GroupLeave {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.group < SESSIONS_MAX, Kind::GroupLeave, "group")
    }
}

impl StatsReply {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        in_range(self.part < self.parts, Kind::StatsReply, "part")?;
        in_range(self.json.len() <= STATS_PART_BYTES_MAX, Kind::StatsReply, "json")
    }
}

macro_rules! always_in_range {
    ($($name:ident)*) => {
        $(impl $name {
            pub(super) fn check(&self) -> Result<(), OutOfRange> {
                Ok(())
            }
        })*
    };
}

always_in_range! {
    LinkRefuse LinkClose SessionRefuse Ping Pong StatsRequest Goodbye GroupAccept GroupRefuse
    StreamOpen StreamAccept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> SessionOpen {
        SessionOpen {
            link: 1,
            request: 2,
            session: 3,
            token: 4,
            first_request: 64,
            slots: 8,
            credits: 32,
            max_message: 1 << 23,
            packet_bytes: 1_408,
        }
    }

    fn wrong_field(open: SessionOpen) -> &'static str {
        open.check().unwrap_err().field
    }

    #[test]
    fn session_open__bounds_of_every_field() {
        assert_eq!(open().check(), Ok(()));
        assert_eq!(wrong_field(SessionOpen { session: 1 << 20, ..open() }), "session");
        assert_eq!(wrong_field(SessionOpen { slots: 0, ..open() }), "slots");
        assert_eq!(wrong_field(SessionOpen { slots: 6, ..open() }), "slots");
        assert_eq!(wrong_field(SessionOpen { slots: 8_192, ..open() }), "slots");
        assert_eq!(wrong_field(SessionOpen { credits: 0, ..open() }), "credits");
        assert_eq!(wrong_field(SessionOpen { credits: 4_097, ..open() }), "credits");
        let long = SessionOpen { max_message: (1 << 30) + 1, ..open() };
        assert_eq!(wrong_field(long), "max_message");
        assert_eq!(wrong_field(SessionOpen { packet_bytes: 1_199, ..open() }), "packet_bytes");
        assert_eq!(
            wrong_field(SessionOpen { packet_bytes: (16 << 20) + 1, ..open() }),
            "packet_bytes"
        );
        assert_eq!(wrong_field(SessionOpen { first_request: 60, ..open() }), "first_request");
        assert_eq!(wrong_field(SessionOpen { first_request: 1 << 47, ..open() }), "first_request");
    }

    #[test]
    fn session_accept__is_within_the_proposal() {
        let accept = SessionAccept {
            link: 1,
            request: 2,
            session: 9,
            token: 9,
            slots: 8,
            credits: 32,
            max_message: 1 << 30,
            packet_bytes: 1_408,
        };
        assert!(accept.is_within(&open()));
        assert!(SessionAccept { slots: 4, credits: 1, ..accept }.is_within(&open()));
        assert!(!SessionAccept { slots: 16, ..accept }.is_within(&open()));
        assert!(!SessionAccept { credits: 33, ..accept }.is_within(&open()));
        assert!(!SessionAccept { packet_bytes: 1_409, ..accept }.is_within(&open()));
    }

    panics! {
        session_accept__of_another_proposal: "an answer is compared with its own proposal" => {
            let SessionOpen { link, request, session, token, slots, credits, .. } = open();
            let (max_message, packet_bytes) = (1 << 20, 1_408);
            let request = request + 1;
            let accept = SessionAccept {
                link,
                request,
                session,
                token,
                slots,
                credits,
                max_message,
                packet_bytes,
            };
            accept.is_within(&open());
        };
    }
}
