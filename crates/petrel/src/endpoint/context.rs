//! The operations of handlers, continuations and the application on an endpoint.

use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::{
    CallLimits, Core, FrameSink, PeerKey, PendingCall, RequestHandle, RespondError,
    RespondRejected, SessionId, Status,
};
use petrel_transport::ReturnPath;
use petrel_transport::buf::BufPool;
use petrel_transport::clock::Clock;
use petrel_transport::shm::Outgoing;

use super::call::{Continuation, Keyed};
use super::call_builder::{CallBuilder, Callee, IntoMessage};
use super::cancel::Watchers;
use super::handler::Dropped;
use super::multicast::Groups;
use super::options::limits;
use super::remote::Remote;
use super::service::Services;
use super::sessions::Sessions;
use crate::client::Client;
use crate::error::Error;
use crate::events;
use crate::local::{Hub, Key};
use crate::msgbuf::MsgBuf;

/// The transport-independent part of an endpoint: handlers and continuations use it while the transport is busy
/// delivering.
pub(crate) struct Local {
    pub(super) core: Core<MsgBuf, Continuation>,
    pub(super) pool: BufPool,
    /// The state shared by this thread's futures and the event loop.
    pub(super) hub: Rc<Hub>,
    /// Groups to which the endpoint sends by multicast.
    pub(super) groups: Groups,
    /// Requests with a dropped [`Responder`](super::Responder).
    pub(super) dropped: Rc<Dropped>,
    /// The state for other threads.
    pub(super) remote: Box<Remote>,
    /// Time of the current turn of the event loop, in nanoseconds.
    pub(super) now_ns: u64,
    /// The clock itself, for deadlines: a turn takes time.
    pub(super) clock: Clock,
    /// Bytes of the frames of this burst, except frames of small calls.
    pub(super) part_bytes: usize,
    pub(super) watchers: Watchers,
    pub(super) keyed: Keyed,
    pub(super) sessions: Sessions,
    /// The services of clients.
    pub(super) services: Box<Services>,
}

impl Local {
    /// Returns the service of a client of this endpoint.
    pub(super) fn service_of(&self, client: &Client) -> Option<Key> {
        let is_own = self.remote.is_of(client.endpoint());
        if is_own { self.services.find(client.key()) } else { None }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// An endpoint, as seen by handlers and continuations: they use it to make calls, take buffers, and answer requests.
/// `S` is the type of the [state](super::Endpoint::state) that the endpoint lends them.
// With C's field order, for the same layout with any type of state: see `Context::typed`.
#[repr(C)]
pub struct Context<'a, S = ()> {
    pub(super) local: &'a mut Local,
    pub(super) back: Back<'a>,
    state: PhantomData<fn(&mut S)>,
}

/// The sender of the frame being handled, and the return path to it: frames to that peer bypass the queue.
pub(super) struct Back<'a> {
    peer: PeerKey,
    path: Option<&'a mut Outgoing>,
}

impl<'a> Back<'a> {
    /// No frame is being handled.
    pub(super) const NONE: Back<'static> = Back { peer: PeerKey(0), path: None };

    #[inline(always)]
    pub(super) fn new(peer: PeerKey, path: Option<&'a mut Outgoing>) -> Self {
        Self { peer, path }
    }
}

impl FrameSink for Back<'_> {
    #[inline(always)]
    fn send(&mut self, _peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // Only messages of one packet use the return path, and their bytes are contiguous.
        body.is_empty() && self.path.as_mut().is_some_and(|path| path.push(head))
    }

    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
        self.path.is_some() && self.peer == peer
    }
}

/// The return path for a call with a deadline, and the time of the call.
struct Timed<'a, 'b> {
    back: &'a mut Back<'b>,
    clock_ns: u64,
}

impl FrameSink for Timed<'_, '_> {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.back.send(peer, head, body)
    }

    #[inline(always)]
    fn now_ns(&mut self, _burst_ns: u64) -> u64 {
        self.clock_ns
    }

    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
        self.back.reaches(peer)
    }
}

impl<'a, S> Context<'a, S> {
    /// Creates a context outside of handlers and continuations of received frames.
    #[inline(always)]
    pub(super) fn new(local: &'a mut Local) -> Self {
        Self::with_back(local, Back::NONE)
    }

    /// Creates a context while a frame is handled.
    #[inline(always)]
    pub(super) fn with_back(local: &'a mut Local, back: Back<'a>) -> Self {
        Self { local, back, state: PhantomData }
    }

    /// The same for a shorter time.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> Context<'_, S> {
        let Back { peer, path } = &mut self.back;
        Context::with_back(self.local, Back { peer: *peer, path: path.as_deref_mut() })
    }

    /// The same without the type of the state.
    #[inline(always)]
    pub(crate) fn untyped(&mut self) -> &mut Context<'a> {
        // SAFETY: in C's order the fields of both types are at the same offsets, as a `PhantomData` has no size.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }
}

impl<'a> Context<'a> {
    /// The same with the endpoint's type of state, for closures registered or called with it.
    #[inline(always)]
    pub(crate) fn typed<S>(&mut self) -> &mut Context<'a, S> {
        // SAFETY: as in `untyped`.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }
}

impl<'a, S: 'static> Context<'a, S> {
    /// Returns a buffer for up to `capacity` bytes. The message initially has this length, with bytes left from an
    /// earlier use: write them, or set the length.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::from_pool(&self.local.pool, capacity)?)
    }

    /// Returns a buffer that holds `message`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_message(&self, message: &[u8]) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::holding(&self.local.pool, message)?)
    }

    /// Begins a call of `method`, on a session or by a client of this endpoint; [`CallBuilder::then`] sends it.
    ///
    /// The message may be a buffer, sent without a copy, or bytes, copied into a buffer.
    #[inline(always)]
    pub fn call<C: Callee, M: IntoMessage>(
        &mut self,
        callee: C,
        method: u16,
        request: M,
    ) -> CallBuilder<&mut Self, M, C> {
        CallBuilder::new(self, callee, method, request)
    }

    /// Returns the deadline inherited by calls made now: the current request's, or in a continuation the deadline of
    /// the ended call's request.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.local.core.inherited_ns()
    }

    /// Returns the time of this turn of the event loop, in nanoseconds of the transport's clock.
    ///
    /// The clock was read before the turn received anything. If the thread did not run in between, the time is older
    /// than the current frame by that pause: [`Context::clock_now_ns`] reads the clock at the call.
    pub fn now_ns(&self) -> u64 {
        self.local.now_ns
    }

    /// Returns the current time, on the clock of [`Context::now_ns`]. Reading it takes some 10 to 20 ns.
    ///
    /// For decisions that hold only *now*, for example whether a lease is valid: the time of the turn is earlier, and a
    /// thread stopped in between would decide as of then.
    pub fn clock_now_ns(&self) -> u64 {
        self.local.clock.now_ns()
    }

    /// Returns the number of unfinished calls on a client session.
    pub fn pending_calls(&self, session: SessionId) -> usize {
        self.local.core.pending_calls(session)
    }

    #[inline(always)]
    pub(super) fn start(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, .. } = &mut *self.local;
        core.call_at_once(*now_ns, session, call, &mut self.back)
    }

    #[inline(never)]
    pub(super) fn start_with(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        timeout: Option<Duration>,
        deadline_ns: Option<u64>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, clock, .. } = &mut *self.local;
        let has_limits = timeout.is_some() || deadline_ns.is_some();
        let clock_ns = if has_limits { clock.now_ns() } else { *now_ns };
        let limits = limits(timeout, deadline_ns, clock_ns);
        // Referenced messages cannot use the fast path.
        if limits == CallLimits::default() && !call.request.is_reference() {
            return core.call_at_once(*now_ns, session, call, &mut self.back);
        }
        core.set_time(clock_ns);
        let mut back = Timed { back: &mut self.back, clock_ns };
        core.call_with_at_once(*now_ns, session, call, limits, &mut back)
    }

    /// Makes a call that ends at `end_ns`, where the clock has just been read.
    #[inline]
    pub(super) fn start_until(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        end_ns: u64,
        clock_ns: u64,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, .. } = &mut *self.local;
        core.set_time(clock_ns);
        let mut back = Timed { back: &mut self.back, clock_ns };
        let limits = CallLimits { deadline_ns: Some(end_ns) };
        core.call_with_at_once(*now_ns, session, call, limits, &mut back)
    }

    /// Runs a closure whose calls inherit `deadline_ns`.
    pub(super) fn under_deadline<R>(
        &mut self,
        deadline_ns: Option<u64>,
        run: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.local.core.inherit(deadline_ns);
        let result = run(self);
        self.local.core.inherit(before);
        result
    }

    /// Answers a request with OK, at once if there is a return path.
    #[inline(always)]
    pub(super) fn respond_at_once(&mut self, handle: RequestHandle, message: MsgBuf) {
        let responded = self.local.core.respond_at_once(handle, message, &mut self.back);
        if let Err(rejected) = responded {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn respond(&mut self, handle: RequestHandle, status: Status, message: MsgBuf) {
        self.local.watchers.forget(handle);
        if let Err(rejected) = self.local.core.respond(handle, status, message) {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn refuse(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        self.local.watchers.forget(handle);
        events::request_refused(handle.session, status, text);
        self.local.core.refuse(handle, status, text);
    }

    #[cold]
    fn refuse_answer(&mut self, handle: RequestHandle, rejected: RespondRejected<MsgBuf>) {
        let text = match rejected.error {
            RespondError::TooLarge { .. } => "the response exceeds what the caller accepts",
            RespondError::NoRoom => "executed; no memory to keep the answer",
            _ => return,
        };
        self.local.core.respond_error(handle, Status::ResourceExhausted, text);
    }

    /// Gives up stalled messages of others, for an answer. Returns false if there were none.
    #[cold]
    pub(super) fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        self.local.core.make_room_for_answer(bytes)
    }

    pub(super) fn respond_error(&mut self, handle: RequestHandle, status: Status, text: &str) {
        match self.alloc_message(text.as_bytes()) {
            Ok(message) => self.respond(handle, status, message),
            Err(_) => {
                self.local.watchers.forget(handle);
                self.local.core.respond_error(handle, status, "no memory for the message");
            }
        }
    }
}

/// A call rejected by the core.
pub(super) type NotTaken = petrel_proto::CallRejected<MsgBuf, Continuation>;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
    use petrel_transport::wake::Waker;
    use petrel_transport::{FrameHandler, PeerId, Transport, TxFrame};

    use super::*;

    /// Sends these frames back at once, every other frame as a call with a deadline, and records which were accepted.
    struct Echo<'a> {
        frames: &'a [[u8; 40]],
        taken: Vec<bool>,
    }

    impl FrameHandler<Outgoing> for &mut Echo<'_> {
        fn handle(&mut self, peer: PeerId, _frame: &[u8], path: Option<&mut Outgoing>) {
            let peer = PeerKey(peer.0);
            let mut back = Back::new(peer, path);
            assert!(back.reaches(peer) && !back.reaches(PeerKey(peer.0 + 1)));
            assert!(!back.send(peer, &self.frames[0], b"and more"), "in two pieces");
            let mut timed = Timed { back: &mut back, clock_ns: 7 };
            assert!(timed.reaches(peer) && !timed.reaches(PeerKey(peer.0 + 1)));
            assert_eq!(timed.now_ns(3), 7);
            assert!(!timed.send(peer, &self.frames[0], b"and more"), "in two pieces");
            for pair in self.frames.chunks(2) {
                let mut timed = Timed { back: &mut back, clock_ns: 7 };
                self.taken.push(timed.send(peer, &pair[0], b""));
                self.taken.push(back.send(peer, &pair[1], b""));
            }
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            unreachable!("{peer:?}: no switch has marked {frame:?}");
        }
    }

    fn shm(config: &ShmConfig) -> Shm {
        Shm::new(config, Waker::new().unwrap())
    }

    #[test]
    fn back__says_true_of_the_frames_that_arrive_and_of_no_other() {
        // The ring fills before all have gone.
        let config =
            ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2_048, ..Default::default() };
        let frames: Vec<[u8; 40]> = (0..2_000u16)
            .map(|number| std::array::from_fn(|at| number.to_le_bytes()[at % 2]))
            .collect();
        let (mut near, mut far) = (shm(&config), shm(&config));
        let segment = Segment::create(&config).unwrap();
        let other = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (bell, other_bell) = UnixStream::pair().unwrap();
        let to_far = near.add_peer(ShmLink::new(segment, Side::Creator, bell)).unwrap();
        let to_near = far.add_peer(ShmLink::new(other, Side::Opener, other_bell)).unwrap();
        let say = |by: &mut Shm, peer| {
            assert_eq!(by.tx_burst(&[TxFrame { peer, head: b"word", body: b"" }]), 0);
        };
        // The first frame to a ring detects how much room there is.
        say(&mut far, to_near);
        assert_eq!(near.rx_burst(64, |_, _: &[u8]| {}), 1);
        say(&mut near, to_far);
        let mut echo = Echo { frames: &frames, taken: Vec::new() };
        assert_eq!(far.rx_burst_to(64, &mut echo), 1);
        far.flush();
        let taken = echo.taken;
        assert!(taken.contains(&true) && taken.contains(&false));
        let mut arrived = Vec::new();
        while near.rx_burst(64, |_, frame: &[u8]| arrived.push(frame.to_vec())) > 0 {}
        let sent = frames.iter().zip(&taken).filter_map(|(frame, taken)| taken.then_some(frame));
        assert!(arrived.iter().eq(sent));
        let mut nowhere = Back::NONE;
        assert!(!nowhere.reaches(PeerKey(0)) && !nowhere.send(PeerKey(0), &frames[0], b""));
    }
}
