//! The source ports of a session (`docs/wire-protocol.md` §14): where frames leave from, and which packets met
//! congestion.

use std::collections::{BTreeMap, BTreeSet};

use petrel_proto::control::PathPorts;
use petrel_proto::limits::WINDOW_PACKETS;
use petrel_proto::path::PathCounts;
use petrel_proto::wire::{Frame, Kind, Marks};

use super::{Broken, Event, is_data, part_of};
use crate::control::Agreement;
use crate::fabric::SimAddr;

/// The source ports of both sides, and the frames that left from each.
#[derive(Debug)]
pub(super) struct SourcePorts {
    /// Whether CREDITs report marks: the link has several paths, and the server does not go back N.
    reports_marks: bool,
    client: Side,
    server: Side,
    slot_count: u64,
    slots: BTreeMap<u64, SlotPorts>,
    responses: ResponsePorts,
    /// Marked frames that the client has taken.
    answers_marked: u64,
    /// Packets whose marks CREDITs have reported.
    marks_reported: u64,
}

/// The use of several paths, over many sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::check) struct PathUse {
    /// Sessions whose clients have used two source ports at least.
    pub(in crate::check) sessions: u64,
    /// Packets of requests that left from a further port.
    pub(in crate::check) packets: u64,
    /// Packets whose marks CREDITs have reported.
    pub(in crate::check) marks: u64,
}

#[derive(Debug)]
struct Side {
    at: SimAddr,
    further: PathPorts,
    ports: Vec<PortCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PortCounts {
    packets: u64,
    /// Frames that the other side has taken with a mark.
    marked: u64,
}

#[derive(Debug, Default)]
struct SlotPorts {
    /// The newest request of which a packet has come.
    request: u64,
    /// The client's port of the slot's latest frame.
    source: u8,
    /// Packets of `marked_request` that came with a mark since the last CREDIT.
    marked: BTreeSet<u32>,
    marked_request: u64,
}

/// The server's ports of responses.
#[derive(Debug, Default)]
struct ResponsePorts {
    /// The client's port of the session's first frame.
    first: Option<u8>,
    /// Frames with flag R that the server has taken. A count may tell of a lost response.
    repeats: u64,
    /// The least numbers of moves to other ports, by the latest long and by the latest short response.
    long_moves: u64,
    short_moves: u64,
}

impl ResponsePorts {
    /// Returns the least number of moves, from `at_least` on, that lead a server from the port `base` to the port `source`; `None` if there
    /// are more than frames that the client has repeated.
    fn moves(&self, base: u8, source: u8, ports: usize, at_least: u64) -> Option<u64> {
        let ports = ports as u64;
        let is_at = |moves: &u64| (u64::from(base) + moves) % ports == u64::from(source);
        (at_least..at_least + ports).find(is_at).filter(|&moves| moves <= self.repeats)
    }
}

impl Side {
    fn new(at: SimAddr, further: PathPorts) -> Self {
        let count = further.as_slice().len() + 1;
        Self { at, further, ports: vec![PortCounts::default(); count] }
    }

    fn source(&self, from: SimAddr) -> Option<u8> {
        if from == self.at {
            return Some(0);
        }
        let ports = self.further.as_slice();
        let place = ports.iter().position(|&port| from == SimAddr { port, ..self.at })?;
        Some(place as u8 + 1)
    }
}

impl SourcePorts {
    pub(super) fn new(agreement: &Agreement, goes_back_n: bool) -> Self {
        let Agreement { client, server, accept, ports: [of_client, of_server], .. } = *agreement;
        Self {
            reports_marks: !of_client.is_empty() && !goes_back_n,
            client: Side::new(client, of_client),
            server: Side::new(server, of_server),
            slot_count: accept.slots.into(),
            slots: BTreeMap::new(),
            responses: ResponsePorts::default(),
            answers_marked: 0,
            marks_reported: 0,
        }
    }

    /// Returns which port of the sender an address is.
    pub(super) fn source(&self, to_server: bool, from: SimAddr) -> Option<u8> {
        if to_server { self.client.source(from) } else { self.server.source(from) }
    }

    /// Counts a frame at the sender's source port, and checks frames of the server.
    pub(super) fn follow(
        &mut self,
        event: Event,
        to_server: bool,
        source: u8,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let sender = if to_server { &mut self.client } else { &mut self.server };
        // The receiver may have a longer list of ports by a later link than the session agreed to.
        if let Some(counts) = sender.ports.get_mut(usize::from(source)) {
            match event {
                Event::Sent(_) => counts.packets += u64::from(is_data(&frame.header)),
                Event::Taken { is_marked, .. } => counts.marked += u64::from(is_marked),
            }
        }
        match (event, to_server) {
            (Event::Sent(_), true) => Ok(()),
            (Event::Taken { is_marked, .. }, true) => {
                self.server_takes(source, is_marked, frame);
                Ok(())
            }
            (Event::Sent(_), false) => self.server_sends(source, frame, bytes),
            (Event::Taken { is_marked, .. }, false) => {
                self.answers_marked += u64::from(is_marked);
                Ok(())
            }
        }
    }

    /// Notes the port of a frame that the server has taken, and the packets with a mark.
    fn server_takes(&mut self, source: u8, is_marked: bool, frame: &Frame<'_>) {
        let number = frame.header.request;
        let slot = self.slots.entry(number % self.slot_count).or_default();
        if number < slot.request {
            // Of an earlier request: ignored.
            return;
        }
        slot.source = source;
        self.responses.first.get_or_insert(source);
        self.responses.repeats += u64::from(frame.header.flags.repeats());
        if !is_data(&frame.header) {
            return;
        }
        slot.request = number;
        if frame.header.kind == Kind::RequestPart && is_marked {
            if slot.marked_request != number {
                slot.marked.clear();
                slot.marked_request = number;
            }
            slot.marked.insert(part_of(frame).packet);
        }
    }

    /// Checks the port of a response, and the marks in a CREDIT.
    fn server_sends(&mut self, source: u8, frame: &Frame<'_>, bytes: &[u8]) -> Result<(), Broken> {
        let ports = self.server.ports.len();
        let number = frame.header.request;
        let Some(slot) = self.slots.get_mut(&(number % self.slot_count)) else { return Ok(()) };
        // CREDITs leave from all ports in turn.
        let responses = &mut self.responses;
        match frame.header.kind {
            Kind::ResponsePart => {
                let moves = responses.moves(slot.source, source, ports, responses.long_moves);
                responses.long_moves = moves
                    .ok_or("a long response from another port than its client's frame (§14.2)")?;
            }
            Kind::Response => {
                let first = responses.first.unwrap_or(0);
                let moves = responses.moves(first, source, ports, responses.short_moves);
                responses.short_moves = moves
                    .ok_or("a short response from another port than the one before (§14.2)")?;
            }
            _ => {}
        }
        if frame.header.kind != Kind::Credit || !self.reports_marks {
            return Ok(());
        }
        let rest = &bytes[petrel_proto::limits::HEADER_BYTES..];
        let Ok(marks) = Marks::read(frame.header.flags, rest) else {
            return Err("marks that cannot be read (§14.3)");
        };
        let reported: BTreeSet<u32> = marks.into_iter().flat_map(Marks::packets).collect();
        let has_marks = slot.marked_request == number;
        let marked = if has_marks { std::mem::take(&mut slot.marked) } else { BTreeSet::new() };
        if !reported.is_subset(&marked) {
            return Err("a CREDIT reports a mark of a packet that came without (§14.3)");
        }
        self.marks_reported += reported.len() as u64;
        // A record has room for a window of packets.
        let ends = marked.first().zip(marked.last());
        let is_short = ends.is_none_or(|(first, last)| last - first < WINDOW_PACKETS);
        if is_short && reported != marked {
            return Err("a CREDIT leaves out a packet that came with a mark (§14.3)");
        }
        Ok(())
    }

    /// Adds the session's use of its paths.
    pub(super) fn add_use(&self, all: &mut PathUse) {
        let ports = &self.client.ports;
        all.sessions += u64::from(ports.iter().filter(|port| port.packets > 0).count() > 1);
        all.packets += ports[1..].iter().map(|port| port.packets).sum::<u64>();
        all.marks += self.marks_reported;
    }

    /// Compares a client's counters of paths with the frames sent from each port.
    pub(super) fn check_counts(&self, counts: &[PathCounts]) -> Result<(), String> {
        let seen = &self.client.ports;
        if counts.is_empty() {
            return match seen[1..].iter().all(|port| port.packets == 0) {
                true => Ok(()),
                false => Err(format!("a session of one path used further ports: {seen:?}")),
            };
        }
        let is_right = |(count, port): (&PathCounts, &PortCounts)| {
            count.packets == port.packets
                && count.losses <= count.packets
                // A response may carry one packet's mark, or be marked itself.
                && count.marks <= port.marked + self.answers_marked
        };
        if counts.len() == seen.len() && counts.iter().zip(seen).all(is_right) {
            return Ok(());
        }
        Err(format!("the counters of paths are {counts:?}, and the frames were {seen:?}"))
    }
}
