//! Answers of the application (`docs/wire-protocol.md` §6.3).

use core::fmt;

use super::{Core, FrameSink};
use crate::buffer::Buffer;
use crate::limits::packets_of;
use crate::session::held::HoldingId;
use crate::session::server::ServerSession;
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::wire::ANSWERED_LATER;

/// Names a running request. The handle is valid until the answer, until the client gives the request up, or
/// until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestHandle {
    /// The session of the request.
    pub session: SessionId,
    /// The request's number.
    pub number: u64,
}

/// A refused answer, with its buffer.
pub struct RespondRejected<B> {
    /// The reason.
    pub error: RespondError,
    /// The answer's buffer.
    pub message: B,
}

impl<B> fmt::Debug for RespondRejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The reason why an answer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The client gave the request up, the session ended, or the request has been answered.
    #[error("nobody waits for this answer any more")]
    Gone,
    /// The answer is longer than the client accepts; the request can still be answered.
    #[error("the response has {len} bytes, and the client accepts {max}")]
    TooLarge {
        /// Length of the answer in bytes.
        len: usize,
        /// The largest response that the client accepts, in bytes.
        max: u32,
    },
    /// Answers in transmission use up the share of the session or peer in this endpoint's memory for
    /// messages. The request can still be answered with an error.
    #[error("no memory to keep the answer in until the client has it")]
    NoRoom,
}

impl<B: Buffer, T> Core<B, T> {
    /// Answers a request: with a message if `status` is OK, else with a text in UTF-8, cut to one packet.
    ///
    /// # Errors
    /// [`RespondRejected`] returns the buffer.
    pub fn respond(
        &mut self,
        handle: RequestHandle,
        status: Status,
        message: B,
    ) -> Result<(), RespondRejected<B>> {
        self.respond_by_queue(handle, status, message, ANSWERED_LATER)
    }

    #[inline(never)]
    fn respond_by_queue(
        &mut self,
        handle: RequestHandle,
        status: Status,
        mut message: B,
        bits: u16,
    ) -> Result<(), RespondRejected<B>> {
        let Some((mut server, slot)) = running(&mut self.sessions, handle) else {
            self.shared.counters.answers_discarded += 1;
            return Err(RespondRejected { error: RespondError::Gone, message });
        };
        let packet_bytes = server.agreed().packet_bytes;
        if status != Status::Ok {
            cut_text(&mut message, packet_bytes as usize);
        }
        let (len, max) = (message.len(), server.agreed().peer_message_bytes_max);
        if len > max as usize && status == Status::Ok {
            return Err(RespondRejected { error: RespondError::TooLarge { len, max }, message });
        }
        let mut held = HoldingId::NONE;
        let is_large = message.capacity() > server.kept_answer_bytes_max() as usize;
        if is_large {
            match self.keep_answer(handle, slot, message.memory_bytes() as u64) {
                Ok(id) => held = id,
                Err(error) => return Err(RespondRejected { error, message }),
            }
            let running = running(&mut self.sessions, handle);
            (server, _) = running.expect("a request runs until it is answered");
        }
        let state = server.slot_mut(slot);
        let packets = packets_of(len as u32, packet_bytes);
        let spare = &mut self.shared.server_parts;
        state.set_answer((status, bits), message, packets, held, spare);
        self.shared.counters.responses_sent += 1;
        self.shared.queue_server(handle.session.index, slot, state);
        Ok(())
    }

    /// Like [`Core::respond`] with status OK. A small answer goes to `sink` at once if `sink` accepts it. As
    /// with [`Core::transmit`], its bytes stay unchanged until the core's next method is called.
    ///
    /// # Errors
    /// As [`Core::respond`].
    #[inline(always)]
    pub fn respond_at_once<S: FrameSink>(
        &mut self,
        handle: RequestHandle,
        message: B,
        sink: &mut S,
    ) -> Result<(), RespondRejected<B>> {
        match self.respond_plain(handle, message, sink) {
            None => Ok(()),
            Some(message) => self.respond_by_queue(handle, Status::Ok, message, 0),
        }
    }

    /// Answers a request with an error that needs no buffer. Does nothing if the client no longer waits.
    ///
    /// # Panics
    /// If `status` is OK.
    pub fn respond_error(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        assert!(status != Status::Ok, "an error has another status than OK");
        let Some((server, slot)) = running(&mut self.sessions, handle) else {
            self.shared.counters.answers_discarded += 1;
            return;
        };
        let state = server.slot_mut(slot);
        self.shared.answer_by_text(handle.session, state, slot, status, 0, text);
    }

    /// Answers a request with an error that marks it as refused: its handler was not called and will not be,
    /// so the client may safely repeat the call. Does nothing if the client no longer waits.
    ///
    /// # Panics
    /// If `status` is OK.
    pub fn refuse(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        assert!(status != Status::Ok, "a refusal has another status than OK");
        let Some((server, slot)) = running(&mut self.sessions, handle) else {
            self.shared.counters.answers_discarded += 1;
            return;
        };
        self.shared.refuse(handle.session, server.slot_mut(slot), slot, status, text);
    }

    /// Returns the largest response that the client of a running request accepts, in bytes; `None` if the
    /// client no longer waits.
    pub fn response_bytes_max(&mut self, handle: RequestHandle) -> Option<u32> {
        running(&mut self.sessions, handle)
            .map(|(server, _)| server.agreed().peer_message_bytes_max)
    }
}

/// Returns the session and slot of a request, if still running.
#[inline]
pub(super) fn running<B, T>(
    sessions: &mut crate::session::SessionTable<B, T>,
    handle: RequestHandle,
) -> Option<(&mut ServerSession<B>, usize)> {
    let Role::Server(server) = sessions.get_mut(handle.session)?.role_mut() else { return None };
    let slot = server.runs(handle.number)?;
    Some((server, slot))
}

/// Cuts a text longer than one packet (§3.3), between characters.
fn cut_text<B: Buffer>(message: &mut B, max: usize) {
    if message.len() <= max {
        return;
    }
    let text = message.storage_mut();
    // A character has at most three bytes after the first.
    let is_within = |at: &usize| text[*at] & 0b1100_0000 == 0b1000_0000;
    let end = (max.saturating_sub(3)..=max).rev().find(|at| !is_within(at));
    message.set_len(end.unwrap_or(max));
}
