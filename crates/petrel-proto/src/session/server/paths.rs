//! The paths of a server session of several (`docs/wire-protocol.md` §14.2, §14.3): long responses follow the client's
//! frames, short responses keep to a path that works, and CREDITs take turns.

use petrel_planted::planted;

use crate::bitmap::PacketBits;
use crate::limits::{MARKED_CREDIT_BYTES_MAX, PATHS_MAX, WINDOW_PACKETS};
use crate::path::PathId;
use crate::session::PeerKey;
use crate::wire::{Credit, Marks};

/// The paths of a server session.
pub(crate) struct ServerPaths {
    /// Source ports of this side.
    ports: u8,
    /// How far the paths of long responses are ahead of the paths of the client's frames: grows with each answer that
    /// seems lost on the way back.
    shift: u8,
    /// The path of short responses, which changes at the same times; `None` before the first.
    short: Option<u8>,
    /// The peer from which the session's frames come: see [`Origin`](crate::session::Origin).
    source: PeerKey,
    /// Whether a frame has come from the port of the answers: on a session of the link.
    is_proven: bool,
    /// The slots whose requests came by another path than the first, or with marks.
    slots: Vec<SlotPath>,
}

/// The path of a slot.
#[derive(Default)]
struct SlotPath {
    /// The client's source port of the frame that came last.
    source: u8,
    /// The port of the last CREDIT. While slots shared one turn, two requests repeated at equal times kept to one of two ports
    /// each: the request at the dead port got no answer.
    turn: u8,
    marked: Option<Box<MarkedPackets>>,
}

/// The packets of a request that met congestion since the last CREDIT.
struct MarkedPackets {
    request: u64,
    /// The lowest, if any.
    from: Option<u32>,
    /// One more than the highest of them.
    end: u32,
    packets: PacketBits,
    /// The CREDIT with these marks, in place until the medium has sent it.
    frame: [u8; MARKED_CREDIT_BYTES_MAX],
}

impl ServerPaths {
    pub(crate) fn new(ports: u8, source: PeerKey) -> Self {
        assert!((1..=PATHS_MAX).contains(&ports.into()), "a side sends from 1 to 32 source ports");
        Self { ports, shift: 0, short: None, source, is_proven: false, slots: Vec::new() }
    }

    #[inline]
    pub(crate) fn source(&self) -> PeerKey {
        self.source
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Notes that the port of the answers is the client's.
    pub(crate) fn note_proven(&mut self) {
        self.is_proven = true;
    }

    /// Notes the client's source port of a frame for a slot.
    pub(crate) fn note_source(&mut self, slot: usize, source: u8) {
        self.slot(slot).source = source;
        self.short.get_or_insert(source % self.ports);
    }

    /// [`ServerPaths::note_source`] of a frame behind another one of the slot, which has noted the path of short responses.
    /// Returns `None` if there was none.
    #[inline(always)]
    pub(crate) fn note_next_source(&mut self, slot: usize, source: u8) -> Option<()> {
        self.slots.get_mut(slot)?.source = source;
        Some(())
    }

    /// Notes that an answer seems lost: the client asks again for something that was answered.
    pub(crate) fn note_lost_answer(&mut self) {
        self.shift = (self.shift + 1) % self.ports;
        self.short = self.short.map(|port| (port + 1) % self.ports);
        assert!(
            self.shift.max(self.short.unwrap_or(0)) < self.ports,
            "answers leave from a source port of this side"
        );
    }

    /// Returns the path of the next packet of a slot's response.
    pub(crate) fn path(&self, slot: usize) -> PathId {
        let source = self.slots.get(slot).map_or(0, |slot| slot.source);
        let source = source + u8::from(planted("proto_path_index_off_by_one"));
        self.of_port(source % self.ports + self.shift)
    }

    /// Returns the path of a response of one packet.
    pub(crate) fn short_path(&self) -> PathId {
        self.of_port(self.short.unwrap_or(0))
    }

    /// Returns the path of a slot's next CREDIT. A CREDIT acknowledges all packets that came, so a dead way back costs
    /// nothing while another way works, whichever path the packets take.
    pub(crate) fn next_turn(&mut self, slot: usize) -> PathId {
        let ports = self.ports;
        let turn = &mut self.slot(slot).turn;
        *turn = (*turn + 1) % ports;
        let turn = *turn;
        self.of_port(turn)
    }

    fn of_port(&self, port: u8) -> PathId {
        let path = PathId::new(usize::from(port % self.ports));
        path.expect("a side has no more source ports than a session has paths")
    }

    /// Notes that a packet of a request met congestion.
    pub(crate) fn note_mark(&mut self, slot: usize, request: u64, packet: u32) {
        let fresh = || {
            let (packets, frame) = (PacketBits::new(), [0; MARKED_CREDIT_BYTES_MAX]);
            Box::new(MarkedPackets { request, from: None, end: 0, packets, frame })
        };
        let marked = self.slot(slot).marked.get_or_insert_with(fresh);
        if marked.request != request {
            if !planted("proto_marks_of_another_request") {
                marked.clear();
            }
            marked.request = request;
        }
        marked.note(packet);
    }

    /// Returns a CREDIT with the marks of a request; `None` without marks. The marks are forgotten with
    /// [`ServerPaths::note_marks_sent`].
    pub(crate) fn marked_credit(
        &mut self,
        slot: usize,
        request: u64,
        credit: &Credit,
        header: [u64; 2],
    ) -> Option<&[u8]> {
        let marked = self.slots.get_mut(slot)?.marked.as_deref_mut()?;
        let from = marked.from.filter(|_| marked.request == request)?;
        let mut words = [0; 4];
        for ahead in (0..WINDOW_PACKETS).filter(|ahead| marked.packets.is_set(from + ahead)) {
            words[ahead as usize / 64] |= 1 << (ahead % 64);
        }
        let (frame, len) = Marks { from, words }.encode(credit, header);
        marked.frame = frame;
        Some(&marked.frame[..len])
    }

    /// Returns true if marks of a request are to be reported.
    pub(crate) fn has_marks(&self, slot: usize, request: u64) -> bool {
        let marked = self.slots.get(slot).and_then(|slot| slot.marked.as_deref());
        marked.is_some_and(|marked| marked.request == request && marked.from.is_some())
    }

    /// Notes that the CREDIT with the marks was sent.
    pub(crate) fn note_marks_sent(&mut self, slot: usize) {
        if let Some(marked) = &mut self.slot(slot).marked {
            marked.clear();
        }
    }

    fn slot(&mut self, slot: usize) -> &mut SlotPath {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, SlotPath::default);
        }
        &mut self.slots[slot]
    }
}

impl MarkedPackets {
    /// Notes a marked packet. The record of a CREDIT has room for a window of packets. A packet that is not within
    /// a window of all others is a late copy, or these are late copies, and the newer packets count.
    fn note(&mut self, packet: u32) {
        let (from, end) = match self.from {
            None => (packet, packet + 1),
            Some(from) if packet >= from + WINDOW_PACKETS => {
                self.packets = PacketBits::new();
                (packet, packet + 1)
            }
            Some(_) if packet + WINDOW_PACKETS < self.end => return,
            Some(from) => (from.min(packet), self.end.max(packet + 1)),
        };
        (self.from, self.end) = (Some(from), end);
        self.packets.set(packet);
    }

    /// Forgets the packets. The frame stays: the medium may not have sent it yet.
    fn clear(&mut self) {
        (self.from, self.packets) = (None, PacketBits::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> ServerPaths {
        ServerPaths::new(4, PeerKey(1))
    }

    fn marked(paths: &mut ServerPaths, request: u64) -> Vec<u32> {
        let credit = Credit { cumulative: 0, echo: 0, bitmap: Default::default() };
        let header = [u64::from(crate::wire::Flags::EXTENDED.0) << 8, 0];
        let Some(frame) = paths.marked_credit(0, request, &credit, header) else {
            return Vec::new();
        };
        let rest = &frame[crate::limits::HEADER_BYTES..];
        let marks = Marks::read(crate::wire::Flags::EXTENDED, rest);
        let marks = marks.expect("a sound frame").expect("marks");
        marks.packets().collect()
    }

    #[test]
    fn note_mark__of_the_next_request_forgets_those_of_the_last() {
        let mut paths = paths();
        [3, 5].into_iter().for_each(|packet| paths.note_mark(0, 64, packet));
        paths.note_mark(0, 128, 7);
        assert!(paths.has_marks(0, 128) && !paths.has_marks(0, 64));
        assert_eq!(marked(&mut paths, 128), [7]);
        paths.note_marks_sent(0);
        assert!(!paths.has_marks(0, 128));
    }

    /// A copy of a packet may arrive a window later than the packets around it.
    #[test]
    fn note_mark__late_copies_do_not_alias_packets_of_the_next_window() {
        let mut paths = paths();
        [300, 310, 2].into_iter().for_each(|packet| paths.note_mark(0, 64, packet));
        assert_eq!(marked(&mut paths, 64), [300, 310], "the copy comes last");
        paths.note_marks_sent(0);
        [2, 300, 310].into_iter().for_each(|packet| paths.note_mark(0, 64, packet));
        assert_eq!(marked(&mut paths, 64), [300, 310], "the copy comes first");
        paths.note_mark(0, 64, 55);
        assert_eq!(marked(&mut paths, 64), [55, 300, 310]);
    }

    /// Requests repeated at the same times.
    #[test]
    fn next_turn__of_a_slot_takes_all_ports() {
        let mut paths = ServerPaths::new(2, PeerKey(1));
        for port in [1, 0, 1, 0] {
            assert_eq!([0, 1].map(|slot| paths.next_turn(slot).index()), [port; 2]);
        }
    }

    #[test]
    fn path__is_that_of_the_client_s_frame() {
        let mut paths = paths();
        paths.note_source(2, 6);
        assert_eq!((paths.path(2), paths.path(0)), (PathId::new(2).unwrap(), PathId::FIRST));
    }
}
