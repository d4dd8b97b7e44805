//! The checker of frame contents: no frame may show a buffer after its release (eRPC §4.2.2, appendices B and C).
//!
//! An application overwrites or reuses a buffer as soon as it is returned, and pools poison returned memory. Every
//! departing payload is therefore compared with its message, including payloads without a reader: retransmissions, and
//! answers to ended calls. A request must belong to a call that has not ended, with every byte as in its message.
//!
//! The table lists endpoints with planted defects. All further rules of the wire checker, which mostly
//! notice first, were switched off. The seed is the first, counted from 0, with a violation of this rule.
//!
//! | planted defect | seed | message |
//! | --- | --- | --- |
//! | retransmissions wait for a turn in a list of addresses | 0 | "memory that the application had got back" |
//! | answers wait in a list of addresses | 0 | "other bytes", from the slot's next answer |
//! | the burst is flushed after the next receive instead of at once | 2 | "changed or freed" |

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use petrel_proto::wire::{Frame, Kind};
use petrel_transport::buf::POISON_BYTE;

use super::part_of;
use crate::check::call::{Content, End, Method};
use crate::check::client_call::{Outcome, Work};
use crate::check::ledger::Ledger;
use crate::check::pattern::{self, OVERWRITE_BYTE};
use crate::check::regions;
use crate::fabric::{SimAddr, TurnClock};

/// Consecutive bytes of a fill pattern that cannot be an accident.
const RUN_BYTES: usize = 4;

/// The contents checker, with its state.
#[derive(Debug)]
pub(super) struct Contents {
    ledger: Rc<RefCell<Ledger>>,
    /// By session and request number.
    requests: BTreeMap<(usize, u64), Message>,
    counts: ContentCounts,
}

/// Number of payloads compared with their messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::check) struct ContentCounts {
    pub(in crate::check) all: u64,
    /// In retransmitted packets.
    pub(in crate::check) repeated: u64,
    /// Payloads of answers to ended calls, which have no reader.
    pub(in crate::check) stale: u64,
}

/// The request behind a request number.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// A plain call's.
    Call(u32),
    /// A client or group call's.
    ClientCall(u32),
    /// An operation's.
    Operation(u32),
    /// Too short for a call number.
    Tiny { method: Method, byte: Option<u8> },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FramePath {
    /// The session's index in the wire checker.
    pub(super) session: usize,
    pub(super) from: SimAddr,
    pub(super) to: SimAddr,
    /// Payload of every packet except the last.
    pub(super) packet_bytes: u32,
    /// The sender's clock.
    pub(super) clock: TurnClock,
}

impl Contents {
    pub(super) fn new(ledger: Rc<RefCell<Ledger>>) -> Self {
        Self { ledger, requests: BTreeMap::new(), counts: ContentCounts::default() }
    }

    pub(super) fn counts(&self) -> ContentCounts {
        self.counts
    }

    pub(super) fn check(&mut self, path: FramePath, frame: &Frame<'_>) -> Result<(), String> {
        let name = (path.session, frame.header.request);
        let offset = part_of(frame).packet as usize * path.packet_bytes as usize;
        let known = self.requests.get(&name).copied();
        let is_stale = match frame.header.kind {
            Kind::Request | Kind::RequestPart => {
                let message = match known {
                    Some(message) => message,
                    None => {
                        let message = self.first_seen(path, frame)?;
                        *self.requests.entry(name).or_insert(message)
                    }
                };
                self.check_request(message, offset, frame)?;
                if part_of(frame).packet == 0 {
                    self.check_deadline(message, path, frame)?;
                }
                false
            }
            Kind::Response | Kind::ResponsePart => {
                // Forged frames may be answered, too.
                let Some(message) = known else { return Ok(()) };
                self.check_answer(message, path.from, offset, frame)?;
                self.is_over(message)
            }
            _ => return Ok(()),
        };
        self.counts.all += 1;
        self.counts.repeated += u64::from(frame.header.flags.repeats());
        self.counts.stale += u64::from(is_stale);
        Ok(())
    }

    /// Returns the request behind a new request number, according to its first packet.
    fn first_seen(&self, path: FramePath, frame: &Frame<'_>) -> Result<Message, String> {
        let ledger = self.ledger.borrow();
        let (payload, method) = (frame.payload, frame.header.aux);
        if let Some(method) = Method::tiny(method) {
            let byte = payload.first().copied();
            let message = Message::Tiny { method, byte };
            let is_made = payload.len() <= 1 && ledger.has_tiny(path.to, method, byte);
            return is_made.then_some(message).ok_or_else(|| wrong("a tiny request", payload));
        }
        if Work::of(method).is_some() {
            drop(ledger);
            return self.attempt_seen(path, frame);
        }
        if regions::is_method(method) {
            let found = ledger.find_operation((path.from, path.to), method, payload);
            return found.map(Message::Operation).ok_or_else(|| wrong("an operation", payload));
        }
        let id = pattern::id_of(payload).filter(|&id| (id as usize) < ledger.call_count());
        let Some(id) = id else { return Err(wrong("the first packet of a request", payload)) };
        let call = ledger.call(id);
        let is_meant = (call.client_at, call.server) == (path.from, path.to)
            && (call.spec.method.number(), call.spec.request_len) == (method, part_of(frame).size);
        is_meant.then_some(Message::Call(id)).ok_or_else(|| wrong("a request", payload))
    }

    /// Checks the first packet of an attempt.
    fn attempt_seen(&self, path: FramePath, frame: &Frame<'_>) -> Result<Message, String> {
        let id = pattern::id_of(frame.payload).unwrap_or_default();
        let asked = (frame.header.aux, part_of(frame).size);
        let ends = (path.from, path.to);
        self.ledger.borrow_mut().attempt(id, path.session, ends, asked)?;
        Ok(Message::ClientCall(id))
    }

    fn check_request(
        &self,
        message: Message,
        offset: usize,
        frame: &Frame<'_>,
    ) -> Result<(), String> {
        let payload = frame.payload;
        if let Message::ClientCall(id) = message {
            self.ledger.borrow().check_leaving(id)?;
            let is_right = pattern::is_part_of_request(id, offset, payload);
            return is_right.then_some(()).ok_or_else(|| wrong("a client call's request", payload));
        }
        if let Message::Operation(id) = message {
            let regions = &self.ledger.borrow().regions;
            let is_right = regions.may_leave(id) && regions.is_part_of_request(id, offset, payload);
            return is_right.then_some(()).ok_or_else(|| wrong("an operation", payload));
        }
        let Message::Call(id) = message else { return self.check_tiny(message, payload) };
        if !pattern::is_part_of_request(id, offset, payload) {
            return Err(wrong(&format!("the request of call {id}"), payload));
        }
        let end = self.ledger.borrow().call(id).end;
        if end != End::Pending {
            return Err(format!("the request of call {id} leaves, which has ended: {end:?}"));
        }
        Ok(())
    }

    fn check_deadline(
        &self,
        message: Message,
        FramePath { to, clock, .. }: FramePath,
        frame: &Frame<'_>,
    ) -> Result<(), String> {
        let left_us = frame.extensions.deadline_us;
        let mut ledger = self.ledger.borrow_mut();
        match message {
            Message::Call(id) => ledger.leave(id, left_us, clock),
            Message::ClientCall(id) => ledger.leave_client_call(id, to, left_us, clock),
            // The call of a tiny request is unknown.
            Message::Operation(_) | Message::Tiny { .. } => Ok(()),
        }
    }

    fn check_tiny(&self, message: Message, payload: &[u8]) -> Result<(), String> {
        let Message::Tiny { byte, .. } = message else { return Ok(()) };
        let is_right = payload == byte.as_slice();
        is_right.then_some(()).ok_or_else(|| wrong("a tiny request", payload))
    }

    fn check_answer(
        &self,
        message: Message,
        from: SimAddr,
        offset: usize,
        frame: &Frame<'_>,
    ) -> Result<(), String> {
        let payload = frame.payload;
        if frame.header.aux as u8 != 0 {
            // Error texts are ASCII, whatever their origin.
            return payload.is_ascii().then_some(()).ok_or_else(|| wrong("an error", payload));
        }
        let content = match message {
            // The caller compares the words; here, no freed memory may show.
            Message::Operation(_) => {
                let shows = payload.windows(RUN_BYTES).any(|run| run == [POISON_BYTE; RUN_BYTES]);
                return (!shows)
                    .then_some(())
                    .ok_or_else(|| wrong("an operation's answer", payload));
            }
            Message::Call(id) => self.ledger.borrow().call(id).content(id),
            Message::ClientCall(id) => {
                let ledger = self.ledger.borrow();
                if ledger.is_redirect_of(id, from, payload) {
                    return Ok(());
                }
                ledger
                    .client_call(id)
                    .map_or(Content::None, |client_call| Content::Filled(client_call.seed))
            }
            Message::Tiny { method, byte } => method.content_of_tiny(byte),
        };
        let is_right = match content {
            Content::Request(id) => pattern::is_part_of_request(id, offset, payload),
            Content::Tiny(byte) => payload == byte.as_slice(),
            Content::Filled(seed) => pattern::is_part_of_filled(seed, offset, payload),
            Content::None => false,
        };
        is_right.then_some(()).ok_or_else(|| wrong(&format!("the answer to {message:?}"), payload))
    }

    fn is_over(&self, message: Message) -> bool {
        let ledger = self.ledger.borrow();
        match message {
            Message::Call(id) => ledger.call(id).end != End::Pending,
            Message::ClientCall(id) => {
                ledger.client_call(id).is_some_and(|at| at.outcome != Outcome::Pending)
            }
            Message::Operation(id) => !ledger.regions.may_leave(id),
            Message::Tiny { .. } => false,
        }
    }
}

fn wrong(what: &str, payload: &[u8]) -> String {
    let shows = |byte| payload.windows(RUN_BYTES).any(|run| run == [byte; RUN_BYTES]);
    let other = match (shows(POISON_BYTE), shows(OVERWRITE_BYTE)) {
        (true, _) => "memory that its pool had got back",
        (false, true) => "memory that the application had got back",
        (false, false) => "other bytes than its own",
    };
    format!("{what} shows {other}")
}

#[cfg(test)]
mod tests;
