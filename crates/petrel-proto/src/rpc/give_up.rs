//! The client gives up requests, and sends the server one notice (`docs/wire-protocol.md` §5.4).

use std::collections::VecDeque;

use super::call::{CallFailure, Execution, failed, finish};
use super::transmit::{FrameSink, Then, Turn};
use super::work::{CANCEL, Work};
use super::{Completion, Core, Event, Shared};
use crate::bitmap::Words;
use crate::buffer::Buffer;
use crate::limits::{
    CANCELS_QUEUED_MAX, CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, TRANSMIT_FRAMES_MAX,
};
use crate::session::SessionId;
use crate::session::client::{ClientSession, ClientSlot};
use crate::status::Status;
use crate::wire::{ControlBytes, Destination, Flags, Kind, Pull, header_bytes};

/// Notices to servers that the client needs nothing more for a request. Every notice has an entry in the
/// transmit queue.
#[derive(Default)]
pub(super) struct Cancels(VecDeque<Over>);

impl Cancels {
    /// Returns the number of notices not yet sent.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A request that has ended.
#[derive(Clone, Copy)]
struct Over {
    session: SessionId,
    number: u64,
    /// Packets of the completely received response; 0 if the request was given up.
    received: u32,
}

impl<B: Buffer, T> Core<B, T> {
    /// Cancels the first call of a session whose tag satisfies `is_it`. The call ends at once with CANCELLED.
    /// The server gets a CANCEL if some packet was sent. Returns `None` without a matching call.
    pub fn cancel(
        &mut self,
        session: SessionId,
        mut is_it: impl FnMut(&T) -> bool,
    ) -> Option<Completion<B, T>> {
        let client = self.sessions.client_mut(session)?;
        if let Some(slot) = client.slots().iter().position(|state| state.holds(&mut is_it)) {
            self.shared.counters.calls_cancelled += 1;
            let failure = cancelled(client.slot(slot).execution());
            return Some(self.shared.give_up(session, client, slot, failure));
        }
        let queued = client.backlog_mut().take(is_it)?;
        self.shared.counters.calls_cancelled += 1;
        self.shared.counters.calls_failed += 1;
        Some(failed(session, queued, cancelled(Execution::NotSent)))
    }

    /// Like [`Core::cancel`], with the call's end as an event of [`Core::poll_event`]. Returns false without
    /// a matching call.
    pub fn cancel_by_event(&mut self, session: SessionId, is_it: impl FnMut(&T) -> bool) -> bool {
        let Some(ended) = self.cancel(session, is_it) else { return false };
        self.events.push_back(Event::Completed(ended));
        true
    }

    /// Sends waiting notices (CANCELs) and nothing else, as [`Core::transmit`] would, at most
    /// [`TRANSMIT_FRAMES_MAX`]. Returns their number. For an owner that is about to end: after the flush it
    /// may call again.
    pub fn transmit_cancels<S: FrameSink>(&mut self, sink: &mut S) -> usize {
        let mut sent = 0;
        while sent < TRANSMIT_FRAMES_MAX && !self.shared.cancels.0.is_empty() {
            let turn = self.send_cancel(sink);
            if turn.then == Then::Refused {
                break;
            }
            sent += turn.sent;
        }
        sent
    }

    /// Sends one notice.
    #[cold]
    pub(super) fn send_cancel<S: FrameSink>(&mut self, sink: &mut S) -> Turn {
        let Some(&over) = self.shared.cancels.0.front() else { return Turn::NOTHING };
        let client = self.sessions.client_mut(over.session);
        let open = client.filter(|client| client.agreed().is_some());
        let agreed = open.map(|client| (client.to(), client.peer()));
        let mut taken = false;
        if let Some((to, peer)) = agreed {
            taken = self.control.send(sink, peer, over.frame(to));
            if !taken {
                return Turn::one(false);
            }
        }
        self.shared.cancels.0.pop_front();
        self.shared.counters.control_frames_sent += u64::from(taken);
        match over.received {
            0 => self.shared.counters.cancels_sent += u64::from(taken),
            _ => self.shared.counters.answers_acknowledged += u64::from(taken),
        }
        // After its session has ended, a notice is not sent.
        if taken { Turn::one(true) } else { Turn::NOTHING }
    }
}

impl<B: Buffer> Shared<B> {
    /// Ends the call in a slot, and notifies the server if some packet was sent.
    #[cold]
    pub(super) fn give_up<T>(
        &mut self,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        failure: CallFailure,
    ) -> Completion<B, T> {
        let state = client.slot(slot);
        if state.request_sent() > 0 {
            let number = state.number();
            client.note_given_up(slot);
            self.queue_notice(Over { session: id, number, received: 0 });
        }
        finish(self, id, client, slot, Err(Box::new(failure)))
    }

    /// Beyond the limit a notice is omitted: the rules for lost CANCELs make up for it.
    fn queue_notice(&mut self, over: Over) {
        if self.cancels.0.len() < CANCELS_QUEUED_MAX {
            self.cancels.0.push_back(over);
            self.work.push(Work { session: over.session.index, slot: CANCEL, of_client: true });
        }
    }

    /// Confirms the reception of a whole response, to let the server free its memory.
    #[cold]
    pub(super) fn confirm_received(&mut self, session: SessionId, number: u64, packets: u32) {
        self.queue_notice(Over { session, number, received: packets });
    }
}

impl Over {
    /// Returns a CANCEL, or a PULL that acknowledges everything and asks for nothing.
    fn frame(self, to: Destination) -> ControlBytes {
        if self.received > 0 {
            let header = to.words(Kind::Pull, Flags::NONE, 0, self.number);
            let (cumulative, limit) = (self.received, self.received);
            let pull = Pull { cumulative, limit, resend_below: 0, bitmap: Words::default() };
            return pull.encode(header);
        }
        let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
        let header = to.words(Kind::Cancel, Flags::NONE, 0, self.number);
        bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
        (bytes, HEADER_BYTES)
    }
}

impl<B, T> ClientSlot<B, T> {
    /// Returns the known execution of a call that ends without an answer.
    pub(super) fn execution(&self) -> Execution {
        if self.request_sent() > 0 { Execution::MayHaveExecuted } else { Execution::NotSent }
    }
}

fn cancelled(execution: Execution) -> CallFailure {
    let message = "the caller cancelled the call".to_owned();
    CallFailure { status: Status::Cancelled, message, execution }
}
