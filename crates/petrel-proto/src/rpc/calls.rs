//! The verbs of the application: calls, answers, and messages to groups.

use super::client::call::{call_with, cancelled, execution, give_up};
use super::client::start::failed;
use super::server::memory::make_room_for_answer;
use super::server::refuse::{answer_by_text, refuse};
use super::server::respond::{respond_by_queue, running};
use super::server::settle::settle;
use super::{
    CallLimits, CallRejected, Completion, Core, Event, Execution, FrameSink, GroupFrames,
    RequestHandle, RespondRejected, fast, multicast,
};
use crate::buffer::Buffer;
use crate::session::backlog::PendingCall;
use crate::session::{PeerKey, Role, SessionId};
use crate::status::Status;
use crate::wire::{ANSWERED_LATER, Announcement};

impl<B: Buffer, T> Core<B, T> {
    /// Calls `method` on a session. The core writes the response to `response`, up to its capacity. Calls
    /// beyond the session's slots wait in a queue, as do calls before the session is open.
    ///
    /// Every call ends with one [`Completion`], with `tag` and the two buffers.
    ///
    /// # Errors
    /// [`CallRejected`] returns the buffers; nothing was sent.
    #[inline]
    pub fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        method: u16,
        request: B,
        response: B,
        tag: T,
    ) -> Result<(), CallRejected<B, T>> {
        // Callers that have a sink use `call_at_once`.
        let mut nowhere = |_: PeerKey, _: &[u8], _: &[u8]| false;
        let call = PendingCall { method, tag, request, response };
        self.call_at_once(now_ns, session, call, &mut nowhere)
    }

    /// Like [`Core::call`]. A small request goes to `sink` at once if `sink` accepts it. As with
    /// [`Core::transmit`], its bytes stay unchanged until the core's next method is called.
    ///
    /// # Errors
    /// As [`Core::call`].
    #[inline(always)]
    pub fn call_at_once<S: FrameSink>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        sink: &mut S,
    ) -> Result<(), CallRejected<B, T>> {
        match fast::call_plain(&mut self.sessions, &mut self.shared, now_ns, session, call, sink) {
            None => Ok(()),
            Some(call) => self.call_with(now_ns, session, call, CallLimits::default()),
        }
    }

    /// Like [`Core::call_with`]. A small request goes to `sink` at once as by [`Core::call_at_once`].
    ///
    /// # Errors
    /// As [`Core::call`].
    #[inline(always)]
    pub fn call_with_at_once<S: FrameSink>(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
        sink: &mut S,
    ) -> Result<(), CallRejected<B, T>> {
        match fast::call_timed(
            &mut self.sessions,
            &mut self.shared,
            now_ns,
            session,
            call,
            limits,
            sink,
        ) {
            None => Ok(()),
            Some(call) => self.call_with(now_ns, session, call, limits),
        }
    }

    /// [`Core::call`] without the fast path, for a request in shared memory ([`Buffer::wire_len`]), and with
    /// a deadline. At the deadline, or at most a tick of the timer wheel later (66 µs), the call ends with
    /// DEADLINE_EXCEEDED in any state. A deadline in the past ends the call as well, by an event.
    ///
    /// # Errors
    /// As [`Core::call`].
    #[inline(always)]
    pub fn call_with(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
    ) -> Result<(), CallRejected<B, T>> {
        call_with(
            &mut self.sessions,
            &mut self.shared,
            &mut self.events,
            now_ns,
            session,
            call,
            limits,
        )
    }

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
            let failure = cancelled(execution(client.slot(slot)));
            return Some(give_up(&mut self.shared, session, client, slot, failure));
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

    /// Sets the deadline that calls inherit from now on: the current request's, or in a continuation the deadline of
    /// the request that made the finished call. Calls end at this deadline at the latest. Returns the former value.
    pub fn inherit(&mut self, deadline_ns: Option<u64>) -> Option<u64> {
        let before = self.inherited_ns();
        self.shared.clock.inherit(deadline_ns);
        before
    }

    /// Returns the deadline that calls inherit.
    pub fn inherited_ns(&self) -> Option<u64> {
        self.shared.clock.inherits().then(|| self.shared.clock.inherited_ns())
    }

    /// Returns true if a request of this length may now be sent to this session's server by multicast. The
    /// session must have a slot, and room for all packets at once as if they were sent here, so that credits,
    /// window and pace are never exceeded. Mostly false for a session not reached by multicast.
    pub fn may_announce(&mut self, session: SessionId, len: usize, packet_bytes: u32) -> bool {
        let client = self.sessions.client_mut(session);
        client.is_some_and(|client| multicast::may_announce(client, len, packet_bytes))
    }

    /// Makes a call whose packets are sent by multicast. The server gets an ANNOUNCE of the packets, and gets missing
    /// packets by unicast. [`Core::send_to_group`] sends the packets once for all members.
    ///
    /// # Panics
    /// If [`Core::may_announce`] has not just returned true for this session.
    pub fn call_announced(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
        announcement: Announcement,
    ) {
        multicast::call_announced(
            &mut self.sessions,
            &mut self.shared,
            &mut self.events,
            now_ns,
            session,
            call,
            (limits, announcement),
        );
    }

    /// Sends a message to all members of a group at the next [`Core::transmit`], after the frames already
    /// queued, the announcements among them.
    pub fn send_to_group(&mut self, to: GroupFrames, message: B) {
        self.shared.multicast.send(&mut self.shared.queue, to, message);
    }

    /// Releases messages whose packets have all been sent to a group. Call it when the medium has sent the
    /// accepted frames, as for every method except [`Core::transmit`].
    pub fn release_sent(&mut self) {
        self.shared.multicast.release_sent();
    }

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
        respond_by_queue(
            &mut self.sessions,
            &mut self.shared,
            handle,
            (status, ANSWERED_LATER),
            message,
        )
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
        match fast::respond_plain(&mut self.sessions, &mut self.shared, handle, message, sink) {
            None => Ok(()),
            Some(message) => respond_by_queue(
                &mut self.sessions,
                &mut self.shared,
                handle,
                (Status::Ok, 0),
                message,
            ),
        }
    }

    /// Answers several requests with OK, each as [`Core::respond_at_once`]. The bytes of all frames stay unchanged until
    /// the core's next method is called: an answer changes no slot but its own. `refused` gets the answers that
    /// [`Core::respond`] would return.
    #[inline(always)]
    pub fn respond_all<S: FrameSink>(
        &mut self,
        answers: impl IntoIterator<Item = (RequestHandle, B)>,
        sink: &mut S,
        mut refused: impl FnMut(RequestHandle, RespondRejected<B>),
    ) {
        for (handle, message) in answers {
            if let Err(rejected) = self.respond_at_once(handle, message, sink) {
                refused(handle, rejected);
            }
        }
    }

    /// Answers a request with an error that needs no buffer. Does nothing if the client no longer waits.
    ///
    /// # Panics
    /// If `status` is OK.
    pub fn respond_error(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        assert!(status != Status::Ok, "an error has another status than OK");
        let Some((server, slot)) = running(&mut self.sessions, handle.by_number()) else {
            self.shared.counters.answers_discarded += 1;
            return;
        };
        let state = server.slot_mut(slot);
        answer_by_text(&mut self.shared, handle.session, state, slot, status, 0, text);
        if handle.is_in_order() {
            settle(&mut self.shared, handle.session, server);
        }
    }

    /// Answers a request with an error that marks it as refused: its handler was not called and will not be,
    /// so the client may safely repeat the call. Does nothing if the client no longer waits.
    ///
    /// # Panics
    /// If `status` is OK.
    pub fn refuse(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        assert!(status != Status::Ok, "a refusal has another status than OK");
        let Some((server, slot)) = running(&mut self.sessions, handle.by_number()) else {
            self.shared.counters.answers_discarded += 1;
            return;
        };
        refuse(&mut self.shared, handle.session, server.slot_mut(slot), slot, status, text);
        if handle.is_in_order() {
            settle(&mut self.shared, handle.session, server);
        }
    }

    /// Returns the largest response that the client of a running request accepts, in bytes; `None` if the
    /// client no longer waits.
    pub fn response_bytes_max(&mut self, handle: RequestHandle) -> Option<u32> {
        running(&mut self.sessions, handle.by_number())
            .map(|(server, _)| server.agreed().peer_message_bytes_max)
    }

    /// Returns true if a request runs and its client is not known to have given up.
    pub fn is_awaited(&self, handle: RequestHandle) -> bool {
        match self.sessions.get(handle.session).map(|entry| entry.role()) {
            Some(Role::Server(server)) => server.runs(handle.by_number().number).is_some(),
            _ => false,
        }
    }

    /// Asks for an [`Event::Cancelled`](super::Event) if the client gives up a request before the answer.
    /// Returns false if the request is no longer running: then no event follows.
    pub fn watch(&mut self, handle: RequestHandle) -> bool {
        let Some((server, slot)) = running(&mut self.sessions, handle.by_number()) else {
            return false;
        };
        server.slot_mut(slot).watch();
        true
    }

    /// Returns the bytes of memory held by half-arrived requests and kept large answers. For tests and
    /// checkers.
    pub fn held_bytes(&self) -> u64 {
        self.shared.memory.bytes()
    }

    /// Gives up holdings for an answer whose handler found no memory. The answer's request is no longer
    /// charged, and may have taken the last memory for large messages. Returns false if nothing was given up.
    #[cold]
    pub fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        make_room_for_answer(&mut self.sessions, &mut self.shared, bytes as u64)
    }
}
