//! The wire checker: it reads every frame, and is written from the specification rather than from the code.
//!
//! Waste of time or memory never shows in the outcome of a call: an unneeded retransmission, a credit too
//! many, an incomplete bitmap. So the wire checker follows every session from its frames alone, as in
//! `docs/wire-protocol.md`, with sets instead of bitmaps. Every frame is compared with the sender's
//! knowledge at the time: exactly the frames taken from the sender's receive queue.
//!
//! | rule | section |
//! | --- | --- |
//! | a client has at most C packets unacknowledged, excluding waiting requests | §4 |
//! | a server that reports a request as waiting (flag W) begins its answer with one packet | §6.3 |
//! | no packet is sent or allowed 256 or more beyond the packets known to be received | §4 |
//! | packets are first sent in order | §5, §6.3 |
//! | no packet is retransmitted that is known to have arrived | §5.2, §6.3 |
//! | CREDIT and PULL report exactly the received packets | §3.1 |
//! | a limit never decreases | §3.1 |
//! | a server sends only allowed packets, and only after the whole request has arrived | §6 |
//! | a CANCEL names a request that was sent, is sent once, and ends all packets for this request | §5.4, §6.2 |
//! | a client acknowledges a response once, and only after its arrival | §6.4 |
//! | a frame leaves from an announced port of its sender | §14.1 |
//! | a server's frame leaves from the port of the client's frame that caused it | §14.2 |
//! | a CREDIT names exactly the packets that came with a mark since the last one | §14.3 |
//! | a frame leaves by its session's link, sealed or plain; a frame of another link to the same peer is not taken | §3.5, §17.3 |
//!
//! The client's counters of each path are compared with the frames seen: see `source_ports`.
//!
//! Payloads are compared with the calls' messages: see `contents`.

mod contents;
mod packets;
mod request;
mod source_ports;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use petrel_proto::limits::{ENDPOINT_METHOD, PACKET_BYTES_MIN, SLOTS_WITH_RESERVE_MIN, packets_of};
use petrel_proto::path::PathCounts;
use petrel_proto::wire::{Fields, Frame, Header, Kind, Part};

use super::client_call::Work;
use super::ledger::Ledger;
use super::regions;
use crate::control::Agreement;
use crate::fabric::{Observation, SimAddr, TurnClock};
pub(super) use contents::ContentCounts;
use contents::{Contents, FramePath};
use request::{InOrder, Request};
pub(super) use source_ports::PathUse;
use source_ports::SourcePorts;

#[derive(Debug, Default)]
pub(super) struct WireChecker {
    sessions: Vec<Session>,
    /// The session, and whether the receiver is its server, by receiver, session index and token.
    by_name: BTreeMap<(SimAddr, u32, u32), (usize, bool)>,
    /// Endpoints that drop packets out of order.
    in_order: BTreeSet<SimAddr>,
    /// The checker of payloads, if the calls are known.
    contents: Option<Contents>,
    pub(super) violation: Option<String>,
    pub(super) frames: u64,
}

/// The state of a session, derived from its frames.
#[derive(Debug)]
struct Session {
    agreement: Agreement,
    in_order: InOrder,
    packet_bytes: u32,
    /// The source ports of both sides, and their use.
    source_ports: SourcePorts,
    /// The latest request of every slot.
    slots: BTreeMap<u64, Request>,
    /// Credits held by all slots.
    held: u32,
    /// Whether `held` is exact: a call that the client ends without a frame is invisible here.
    is_exact: bool,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Its sender has read the clock so.
    Sent(TurnClock),
    /// The receiver has taken the frame from this source port of the sender, with a mark or without.
    Taken { source: u8, is_marked: bool },
}

/// The description of a broken rule.
pub(super) type Broken = &'static str;

impl WireChecker {
    /// Makes a wire checker that knows the calls, and checks payloads, too.
    pub(super) fn of_calls(ledger: Rc<RefCell<Ledger>>) -> Self {
        Self { contents: Some(Contents::new(ledger)), ..Self::default() }
    }

    /// Returns the counts of compared payloads.
    pub(super) fn content_counts(&self) -> ContentCounts {
        self.contents.as_ref().map(Contents::counts).unwrap_or_default()
    }

    /// Returns how all sessions have used their paths.
    pub(super) fn path_use(&self) -> PathUse {
        let mut all = PathUse::default();
        self.sessions.iter().for_each(|session| session.source_ports.add_use(&mut all));
        all
    }

    /// Records a new endpoint, and whether it goes back N.
    pub(super) fn add_endpoint(&mut self, at: SimAddr, goes_back_n: bool) {
        // A former endpoint of this address may have had the other setting.
        if goes_back_n {
            self.in_order.insert(at)
        } else {
            self.in_order.remove(&at)
        };
    }

    /// Records an open session.
    pub(super) fn add(&mut self, agreement: Agreement) {
        let Agreement { client, server, open, accept, .. } = agreement;
        let index = self.sessions.len();
        self.by_name.insert((client, open.session, open.token), (index, false));
        self.by_name.insert((server, accept.session, accept.token), (index, true));
        let goes_back_n = |at| self.in_order.contains(at);
        let in_order = InOrder { client: goes_back_n(&client), server: goes_back_n(&server) };
        self.sessions.push(Session {
            agreement,
            in_order,
            packet_bytes: accept.packet_bytes,
            source_ports: SourcePorts::new(&agreement, in_order.server),
            slots: BTreeMap::new(),
            held: 0,
            is_exact: true,
        });
    }

    /// Records that a client has ended a call without a frame.
    pub(super) fn lose_count(&mut self, client: SimAddr, session_index: u32) {
        let is_it = |session: &&mut Session| {
            let Agreement { client: owner, open, .. } = session.agreement;
            (owner, open.session) == (client, session_index)
        };
        if let Some(session) = self.sessions.iter_mut().rev().find(is_it) {
            session.is_exact = false;
        }
    }

    /// Returns the payload of a full packet of a client's session; the largest, if its number was reused.
    pub(super) fn packet_bytes(&self, client: SimAddr, session_index: u32) -> u32 {
        let sessions = self.sessions_of(client, session_index);
        sessions.map(|session| session.packet_bytes).max().unwrap_or(PACKET_BYTES_MIN)
    }

    /// Returns the credits of a client's session: the fewest, if its number was reused; `None` if none was seen.
    pub(super) fn credits(&self, client: SimAddr, session_index: u32) -> Option<u16> {
        let sessions = self.sessions_of(client, session_index);
        sessions.map(|session| session.agreement.accept.credits).min()
    }

    fn sessions_of(&self, client: SimAddr, index: u32) -> impl Iterator<Item = &Session> {
        self.sessions.iter().filter(move |session| {
            let Agreement { client: owner, open, .. } = session.agreement;
            (owner, open.session) == (client, index)
        })
    }

    pub(super) fn see(&mut self, observation: Observation<'_>) {
        match observation {
            Observation::Sent { from, to, key_path, frame, clock } => {
                self.check(Event::Sent(clock), from, to, key_path, frame)
            }
            Observation::Taken { from, source, to, key_path, frame, is_marked } => {
                self.check(Event::Taken { source, is_marked }, from, to, key_path, frame)
            }
        }
    }

    /// Compares a client's counters of its paths with the frames that left.
    pub(super) fn check_path_counts(
        &self,
        (client, session, token): (SimAddr, u32, u32),
        counts: &[PathCounts],
    ) -> Result<(), String> {
        let Some(&(index, false)) = self.by_name.get(&(client, session, token)) else {
            return Ok(());
        };
        self.sessions[index].source_ports.check_counts(counts)
    }

    /// Checks a frame that is sent or taken.
    fn check(
        &mut self,
        event: Event,
        from: SimAddr,
        to: SimAddr,
        key_path: Option<u32>,
        bytes: &[u8],
    ) {
        let is_sent = matches!(event, Event::Sent(_));
        let Ok(frame) = Frame::parse(bytes) else { return };
        let name = (to, frame.header.session, frame.header.token);
        let Some(&(index, to_server)) = self.by_name.get(&name) else { return };
        let session = &mut self.sessions[index];
        let Agreement { client, server, key_paths, .. } = session.agreement;
        let sender = if to_server { client } else { server };
        let is_by_link =
            key_path == key_paths.map(|paths| paths[usize::from(is_sent != to_server)]);
        if is_sent && !is_by_link {
            let text = format!("{from} sends {frame}: by another link than its session's (§17.3)");
            self.violation.get_or_insert(text);
            return;
        }
        let source = match event {
            Event::Sent(_) => session.source_ports.source(to_server, from),
            // The core drops frames of other peers than the session's: from ports that a list from an earlier process of the
            // same address has given to another peer, and by other links to the same address. An attacker's plain copies
            // of sealed frames arrive by an older plain link (seed 7002022).
            Event::Taken { source, .. } => (from == sender && is_by_link).then_some(source),
        };
        let Some(source) = source else {
            if is_sent && from.host == sender.host {
                let text = format!("{from} sends {frame}: from a port not announced (§14.1)");
                self.violation.get_or_insert(text);
            }
            return;
        };
        self.frames += 1;
        // An attempt of a client call or an operation may end without a frame, on an unknown session.
        let is_of_client = |method: u16| Work::of(method).is_some() || regions::is_method(method);
        let is_client_call = is_data(&frame.header) && is_of_client(frame.header.aux);
        session.is_exact &= !is_client_call;
        let of_ports = session.source_ports.follow(event, to_server, source, &frame, bytes);
        if let Err(rule) = of_ports.and_then(|()| session.follow(is_sent, to_server, &frame)) {
            let what = if is_sent { "sends" } else { "takes" };
            let who = if is_sent { sender } else { to };
            let text = format!("{who} {what} {frame}: {rule}; {session:?}");
            self.violation.get_or_insert(text);
        }
        let packet_bytes = session.packet_bytes;
        if let Event::Sent(clock) = event
            && let path = (FramePath { session: index, from: sender, to, packet_bytes, clock })
            && let Some(contents) = &mut self.contents
            && let Err(wrong) = contents.check(path, &frame)
        {
            self.violation.get_or_insert_with(|| format!("{sender} sends {frame}: {wrong}"));
        }
    }
}

impl Session {
    /// Checks a frame against the knowledge of its sender, and notes the knowledge of both sides.
    fn follow(&mut self, is_sent: bool, to_server: bool, frame: &Frame<'_>) -> Result<(), Broken> {
        let slot = frame.header.request % u64::from(self.agreement.accept.slots);
        if is_sent && to_server && is_data(&frame.header) {
            self.begin_if_new(slot, frame)?;
        }
        let packet_bytes = self.packet_bytes;
        let is_cancel = is_sent && to_server && frame.header.kind == Kind::Cancel;
        let latest = self.slots.get(&slot).map(|request| request.number);
        if is_cancel && latest.is_none_or(|latest| latest < frame.header.request) {
            return Err("a CANCEL for a request that was never sent (§5.4)");
        }
        let Some(request) = self.slots.get_mut(&slot) else { return Ok(()) };
        if request.number != frame.header.request {
            // The frame is for a request that the client has finished.
            return Ok(());
        }
        let before = request.held();
        match (to_server, is_sent) {
            (true, true) => request.client_sends(frame)?,
            (true, false) => request.server_takes(frame),
            (false, true) => request.server_sends(frame)?,
            (false, false) => request.client_takes(frame, packet_bytes),
        }
        let after = request.held();
        self.held = self.held + after - before;
        let credits = u32::from(self.agreement.accept.credits);
        if is_sent && to_server && self.is_exact && self.held > credits {
            return Err("the client has more packets unacknowledged than credits (§4)");
        }
        Ok(())
    }

    /// Begins the record of a request at its first frame. Checks that request numbers of a slot only increase.
    fn begin_if_new(&mut self, slot: u64, frame: &Frame<'_>) -> Result<(), Broken> {
        let number = frame.header.request;
        let part = part_of(frame);
        let latest = self.slots.get(&slot).map(|request| request.number);
        if latest == Some(number) {
            return Ok(());
        }
        if latest.is_some_and(|latest| latest > number) {
            return Err("an old request number is used again (§5)");
        }
        if number < self.agreement.open.first_request {
            return Err("a request number is below the first (§5)");
        }
        let slots = u64::from(self.agreement.accept.slots);
        let is_kept = slot == 0 && slots >= u64::from(SLOTS_WITH_RESERVE_MIN);
        if is_kept && frame.header.aux != ENDPOINT_METHOD {
            return Err("a call in the slot that is kept for the endpoint's own requests (§4)");
        }
        let request = Request::new(number, packets_of(part.size, self.packet_bytes), self.in_order);
        let request = if is_kept { request.exempt() } else { request };
        if let Some(former) = self.slots.insert(slot, request) {
            self.held -= former.held();
        }
        Ok(())
    }
}

fn is_data(header: &Header) -> bool {
    matches!(header.kind, Kind::Request | Kind::RequestPart)
}

/// Returns the part in a data frame: a single-packet message is its only part.
fn part_of(frame: &Frame<'_>) -> Part {
    match frame.fields {
        Fields::Part(part) => part,
        _ => Part { size: frame.payload.len() as u32, packet: 0, grant: 1 },
    }
}

#[cfg(test)]
mod tests;
